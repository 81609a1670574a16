"""Arguments of attention calls for packed rows. Shapes: B rows of T columns, at most M spans in each.

Calls for sequences of different lengths treat the batch as one row of B * T columns, cut at `cu_seqlens`. Its size is
the same for all batches (unused entries are empty sequences at the end of a row), and the longest length is a plain
number, so nothing is recompiled and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from stoker.errors import ArgumentError
from stoker.masks.dense_mask import dense
from stoker.masks.document_ids import Batch, field, tensor


def sdpa(batch: Batch | Tensor) -> dict[str, Any]:
    """Return what `scaled_dot_product_attention(query, key, value, **sdpa(batch))` needs, for queries [B, H, T, D]."""
    return {"attn_mask": dense(batch)}


def flash(batch: Batch | Tensor, *, length: int | None = None, max_seqlen: int | None = None) -> dict[str, Any]:
    """Return what `flash_attn_varlen_func(query, key, value, **flash(batch))` needs, for queries [B * T, H, D].

    With `cu_seqlens` alone, `length` is the length of a row. `max_seqlen` (`packed.max_seqlen`, or any upper bound)
    defaults to the length of a row: reading a closer bound from the device would mean waiting for it.
    """
    offsets, longest = _flat(batch, length, max_seqlen)
    return {
        "cu_seqlens_q": offsets,
        "cu_seqlens_k": offsets,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
        "causal": True,
    }


def varlen(batch: Batch | Tensor, *, length: int | None = None, max_seqlen: int | None = None) -> dict[str, Any]:
    """Return what `torch.nn.attention.varlen.varlen_attn(query, key, value, **varlen(batch))` needs; see `flash`."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        raise ArgumentError(
            f"torch {torch.__version__} has no torch.nn.attention.varlen",
            hint="torch 2.10 and later have it; flash(batch) is for the flash-attn package, flex(batch) for any torch",
        ) from None
    offsets, longest = _flat(batch, length, max_seqlen)
    # The first version has a flag, later ones a window to the left and right.
    has_flag = "is_causal" in signature(varlen_attn).parameters
    causal = {"is_causal": True} if has_flag else {"window_size": (-1, 0)}
    return {"cu_seq_q": offsets, "cu_seq_k": offsets, "max_q": longest, "max_k": longest, **causal}


def nested(values: Tensor, batch: Batch | Tensor, *, max_seqlen: int | None = None) -> Tensor:
    """Return `values` [B, T, ...] as a jagged nested tensor with an element for each span: a view, not a copy.

    Swapped to [spans, H, span, D] with `transpose(1, 2)`, it fits `scaled_dot_product_attention(..., is_causal=True)`;
    `.values()` of the result are the B * T columns again. Unlike the others, this waits for the device: the number of
    spans is part of the shape, because torch's gradients are wrong for empty elements.
    """
    offsets, longest = _flat(batch, values.shape[1], max_seqlen)
    is_border = torch.ones_like(offsets, dtype=torch.bool)
    torch.gt(offsets[1:], offsets[:-1], out=is_border[1:])
    offsets = offsets[is_border]
    flat = values.flatten(0, 1)
    viewed: Tensor = torch.nested.nested_tensor_from_jagged(flat, offsets, min_seqlen=1, max_seqlen=longest)
    return viewed


def _flat(batch: Batch | Tensor, length: int | None, max_seqlen: int | None) -> tuple[Tensor, int]:
    """Return the offsets of all rows, [B * M + 1], and an upper bound on the length of spans."""
    offsets = field(batch, "cu_seqlens").to(torch.int32)  # a no-op, unless the loader widened them
    if isinstance(batch, Mapping):
        length = field(batch, "document_ids").shape[-1]
        if max_seqlen is None and "max_seqlen" in batch:
            most = tensor(batch, "max_seqlen")
            if most.device.type == "cpu":
                max_seqlen = int(most.max())
    if length is None:
        raise ArgumentError("cu_seqlens alone needs length=..., the length of a row", hint="or pass the whole batch")
    num_rows = len(offsets)
    if num_rows * length >= 2**31:
        raise ArgumentError(
            f"{num_rows} rows of {length} columns are too many for offsets of 32 bits", hint="use fewer rows"
        )
    if num_rows == 1:
        return offsets[0], max_seqlen or length
    shifts = torch.arange(0, num_rows * length, length, dtype=offsets.dtype, device=offsets.device)
    ends = (offsets[:, 1:] + shifts[:, None]).flatten()
    return torch.nn.functional.pad(ends, (1, 0)), max_seqlen or length
