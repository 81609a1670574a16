"""Explain what slows a run down: causes, verdict, possible gain, what to change."""
