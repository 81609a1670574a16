"""Transforms of samples between source and batch, deterministic per sample.

Images: all but `Apply` have torchvision's names, arguments and results; `Apply` calls your own function.
Text: `stoker.transform.tokenizer`.
"""

from __future__ import annotations

from stoker.transform.image.color import ColorJitter, RandomGrayscale
from stoker.transform.image.forms import Apply
from stoker.transform.image.geometry import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from stoker.transform.image.randaugment import RandAugment

__all__ = [
    "Apply",
    "CenterCrop",
    "ColorJitter",
    "RandAugment",
    "RandomCrop",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
]
