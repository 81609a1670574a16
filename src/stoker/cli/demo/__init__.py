"""demo placeholder."""
def demo() -> None:
    """x"""
