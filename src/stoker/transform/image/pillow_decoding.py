"""Pictures by Pillow: every kind but ordinary JPEG, and those whose pixels have to be Pillow's."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
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
    "HEIF",
    "MPO",
    "TGA",
    "ICO",
    "DIB",
    "PCX",
    "SGI",
)
"""What is opened. Pillow knows more: some of it starts other programs (PostScript), some has no pixels."""

_ORIENTATION = 0x0112
_BITS_PER_SAMPLE = 0x0102
_UNSPECIFIC = ("I", "F")
_ONE_CHANNEL = ("L", "I", "F")
_TURNED_BACK = {6: 8, 8: 6}


def decode_by_pillow(
    data: Any,
    view_of: Callable[[int, int], View],
    *,
    mode: str,
    max_pixels: int,
    apply_exif_orientation: bool = True,
    on_narrowed: Callable[[str], None] | None = None,
) -> tuple[Image, View]:
    """Return the part of a picture that its view looks at, upright and in the mode, and the view in that part.

    Of 16 bits, it is in the mode "I".
    """
    image = _opened(data, max_pixels)
    try:
        told = UPRIGHT if apply_exif_orientation else _orientation(image)
        image.load()
        orientation = _orientation(image)
        if not apply_exif_orientation:
            if orientation != told:  # Pillow itself has turned it (TIFF)
                image = _upright(image, _TURNED_BACK.get(told, told))
            orientation = UPRIGHT
        bits = None if on_narrowed is None or mode not in ("RGB", "L") else _more_bits(image, data)
        width, height = image.size
        turned = is_turned(orientation)
    except Exception as error:
        raise _undecodable(error) from error
    if on_narrowed is not None and bits is not None:
        on_narrowed(bits)
    view = view_of(height, width) if turned else view_of(width, height)
    try:
        region = stored_box(orientation, view.region, width, height)
        part = converted(image, mode, region) if mode in ("RGB", "L") else numbers(image, mode, region)
        return _upright(part, orientation), _moved(view)
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
        raise Undecodable(
            f"its numbers (mode {kind}) have no range that is known; mode={kind!r} keeps them, or convert it to 8 or "
            "16 bits"
        )
    elif kind == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB, Pillow warns
    return image if image.mode == mode else image.convert(mode)


def numbers(image: Image, mode: str, region: tuple[int, int, int, int]) -> Image:
    """Return a part of an image of one channel, with the numbers that are stored: as I for "I;16" and "I", or as F."""
    kind = image.mode
    if kind not in _ONE_CHANNEL and not kind.startswith("I;16"):
        raise Undecodable(
            f"it is of mode {kind}, and mode={mode!r} is for one channel of numbers; 'RGB' and 'L' are for all"
        )
    if region != (0, 0, *image.size):
        image = image.crop(region)
    values = np.asarray(image)
    if mode == "F":
        return pillow().fromarray(values.astype(np.float32))  # type: ignore[no-any-return]
    if kind == "F":
        raise Undecodable(f"its numbers are floats, and mode={mode!r} is for whole ones; mode='F' keeps them")
    if mode == "I;16" and kind == "I" and not 0 <= values.min() <= values.max() <= 0xFFFF:
        raise Undecodable(f"its numbers go from {values.min()} to {values.max()}, beyond 16 bits; mode='I' keeps them")
    return pillow().fromarray(values.astype(np.int32))  # type: ignore[no-any-return]


def _more_bits(image: Image, data: Any) -> str | None:
    """Return how many bits an image has in its file, if Pillow has more than 8, or has made 8 of more."""
    kind, found = image.mode, image.format
    if kind.startswith("I;16") or (kind == "I" and found in ("PNG", "PPM")):
        return "16 bits"
    # of colours, Pillow keeps 8 bits and says nothing of it
    if found == "PNG":
        depth = png_depth(data)
        return f"{depth} bits for each colour" if depth > 8 else None
    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,)) if found == "TIFF" else (8,)
    return f"{max(bits)} bits for each colour" if max(bits) > 8 and len(bits) > 1 else None


def png_depth(data: Any) -> int:
    """Return the bits of a number in a PNG file: after signature, length and name of the first chunk, and the size."""
    return int(data[24]) if len(data) > 24 else 0


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


def _kinds() -> tuple[str, ...]:
    module = pillow()
    module.init()
    _register_heif()
    return tuple(kind for kind in KINDS if kind in module.OPEN)


@cache
def _register_heif() -> None:
    with suppress(ImportError):  # here and not by the user alone: workers begin without it
        import pillow_heif  # type: ignore[import-not-found]

        pillow_heif.register_heif_opener()


def size_of(image: Image, *, apply_exif_orientation: bool) -> tuple[int, int]:
    """Return the width and height that an image will have, before it is loaded."""
    width, height = image.size
    is_applied = image.format == "TIFF"  # Pillow turns these itself, and tells the size that they will have
    if is_turned(_orientation(image)) and apply_exif_orientation != is_applied:
        width, height = height, width
    return width, height


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
    return view._replace(region=(0, 0, right - left, bottom - top), box=inside(view.region, view.box))


def _undecodable(error: Exception) -> Exception:
    if isinstance(error, MemoryError):
        return error
    return Undecodable(str(error) or type(error).__name__)
