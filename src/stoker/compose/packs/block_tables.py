"""FlexAttention's block tables of packed rows, computed on the CPU where rows are made, ahead of the training step.

Attention in a row is causal within documents: query `q` sees key `k` where `start(q) <= k <= q`, and `start(q)` is
where the span that holds column `q` begins (padding is a span like any other). Cut into blocks of `size` x `size`, such
a mask follows from the ends of the spans alone, so the tables cost nothing per token. For query block `i` and key
block `j`, with `start(c)` and `end(c)` of the span that holds column `c`, and `//` rounding down:

- key blocks `first[i] .. i` have visible pairs, with `first[i] = start(i * size) // size`;
- of these, `solid[i] .. i - 1` are full (every pair is visible), with
  `solid[i] = min(i, ceil(start((i + 1) * size - 1) / size))`, and none (`solid[i] = i`) in a last query block that
  `length` cuts short. So `first[i] .. solid[i] - 1` and the diagonal `i` are partial;
- seen from the keys: query blocks `j .. last[j]` have visible pairs, with
  `last[j] = max(j, (end(min((j + 1) * size, length) - 1) - 1) // size)`; of these `j + 1 .. whole[j] - 1` are full,
  with `whole[j] = max(j + 1, end(j * size) // size)`. So the diagonal `j` and `whole[j] .. last[j]` are partial.

Shapes: R rows of `length` columns, at most M spans in each, `num` blocks in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker import native
from stoker.errors import ArgumentError

COUNTS = ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks")
"""Number of blocks listed for each block of queries (`kv`) or of keys (`q`), partial and full."""

INDICES = ("kv_indices", "full_kv_indices", "q_indices", "full_q_indices")
"""The blocks listed, in the same order."""


def num_blocks(length: int, size: int) -> int:
    """Return how many blocks of `size` columns a row of `length` has; the last may be cut short.

    Sizes are powers of two: kernels need that, and the size then follows from the shape of the tables.
    """
    if size < 2 or size & (size - 1):
        raise ArgumentError(
            f"blocks={size} is invalid: the size of attention blocks must be a power of two",
            hint="FlexAttention's default is 128",
        )
    return -(-length // size)


def block_fields(length: int, size: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and type of each of the eight tables of one row, by name."""
    num, kind = num_blocks(length, size), np.dtype(np.int32)
    fields: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for count, indices in zip(COUNTS, INDICES):
        fields[count] = (num,), kind
        fields[indices] = (num, num), kind
    return fields


def block_tables(
    cu_seqlens: NDArray[np.integer[Any]],
    length: int,
    size: int,
    out: Mapping[str, NDArray[np.int32]],
    rows: NDArray[np.int64] | None = None,
) -> None:
    """Write the eight tables of rows of `length` columns into `out`, by the definition at the top.

    `cu_seqlens` [R, M + 1] has 0, the ends of each row's spans, ascending, and `length` up to its last entry. Row `r`
    goes to row `rows[r]` of the arrays in `out` (shapes as in `block_fields`, after the batch dimension), or to row `r`
    without `rows`. Listed blocks ascend; entries of a list beyond its count are 0. Counts and lists are those of
    `torch.nn.attention.flex_attention.create_block_mask` for the same mask. C does it where it can.
    """
    num_blocks(length, size)  # raises for an invalid size
    if rows is None:
        rows = np.arange(len(cu_seqlens), dtype=np.int64)
    if not native.block_tables(cu_seqlens, length, size, out, rows):
        block_tables_by_numpy(cu_seqlens, length, size, out, rows)


def block_tables_by_numpy(
    cu_seqlens: NDArray[np.integer[Any]],
    length: int,
    size: int,
    out: Mapping[str, NDArray[np.int32]],
    rows: NDArray[np.int64],
) -> None:
    """The same in NumPy."""
    num = num_blocks(length, size)
    num_rows = len(cu_seqlens)
    blocks = np.arange(num, dtype=np.int64)
    begins, ends = blocks * size, np.minimum((blocks + 1) * size, length)

    # One search for all rows: offsets of row r are shifted by r * (length + 1), beyond any of the row before. Searched
    # for are the first and the last column of every block, [R, 2 * num].
    shifts = np.arange(num_rows, dtype=np.int64)[:, None] * (length + 1)
    offsets = (cu_seqlens + shifts).ravel()
    columns = np.concatenate((begins, ends - 1)) + shifts
    after = offsets.searchsorted(columns, "right")
    starts, stops = offsets[after - 1] - shifts, offsets[after] - shifts

    first = starts[:, :num] // size
    solid = np.minimum(-(-starts[:, num:] // size), blocks)
    if length % size:
        solid[:, -1] = num - 1
    last = np.maximum((stops[:, num:] - 1) // size, blocks)
    whole = np.maximum(stops[:, :num] // size, blocks + 1)

    out["kv_num_blocks"][rows] = solid - first + 1
    out["kv_indices"][rows] = _listed(solid - first, first, blocks, is_diagonal_last=True)
    out["full_kv_num_blocks"][rows] = blocks - solid
    out["full_kv_indices"][rows] = _listed(blocks - solid, solid)
    out["q_num_blocks"][rows] = last - whole + 2
    out["q_indices"][rows] = _listed(last - whole + 1, whole, blocks, is_diagonal_last=False)
    out["full_q_num_blocks"][rows] = whole - blocks - 1
    out["full_q_indices"][rows] = _listed(whole - blocks - 1, np.broadcast_to(blocks + 1, whole.shape))


def _listed(
    counts: NDArray[np.int64],
    firsts: NDArray[np.int64],
    diagonal: NDArray[np.int64] | None = None,
    *,
    is_diagonal_last: bool = True,
) -> NDArray[np.int32]:
    """Return lists [R, num, num] of `counts` consecutive blocks from `firsts` on, the diagonal after or before them."""
    num = counts.shape[-1]
    places = np.arange(num, dtype=np.int32)
    is_shifted = diagonal is not None and not is_diagonal_last
    lists: NDArray[np.int32] = places + (firsts - is_shifted).astype(np.int32)[:, :, None]
    lists *= places < (counts + is_shifted)[:, :, None]
    if diagonal is not None and is_diagonal_last:
        np.put_along_axis(lists, counts[:, :, None], diagonal.astype(np.int32)[None, :, None], axis=2)
    elif diagonal is not None:
        lists[:, :, 0] = diagonal
    return lists
