"""What a picture becomes, as numbers: which part of it, at which size, mirrored or not."""

from __future__ import annotations

from typing import NamedTuple

Region = tuple[int, int, int, int]
"""Left, top, right, bottom, in whole pixels; right and bottom are just outside."""

Box = tuple[float, float, float, float]
"""The same in fractions of pixels."""


class View(NamedTuple):
    """A part of a picture, resized. Drawn from the picture's size alone, before anything is decoded.

    One is made of another by `_replace`, so that what is not changed stays.

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


def is_plain(view: View) -> bool:
    """Return whether a view takes pixels as they are: nothing is resized."""
    left, top, right, bottom = view.box
    height, width = view.size
    return right - left == width and bottom - top == height and left % 1 == 0 and top % 1 == 0


def inside(region: Region, box: Box) -> Box:
    """Return a box as it lies in its region; rounding may have put it a little beyond."""
    left, top, right, bottom = region
    first, upper, last, lower = box
    return first - left, upper - top, min(last, right) - left, min(lower, bottom) - top


def cut(view: View, left: int, top: int, width: int, height: int) -> View:
    """Return the part of a view that begins at (left, top) of what comes of it."""
    view_height, view_width = view.size
    if view.flip:  # what is mirrored last is cut on the other side
        left = view_width - left - width
    first, upper, last, lower = view.box
    if is_plain(view):
        x, y = int(first) + left, int(upper) + top
        right, lower = x + width, y + height
        box = float(x), float(y), float(right), float(lower)
        return view._replace(region=(x, y, right, lower), box=box, size=(height, width))
    # It was resized: the same pixels come of a part of the box, if all of the region may still be looked at.
    across, down = (last - first) / view_width, (lower - upper) / view_height
    right, bottom = left + width, top + height
    box = (
        first + left * across,
        upper + top * down,
        last if right == view_width else first + right * across,
        lower if bottom == view_height else upper + bottom * down,
    )
    return view._replace(box=box, size=(height, width))
