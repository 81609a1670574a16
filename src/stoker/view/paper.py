"""What all our pictures are drawn with: colours, letters, and text that fits."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import TypeAlias

from PIL import Image, ImageDraw, ImageFont

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont

PAPER, INK, FAINT, LINE = "#ffffff", "#22262b", "#666e77", "#c9ced4"

DOCUMENTS = ("#77aadd", "#eedd88", "#ee8866", "#99ddff", "#44bb99", "#ffaabb")
"""Neighbours differ in hue for every kind of eye, and darker and lighter ones take turns: they differ in grey too."""

PADDING, HATCH = "#f3f4f5", "#b9c0c7"

MARGIN = 16
"""White around everything, in pixels."""

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


@cache
def font(size: int) -> Font:
    """Return letters of so many pixels; Pillow brings them along."""
    return ImageFont.load_default(size)


def line_height(letters: Font) -> int:
    """Return the pixels from one line of text to the next."""
    _, top, _, bottom = letters.getbbox("Agjpqy|")
    return round(1.2 * (bottom - top))


def width_of(text: str, letters: Font) -> float:
    """Return how wide a text is, in pixels."""
    return letters.getlength(text)


def shortened(text: str, letters: Font, width: float) -> str:
    """Return as much of a text as fits into so many pixels, on one line, with an ellipsis where it was cut."""
    text = plain(text)
    if width_of(text, letters) <= width:
        return text
    fits, fails = 0, len(text)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if width_of(text[:middle].rstrip() + ELLIPSIS, letters) <= width:
            fits = middle
        else:
            fails = middle
    return text[:fits].rstrip() + ELLIPSIS


def plain(text: str) -> str:
    """Return a text without what cannot be drawn: line ends, control characters, halves of characters."""
    kinds = {"Cc": " ", "Cs": "\N{REPLACEMENT CHARACTER}", "Zl": " ", "Zp": " "}
    return "".join(kinds.get(unicodedata.category(letter), letter) for letter in text)


def hatched(width: int, height: int) -> Image.Image:
    """Return a rectangle of padding: grey lines that lean to the right."""
    tile = Image.new("RGB", (width, height), PADDING)
    draw = ImageDraw.Draw(tile)
    for x in range(-height, width + height, 6):
        draw.line(((x, height), (x + height, 0)), fill=HATCH, width=1)
    return tile
