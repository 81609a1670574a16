"""EXIF orientation: images may be stored rotated or mirrored.

EXIF values: 1 is upright, 2 mirrored, 3 upside down, 4 both; 5 to 8 also swap rows and columns. Everything else uses
upright coordinates.
"""

from __future__ import annotations

from typing import Any, TypeVar

from numpy.typing import NDArray

N = TypeVar("N", int, float)

UPRIGHT = 1


def is_turned(orientation: int) -> bool:
    """Return whether rows are stored as columns."""
    return orientation > 4


def stored_box(orientation: int, box: tuple[N, N, N, N], width: int, height: int) -> tuple[N, N, N, N]:
    """Map a box of the upright image to the stored image, whose width and height are given."""
    left, top, right, bottom = box
    if is_turned(orientation):
        left, top, right, bottom = top, left, bottom, right
    if orientation in (2, 3, 7, 8):
        left, right = width - right, width - left
    if orientation in (3, 4, 6, 7):
        top, bottom = height - bottom, height - top
    return left, top, right, bottom


def stored_array(orientation: int, upright: NDArray[Any]) -> NDArray[Any]:
    """Return a view of an upright array [H, W, C] in stored orientation, to be filled with stored pixels."""
    stored = upright.transpose(1, 0, 2) if is_turned(orientation) else upright
    if orientation in (2, 3, 7, 8):
        stored = stored[:, ::-1]
    if orientation in (3, 4, 6, 7):
        stored = stored[::-1]
    return stored
