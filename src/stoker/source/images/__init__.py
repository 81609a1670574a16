"""Encoded images from folders, lists, tar archives, columns of tables, and stores."""

from __future__ import annotations

from stoker.source.images.listing import EXTENSIONS
from stoker.source.images.opening import open_images
from stoker.source.images.protocols import EncodedImage, ImageSource

__all__ = ["EXTENSIONS", "EncodedImage", "ImageSource", "open_images"]
