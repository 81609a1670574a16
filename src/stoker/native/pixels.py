"""Resize images, and decode JPEG files no further than the resized result needs.

Pillow is the definition: the results have the same bits, several times as quickly.
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
    """Resize an image, or the part of it in `box` (left, top, right, bottom), to the size of `out`.

    Both are [height, width, channels] of 1, 3 or 4 channels, which are resized separately. `out` may have any strides,
    also negative ones. Antialiased and bilinear: bit for bit what Pillow's `Image.resize(size, BILINEAR, box)` gives,
    first across and then down. From version 13 on, Pillow goes down first where an image loses more than twice as many
    rows as columns; some pixels then differ by 1.

    Returns False, having written nothing, where the library is not loaded. Raises `ArgumentError` for shapes and boxes
    that do not fit.
    """
    native = library()
    if native is None:
        return False
    height, width, channels, row_step = rows_of(pixels)
    if out.shape[2:] != (channels,):
        raise ArgumentError(
            f"out must have {channels} channels, as the image, got the shape {out.shape}", hint="pass such an array"
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
    """Return whether `decode_jpeg` is available."""
    return jpeg_library() is not None


def decode_jpeg(
    data: Any, region: Sequence[int], box: Sequence[float], out: NDArray[np.uint8], *, shrink: float | None = 1.0
) -> None:
    """Decode the part `box` of a JPEG file (bytes, a memoryview, an array of bytes), resized to the size of `out`.

    The result is as if the file was decoded, cropped to `region` and then resized by `resize`: no pixel outside the
    region counts. Both are (left, top, right, bottom) of the image as stored; the box lies inside the region, in
    fractions of pixels. `out` is [height, width, channels] in any layout, RGB or (with one channel) gray.

    While the box has `shrink` times as many pixels as `out` in both directions, the image is decoded at 1/2, 1/4 or
    1/8 of its size; never, if `shrink` is 0 or None. Region and box are divided likewise; a pixel on the border of the
    region is taken whole.

    Raises `JpegFault` if the part of the file that has to be read is damaged or truncated, or for files that are not
    supported here: CMYK, 12 bits, more scans than encoders write. The content of `out` is then undefined. Raises
    `ArgumentError` where `has_jpeg` is False. Releases the GIL.
    """
    native = jpeg_library()
    if native is None:
        raise ArgumentError(
            f"the native JPEG decoder is {describe_jpeg()}",
            hint="check has_jpeg() first; Pillow is always available",
        )
    if out.shape[2:] == (4,):
        raise ArgumentError("out has 4 channels, expected 3 or 1", hint="JPEG files decode to RGB or gray")
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
            f"an image must be uint8 [height, width, channels], got {pixels.dtype} {pixels.shape}",
            hint="with 1, 3 or 4 channels, and not empty",
        )
    height, width, channels = pixels.shape
    return height, width, channels, pixels.strides[0]


def target_of(out: NDArray[np.uint8]) -> tuple[Any, ...]:
    """Return the fields of `struct target` in resize.h for an output."""
    height, width, channels, row_step = rows_of(out)
    if not out.flags.writeable:
        raise ArgumentError("out is read-only", hint="pass an array that can be written")
    return address(out), height, width, channels, row_step, out.strides[1], out.strides[2]
