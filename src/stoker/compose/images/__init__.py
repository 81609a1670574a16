"""Image files as a dataset: read, decoded no further than needed, cropped and resized straight into the batch."""

from stoker.compose.images.image_dataset import Images, LabeledImage, images

__all__ = ["Images", "LabeledImage", "images"]
