"""Forms of an image: PIL image, array [H, W, C], tensor [C, H, W]; and `Apply`, which calls a function with one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.errors import ArgumentError, MissingExtra

if TYPE_CHECKING:
    from PIL.Image import Image


FORMS = ("image", "array", "tensor")

CHANNELS = (1, 3, 4)
"""Supported numbers of channels."""


def pillow() -> Any:
    """Import and return `PIL.Image`; raise `MissingExtra` without Pillow."""
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtra(
            "Pillow", extra="images", need="decoding images other than plain JPEG, and transforming images"
        ) from error
    return PIL.Image


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_image(value: Any) -> bool:
    """Return whether a value is a PIL image, without importing Pillow."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def is_picture(value: Any) -> bool:
    """Return whether a value is an array [H, W, C] with 1, 3 or 4 channels, or [H, W]."""
    return isinstance(value, np.ndarray) and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] in CHANNELS))


def as_image(value: Any, dtype: Any = np.uint8) -> Image:
    """Convert an image in any form to a PIL image. Arrays and tensors must have the dtype."""
    if is_image(value):
        return value  # type: ignore[no-any-return]
    if is_tensor(value):
        if value.dim() == 3:
            value = value.permute(1, 2, 0)
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype != dtype or not is_picture(array):
        raise ArgumentError(
            f"cannot transform {type(value).__name__} of {array.dtype} and shape {array.shape} as an image",
            hint=f"use {np.dtype(dtype)} arrays [H, W, C] or tensors [C, H, W] with 1, 3 or 4 channels; put transforms "
            "that change the dtype (ToTensor, Normalize) last",
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return pillow().fromarray(np.ascontiguousarray(array))  # type: ignore[no-any-return]


def as_array(image: Image) -> np.ndarray[Any, np.dtype[Any]]:
    """Convert a PIL image to an array [H, W, C]."""
    array = np.asarray(image)
    return array if array.ndim == 3 else array[:, :, None]


def like(original: Any, image: Image) -> Any:
    """Convert a PIL image to the form of `original`."""
    if is_image(original):
        return image
    array = np.array(image)  # a copy: the image's own memory is read-only
    if not is_tensor(original):
        return array if original.ndim == array.ndim else array[:, :, None] if array.ndim == 2 else array
    import torch

    if array.ndim == 3:
        return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))
    tensor = torch.from_numpy(array)
    return tensor[None] if original.dim() == 3 else tensor


class Apply:
    """Calls your own function with images in the form it expects.

    A plain function gets a PIL image, as in torchvision's datasets. With `Apply` it gets `form`: "image" (PIL), "array"
    (uint8 [H, W, C]) or "tensor" (uint8 [C, H, W]).
    """

    def __init__(self, function: Callable[[Any], Any], form: str = "array") -> None:
        if form not in FORMS:
            raise ArgumentError(f"unknown form={form!r}", hint=f"choose one of {', '.join(FORMS)}")
        self.function, self.form = function, form

    def __call__(self, picture: Any) -> Any:
        """Return the result of the function for an image."""
        image = as_image(picture)
        if self.form == "image":
            return self.function(image)
        array = np.array(as_array(image))  # a copy: the function may change it in place
        if self.form == "array":
            return self.function(array)
        import torch

        return self.function(torch.from_numpy(array).permute(2, 0, 1).contiguous())

    def __repr__(self) -> str:
        return f"Apply({self.function!r}, form={self.form!r})"
