"""The reason why an image cannot be decoded, raised before its name is known."""

from __future__ import annotations


class Undecodable(Exception):
    """A reason that completes the sentence "cannot be decoded: ...". Becomes a `BadImage`, which names the file."""


def too_large(width: int, height: int, max_pixels: int) -> Undecodable:
    """Return the error for an image of this size: a small file could otherwise exhaust memory."""
    return Undecodable(
        f"{width} x {height} are {width * height:,} pixels, more than max_pixels={max_pixels:,} (a decompression bomb?)"
    )
