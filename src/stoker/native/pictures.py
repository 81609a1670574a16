"""Pictures made smaller or larger. Pillow is the definition: `resize` gives its bits, several times as quickly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native.arrays import address
from stoker.native.faults import raise_fault
from stoker.native.library import library

UINT8 = np.dtype(np.uint8)
CHANNELS = (1, 3, 4)


def resize(pixels: NDArray[np.uint8], box: Sequence[float], out: NDArray[np.uint8]) -> bool:
    """Write a picture, or the part of it in `box` (left, top, right, bottom), into `out` at the size that has.

    Both are [height, width, channels], of 1, 3 or 4 channels, each by itself. `out` may lie in memory in any way, also
    mirrored or channel by channel. Antialiased and bilinear: bit for bit what Pillow's
    `Image.resize(size, BILINEAR, box)` gives, first across and then down. From version 13 on Pillow does it the other
    way round where a picture loses more than twice as many rows as columns, and rounds some pixels by 1 otherwise.

    False, and nothing written, where the library is not there; `ArgumentError` if something cannot be.
    """
    native = library()
    if native is None:
        return False
    height, width, channels, row_step = rows_of(pixels)
    if out.shape[2:] != (channels,):
        raise ArgumentError(
            f"a picture of {channels} channels is to go into {out.shape}", hint="out has as many as the picture"
        )
    if pixels.strides[2] != 1 or pixels.strides[1] != channels:
        pixels = np.ascontiguousarray(pixels)
        row_step = width * channels
    left, top, right, bottom = box
    found = native.resize(address(pixels), height, width, channels, row_step, left, top, right, bottom, *target_of(out))
    if found:
        raise_fault(found)
    return True


def rows_of(pixels: NDArray[np.uint8]) -> tuple[int, int, int, int]:
    """Return height, width, channels, and the bytes from one row to the next."""
    if pixels.dtype != UINT8 or pixels.ndim != 3 or pixels.shape[2] not in CHANNELS or not pixels.size:
        raise ArgumentError(
            f"a picture is {pixels.dtype} of {pixels.shape}", hint="uint8 of [height, width, channels] is needed"
        )
    height, width, channels = pixels.shape
    return height, width, channels, pixels.strides[0]


def target_of(out: NDArray[np.uint8]) -> tuple[Any, ...]:
    """Return where a picture is to be written, as the C sources have it."""
    height, width, channels, row_step = rows_of(out)
    if not out.flags.writeable:
        raise ArgumentError("out is read-only", hint="pass an array that can be written")
    return address(out), height, width, channels, row_step, out.strides[1], out.strides[2]
