"""Arguments for attention of packed rows, ready for the call. Shapes: B rows of T columns, M spans in each at most.

Calls for sequences of different lengths see the batch as one row of B * T columns, cut at `cu_seqlens`. How many
borders that has is the same for all batches (those that a row has no use for lie at its end, around nothing), and the
longest length is a plain number, so nothing is recompiled and nothing waits for the device.
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

    Given `cu_seqlens` alone, `length` says how long rows are. `max_seqlen` (`packed.max_seqlen`, or any bound) is the
    length of a row if it is left out: asking the device for a closer one would be to wait for it.
    """
    borders, longest = _flat(batch, length, max_seqlen)
    return {
        "cu_seqlens_q": borders,
        "cu_seqlens_k": borders,
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
    borders, longest = _flat(batch, length, max_seqlen)
    # The first version had a flag, later ones a window to the left and right.
    has_flag = "is_causal" in signature(varlen_attn).parameters
    causal = {"is_causal": True} if has_flag else {"window_size": (-1, 0)}
    return {"cu_seq_q": borders, "cu_seq_k": borders, "max_q": longest, "max_k": longest, **causal}


def nested(values: Tensor, batch: Batch | Tensor, *, max_seqlen: int | None = None) -> Tensor:
    """Return `values` [B, T, ...] as a jagged nested tensor with an element for each span: a view, not a copy.

    Swapped to [spans, H, span, D] with `transpose(1, 2)`, it fits `scaled_dot_product_attention(..., is_causal=True)`;
    `.values()` of the result are the B * T columns again. Unlike the others, this waits for the device: how many spans
    there are is part of the shape, because torch's gradients are wrong where elements are empty.
    """
    borders, longest = _flat(batch, values.shape[1], max_seqlen)
    is_border = torch.ones_like(borders, dtype=torch.bool)
    torch.gt(borders[1:], borders[:-1], out=is_border[1:])
    borders = borders[is_border]
    flat = values.flatten(0, 1)
    viewed: Tensor = torch.nested.nested_tensor_from_jagged(flat, borders, min_seqlen=1, max_seqlen=longest)
    return viewed


def _flat(batch: Batch | Tensor, length: int | None, max_seqlen: int | None) -> tuple[Tensor, int]:
    """Return the borders of all rows one after the other, [B * M + 1], and a bound on the length of spans."""
    borders = field(batch, "cu_seqlens").to(torch.int32)  # what they are, unless somebody widened them
    if isinstance(batch, Mapping):
        length = field(batch, "document_ids").shape[-1]
        if max_seqlen is None and "max_seqlen" in batch:
            most = tensor(batch, "max_seqlen")
            if most.device.type == "cpu":
                max_seqlen = int(most.max())
    if length is None:
        raise ArgumentError(
            "cu_seqlens alone do not tell how long rows are", hint="pass length=..., or the whole batch"
        )
    num_rows = len(borders)
    if num_rows * length >= 2**31:
        raise ArgumentError(
            f"{num_rows} rows of {length} columns are too many for borders of 32 bits", hint="use fewer rows"
        )
    if num_rows == 1:
        return borders[0], max_seqlen or length
    shifts = torch.arange(0, num_rows * length, length, dtype=borders.dtype, device=borders.device)
    ends = (borders[:, 1:] + shifts[:, None]).flatten()
    return torch.nn.functional.pad(ends, (1, 0)), max_seqlen or length
