"""The mask as booleans for every pair of columns. Shapes: B rows of T columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from stoker.masks.document_ids import Batch, document_ids_from_eos, field


def dense(batch: Batch | Tensor) -> Tensor:
    """Return the mask [B, 1, T, T] of a batch, or of its `document_ids`: True where a query sees a key.

    It is computed on the device of the ids: on a GPU in one pass, by a Triton kernel if Triton is installed, as with
    torch for CUDA.
    """
    return _causal(field(batch, "document_ids")).unsqueeze(1)


def from_eos(tokens: Tensor, eos_id: int) -> Tensor:
    """Return the mask [B, 1, T, T] of rows of tokens that were packed elsewhere and have no ids.

    A document ends with its `eos_id` and includes it. Where that token is the padding as well, each padding token is
    a document of its own, and sees itself.
    """
    return _causal(document_ids_from_eos(field(tokens, "tokens"), eos_id)).unsqueeze(1)


def _causal(ids: Tensor) -> Tensor:
    if ids.is_cuda and ids.numel() and not torch.compiler.is_compiling():  # compiled, one pass as it is
        written = _kernel()
        if written is not None:
            return written(ids)
    # In place: only the part above the diagonal is written again, and nothing is read.
    return (ids.unsqueeze(-1) == ids.unsqueeze(-2)).tril_()


@cache
def _kernel() -> Callable[[Tensor], Tensor] | None:
    try:
        from stoker.masks.dense_kernel import causal
    except ImportError:
        return None
    return causal
