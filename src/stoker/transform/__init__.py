"""Transforms of samples between source and batch, deterministic per sample.

Images: `RandomResizedCrop`, `Resize`, `CenterCrop`, `RandomCrop`, `RandomHorizontalFlip`, `RandomVerticalFlip`,
`ColorJitter`, `RandomGrayscale` and `RandAugment` have torchvision's names, arguments and results; `Apply` calls your
own function.
Text: `stoker.transform.tokenizer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.transform.image.color import ColorJitter, RandomGrayscale
    from stoker.transform.image.foreign import Apply
    from stoker.transform.image.geometry import (
        CenterCrop,
        RandomCrop,
        RandomHorizontalFlip,
        RandomResizedCrop,
        RandomVerticalFlip,
        Resize,
    )
    from stoker.transform.image.randaugment import RandAugment

# The module of each transform, imported on first use.
_HOMES = {
    "Apply": "foreign",
    "CenterCrop": "geometry",
    "ColorJitter": "color",
    "RandAugment": "randaugment",
    "RandomCrop": "geometry",
    "RandomGrayscale": "color",
    "RandomHorizontalFlip": "geometry",
    "RandomResizedCrop": "geometry",
    "RandomVerticalFlip": "geometry",
    "Resize": "geometry",
}

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


if not TYPE_CHECKING:  # hide from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module 'stoker.transform' has no attribute {name!r}")
        value = getattr(import_module(f"stoker.transform.image.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, "image", "tokenizer"})
