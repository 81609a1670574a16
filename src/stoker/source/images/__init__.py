"""Encoded images from folders, lists, tar archives, columns of tables, and stores."""

from __future__ import annotations

from stoker.source.images.image_opening import open_images
from stoker.source.images.image_storage import EncodedImage, ImageSource
from stoker.source.images.listing import EXTENSIONS

__all__ = ["EXTENSIONS", "EncodedImage", "ImageSource", "open_images"]
