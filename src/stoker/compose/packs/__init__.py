"""Documents of tokens packed into rows of a fixed length; planned once, addressed by position."""
