"""Rows put together from the tokens of their spans."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker import native

Indices = NDArray[np.int64]


def fill_rows(
    flat: NDArray[Any],
    elements: Indices,
    sizes: Indices,
    has_next: NDArray[np.bool_],
    row_starts: Indices,
    rows: Indices,
    *,
    tokens: NDArray[Any],
    labels: NDArray[Any],
    positions: NDArray[np.int32],
    document_ids: NDArray[np.int32],
    cu_seqlens: NDArray[np.int32],
    pad: int,
    ignored: int,
) -> None:
    """Write rows `rows` of the outputs, each from its spans: `row_starts[r]` to `row_starts[r + 1]`.

    Span `s` is `flat[elements[s] : elements[s] + sizes[s]]`, and the label of its last token the one behind it if
    `has_next[s]`. No other element of `flat` is looked at. `stoker.native` does it where it can, in one pass.
    """
    if not native.fill_rows(
        flat,
        elements,
        sizes,
        has_next,
        row_starts,
        rows,
        tokens=tokens,
        labels=labels,
        positions=positions,
        document_ids=document_ids,
        cu_seqlens=cu_seqlens,
        pad=pad,
        ignored=ignored,
    ):
        fill_rows_by_numpy(
            flat,
            elements,
            sizes,
            has_next,
            row_starts,
            rows,
            tokens=tokens,
            labels=labels,
            positions=positions,
            document_ids=document_ids,
            cu_seqlens=cu_seqlens,
            pad=pad,
            ignored=ignored,
        )


def fill_rows_by_numpy(
    flat: NDArray[Any],
    elements: Indices,
    sizes: Indices,
    has_next: NDArray[np.bool_],
    row_starts: Indices,
    rows: Indices,
    *,
    tokens: NDArray[Any],
    labels: NDArray[Any],
    positions: NDArray[np.int32],
    document_ids: NDArray[np.int32],
    cu_seqlens: NDArray[np.int32],
    pad: int,
    ignored: int,
) -> None:
    """Do the same with NumPy: the definition of what rows are."""
    num_rows, length = len(rows), tokens.shape[1]
    if not num_rows:
        return
    nums = np.diff(row_starts)
    row_of = np.repeat(np.arange(num_rows), nums)
    within = np.arange(len(sizes)) - row_starts[row_of]
    """The number of each span in its row."""
    before = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=before[1:])
    ends = before[1:] - before[row_starts[:-1]][row_of]
    begins = ends - sizes
    used = before[row_starts[1:]] - before[row_starts[:-1]]

    borders = np.full((num_rows, cu_seqlens.shape[1]), length, np.int32)
    borders[:, 0] = 0
    borders[row_of, within + 1] = ends
    borders[np.arange(num_rows), nums] = used  # where a row is empty, its padding begins at 0
    cu_seqlens[rows] = borders

    # Every column belongs to a span, of which the padding is one more in each row.
    stretches = np.zeros(len(sizes) + num_rows, np.int64)
    is_padding = np.zeros(len(stretches), np.bool_)
    is_padding[row_starts[1:] + np.arange(num_rows)] = True
    stretches[~is_padding], stretches[is_padding] = sizes, length - used
    ids = np.full(len(stretches), -1, np.int32)
    ids[~is_padding] = within
    starts = np.zeros(len(stretches), np.int64)
    starts[~is_padding], starts[is_padding] = begins, used
    columns = np.tile(np.arange(length), num_rows)
    positions[rows] = (columns - np.repeat(starts, stretches)).reshape(num_rows, length)
    every_id = np.repeat(ids, stretches)
    document_ids[rows] = every_id.reshape(num_rows, length)

    is_content = every_id >= 0
    content = flat[np.arange(int(before[-1])) + np.repeat(elements - before[:-1], sizes)]
    filled = np.full(num_rows * length, pad, tokens.dtype)
    filled[is_content] = content
    tokens[rows] = filled.reshape(num_rows, length)
    following = np.full(len(content), ignored, labels.dtype)
    following[:-1] = content[1:]
    lasts = before[1:] - 1
    following[lasts] = ignored
    following[lasts[has_next]] = flat[(elements + sizes)[has_next]]
    filled = np.full(num_rows * length, ignored, labels.dtype)
    filled[is_content] = following
    labels[rows] = filled.reshape(num_rows, length)
