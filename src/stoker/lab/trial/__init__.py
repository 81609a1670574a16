"""Measure loaders and training steps in fresh processes, and search for the best arguments."""
