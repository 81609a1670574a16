"""Decode only the region of a JPEG file that a view needs, at 1/2, 1/4 or 1/8 scale if it is downscaled.

Uses the native library if it was built, else simplejpeg (complete images), else Pillow. All of them release the GIL.
"""

from __future__ import annotations

import io
from functools import cache
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker import native
from stoker.transform.image.forms import as_array, pillow
from stoker.transform.image.geometry import seen
from stoker.transform.image.undecodable import Undecodable
from stoker.transform.image.view import Box, Region, View, inside

SCALES = (8, 4, 2)
"""Scale denominators at which JPEG can be decoded."""


NUM_ZEROS = 64
"""This many zero bytes at the end mean space that was reserved and never written."""


def is_plain_jpeg(header: native.JpegHeader) -> bool:
    """Return whether every decoder can read the file as RGB or gray; CMYK, 12-bit and arithmetic coding need Pillow."""
    return (
        header.num_components in (1, 3)
        and header.precision == 8
        and not header.is_arithmetic
        and header.width > 0
        and header.height > 0
    )


def decode_jpeg(
    data: Any, header: native.JpegHeader, region: Region, box: Box, out: NDArray[np.uint8], *, shrink: float
) -> None:
    """Decode a box of a JPEG file, resized, into `out` [h, w, 3 or 1] of any strides, in stored orientation.

    Only pixels inside `region` are used. Decoding is at 1/2, 1/4 or 1/8 scale if the box still has `shrink` times the
    pixels of `out` in both directions; always at full scale if `shrink` is 0.
    """
    region = _needed(region, box, out)
    if not header.has_end:
        # The file may be truncated, even below the region, and must not pass as complete.
        pixels = _whole(completed(data, header), header, 1, out.shape[2])
        write(pixels, region, box, out)
    elif native.has_jpeg():
        _decoded(data, region, out, shrink, box)
    else:
        scale = _scale(box, out, shrink)
        pixels = _whole(data, header, scale, out.shape[2])
        if scale > 1:
            left, top, right, bottom = region
            region = left // scale, top // scale, -(-right // scale), -(-bottom // scale)
            first, upper, last, lower = box
            box = first / scale, upper / scale, last / scale, lower / scale
        write(pixels, region, box, out)


def completed(data: Any, header: native.JpegHeader) -> Any:
    """Return a JPEG file with an end marker, so that decoders can detect whether more than the marker was missing.

    For progressive files they cannot, as each scan is complete by itself; so these raise `Undecodable`.
    """
    if header.has_end:
        return data
    if header.is_progressive:
        raise Undecodable("it is truncated: the end marker is missing")
    if len(data) > NUM_ZEROS and not any(bytes(data[-NUM_ZEROS:])):  # decoders read zeros as endless gray
        raise Undecodable("it ends in zero bytes without an end marker: was it written completely?")
    is_strict = native.has_jpeg() or _simplejpeg() is not None
    return bytes(data) + b"\xff\xd9" if is_strict else data


def check_jpeg(data: Any, header: native.JpegHeader) -> None:
    """Raise `Undecodable` if any part of a JPEG file is damaged or missing; Pillow would silently make it gray."""
    if is_plain_jpeg(header) and native.has_jpeg():
        small = np.empty((max(1, header.height // SCALES[0]), max(1, header.width // SCALES[0]), 1), np.uint8)
        _decoded(data, (0, 0, header.width, header.height), small, 1.0)
    elif _simplejpeg() is not None and header.precision == 8:
        _by_simplejpeg(data, header, SCALES[0], "CMYK" if header.num_components == 4 else "GRAY")


def write(pixels: NDArray[np.uint8], region: Region, box: Box, out: NDArray[np.uint8]) -> None:
    """Write a box of `pixels` [H, W, C], resized, to `out` [h, w, C], using only pixels inside `region`."""
    left, top, right, bottom = region
    part = pixels[top:bottom, left:right]
    inner = inside(region, box)
    height, width = out.shape[:2]
    if part.shape == out.shape and inner == (0.0, 0.0, float(width), float(height)):
        out[...] = part
    elif not native.resize(part, inner, out):
        image = pillow().fromarray(np.ascontiguousarray(part if part.shape[2] > 1 else part[:, :, 0]))
        out[...] = as_array(seen(image, View((0, 0, image.width, image.height), inner, (height, width))))


def _needed(region: Region, box: Box, out: NDArray[np.uint8]) -> Region:
    """Return the part of a region that affects a resized box: the filter reaches one result pixel beyond it."""
    left, top, right, bottom = region
    first, upper, last, lower = box
    if (first, upper, last, lower) == (left, top, right, bottom):
        return region
    height, width = out.shape[:2]
    across, down = max(1.0, (last - first) / width) + 1, max(1.0, (lower - upper) / height) + 1
    return (
        max(left, floor(first - across)),
        max(top, floor(upper - down)),
        min(right, ceil(last + across)),
        min(bottom, ceil(lower + down)),
    )


def _scale(box: Box, out: NDArray[np.uint8], shrink: float) -> int:
    height, width = out.shape[:2]
    if shrink > 0:
        for scale in SCALES:
            if box[2] - box[0] >= shrink * scale * width and box[3] - box[1] >= shrink * scale * height:
                return scale
    return 1


def _decoded(data: Any, region: Region, out: NDArray[np.uint8], shrink: float, box: Box | None = None) -> None:
    try:
        native.decode_jpeg(data, region, box or region, out, shrink=shrink)
    except native.JpegFault as fault:
        raise Undecodable(str(fault)) from fault


def _whole(data: Any, header: native.JpegHeader, scale: int, num_channels: int) -> NDArray[np.uint8]:
    """Decode a complete image at 1/scale; raise if any part is damaged."""
    if scale == 1 and native.has_jpeg():
        pixels = np.empty((header.height, header.width, num_channels), np.uint8)
        _decoded(data, (0, 0, header.width, header.height), pixels, 0)
        return pixels
    if _simplejpeg() is not None:
        return _by_simplejpeg(data, header, scale, "GRAY" if num_channels == 1 else "RGB")
    return _by_pillow(data, header, scale, "L" if num_channels == 1 else "RGB")


def _by_simplejpeg(data: Any, header: native.JpegHeader, scale: int, colors: str) -> NDArray[np.uint8]:
    decode = _simplejpeg()
    least = {"min_height": -(-header.height // scale), "min_width": -(-header.width // scale)} if scale > 1 else {}
    try:
        try:
            return decode(data, colors, strict=True, **least)  # type: ignore[no-any-return]
        except ValueError as error:
            if "xtraneous" not in str(error):
                raise
            return decode(data, colors, strict=False, **least)  # type: ignore[no-any-return]  # they do no harm
    except ValueError as error:
        raise Undecodable(str(error)) from error


def _by_pillow(data: Any, header: native.JpegHeader, scale: int, mode: str) -> NDArray[np.uint8]:
    try:
        image = pillow().open(io.BytesIO(data), formats=["JPEG"])
        if scale > 1:
            image.draft(mode, (header.width // scale, header.height // scale))
        return as_array(image.convert(mode))
    except (OSError, ValueError, SyntaxError) as error:
        raise Undecodable(str(error) or type(error).__name__) from error


@cache
def _simplejpeg() -> Any:
    try:
        from simplejpeg import decode_jpeg  # type: ignore[import-untyped]
    except ImportError:
        return None
    return decode_jpeg
