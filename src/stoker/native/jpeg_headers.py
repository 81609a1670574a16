"""Read the headers of JPEG files, without a decoder, in microseconds."""

from __future__ import annotations

import re
from array import array
from typing import Any, NamedTuple

from stoker.native.arrays import address_of_bytes
from stoker.native.library import library


class JpegHeader(NamedTuple):
    """The header of a JPEG file."""

    width: int
    height: int
    num_components: int
    precision: int
    """Bits per channel: 8, except in rare files."""
    orientation: int = 1
    """EXIF orientation, 1 (upright) to 8; from XMP where EXIF has none."""
    is_progressive: bool = False
    adobe_transform: int | None = None
    """Color transform in Adobe's marker: 0 for none (RGB or CMYK), 1 for YCbCr, 2 for YCCK."""
    has_end: bool = False
    """Whether an end marker follows the data; truncated files have none."""
    is_arithmetic: bool = False
    """Whether it uses arithmetic coding, which few decoders support."""


def jpeg_header(data: Any) -> JpegHeader | None:
    """Return the header of a JPEG file in memory (bytes, a memoryview, an array of bytes).

    None if it is not a JPEG file, is of a kind that libjpeg does not decode, or has a damaged header.
    """
    native = library()
    if native is None:
        return _in_python(bytes(data))
    found = array("q", _NOTHING)
    if native.jpeg_header(*address_of_bytes(data), found.buffer_info()[0]):
        return None
    width, height, num_components, precision, orientation, is_progressive, adobe, has_end, is_arithmetic = found
    return JpegHeader(
        width,
        height,
        num_components,
        precision,
        orientation,
        bool(is_progressive),
        adobe if adobe >= 0 else None,
        bool(has_end),
        bool(is_arithmetic),
    )


_NOTHING = bytes(9 * 8)

# ------------------------------------------------------------ the same in Python, where the library is not loaded

_FRAMES = {0xC0, 0xC1, 0xC2, 0xC9, 0xCA}
_TABLES = {0xC4, 0xCC, 0xDB, 0xDC, 0xDD}
_NOTES = {*range(0xE0, 0xF0), 0xFE}
_WITH_BODY = _FRAMES | _TABLES | _NOTES
_WITHOUT_BODY = {0x00, 0x01, *range(0xD0, 0xD8)}
_MARKER = re.compile(rb"\xff+([^\xff])", re.DOTALL)
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_IN_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def _in_python(data: bytes) -> JpegHeader | None:
    frame: tuple[int, bytes] | None = None
    exif: bytes | None = None
    xmp, adobe = b"", None
    at = 2
    while data.startswith(b"\xff\xd8"):
        marked = _MARKER.search(data, at)
        if marked is None:
            return None
        marker, at = marked[1][0], marked.end()
        if marker in _WITHOUT_BODY:
            continue
        if marker == 0xDA:
            break
        if marker not in _WITH_BODY:
            return None
        size = int.from_bytes(data[at : at + 2], "big")
        body = data[at + 2 : at + size]
        if size < 2 or len(body) != size - 2:
            return None
        at += size
        if marker in _FRAMES:
            if frame or len(body) < 6 or len(body) != 6 + 3 * body[5]:
                return None
            frame = marker, body
        elif marker == 0xE1 and exif is None and body.startswith(b"Exif\0\0"):
            exif = body[6:]
        elif marker == 0xE1 and body.startswith(_XMP):
            xmp = body[len(_XMP) :]
        elif marker == 0xEE and len(body) >= 12 and body.startswith(b"Adobe"):
            adobe = body[11]
    if frame is None:
        return None
    kind, body = frame
    height, width, num_components = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big"), body[5]
    if not (height and width and num_components):
        return None
    orientation = _of_exif(exif or b"")
    if orientation is None and (found := _IN_XMP.search(xmp)):
        orientation = int(found[1])
    return JpegHeader(
        width,
        height,
        num_components,
        body[0],
        orientation if orientation and orientation <= 8 else 1,
        is_progressive=kind in (0xC2, 0xCA),
        adobe_transform=adobe,
        has_end=data.rfind(b"\xff\xd9", at) >= 0,
        is_arithmetic=kind >= 0xC9,
    )


def _of_exif(exif: bytes) -> int | None:
    exif = exif.removeprefix(b"Exif\0\0")
    if exif[:4] not in (b"II\x2a\0", b"II\0\x2a", b"MM\0\x2a", b"MM\x2a\0") or len(exif) < 8:
        return None

    def number(begin: int, size: int) -> int:
        return int.from_bytes(exif[begin : begin + size], "little" if exif[:1] == b"I" else "big")

    table = number(4, 4)
    if table + 2 > len(exif):
        return None
    for entry in range(table + 2, min(table + 2 + 12 * number(table, 2), len(exif) - 11), 12):
        if number(entry, 2) != 0x112:
            continue
        size = {3: 2, 8: 2, 4: 4, 9: 4}.get(number(entry + 2, 2))
        if size is not None:
            return number(entry + 8, size) if number(entry + 4, 4) == 1 else 0
    return None
