"""Why a picture cannot be decoded, before anyone has said which one it is."""

from __future__ import annotations


class Undecodable(Exception):
    """A reason, in words that go on after "cannot be decoded:". Becomes a `BadImage`, which names the file."""


def too_large(width: int, height: int, max_pixels: int) -> Undecodable:
    """Return why a picture of this size is not decoded: a small file may ask for all the memory there is."""
    return Undecodable(
        f"{width} x {height} are {width * height:,} pixels, more than max_pixels={max_pixels:,} (a decompression bomb?)"
    )
