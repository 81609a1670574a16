"""Why an image cannot be decoded: the error, raised before its name is known, and what the bytes look like instead."""

from __future__ import annotations

_OTHERS = (
    (b"<!doctype html", "a web page (HTML), perhaps an error response to a download"),
    (b"<html", "a web page (HTML), perhaps an error response to a download"),
    (b"<svg", "a drawing (SVG), which has no pixels"),
    (b"<?xml", "XML, perhaps an error response to a download"),
    (b"version https://git-lfs", "a Git LFS pointer; `git lfs pull` fetches the file itself"),
    (b"%pdf", "a PDF document"),
    (b"%!ps", "PostScript"),
    (b"pk\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"{", "JSON, or other text"),
)

_IMAGES = (
    (b"\xff\xd8", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
)

_AVIF = (b"avif", b"avis")
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1")


class Undecodable(Exception):
    """A reason that completes the sentence "cannot be decoded: ...". Becomes a `BadImage`, which names the file."""


def too_large(width: int, height: int, max_pixels: int) -> Undecodable:
    """Return the error for an image of this size: a small file could otherwise exhaust memory."""
    return Undecodable(
        f"{width} x {height} are {width * height:,} pixels, more than max_pixels={max_pixels:,} (a decompression bomb?)"
    )


def appearance(data: bytes | memoryview) -> str:
    """Describe what bytes that are not an image look like; names are unreliable."""
    head = bytes(data[:512])
    for start, kind in _IMAGES:
        if head.startswith(start):
            return f"it starts like {kind}, but its header cannot be read"
    if head[4:8] == b"ftyp" and any(brand in head[8:64] for brand in _AVIF):
        return "it is AVIF, which this Pillow cannot read; version 11.3 can (pip install -U pillow)"
    if head[4:8] == b"ftyp" and head[8:12] in _HEIC:
        return "it is HEIC, which Pillow reads only with pillow-heif (pip install pillow-heif)"
    if not head.strip(b"\0"):
        return "it starts with zero bytes: was it written completely?"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for start, kind in _OTHERS:
        if text.startswith(start):
            return f"it looks like {kind}"
    if head.isascii() and min(head) >= 9:
        return "it looks like text"
    return f"it is not a known image format; it starts with {head[:8].hex(' ')}"
