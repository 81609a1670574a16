"""Raw files to the store: text into tokens, and a tokenizer out of text; pictures checked before a run."""

from __future__ import annotations

from stoker.prepare.image_check import BadPicture, ImageCheck, check_images
from stoker.prepare.preparation import tokens
from stoker.prepare.report import Progress, Report
from stoker.prepare.training import tokenizer

__all__ = ["BadPicture", "ImageCheck", "Progress", "Report", "check_images", "tokenizer", "tokens"]
