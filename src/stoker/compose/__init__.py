"""Datasets made out of other datasets: documents packed into rows, sources mixed at weights."""
