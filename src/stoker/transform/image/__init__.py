"""Decode, crop, resize and recolor images; results are the same in every engine."""
