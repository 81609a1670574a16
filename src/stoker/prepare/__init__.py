"""Prepare raw files: text as tokens, a tokenizer from text, images as a store; or check images."""

from __future__ import annotations

from stoker.prepare.image_check import ImageCheck, UnusableImage, check_images
from stoker.prepare.image_preparation import images
from stoker.prepare.report import ImageReport, PreparationProgress, TokensReport
from stoker.prepare.token_preparation import tokens
from stoker.prepare.tokenizers import tokenizer

# earlier names
BadPicture = UnusableImage
Progress = PreparationProgress
Report = TokensReport

__all__ = [
    "BadPicture",
    "ImageCheck",
    "ImageReport",
    "PreparationProgress",
    "Progress",
    "Report",
    "TokensReport",
    "UnusableImage",
    "check_images",
    "images",
    "tokenizer",
    "tokens",
]
