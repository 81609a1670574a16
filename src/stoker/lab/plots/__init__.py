"""Draw records as plots and terminal tables."""
