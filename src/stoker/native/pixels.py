"""Pictures made smaller or larger, and JPEG files decoded no further than that needs.

Pillow is the definition: the same bits come out, several times as quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native.arrays import address, address_of_bytes
from stoker.native.faults import BAD_JPEG, JpegFault, raise_fault
from stoker.native.library import describe_jpeg, jpeg_library, library

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


def has_jpeg() -> bool:
    """Return whether `decode_jpeg` can be called."""
    return jpeg_library() is not None


def decode_jpeg(
    data: Any, region: Sequence[int], box: Sequence[float], out: NDArray[np.uint8], *, shrink: float | None = 1.0
) -> None:
    """Write the part `box` of a JPEG file (bytes, a memoryview, an array of bytes) into `out` at the size that has.

    Nothing outside `region` is looked at: as if it was decoded, cut to the region, and then resized as `resize` does
    it. Both are (left, top, right, bottom) of the picture as it is stored, the box inside the region and in fractions
    of pixels. `out` is [height, width, channels] in any layout, RGB or (with one channel) grey.

    While the box has `shrink` times as many pixels as `out` across and down, the picture is decoded at 1/2, 1/4 or 1/8;
    never, if that is 0 or None. Region and box are then in pixels of that picture, to fractions of which they are
    divided; a pixel on the border of the region is taken whole.

    `JpegFault` if what has to be read of the file is damaged or cut short, or if it is of a kind that is not decoded
    here: CMYK, 12 bits, more scans than encoders write. `out` then holds something or other. Where `has_jpeg` is False
    an `ArgumentError`. Other threads run meanwhile.
    """
    native = jpeg_library()
    if native is None:
        raise ArgumentError(
            f"the native JPEG decoder is {describe_jpeg()}",
            hint="has_jpeg() says whether it is there; Pillow always is",
        )
    if out.shape[2:] == (4,):
        raise ArgumentError("a JPEG file is to go into 4 channels", hint="out has 3 (RGB) or 1 (grey)")
    begin, num_bytes = address_of_bytes(data)
    found = native.decode_jpeg(begin, num_bytes, *region, *box, shrink or 0.0, *target_of(out))
    if found == BAD_JPEG:
        raise JpegFault(native.message())
    if found:
        raise_fault(found)


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
