"""Color transforms, with the pixels that torchvision's give on PIL images.

The random numbers are those of the sample (`stoker.rng()`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.errors import ArgumentError
from stoker.transform.image.forms import pillow
from stoker.transform.image.geometry import Transform
from stoker.transform.image.transform_arguments import numbers, one_number, probability
from stoker.transform.image.uniforms import Uniform, whole_number

if TYPE_CHECKING:
    from PIL.Image import Image

Range = tuple[float, float]


class ColorJitter(Transform):
    """Changes brightness, contrast, saturation and hue by random amounts, in random order."""

    def __init__(
        self,
        brightness: float | Sequence[float] = 0,
        contrast: float | Sequence[float] = 0,
        saturation: float | Sequence[float] = 0,
        hue: float | Sequence[float] = 0,
    ) -> None:
        self.brightness = _factors("brightness", brightness)
        self.contrast = _factors("contrast", contrast)
        self.saturation = _factors("saturation", saturation)
        self.hue = _factors("hue", hue, middle=0.0, least=-0.5, most=0.5)
        changes = ((brightened, self.brightness), (contrasted, self.contrast), (saturated, self.saturation))
        self._changes = [(change, factors) for change, factors in (*changes, (hued, self.hue)) if factors is not None]

    def apply(self, image: Image, uniform: Uniform) -> Image:
        """Return `image` with its colors changed."""
        drawn = [(change, low + (high - low) * uniform()) for change, (low, high) in self._changes]
        for last in range(len(drawn) - 1, 0, -1):  # shuffle
            other = whole_number(uniform, last + 1)
            drawn[last], drawn[other] = drawn[other], drawn[last]
        for change, amount in drawn:
            image = change(image, amount)
        return image


class RandomGrayscale(Transform):
    """Converts to grayscale with probability `p`, keeping the number of channels."""

    def __init__(self, p: float = 0.1) -> None:
        self.p = probability(p)

    def apply(self, image: Image, uniform: Uniform) -> Image:
        """Return `image` in grayscale, or unchanged."""
        if uniform() >= self.p or image.mode == "L":
            return image
        return image.convert("L").convert(image.mode)


def blended(under: Image, image: Image, amount: float) -> Image:
    """Interpolate between `under` (amount 0) and `image` (amount 1), or extrapolate."""
    mixed: Image = pillow().blend(under, image, amount)
    return mixed


def brightened(image: Image, amount: float) -> Image:
    """Scale the brightness of a PIL image: 0 is black, 1 is unchanged."""
    return blended(pillow().new(image.mode, image.size, 0), image, amount)


def contrasted(image: Image, amount: float) -> Image:
    """Scale the contrast of a PIL image: 0 is its mean gray, 1 is unchanged."""
    counts = image.convert("L").histogram()
    num_pixels = sum(counts)
    mean = int(sum(value * count for value, count in enumerate(counts)) / num_pixels + 0.5) if num_pixels else 0
    return blended(pillow().new("L", image.size, mean).convert(image.mode), image, amount)


def saturated(image: Image, amount: float) -> Image:
    """Scale the saturation of a PIL image: 0 is grayscale, 1 is unchanged."""
    return image if image.mode == "L" else blended(image.convert("L").convert(image.mode), image, amount)


def hued(image: Image, amount: float) -> Image:
    """Rotate the hues of a PIL image; an amount of 1 is a full circle."""
    if image.mode == "L":
        return image
    hue, saturation, value = image.convert("HSV").split()
    step = int(amount * 255) % 256
    turned = (np.asarray(hue).astype(np.uint16) + step).astype(np.uint8)
    merged: Image = pillow().merge("HSV", (pillow().fromarray(turned), saturation, value))
    return merged.convert(image.mode)


def _factors(
    name: str, value: Any, *, middle: float = 1.0, least: float = 0.0, most: float = float("inf")
) -> Range | None:
    """Return the range of amounts; None if nothing changes."""
    far = one_number(value)
    if far is None:
        low, high = numbers(name, value)
    else:
        if far < 0:
            raise ArgumentError(
                f"{name}={value} is negative", hint="pass how far it may change, or a range (low, high)"
            )
        low, high = middle - far, middle + far
        if middle:
            low = max(low, 0.0)
    if not least <= low <= high <= most:
        raise ArgumentError(f"{name} must be within {least} to {most}, got {value}", hint="pass a smaller range")
    return None if low == high == middle else (low, high)
