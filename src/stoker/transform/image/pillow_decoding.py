"""Decode with Pillow: all formats except ordinary JPEG, and whenever Pillow's exact pixels are required."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.transform.image.forms import pillow
from stoker.transform.image.orientation import UPRIGHT, is_turned, stored_box
from stoker.transform.image.undecodable import Undecodable, appearance, too_large
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
"""Formats to open. Pillow supports more: some start other programs (PostScript), some have no pixels."""

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
    """Return the region of an image that its view needs, upright and in the mode, and the view relative to it.

    16-bit images are returned in mode "I".
    """
    image = _opened(data, max_pixels)
    try:
        declared = UPRIGHT if apply_exif_orientation else _orientation(image)
        image.load()
        orientation = _orientation(image)
        if not apply_exif_orientation:
            if orientation != declared:  # Pillow has already rotated it (TIFF)
                image = _upright(image, _TURNED_BACK.get(declared, declared))
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
    """Convert an image, or a part of it, to RGB or L.

    Alpha is dropped, as in `convert("RGB")`. Sixteen bits are scaled to eight, where Pillow would clip everything above
    255 to white.
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
            f"the range of its values (mode {kind}) is unknown; use mode={kind!r} to keep them, or convert the file "
            "to 8 or 16 bits"
        )
    elif kind == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # direct conversion to RGB would warn
    return image if image.mode == mode else image.convert(mode)


def numbers(image: Image, mode: str, region: tuple[int, int, int, int]) -> Image:
    """Return a part of a single-channel image with the stored values: mode I for "I;16" and "I", or mode F."""
    kind = image.mode
    if kind not in _ONE_CHANNEL and not kind.startswith("I;16"):
        raise Undecodable(
            f"it has mode {kind}, but mode={mode!r} needs a single-channel image; 'RGB' and 'L' accept all"
        )
    if region != (0, 0, *image.size):
        image = image.crop(region)
    values = np.asarray(image)
    if mode == "F":
        return pillow().fromarray(values.astype(np.float32))  # type: ignore[no-any-return]
    if kind == "F":
        raise Undecodable(f"its values are floats, but mode={mode!r} needs integers; mode='F' keeps them")
    if mode == "I;16" and kind == "I" and not 0 <= values.min() <= values.max() <= 0xFFFF:
        raise Undecodable(
            f"its values range from {values.min()} to {values.max()}, beyond 16 bits; mode='I' keeps them"
        )
    return pillow().fromarray(values.astype(np.int32))  # type: ignore[no-any-return]


def _more_bits(image: Image, data: Any) -> str | None:
    """Return the bit depth of an image's file if it is above 8, including where Pillow reduced it to 8; else None."""
    kind, found = image.mode, image.format
    if kind.startswith("I;16") or (kind == "I" and found in ("PNG", "PPM")):
        return "16 bits"
    # for color images, Pillow silently keeps 8 bits
    if found == "PNG":
        depth = png_depth(data)
        return f"{depth} bits per channel" if depth > 8 else None
    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,)) if found == "TIFF" else (8,)
    return f"{max(bits)} bits per channel" if max(bits) > 8 and len(bits) > 1 else None


def png_depth(data: Any) -> int:
    """Return the bit depth of a PNG file, from its header chunk."""
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
    with suppress(ImportError):  # registered here: the user's registration does not reach spawned workers
        import pillow_heif  # type: ignore[import-not-found]

        pillow_heif.register_heif_opener()


def size_of(image: Image, *, apply_exif_orientation: bool) -> tuple[int, int]:
    """Return the upright width and height of an image before it is loaded."""
    width, height = image.size
    is_applied = image.format == "TIFF"  # Pillow rotates TIFF itself, and reports the rotated size
    if is_turned(_orientation(image)) and apply_exif_orientation != is_applied:
        width, height = height, width
    return width, height


def _orientation(image: Image) -> int:
    try:
        orientation = image.getexif().get(_ORIENTATION, UPRIGHT)
    except Exception:  # unreadable EXIF counts as missing
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
    """Return a view relative to its own region."""
    left, top, right, bottom = view.region
    return view._replace(region=(0, 0, right - left, bottom - top), box=inside(view.region, view.box))


def _undecodable(error: Exception) -> Exception:
    if isinstance(error, MemoryError):
        return error
    return Undecodable(str(error) or type(error).__name__)
