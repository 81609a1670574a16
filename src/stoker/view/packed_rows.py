"""Draw packed rows as bars: one color per document, padding hatched. Shapes: B rows of T columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from stoker.errors import ArgumentError
from stoker.foundation.text import format_count
from stoker.view.paper import (
    DOCUMENTS,
    FAINT,
    HATCH,
    INK,
    LINE,
    MARGIN,
    PAPER,
    draw_hatching,
    font,
    line_height,
    shorten,
    text_width,
)

WIDTH = 1200
"""Width of a row in pixels."""

ROW, GAP = 26, 7
"""Height of a row, and the gap between rows, in pixels."""

NARROWEST = 4
"""Spans narrower than this many pixels have no border: it would cover them."""


def is_packed(batch: Any) -> bool:
    """Return whether a batch holds packed rows."""
    return isinstance(batch, Mapping) and ("document_ids" in batch or ("cu_seqlens" in batch and "tokens" in batch))


def document_ids(batch: Mapping[str, Any] | Any) -> NDArray[np.int64]:
    """Return the document id of each column [B, T], -1 for padding, from packed rows or their ids."""
    if isinstance(batch, Mapping) and "document_ids" not in batch:
        return _from_offsets(_numbers(batch["cu_seqlens"]), _numbers(batch["tokens"]).shape[-1])
    ids = _numbers(batch["document_ids"] if isinstance(batch, Mapping) else batch)
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or not ids.size:
        raise ArgumentError(
            f"expected document ids of shape [B, T], got {ids.shape}",
            hint="pass a batch of stoker.pack(...), or its document_ids [B, T]",
        )
    return ids


def document_spans(ids: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return (begin, end, id) of each span of a row [T]."""
    borders = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    return [(begin, end, int(ids[begin])) for begin, end in pairwise(borders)]


def document_color(document: int, row: int) -> str:
    """Return the color of a document: it differs from its neighbors' and from the first document of the next row."""
    return DOCUMENTS[(document + row) % len(DOCUMENTS)]


def format_fill(ids: NDArray[np.int64]) -> str:
    """Format the share of columns that hold a token, rounded down: 100% means no padding at all."""
    return f"{int(1000 * int((ids >= 0).sum()) // ids.size) / 10}%"


def draw_rows(
    ids: NDArray[np.int64],
    *,
    names: Sequence[str] | None = None,
    num_all: int | None = None,
    title: str | None = None,
) -> Image.Image:
    """Draw rows [B, T]; `names` are the labels on the left (default: row numbers)."""
    num_rows, length = ids.shape
    names = list(names) if names is not None else [str(number) for number in range(num_rows)]
    heading, letters, small = font(18), font(14), font(12)
    names = [shorten(name, letters, 200) for name in names]
    left = MARGIN + round(max(text_width(name, letters) for name in names)) + 10
    right = round(text_width("100.0 %", letters)) + 12 + MARGIN
    top = MARGIN + (line_height(heading) + 6 if title else 0) + line_height(letters) + 16
    axis = line_height(small) + 12
    image = Image.new("RGB", (left + WIDTH + right, top + num_rows * (ROW + GAP) + axis + MARGIN), PAPER)
    draw = ImageDraw.Draw(image)
    if title:
        room = image.width - 2 * MARGIN
        draw.text((MARGIN, MARGIN - 2), shorten(title, heading, room), font=heading, fill=INK)
    _legend(image, draw, (left, top - line_height(letters) - 14), ids, num_all or num_rows)
    for number, row in enumerate(ids):
        y = top + number * (ROW + GAP)
        draw.text((left - 10, y + ROW / 2), names[number], font=letters, fill=INK, anchor="rm")
        _bar(image, draw, (left, y), row, number)
        draw.text((left + WIDTH + 12, y + ROW / 2), format_fill(row), font=letters, fill=FAINT, anchor="lm")
    _axis(draw, left, top + num_rows * (ROW + GAP) - GAP + 4, length)
    return image


def _bar(
    image: Image.Image, draw: ImageDraw.ImageDraw, at: tuple[int, int], row: NDArray[np.int64], number: int
) -> None:
    small = font(12)
    left, y = at
    for begin, end, document in document_spans(row):
        x, stop = left + round(begin * WIDTH / len(row)), left + round(end * WIDTH / len(row))
        stop = max(stop, x + 1)
        if document < 0:
            image.paste(draw_hatching(stop - x, ROW), (x, y))
            draw.rectangle((x, y, stop - 1, y + ROW - 1), outline=HATCH)
            continue
        draw.rectangle((x, y, stop - 1, y + ROW - 1), fill=document_color(document, number))
        if stop - x >= NARROWEST:
            draw.line(((stop - 1, y), (stop - 1, y + ROW - 1)), fill=PAPER)
        text = f"{end - begin:,}"
        if stop - x >= text_width(text, small) + 8:
            draw.text(((x + stop - 1) / 2, y + ROW / 2), text, font=small, fill=INK, anchor="mm")


def _legend(
    image: Image.Image, draw: ImageDraw.ImageDraw, at: tuple[float, float], ids: NDArray[np.int64], num_all: int
) -> None:
    letters = font(14)
    x, y = round(at[0]), round(at[1])
    middle = y + 8
    for document in range(len(DOCUMENTS)):
        draw.rectangle((x, y + 1, x + 13, y + 14), fill=document_color(document, 0))
        x += 15
    x += 6
    word = "documents, with token counts"
    draw.text((x, middle), word, font=letters, fill=INK, anchor="lm")
    x += round(text_width(word, letters)) + 28
    image.paste(draw_hatching(30, 14), (x, y + 1))
    draw.rectangle((x, y + 1, x + 29, y + 14), outline=HATCH)
    draw.text((x + 38, middle), "padding", font=letters, fill=INK, anchor="lm")
    num_rows, length = ids.shape
    num_spans = sum(document >= 0 for row in ids for _, _, document in document_spans(row))
    rows = f"{num_rows:,} of {num_all:,} rows" if num_all > num_rows else format_count(num_rows, "row")
    text = f"{rows} of {length:,} tokens, {format_count(num_spans, 'document')}, {format_fill(ids)} full"
    draw.text((at[0] + WIDTH, middle), text, font=letters, fill=FAINT, anchor="rm")


def _axis(draw: ImageDraw.ImageDraw, left: int, y: int, length: int) -> None:
    small = font(12)
    for at in _ticks(length):
        x = left + round(at * WIDTH / length)
        draw.line(((x, y), (x, y + 4)), fill=LINE)
        anchor = "la" if at == 0 else "ra" if at == length else "ma"
        draw.text((x, y + 7), f"{at:,}" + (" tokens" if at == length else ""), font=small, fill=FAINT, anchor=anchor)


def _ticks(length: int) -> list[int]:
    """Return the columns to label: eighths where those are whole numbers, otherwise quarters or only the ends."""
    parts = next((parts for parts in (8, 4, 2) if length % parts == 0 and length >= 4 * parts), 1)
    return [length * at // parts for at in range(parts + 1)]


def _from_offsets(borders: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return ids from `cu_seqlens` [B, M + 1], which do not distinguish padding from a document."""
    borders = borders[None] if borders.ndim == 1 else borders
    columns = np.arange(length)
    return np.stack([np.searchsorted(np.unique(row), columns, side="right") - 1 for row in borders]).astype(np.int64)


def _numbers(values: Any) -> NDArray[np.int64]:
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values).astype(np.int64, copy=False)
