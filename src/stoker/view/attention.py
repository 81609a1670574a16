"""Draw attention masks: which keys each query sees, with document boundaries. Shapes: B rows of T columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw

from stoker.errors import ArgumentError
from stoker.foundation.text import format_percent
from stoker.view.packed_rows import document_color, document_spans
from stoker.view.paper import FAINT, HATCH, INK, LINE, MARGIN, PAPER, font, line_height, shorten

SIDE = 480
"""Approximate width and height of a mask in pixels; a multiple of its columns if those are few."""

SAMPLES = 2 * SIDE
"""Columns drawn of longer rows: all pairs of a long row would not fit into memory."""

GUTTER = 36

SEEN, UNSEEN = "#3b6fa0", "#f3f4f5"

LOW = -1e3
"""Values below this hide a key; position biases stay above it."""


class MaskPanel(NamedTuple):
    """The image of one mask, with its caption."""

    image: Image.Image
    name: str
    num_keys: int
    share: float
    """Fraction of all pairs that are visible."""


def draw_document_mask(ids: NDArray[np.int64], *, row: int, name: str) -> MaskPanel:
    """Draw the causal mask inside each document of a row [T], in the colors of the documents."""
    spans = document_spans(ids)
    columns = np.arange(min(len(ids), SAMPLES)) * len(ids) // min(len(ids), SAMPLES)
    seen = np.tril(ids[columns, None] == ids[None, columns])
    colors = _make_pixels(seen)
    for begin, end, document in spans:
        first, last = np.searchsorted(columns, (begin, end))
        color = ImageColor.getrgb(HATCH if document < 0 else document_color(document, row))
        part = colors[:, first:last]
        part[seen[:, first:last]] = color
    image = _fit_to_side(colors)
    draw, scale = ImageDraw.Draw(image), image.width / len(ids)
    for begin, end, _ in spans:
        if begin and (end - begin) * scale >= 3:
            at = round(begin * scale)
            draw.line(((at, 0), (at, image.height)), fill=LINE)
            draw.line(((0, at), (image.width, at)), fill=LINE)
    num_seen = sum((end - begin) * (end - begin + 1) // 2 for begin, end, _ in spans)
    return MaskPanel(image, name, len(ids), num_seen / len(ids) ** 2)


def draw_mask(mask: NDArray[np.bool_], *, name: str) -> MaskPanel:
    """Draw a mask [T, T], True where a query sees a key."""
    colors = _make_pixels(mask)
    colors[mask] = ImageColor.getrgb(SEEN)
    return MaskPanel(_fit_to_side(colors), name, mask.shape[-1], float(mask.mean()))


def to_dense_masks(mask: Any, *, limit: int) -> NDArray[np.bool_]:
    """Return the first masks [B, T, T], True where a query sees a key.

    Accepts booleans, or an additive mask: 0, or a very low number. Of several heads, uses the first.
    """
    shape = tuple(np.shape(mask))
    if len(shape) not in (2, 3, 4) or 0 in shape:
        raise ArgumentError(
            f"expected an attention mask, got shape {shape}",
            hint="pass [B, 1, T, T], [B, T, T] or [T, T], a batch of packed rows, or its document_ids [B, T]",
        )
    part = mask[:limit, 0] if len(shape) == 4 else mask[:limit] if len(shape) == 3 else mask[None]
    if hasattr(part, "detach"):
        part = (part.float() if part.dtype.is_floating_point else part).detach().cpu().numpy()
    array = np.asarray(part)
    return np.asarray(array > LOW if array.dtype.kind == "f" else array.astype(np.bool_))


def draw_panels(panels: Sequence[MaskPanel], *, title: str | None = None) -> Image.Image:
    """Draw masks side by side."""
    heading, letters, small = font(20), font(17), font(14)
    side = MARGIN + line_height(small) + 4  # room for vertical text
    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    width, height = max(panel.image.width for panel in panels), max(panel.image.height for panel in panels)
    top = MARGIN + (line_height(heading) + 8 if title else 0)
    pitch_x, pitch_y = width + GUTTER, height + line_height(letters) + 2 * line_height(small) + 22
    size = (side + columns * pitch_x - GUTTER + MARGIN, top + rows * pitch_y - 10 + MARGIN)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((side, MARGIN - 2), shorten(title, heading, size[0] - side - MARGIN), font=heading, fill=INK)
    for number, (image, name, num_keys, share) in enumerate(panels):
        x, y = side + number % columns * pitch_x, top + number // columns * pitch_y
        draw.text((x, y), shorten(name, letters, width), font=letters, fill=INK)
        y += line_height(letters) + 4
        sheet.paste(image, (x, y))
        draw.rectangle((x - 1, y - 1, x + image.width, y + image.height), outline=HATCH)
        below = y + image.height + 6
        draw.text((x, below), "keys", font=small, fill=FAINT)
        draw.text((x + image.width, below), f"{num_keys:,}", font=small, fill=FAINT, anchor="ra")
        draw.text(
            (x, below + line_height(small)), f"{format_percent(share)} of all pairs are visible", font=small, fill=FAINT
        )
        if not number % columns:
            _draw_upwards(sheet, "queries", (x - line_height(small) - 2, y))
    return sheet


def _make_pixels(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    colors = np.empty((*mask.shape, 3), np.uint8)
    colors[:] = ImageColor.getrgb(UNSEEN)
    return colors


def _fit_to_side(colors: NDArray[np.uint8]) -> Image.Image:
    """Scale the pairs to a readable size: several pixels each, or several pairs per pixel."""
    num_queries, num_keys = colors.shape[:2]
    longest = max(num_queries, num_keys)
    image = Image.fromarray(colors)
    if longest > SIDE:
        size = (max(1, round(num_keys * SIDE / longest)), max(1, round(num_queries * SIDE / longest)))
        return image.resize(size, Image.Resampling.BOX)
    times = SIDE // longest
    image = image.resize((num_keys * times, num_queries * times), Image.Resampling.NEAREST)
    if times >= 8:  # large enough for white grid lines
        draw = ImageDraw.Draw(image)
        for x in range(times, image.width, times):
            draw.line(((x, 0), (x, image.height)), fill=PAPER)
        for y in range(times, image.height, times):
            draw.line(((0, y), (image.width, y)), fill=PAPER)
    return image


def _draw_upwards(image: Image.Image, text: str, at: tuple[int, int]) -> None:
    """Draw vertical text, bottom to top."""
    small = font(14)
    box = small.getbbox(text)
    strip = Image.new("RGB", (round(box[2]) + 2, line_height(small)), PAPER)
    ImageDraw.Draw(strip).text((0, 0), text, font=small, fill=FAINT)
    image.paste(strip.rotate(90, expand=True), at)
