"""The version, alone in its file so that building a wheel imports nothing."""

__version__ = "0.1.0"
