"""Real trainers, as a user would drive them: tiny models, offline, one and two processes."""
