"""FlexAttention's block mask. Shapes: B rows of T columns, in Q blocks of queries and as many of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from stoker.errors import ArgumentError
from stoker.masks.document_ids import Batch, field, starts, tensor

PAIRS = ("kv", "full_kv", "q", "full_q")
"""Tables come in pairs: the number of blocks, and the blocks."""

DEFAULT_SIZE = 128
"""FlexAttention's default block size."""


def flex(batch: Batch | Tensor, *, blocks: int | None = None) -> BlockMask:
    """Return the block mask of a batch, or of its `document_ids`, for `flex_attention(..., block_mask=...)`.

    Where rows were packed with `blocks=...`, their tables are wrapped and nothing runs on the device. Otherwise the
    tables for blocks of `blocks` columns (128) are computed there, from the ends of documents and not from the full
    mask. Both equal the tables of `create_block_mask`, for the forward and the backward pass. A function compiled with
    one such mask takes all others of the same shape.
    """
    ids = field(batch, "document_ids")
    length = ids.shape[-1]
    if isinstance(batch, Mapping) and "kv_num_blocks" in batch:
        tables = _given(batch)
        size = _size(length, tables["kv_num_blocks"].shape[-1], blocks)
    else:
        size = DEFAULT_SIZE if blocks is None else blocks
        if not isinstance(size, int) or size < 2 or size & (size - 1):
            raise ArgumentError(f"blocks must be a power of two, got {size}", hint="FlexAttention's default is 128")
        tables = _computed(ids, size)
    return BlockMask(
        seq_lengths=(length, length),
        BLOCK_SIZE=(size, size),
        mask_mod=_same_document(ids),
        **tables,  # type: ignore[arg-type]
    )


def _same_document(ids: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    # A closure over one tensor: compiled code treats the tensor as an input, so the next batch needs no recompilation.
    def same_document(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        return (ids[b, q] == ids[b, k]) & (k <= q)

    return same_document


def _given(batch: Batch) -> dict[str, Tensor]:
    """Return the tables of a batch, with a dimension for heads of size 1: one mask for all heads."""
    tables = {}
    for pair in PAIRS:
        for name, num_dims in ((f"{pair}_num_blocks", 2), (f"{pair}_indices", 3)):
            tables[name] = field(tensor(batch, name), name, num_dims=num_dims).unsqueeze(1)
    return tables


def _size(length: int, num_blocks: int, blocks: int | None) -> int:
    """Return the block size of tables: the only power of two that gives so many blocks, if there are several."""
    size = 1 << max(1, -(-length // num_blocks) - 1).bit_length()
    if num_blocks == 1:
        size = max(size, blocks or DEFAULT_SIZE)
    if -(-length // size) != num_blocks or blocks not in (None, size):
        raise ArgumentError(
            f"the batch has tables of {num_blocks} blocks for rows of {length} columns"
            + (f", which are not blocks of {blocks}" if blocks is not None else ""),
            hint="leave out blocks= here: the size is the one that was passed to stoker.pack",
        )
    return size


def _computed(ids: Tensor, size: int) -> dict[str, Tensor]:
    """Return the tables for `ids` [B, T]. `compose/packs/block_tables.py` defines them, with the same names."""
    length = ids.shape[-1]
    num = -(-length // size)
    blocks = torch.arange(num, dtype=torch.int32, device=ids.device)
    begins = starts(ids)
    first = begins[:, ::size] // size
    lasts = begins[:, size - 1 :: size]  # [B, Q or Q - 1]: of complete blocks only
    solid = blocks.expand(len(ids), num).clone()
    solid[:, : lasts.shape[1]].clamp_(max=(lasts + (size - 1)) // size)
    # For a key block, full and partial query blocks are consecutive too, so counting them gives the first and last.
    key, query = blocks, blocks[:, None]
    is_below = key < query
    is_full = (solid[:, :, None] <= key) & is_below
    is_partial = (first[:, :, None] <= key) & (is_below & ~is_full)
    num_full = is_full.sum(-2, dtype=torch.int32)
    num_partial = is_partial.sum(-2, dtype=torch.int32)
    whole = blocks + 1 + num_full
    tables = {
        "kv_num_blocks": solid - first + 1,
        "kv_indices": torch.where(
            key < (solid - first)[:, :, None],
            first[:, :, None] + key,
            torch.where(key == (solid - first)[:, :, None], query, 0),
        ),
        "full_kv_num_blocks": blocks - solid,
        "full_kv_indices": torch.where(key < (blocks - solid)[:, :, None], solid[:, :, None] + key, 0),
        "q_num_blocks": num_partial + 1,
        "q_indices": torch.where(
            key == 0, query, torch.where(key <= num_partial[:, :, None], whole[:, :, None] - 1 + key, 0)
        ),
        "full_q_num_blocks": num_full,
        "full_q_indices": torch.where(key < num_full[:, :, None], query + 1 + key, 0),
    }
    return {name: table.to(torch.int32).unsqueeze(1) for name, table in tables.items()}
