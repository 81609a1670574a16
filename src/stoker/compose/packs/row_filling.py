"""The fields of packed rows, written from the tokens of their spans: the NumPy twin of `stoker.native.fill_rows`.

Shapes: V values in `flat`; S spans, of all rows together; R rows to write, into outputs of B rows with T columns; at
most M spans in a row, the padding counted as one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.plan.packing import starts_of

Indices = NDArray[np.int64]


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
    """Write rows `rows` [R] of the outputs, [B, T] and `cu_seqlens` [B, M + 1]. Defines what rows hold.

    Row `rows[r]` gets the spans `row_starts[r]` to `row_starts[r + 1]`. Span `s` is
    `flat[elements[s] : elements[s] + sizes[s]]`; the label of its last token is the value after it if `has_next[s]`,
    and `ignored` otherwise. No other element of `flat` is read.
    """
    num_rows, length = len(rows), tokens.shape[1]
    if not num_rows:
        return
    # [S]: the row of each span (as an index into `rows`), its number in the row, and its columns [begin, end)
    num_spans = np.diff(row_starts)
    row_of = np.repeat(np.arange(num_rows), num_spans)
    number = np.arange(len(sizes)) - row_starts[row_of]
    tokens_before = starts_of(sizes)  # [S + 1], over all rows
    ends = tokens_before[1:] - tokens_before[row_starts[:-1]][row_of]
    begins = ends - sizes
    used = tokens_before[row_starts[1:]] - tokens_before[row_starts[:-1]]  # [R]: columns that are not padding

    offsets = np.full((num_rows, cu_seqlens.shape[1]), length, np.int32)
    offsets[:, 0] = 0
    offsets[row_of, number + 1] = ends
    offsets[np.arange(num_rows), num_spans] = used  # for a row without spans: its padding begins at 0
    cu_seqlens[rows] = offsets

    # Columns are cut into S + R stretches: the spans of a row, then its padding, which may have no columns.
    is_padding = np.zeros(len(sizes) + num_rows, np.bool_)
    is_padding[row_starts[1:] + np.arange(num_rows)] = True
    stretch_sizes, starts = np.zeros(len(is_padding), np.int64), np.zeros(len(is_padding), np.int64)
    stretch_sizes[~is_padding], stretch_sizes[is_padding] = sizes, length - used
    starts[~is_padding], starts[is_padding] = begins, used
    ids = np.full(len(is_padding), -1, np.int32)
    ids[~is_padding] = number
    columns = np.tile(np.arange(length), num_rows)  # [R * T], as the ids
    positions[rows] = (columns - np.repeat(starts, stretch_sizes)).reshape(num_rows, length)
    every_id = np.repeat(ids, stretch_sizes)
    document_ids[rows] = every_id.reshape(num_rows, length)

    # Token k of all spans together, k = 0 .. tokens_before[-1], is flat[elements[s] + k - tokens_before[s]].
    is_content = every_id >= 0
    content = flat[np.arange(int(tokens_before[-1])) + np.repeat(elements - tokens_before[:-1], sizes)]
    filled = np.full(num_rows * length, pad, tokens.dtype)
    filled[is_content] = content
    tokens[rows] = filled.reshape(num_rows, length)
    following = np.full(len(content), ignored, labels.dtype)
    following[:-1] = content[1:]
    lasts = tokens_before[1:] - 1
    following[lasts] = ignored
    following[lasts[has_next]] = flat[(elements + sizes)[has_next]]
    filled = np.full(num_rows * length, ignored, labels.dtype)
    filled[is_content] = following
    labels[rows] = filled.reshape(num_rows, length)
