"""Shared drawing helpers: colors, fonts, and text that fits."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import TypeAlias

from PIL import Image, ImageDraw, ImageFont

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont

PAPER, INK, FAINT, LINE = "#ffffff", "#22262b", "#666e77", "#c9ced4"

DOCUMENTS = ("#77aadd", "#eedd88", "#ee8866", "#99ddff", "#44bb99", "#ffaabb")
"""Adjacent colors differ in hue for color-blind readers too, and alternate in lightness, so they differ in gray."""

PADDING, HATCH = "#f3f4f5", "#b9c0c7"

MARGIN = 16
"""White border around everything, in pixels."""

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


@cache
def font(size: int) -> Font:
    """Return Pillow's built-in font at a size in pixels."""
    return ImageFont.load_default(size)


def line_height(letters: Font) -> int:
    """Return the line height in pixels."""
    _, top, _, bottom = letters.getbbox("Agjpqy|")
    return round(1.2 * (bottom - top))


def text_width(text: str, letters: Font) -> float:
    """Return the width of a text in pixels."""
    return letters.getlength(text)


def shorten(text: str, letters: Font, width: float) -> str:
    """Truncate a text to a width in pixels, on one line, with an ellipsis if it was cut."""
    text = strip_undrawable(text)
    if text_width(text, letters) <= width:
        return text
    fits, fails = 0, len(text)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if text_width(text[:middle].rstrip() + ELLIPSIS, letters) <= width:
            fits = middle
        else:
            fails = middle
    return text[:fits].rstrip() + ELLIPSIS


def strip_undrawable(text: str) -> str:
    """Return a text without characters that cannot be drawn: line ends, control characters, lone surrogates."""
    kinds = {"Cc": " ", "Cs": "\N{REPLACEMENT CHARACTER}", "Zl": " ", "Zp": " "}
    return "".join(kinds.get(unicodedata.category(letter), letter) for letter in text)


def draw_hatching(width: int, height: int) -> Image.Image:
    """Return a rectangle hatched with gray lines, for padding."""
    tile = Image.new("RGB", (width, height), PADDING)
    draw = ImageDraw.Draw(tile)
    for x in range(-height, width + height, 6):
        draw.line(((x, height), (x + height, 0)), fill=HATCH, width=1)
    return tile
