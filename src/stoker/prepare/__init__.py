"""Raw files to the store: text into tokens, a tokenizer out of text, pictures into a store, or checked."""

from __future__ import annotations

from stoker.prepare.image_check import BadPicture, ImageCheck, check_images
from stoker.prepare.images_preparation import images
from stoker.prepare.images_report import ImageReport
from stoker.prepare.preparation import tokens
from stoker.prepare.report import Progress, Report
from stoker.prepare.training import tokenizer

__all__ = [
    "BadPicture",
    "ImageCheck",
    "ImageReport",
    "Progress",
    "Report",
    "check_images",
    "images",
    "tokenizer",
    "tokens",
]
