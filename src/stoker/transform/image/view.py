"""Geometry of the result: which part of an image, at which size, flipped or not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from numpy.typing import NDArray

Region = tuple[int, int, int, int]
"""Left, top, right, bottom, in whole pixels; right and bottom are exclusive."""

Box = tuple[float, float, float, float]
"""The same in fractions of pixels."""


class View(NamedTuple):
    """A resized part of an image. Depends only on the size of the image, so it is drawn before decoding.

    Derive one view from another with `_replace`, which keeps all other fields.

    For crop then resize, `box` equals `region`: pixels outside are not used. For resize then crop, `region` is the
    whole image and `box` the part that is kept: pixels along its border are blended with those outside, as in the
    resized whole image.
    """

    region: Region
    """The part whose pixels may be used."""
    box: Box
    """The part that is resized to `size`, inside the region."""
    size: tuple[int, int]
    """Height and width of the result."""
    flips: tuple[bool, bool] = (False, False)
    """Whether to flip rows (top to bottom) and columns (left to right), as the last step: the axes of [H, W]."""


def whole(width: int, height: int) -> View:
    """Return the identity view of an image."""
    return View((0, 0, width, height), (0.0, 0.0, float(width), float(height)), (height, width))


def is_plain(view: View) -> bool:
    """Return whether a view does not resize."""
    left, top, right, bottom = view.box
    height, width = view.size
    return right - left == width and bottom - top == height and left % 1 == 0 and top % 1 == 0


def inside(region: Region, box: Box) -> Box:
    """Return a box relative to its region, clamped, as rounding may put it slightly outside."""
    left, top, right, bottom = region
    first, upper, last, lower = box
    return first - left, upper - top, min(last, right) - left, min(lower, bottom) - top


def flipped(pixels: NDArray[Any], flips: Iterable[object]) -> NDArray[Any]:
    """Return a view of `pixels` [H, W, ...] with rows and columns in reverse order where `flips` says so."""
    rows, columns = (slice(None, None, -1 if is_flipped else 1) for is_flipped in flips)
    return pixels[rows, columns]


def cut(view: View, left: int, top: int, width: int, height: int) -> View:
    """Return the part of a view that starts at (left, top) of its result."""
    view_height, view_width = view.size
    if view.flips[0]:  # flipping is last, so crop on the other side
        top = view_height - top - height
    if view.flips[1]:
        left = view_width - left - width
    first, upper, last, lower = view.box
    if is_plain(view):
        x, y = int(first) + left, int(upper) + top
        right, lower = x + width, y + height
        box = float(x), float(y), float(right), float(lower)
        return view._replace(region=(x, y, right, lower), box=box, size=(height, width))
    # After resizing, a part of the box gives the same pixels if the whole region may still be used.
    across, down = (last - first) / view_width, (lower - upper) / view_height
    right, bottom = left + width, top + height
    box = (
        first + left * across,
        upper + top * down,
        last if right == view_width else first + right * across,
        lower if bottom == view_height else upper + bottom * down,
    )
    return view._replace(box=box, size=(height, width))
