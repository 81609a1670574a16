"""Pictures by Pillow: every kind but ordinary JPEG, and those whose pixels have to be Pillow's."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.transform.image.forms import pillow
from stoker.transform.image.kinds import appearance
from stoker.transform.image.orientation import UPRIGHT, is_turned, stored_box
from stoker.transform.image.undecodable import Undecodable, too_large
from stoker.transform.image.view import View, inside

if TYPE_CHECKING:
    from PIL.Image import Image

KINDS = (
    "JPEG",
    "PNG",
    "WEBP",
    "GIF",
    "TIFF",
    "BMP",
    "PPM",
    "JPEG2000",
    "AVIF",
    "MPO",
    "TGA",
    "ICO",
    "DIB",
    "PCX",
    "SGI",
)
"""What is opened. Pillow knows more: some of it starts other programs (PostScript), some has no pixels."""

_ORIENTATION = 0x0112
_UNSPECIFIC = ("I", "F")


def decode_by_pillow(
    data: Any, view_of: Callable[[int, int], View], *, mode: str, max_pixels: int
) -> tuple[Image, View]:
    """Return the part of a picture that its view looks at, upright and in the mode, and the view in that part."""
    image = _opened(data, max_pixels)
    try:
        image.load()
        orientation = _orientation(image)
        width, height = image.size
        turned = is_turned(orientation)
    except Exception as error:
        raise _undecodable(error) from error
    view = view_of(height, width) if turned else view_of(width, height)
    try:
        region = stored_box(orientation, view.region, width, height)
        return _upright(converted(image, mode, region), orientation), _moved(view)
    except Undecodable:
        raise
    except Exception as error:
        raise _undecodable(error) from error


def converted(image: Image, mode: str, region: tuple[int, int, int, int] | None = None) -> Image:
    """Return an image, or a part of it, as RGB or L.

    Transparency is left out, as in `convert("RGB")`: the colours below it show. Sixteen bits are scaled to eight, where
    Pillow would turn everything from 256 on to white.
    """
    kind, found = image.mode, image.format
    if region is not None and region != (0, 0, *image.size):
        image = image.crop(region)
    if kind == mode:
        return image
    if kind.startswith("I;16") or (kind == "I" and found in ("PNG", "PPM")):
        values = np.asarray(image).astype(np.int64).clip(0, 0xFFFF)
        image = pillow().fromarray(((values + 128) // 257).astype(np.uint8))
    elif kind in _UNSPECIFIC:
        raise Undecodable(f"its numbers (mode {kind}) have no range that is known; convert it to 8 or 16 bits")
    elif kind == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB, Pillow warns
    return image if image.mode == mode else image.convert(mode)


def _opened(data: Any, max_pixels: int) -> Image:
    module = pillow()
    try:
        image: Image = module.open(io.BytesIO(data), formats=_kinds())
    except module.UnidentifiedImageError as error:
        raise Undecodable(appearance(data)) from error
    except module.DecompressionBombError as error:
        raise Undecodable(f"it is too large: {error}") from error
    except Exception as error:
        raise _undecodable(error) from error
    width, height = image.size
    if width * height > max_pixels:
        raise too_large(width, height, max_pixels)
    return image


@cache
def _kinds() -> tuple[str, ...]:
    module = pillow()
    module.init()
    return tuple(kind for kind in KINDS if kind in module.OPEN)


def _orientation(image: Image) -> int:
    try:
        orientation = image.getexif().get(_ORIENTATION, UPRIGHT)
    except Exception:  # notes that cannot be read are none
        return UPRIGHT
    return orientation if orientation in range(1, 9) else UPRIGHT


def _upright(image: Image, orientation: int) -> Image:
    if orientation == UPRIGHT:
        return image
    ways = pillow().Transpose
    return image.transpose(
        (
            ways.FLIP_LEFT_RIGHT,
            ways.ROTATE_180,
            ways.FLIP_TOP_BOTTOM,
            ways.TRANSPOSE,
            ways.ROTATE_270,
            ways.TRANSVERSE,
            ways.ROTATE_90,
        )[orientation - 2]
    )


def _moved(view: View) -> View:
    """Return a view as it is in its own region."""
    left, top, right, bottom = view.region
    return View((0, 0, right - left, bottom - top), inside(view.region, view.box), view.size, view.flip)


def _undecodable(error: Exception) -> Exception:
    if isinstance(error, MemoryError):
        return error
    return Undecodable(str(error) or type(error).__name__)
