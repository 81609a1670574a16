"""Draw a contact sheet: images in a grid, with a label and a position below each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from stoker.errors import ArgumentError
from stoker.view.paper import FAINT, INK, LINE, MARGIN, PAPER, font, line_height, shorten

WIDTH = 1600
"""Maximum width of a sheet in pixels: about a screen."""

SMALLEST, LARGEST = 96, 320
"""Default longer side of an image on the sheet: smaller faces are unrecognizable."""

GUTTER = 8
"""White gap between images, in pixels."""


def draw_sheet(
    images: Sequence[NDArray[np.uint8]],
    *,
    labels: Sequence[str | None],
    remarks: Sequence[str | None],
    title: str | None = None,
    foot: str | None = None,
    columns: int | None = None,
    side: int | None = None,
) -> Image.Image:
    """Draw the sheet, with `labels` below the images in ink and fainter `remarks` below those."""
    if not images:
        raise ArgumentError("no images to show: the batch is empty", hint="check the dataset or the batch size")
    columns = min(columns, len(images)) if columns is not None else _columns(len(images))
    longest = max(max(image.shape[:2]) for image in images)
    side = side or _side(longest, columns)
    resized = [_resize(image, side, longest) for image in images]
    width, height = max(image.width for image in resized), max(image.height for image in resized)
    cell = max(width, 48)  # room for a label
    letters = font(max(12, min(17, round(cell / 12))))
    small = font(max(11, letters.size - 2) if hasattr(letters, "size") else 11)
    has_labels, has_remarks = any(labels), any(remarks)
    text = has_labels * line_height(letters) + has_remarks * line_height(small)
    pitch = height + (text + 4 if text else 0) + GUTTER + (4 if text else 0)
    rows = -(-len(images) // columns)
    inner = columns * (cell + GUTTER) - GUTTER
    heading, note = font(18), font(13)
    top = MARGIN + (line_height(heading) + 8 if title else 0)
    bottom = MARGIN + (line_height(note) + 2 if foot else 0)
    sheet = Image.new("RGB", (inner + 2 * MARGIN, top + rows * pitch - GUTTER + bottom), PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((MARGIN, MARGIN - 2), shorten(title, heading, inner), font=heading, fill=INK)
    for number, image in enumerate(resized):
        left = MARGIN + number % columns * (cell + GUTTER)
        upper = top + number // columns * pitch
        x, y = left + (cell - image.width) // 2, upper + height - image.height
        sheet.paste(image, (x, y))
        _frame(draw, x, y, image)
        y = upper + height + 4
        if has_labels:
            draw.text((left, y), shorten(labels[number] or "", letters, cell), font=letters, fill=INK)
            y += line_height(letters)
        if has_remarks:
            draw.text((left, y), shorten(remarks[number] or "", small, cell), font=small, fill=FAINT)
    if foot:
        y = sheet.height - MARGIN - line_height(note) + 4
        draw.text((MARGIN, y), shorten(foot, note, inner), font=note, fill=FAINT)
    return sheet


def _columns(number: int) -> int:
    """Return the number of images per row: wider than high, with as few empty cells as possible."""
    root = math.sqrt(number)
    choices = range(max(1, math.ceil(root)), max(1, math.ceil(1.5 * root)) + 1)
    return min(choices, key=lambda columns: (-number % columns, abs(columns - 1.3 * root)))


def _side(longest: int, columns: int) -> int:
    """Return the size of images on the sheet: at most their own, or a whole multiple if they are small."""
    room = max(SMALLEST, (WIDTH - 2 * MARGIN) // columns - GUTTER)
    if longest < SMALLEST:
        return longest * min(-(-SMALLEST // longest), max(1, room // longest))
    return min(longest, room, LARGEST)


def _resize(pixels: NDArray[np.uint8], side: int, longest: int) -> Image.Image:
    image = Image.fromarray(pixels)
    if side == longest:
        return image
    size = (max(1, round(image.width * side / longest)), max(1, round(image.height * side / longest)))
    # Nearest keeps the pixels of small images visible; large images are smoothed.
    way = Image.Resampling.NEAREST if side > longest else Image.Resampling.LANCZOS
    return image.resize(size, way)


def _frame(draw: ImageDraw.ImageDraw, x: int, y: int, image: Image.Image) -> None:
    """Draw a hairline around an image whose border is nearly white, to separate it from the page."""
    edges = np.asarray(image)
    border = np.concatenate((edges[0], edges[-1], edges[:, 0], edges[:, -1]))
    if (border.min(-1) > 240).mean() > 0.1:
        draw.rectangle((x, y, x + image.width - 1, y + image.height - 1), outline=LINE)
