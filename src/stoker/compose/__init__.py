"""Datasets made of other datasets: `packs` of documents, `mixtures` of sources, `images` from files."""
