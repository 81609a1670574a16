"""Worker processes: how they start, get their requests, answer, die and are replaced."""
