"""A picture of attention masks: who sees whom, with the borders of documents. Shapes: B rows of T columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw

from stoker.errors import ArgumentError
from stoker.view.packed_rows import colour_of, spans_of
from stoker.view.paper import FAINT, HATCH, INK, LINE, MARGIN, PAPER, font, line_height, shortened

SIDE = 480
"""Pixels of a mask, in both directions, about; a multiple of its columns if those are few."""

SAMPLES = 2 * SIDE
"""Of longer rows, so many columns are drawn: all pairs of a long row would not fit into memory."""

GUTTER = 36

SEEN, UNSEEN = "#3b6fa0", "#f3f4f5"

LOW = -1e3
"""What is added to a score to hide a key is far lower; a bias of a position is not."""


class Panel(NamedTuple):
    """One mask, drawn."""

    image: Image.Image
    name: str
    num_keys: int
    share: float
    """Of all pairs, those that are seen."""


def of_documents(ids: NDArray[np.int64], *, row: int, name: str) -> Panel:
    """Return the mask of a row [T]: of the same document, and not ahead; in the colours of its documents."""
    spans = spans_of(ids)
    columns = np.arange(min(len(ids), SAMPLES)) * len(ids) // min(len(ids), SAMPLES)
    seen = np.tril(ids[columns, None] == ids[None, columns])
    colours = _colours(seen)
    for begin, end, document in spans:
        first, last = np.searchsorted(columns, (begin, end))
        colour = ImageColor.getrgb(HATCH if document < 0 else colour_of(document, row))
        part = colours[:, first:last]
        part[seen[:, first:last]] = colour
    image = _fitted(colours)
    draw, scale = ImageDraw.Draw(image), image.width / len(ids)
    for begin, end, _ in spans:
        if begin and (end - begin) * scale >= 3:
            at = round(begin * scale)
            draw.line(((at, 0), (at, image.height)), fill=LINE)
            draw.line(((0, at), (image.width, at)), fill=LINE)
    num_seen = sum((end - begin) * (end - begin + 1) // 2 for begin, end, _ in spans)
    return Panel(image, name, len(ids), num_seen / len(ids) ** 2)


def of_mask(mask: NDArray[np.bool_], *, name: str) -> Panel:
    """Return a mask [T, T], True where a query sees a key."""
    colours = _colours(mask)
    colours[mask] = ImageColor.getrgb(SEEN)
    return Panel(_fitted(colours), name, mask.shape[-1], float(mask.mean()))


def dense_of(mask: Any, *, limit: int) -> NDArray[np.bool_]:
    """Return the first masks [B, T, T], True where a query sees a key.

    They are given as booleans, or as what is added to scores: 0, or very low. Of several heads the first is taken.
    """
    shape = tuple(np.shape(mask))
    if len(shape) not in (2, 3, 4) or 0 in shape:
        raise ArgumentError(
            f"a mask of shape {shape} is not one of attention",
            hint="pass [B, 1, T, T], [B, T, T] or [T, T], a batch of packed rows, or its document_ids [B, T]",
        )
    part = mask[:limit, 0] if len(shape) == 4 else mask[:limit] if len(shape) == 3 else mask[None]
    if hasattr(part, "detach"):
        part = (part.float() if part.dtype.is_floating_point else part).detach().cpu().numpy()
    array = np.asarray(part)
    return np.asarray(array > LOW if array.dtype.kind == "f" else array.astype(np.bool_))


def drawn(panels: Sequence[Panel], *, title: str | None = None) -> Image.Image:
    """Return masks side by side."""
    heading, letters, small = font(20), font(17), font(14)
    side = MARGIN + line_height(small) + 4  # room for a word that goes upwards
    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    width, height = max(panel.image.width for panel in panels), max(panel.image.height for panel in panels)
    top = MARGIN + (line_height(heading) + 8 if title else 0)
    pitch_x, pitch_y = width + GUTTER, height + line_height(letters) + 2 * line_height(small) + 22
    size = (side + columns * pitch_x - GUTTER + MARGIN, top + rows * pitch_y - 10 + MARGIN)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((side, MARGIN - 2), shortened(title, heading, size[0] - side - MARGIN), font=heading, fill=INK)
    for number, (image, name, num_keys, share) in enumerate(panels):
        x, y = side + number % columns * pitch_x, top + number // columns * pitch_y
        draw.text((x, y), shortened(name, letters, width), font=letters, fill=INK)
        y += line_height(letters) + 4
        sheet.paste(image, (x, y))
        draw.rectangle((x - 1, y - 1, x + image.width, y + image.height), outline=HATCH)
        below = y + image.height + 6
        draw.text((x, below), "keys", font=small, fill=FAINT)
        draw.text((x + image.width, below), f"{num_keys:,}", font=small, fill=FAINT, anchor="ra")
        draw.text((x, below + line_height(small)), f"{share:.1%} of all pairs are seen", font=small, fill=FAINT)
        if not number % columns:
            _upwards(sheet, "queries", (x - line_height(small) - 2, y))
    return sheet


def _colours(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    colours = np.empty((*mask.shape, 3), np.uint8)
    colours[:] = ImageColor.getrgb(UNSEEN)
    return colours


def _fitted(colours: NDArray[np.uint8]) -> Image.Image:
    """Return the pairs at a size at which they can be seen: each several pixels, or several in one."""
    num_queries, num_keys = colours.shape[:2]
    longest = max(num_queries, num_keys)
    image = Image.fromarray(colours)
    if longest > SIDE:
        size = (max(1, round(num_keys * SIDE / longest)), max(1, round(num_queries * SIDE / longest)))
        return image.resize(size, Image.Resampling.BOX)
    times = SIDE // longest
    image = image.resize((num_keys * times, num_queries * times), Image.Resampling.NEAREST)
    if times >= 8:  # large enough to be told apart by white lines
        draw = ImageDraw.Draw(image)
        for x in range(times, image.width, times):
            draw.line(((x, 0), (x, image.height)), fill=PAPER)
        for y in range(times, image.height, times):
            draw.line(((0, y), (image.width, y)), fill=PAPER)
    return image


def _upwards(image: Image.Image, text: str, at: tuple[int, int]) -> None:
    """Write a text that goes upwards."""
    small = font(14)
    box = small.getbbox(text)
    strip = Image.new("RGB", (round(box[2]) + 2, line_height(small)), PAPER)
    ImageDraw.Draw(strip).text((0, 0), text, font=small, fill=FAINT)
    image.paste(strip.rotate(90, expand=True), at)
