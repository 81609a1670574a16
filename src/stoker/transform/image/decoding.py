"""Encoded pictures into pixels: only the part that is wanted, at the size that is wanted, where it is wanted.

The size is read from the header, the view is drawn from the size, and then no more is decoded than the view needs.
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
from stoker.transform.image.view import View, whole


class Mode(NamedTuple):
    """What the pixels of a picture are."""

    num_channels: int
    dtype: np.dtype[Any]

    @property
    def is_deep(self) -> bool:
        """Whether there are more than 8 bits: then numbers are those of the file, and nothing is scaled."""
        return self.dtype != np.uint8


MODES = {
    "RGB": Mode(3, np.dtype(np.uint8)),
    "L": Mode(1, np.dtype(np.uint8)),
    "I;16": Mode(1, np.dtype(np.uint16)),
    "I": Mode(1, np.dtype(np.int32)),
    "F": Mode(1, np.dtype(np.float32)),
}
"""What pictures become, by Pillow's names."""

MAX_PIXELS = 178_956_970
"""The largest picture that is decoded, as in Pillow."""

SHRINK = 1.5
"""JPEG is decoded at 1/2, 1/4 or 1/8 if so many times the pixels of the result are left in both directions.

Against full decoding, photographs made four to eight times smaller so come within 51 dB (mean) and 40 dB (worst), and
take 28 % less time; at 1.0 within 43 and 33 dB, and 34 % less.
"""

Data = bytes | memoryview | NDArray[np.uint8]
"""An encoded picture: all of its file."""

Pixels = NDArray[Any]

Target = Pixels | Callable[[View], Pixels | None] | None
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
    apply_exif_orientation: bool = True,
    on_narrowed: Callable[[str], None] | None = None,
) -> Pixels:
    """Return what `view_of(width, height)` makes of an encoded picture, as an array [H, W, C].

    The picture is put upright first, if it says how it was taken (EXIF); width and height are those of the upright
    one. With `apply_exif_orientation=False` it stays as it is stored. It is written to `out`, if there is one: [H, W,
    C] of the view's size, with any strides. Whatever is wrong with the picture is a `BadImage` that says its name.

    Args:
        data: the file's bytes. What it is, is told by them alone.
        view_of: called once, with width and height, before anything is decoded.
        mode: "RGB" or "L" (grey), 8 bits each. Of pictures with one channel, "I;16" (uint16), "I" (int32) and "F"
            (float32) give the numbers that are in the file, not scaled; what they cannot hold is refused.
        exact: the pixels of Pillow, bit for bit: `Image.open`, `exif_transpose`, `convert`, `crop`, `resize`
            (bilinear). Otherwise JPEG is decoded smaller where it is made smaller: quicker, and a little different.
        name: of the file, for errors; or what returns it.
        max_pixels: larger pictures are refused. For what Pillow opens, its own limit holds as well
            (`PIL.Image.MAX_IMAGE_PIXELS`: it warns beyond that, and refuses twice as many).
        shrink: see `SHRINK`; 0 always decodes at full size.
        on_narrowed: called with the bits that the file has, if the mode keeps only 8 of them.
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
            write(as_array(image), view.region, view.box, pixels[:, ::-1] if view.flip else pixels)
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
    target = pixels[:, ::-1] if view.flip else pixels
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
            f"out is {out.dtype} of the shape {out.shape}, and the picture {kind.dtype} of {shape}",
            hint="give an array [H, W, C] of the view's size, 3 channels for RGB and 1 for the others",
        )
    return out
