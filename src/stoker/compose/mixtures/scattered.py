"""One batch out of the batches of several sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.compose.batch_fields import Empty
from stoker.plan.order import Indices


def scattered(parts: Sequence[tuple[Indices, Any]], num_rows: int, empty: Empty) -> Any:
    """Return the batch that has the rows of each part, which are numbered, in their places.

    NotImplemented if the parts are not of one form: tables, lists and tuples of arrays of the same shape and type.
    """
    first = parts[0][1]
    if any(type(part) is not type(first) for _, part in parts):
        return NotImplemented
    if type(first) is dict:
        if any(part.keys() != first.keys() for _, part in parts):
            return NotImplemented
        return _joined({name: [(rows, part[name]) for rows, part in parts] for name in first}, num_rows, empty)
    if type(first) is list or type(first) is tuple:
        if any(len(part) != len(first) for _, part in parts):
            return NotImplemented
        fields = {at: [(rows, part[at]) for rows, part in parts] for at in range(len(first))}
        joined = _joined(fields, num_rows, empty)
        return joined if joined is NotImplemented else type(first)(joined.values())
    if not isinstance(first, np.ndarray) or not first.ndim:
        return NotImplemented
    shape = first.shape[1:]
    if any(len(part) != len(rows) or part.shape[1:] != shape or part.dtype != first.dtype for rows, part in parts):
        return NotImplemented
    whole = empty((num_rows, *shape), first.dtype)
    for rows, part in parts:  # written before more memory is taken: a slot may move when it grows
        whole[rows] = part
    return whole


def _joined(fields: dict[Any, list[tuple[Indices, Any]]], num_rows: int, empty: Empty) -> Any:
    joined = {}
    for name, parts in fields.items():
        joined[name] = scattered(parts, num_rows, empty)
        if joined[name] is NotImplemented:
            return NotImplemented
    return joined
