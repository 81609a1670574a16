"""Encoded pictures into pixels: only the part that is wanted, at the size that is wanted, where it is wanted.

The size is read from the header, the view is drawn from the size, and then no more is decoded than the view needs.
"""

from __future__ import annotations

from collections.abc import Callable

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
from stoker.transform.image.view import View, whole

MODES = {"RGB": 3, "L": 1}
"""What pictures become, and how many channels that has."""

MAX_PIXELS = 178_956_970
"""The largest picture that is decoded, as in Pillow."""

SHRINK = 1.5
"""JPEG is decoded at 1/2, 1/4 or 1/8 if so many times the pixels of the result are left in both directions.

Against full decoding, photographs made four to eight times smaller so come within 51 dB (mean) and 40 dB (worst), and
take 28 % less time; at 1.0 within 43 and 33 dB, and 34 % less.
"""

Data = bytes | memoryview | NDArray[np.uint8]
"""An encoded picture: all of its file."""

Target = NDArray[np.uint8] | Callable[[View], NDArray[np.uint8] | None] | None
"""Where pixels are to be written, or what returns that when the view is known; None is memory of its own."""


def decode(
    data: Data,
    view_of: Callable[[int, int], View] = whole,
    *,
    mode: str = "RGB",
    exact: bool = False,
    out: Target = None,
    name: str | Callable[[], str] = "the picture",
    max_pixels: int = MAX_PIXELS,
    shrink: float = SHRINK,
) -> NDArray[np.uint8]:
    """Return what `view_of(width, height)` makes of an encoded picture, as an array [H, W, C].

    The picture is put upright first, if it says how it was taken (EXIF); width and height are those of the upright
    one. It is written to `out`, if there is one: [H, W, C] of the view's size, with any strides. Whatever is wrong
    with the picture is a `BadImage` that says its name.

    Args:
        data: the file's bytes. What it is, is told by them alone.
        view_of: called once, with width and height, before anything is decoded.
        mode: "RGB" or "L" (grey).
        exact: the pixels of Pillow, bit for bit: `Image.open`, `exif_transpose`, `convert`, `crop`, `resize`
            (bilinear). Otherwise JPEG is decoded smaller where it is made smaller: quicker, and a little different.
        name: of the file, for errors; or what returns it.
        max_pixels: larger pictures are refused. For what Pillow opens, its own limit holds as well
            (`PIL.Image.MAX_IMAGE_PIXELS`: it warns beyond that, and refuses twice as many).
        shrink: see `SHRINK`; 0 always decodes at full size.
    """
    try:
        header = native.jpeg_header(data)
        if header is not None and not exact and is_plain_jpeg(header):
            return _jpeg(data, header, view_of, MODES[mode], out, max_pixels, shrink)
        if not len(data):
            raise Undecodable("it is empty")
        if header is not None:
            data = completed(data, header)
        image, view = decode_by_pillow(data, view_of, mode=mode, max_pixels=max_pixels)
        if header is not None:
            check_jpeg(data, header)
        pixels = _fitting(out, view, MODES[mode])
        if exact:
            pixels[...] = as_array(seen(image, view))
        else:
            write(as_array(image), view.region, view.box, pixels[:, ::-1] if view.flip else pixels)
        return pixels
    except Undecodable as error:
        raise BadImage(name if isinstance(name, str) else name(), reason=str(error)) from (error.__cause__ or error)


def _jpeg(
    data: Data,
    header: native.JpegHeader,
    view_of: Callable[[int, int], View],
    num_channels: int,
    out: Target,
    max_pixels: int,
    shrink: float,
) -> NDArray[np.uint8]:
    width, height, orientation = header.width, header.height, header.orientation
    if width * height > max_pixels:
        raise too_large(width, height, max_pixels)
    view = view_of(height, width) if is_turned(orientation) else view_of(width, height)
    pixels = _fitting(out, view, num_channels)
    region, box, _, flip = view
    target = pixels[:, ::-1] if flip else pixels
    if orientation != UPRIGHT:
        region, box = (stored_box(orientation, region, width, height), stored_box(orientation, box, width, height))
        target = stored_array(orientation, target)
    decode_jpeg(data, header, region, box, target, shrink=shrink)
    return pixels


def _fitting(out: Target, view: View, num_channels: int) -> NDArray[np.uint8]:
    if callable(out):
        out = out(view)
    if out is None:
        return np.empty((*view.size, num_channels), np.uint8)
    if out.shape != (*view.size, num_channels):
        raise ArgumentError(
            f"out has the shape {out.shape}, and the picture {(*view.size, num_channels)}",
            hint="give an array [H, W, C] of the view's size, 3 channels for RGB and 1 for L",
        )
    return out
