"""Sample to sample: what is done to data between its source and its batch, the same every time it is done.

Pictures: `RandomResizedCrop`, `Resize`, `CenterCrop`, `RandomCrop`, `RandomHorizontalFlip`, `ColorJitter`,
`RandomGrayscale` and `RandAugment` have the names, arguments and results of torchvision's; `Apply` hands pictures to a
function of your own. Text: `stoker.transform.tokenizer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.transform.image.colour import ColorJitter, RandomGrayscale
    from stoker.transform.image.foreign import Apply
    from stoker.transform.image.geometry import (
        CenterCrop,
        RandomCrop,
        RandomHorizontalFlip,
        RandomResizedCrop,
        Resize,
    )
    from stoker.transform.image.randaugment import RandAugment

# Where each lives; imported when it is used.
_HOMES = {
    "Apply": "foreign",
    "CenterCrop": "geometry",
    "ColorJitter": "colour",
    "RandAugment": "randaugment",
    "RandomCrop": "geometry",
    "RandomGrayscale": "colour",
    "RandomHorizontalFlip": "geometry",
    "RandomResizedCrop": "geometry",
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
    "Resize",
]


if not TYPE_CHECKING:  # or type checkers would take any name for one of ours

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module 'stoker.transform' has no attribute {name!r}")
        value = getattr(import_module(f"stoker.transform.image.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, "image", "tokenizer"})
