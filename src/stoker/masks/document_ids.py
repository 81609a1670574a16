"""The document of each column of a row. Shapes: B rows of T columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from stoker.errors import ArgumentError

Batch: TypeAlias = Mapping[str, Any]
"""The fields of packed rows, by name."""


def document_ids_from_eos(tokens: Batch | Tensor, eos_id: int) -> Tensor:
    """Return the number of each token's document in its row, 0, 1, 2, ..., int32, in the shape of `tokens`.

    A document ends with its `eos_id` and includes it. What follows the last end is a document, too.
    """
    ends = (given(tokens, "tokens") == eos_id).to(torch.int32)
    return ends.cumsum(-1, dtype=torch.int32) - ends


def positions_from_ids(document_ids: Batch | Tensor) -> Tensor:
    """Return each column's position in its document, int32: it restarts at 0 wherever the id changes."""
    ids = given(document_ids, "document_ids")
    return columns(ids) - starts(ids)


def starts(document_ids: Tensor) -> Tensor:
    """Return the column where each column's document begins, int32."""
    begins = torch.zeros_like(document_ids, dtype=torch.int32)
    is_new = document_ids[..., 1:] != document_ids[..., :-1]
    torch.mul(is_new, columns(document_ids)[1:], out=begins[..., 1:])
    return begins.cummax(-1).values


def columns(rows: Tensor) -> Tensor:
    """Return 0, 1, 2, ... for the columns of `rows`, int32, on their device."""
    return torch.arange(rows.shape[-1], dtype=torch.int32, device=rows.device)


def field(batch: Batch | Tensor, name: str, *, num_dims: int = 2) -> Tensor:
    """Return a field of a batch, or the tensor itself, with a batch dimension added if it has none."""
    values = given(batch, name)
    if values.ndim == num_dims - 1:
        values = values.unsqueeze(0)
    if values.ndim != num_dims:
        raise ArgumentError(
            f"{name} has the shape {tuple(values.shape)}, expected a batch of packed rows",
            hint=f"pass a batch of stoker.pack(...), or its {name!r} of {num_dims} dimensions",
        )
    return values


def given(batch: Batch | Tensor, name: str) -> Tensor:
    """Return a field of a batch, or the tensor itself, in the shape it has."""
    return tensor(batch, name) if isinstance(batch, Mapping) else torch.as_tensor(batch)


def tensor(batch: Batch, name: str) -> Tensor:
    """Return a field of a batch as it is."""
    if name not in batch:
        raise ArgumentError(
            f"the batch has no {name!r}: it holds {', '.join(map(repr, batch)) or 'nothing'}",
            hint="pass a batch of rows made by stoker.pack(...), or the tensor itself",
        )
    return torch.as_tensor(batch[name])
