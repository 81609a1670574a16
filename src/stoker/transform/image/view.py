"""What a picture becomes, as numbers: which part of it, at which size, mirrored or not."""

from __future__ import annotations

from typing import NamedTuple

Region = tuple[int, int, int, int]
"""Left, top, right, bottom, in whole pixels; right and bottom are just outside."""

Box = tuple[float, float, float, float]
"""The same in fractions of pixels."""


class View(NamedTuple):
    """A part of a picture, resized. Drawn from the picture's size alone, before anything is decoded.

    Cutting and then resizing has `box` equal to `region`: what lies outside is not looked at. Resizing and then
    cutting has `region` as the whole picture and `box` as the part that is kept: the pixels along its border are
    blended with those outside, as they would be in the whole picture resized.
    """

    region: Region
    """The part that may be looked at."""
    box: Box
    """The part that is resized to `size`, inside the region."""
    size: tuple[int, int]
    """Height and width of what comes of it."""
    flip: bool = False
    """Mirror it left to right, last of all."""


def whole(width: int, height: int) -> View:
    """Return the view of all of a picture, as it is."""
    return View((0, 0, width, height), (0.0, 0.0, float(width), float(height)), (height, width))
