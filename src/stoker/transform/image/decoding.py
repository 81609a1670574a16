"""Decode images: only the needed region, at the needed size, into the target memory.

The size is read from the header, the view is drawn from the size, and only what the view needs is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker import native
from stoker.errors import ArgumentError, BadImage
from stoker.transform.image.forms import as_array
from stoker.transform.image.geometry import seen
from stoker.transform.image.jpeg_decoding import check_jpeg, completed, decode_jpeg, is_plain_jpeg, write
from stoker.transform.image.orientation import UPRIGHT, is_turned, stored_array, stored_box
from stoker.transform.image.pillow_decoding import decode_by_pillow
from stoker.transform.image.undecodable import Undecodable, too_large
from stoker.transform.image.view import View, flipped, whole


class Mode(NamedTuple):
    """Pixel format of an image."""

    num_channels: int
    dtype: np.dtype[Any]

    @property
    def is_deep(self) -> bool:
        """Whether pixels have more than 8 bits: then values are those of the file, unscaled."""
        return self.dtype != np.uint8


MODES = {
    "RGB": Mode(3, np.dtype(np.uint8)),
    "L": Mode(1, np.dtype(np.uint8)),
    "I;16": Mode(1, np.dtype(np.uint16)),
    "I": Mode(1, np.dtype(np.int32)),
    "F": Mode(1, np.dtype(np.float32)),
}
"""Supported pixel formats, by Pillow's mode names."""

MAX_PIXELS = 178_956_970
"""Maximum number of pixels of an image, as in Pillow."""

SHRINK = 1.5
"""Decode JPEG at 1/2, 1/4 or 1/8 if this many times the pixels of the result remain in both directions.

Compared with full decoding, photographs downscaled four to eight times have a PSNR of 51 dB (mean) and 40 dB (worst),
and take 28% less time; at 1.0 it is 43 and 33 dB, and 34% less time.
"""

Data = bytes | memoryview | NDArray[np.uint8]
"""An encoded image: the complete file."""

Pixels = NDArray[Any]

Target = Pixels | Callable[[View], Pixels | None] | None
"""Target array, or a function that returns it once the view is known; None allocates a new array."""


def decode(
    data: Data,
    view_of: Callable[[int, int], View] = whole,
    *,
    mode: str = "RGB",
    exact: bool = False,
    out: Target = None,
    name: str | Callable[[], str] = "the image",
    max_pixels: int = MAX_PIXELS,
    shrink: float = SHRINK,
    apply_exif_orientation: bool = True,
    on_narrowed: Callable[[str], None] | None = None,
) -> Pixels:
    """Decode the part of an image given by `view_of(width, height)`, as an array [H, W, C].

    EXIF orientation is applied first: width and height are those of the upright image. With
    `apply_exif_orientation=False` the image stays as stored. Pixels are written to `out`, if given: [H, W, C] of the
    view's size, with any strides. An image that cannot be decoded raises `BadImage` with its name.

    Args:
        data: the file's bytes, which alone determine the format.
        view_of: called once, with width and height, before anything is decoded.
        mode: "RGB" or "L" (gray), 8 bits each. For images with one channel, "I;16" (uint16), "I" (int32) and "F"
            (float32) return the unscaled values of the file; values out of range are an error.
        exact: bit-identical to Pillow: `Image.open`, `exif_transpose`, `convert`, `crop`, `resize` (bilinear).
            Otherwise JPEG is decoded at reduced size if it is downscaled, which is faster and slightly different.
        name: name of the file for errors, or a function that returns it.
        max_pixels: larger images are an error. For images decoded by Pillow, its own limit applies as well
            (`PIL.Image.MAX_IMAGE_PIXELS`: a warning above it, an error above twice that).
        shrink: see `SHRINK`; 0 always decodes at full size.
        on_narrowed: called with the bit depth of the file if the mode keeps only 8 bits.
    """
    try:
        kind = MODES[mode]
        header = native.jpeg_header(data)
        if header is not None and not apply_exif_orientation:
            header = header._replace(orientation=UPRIGHT)
        if header is not None and not exact and not kind.is_deep and is_plain_jpeg(header):
            return _jpeg(data, header, view_of, kind, out, max_pixels, shrink)
        if not len(data):
            raise Undecodable("it is empty")
        if header is not None:
            data = completed(data, header)
        image, view = decode_by_pillow(
            data,
            view_of,
            mode=mode,
            max_pixels=max_pixels,
            apply_exif_orientation=apply_exif_orientation,
            on_narrowed=on_narrowed,
        )
        if header is not None:
            check_jpeg(data, header)
        pixels = _fitting(out, view, kind)
        if exact or kind.is_deep:
            pixels[...] = as_array(seen(image, view))
        else:
            write(as_array(image), view.region, view.box, flipped(pixels, view.flips))
        return pixels
    except Undecodable as error:
        raise BadImage(name if isinstance(name, str) else name(), reason=str(error)) from (error.__cause__ or error)


def _jpeg(
    data: Data,
    header: native.JpegHeader,
    view_of: Callable[[int, int], View],
    kind: Mode,
    out: Target,
    max_pixels: int,
    shrink: float,
) -> Pixels:
    width, height, orientation = header.width, header.height, header.orientation
    if width * height > max_pixels:
        raise too_large(width, height, max_pixels)
    view = view_of(height, width) if is_turned(orientation) else view_of(width, height)
    pixels = _fitting(out, view, kind)
    region, box = view.region, view.box
    target = flipped(pixels, view.flips)
    if orientation != UPRIGHT:
        region, box = (stored_box(orientation, region, width, height), stored_box(orientation, box, width, height))
        target = stored_array(orientation, target)
    decode_jpeg(data, header, region, box, target, shrink=shrink)
    return pixels


def _fitting(out: Target, view: View, kind: Mode) -> Pixels:
    if callable(out):
        out = out(view)
    shape = (*view.size, kind.num_channels)
    if out is None:
        return np.empty(shape, kind.dtype)
    if out.shape != shape or out.dtype != kind.dtype:
        raise ArgumentError(
            f"out must be {kind.dtype} of shape {shape}, got {out.dtype} of shape {out.shape}",
            hint="pass an array [H, W, C] of the view's size, with 3 channels for RGB, otherwise 1",
        )
    return out
