"""Samples into a batch, with the results of torch's `default_collate`, sooner.

torch turns every NumPy array into a tensor before it stacks them; here they are joined in one call. Dataclasses are
collated field by field, which torch refuses. Whatever is not handled here goes to torch, so that its rules, its
errors and types registered in its `default_collate_fn_map` stay.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate as torch_collate

from stoker.batch.memory import is_placed, placed_array
from stoker.foundation.torch_private import default_collate_fn_map

Batch = Any

_dtype_of = operator.attrgetter("dtype")


def collate(samples: Sequence[Any]) -> Batch:
    """Return `samples` as one batch: tensors stacked, containers kept, strings in a list."""
    first = samples[0]
    kind = type(first)
    leaf = _LEAVES.get(kind)
    if leaf is not None:
        return leaf(samples)
    if kind is dict:
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if kind is tuple or kind is list:
        return [collate(column) for column in _columns(samples)]
    if is_registered(first):
        return torch_collate(list(samples))
    if dataclasses.is_dataclass(first):
        return _dataclass(first, samples)
    if isinstance(first, Mapping):
        return _mapping(first, samples)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return kind(*(collate(column) for column in zip(*samples)))
    if isinstance(first, Sequence):
        return _sequence(first, samples)
    return torch_collate(list(samples))


def stack_plainly() -> None:
    """Let torch's `default_collate`, called by users' functions in this worker process, put tensors into plain memory.

    In worker processes it puts each into a shared-memory file of its own, which is for torch's loader alone: it costs
    time, descriptors and room in /dev/shm, and would be copied into a slot just the same.
    """
    if default_collate_fn_map.get(torch.Tensor) is _PRISTINE[torch.Tensor]:
        default_collate_fn_map[torch.Tensor] = _PRISTINE[torch.Tensor] = _plainly_stacked


def _plainly_stacked(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if batch[0].is_nested or batch[0].layout is not torch.strided:
        return _torch_tensors(batch, collate_fn_map=collate_fn_map)
    return torch.stack(batch, 0)


def plain_collate() -> Callable[[list[Any]], Batch]:
    """Return the collation for loaders without one of their own: torch's, if its table was changed for a type of
    ours.
    """
    pristine = all(default_collate_fn_map.get(kind) is function for kind, function in _PRISTINE.items())
    return collate if pristine else torch_collate


def _tensors(samples: Sequence[torch.Tensor]) -> Batch:
    first = samples[0]
    if first.layout is not torch.strided or first.is_nested:
        return torch_collate(list(samples))
    carrier = _CARRIERS.get(first.dtype)
    # with an `out`, torch would convert: to the first one's dtype, and not to one that holds them all
    is_plain = first.dim() < 4 or first.is_contiguous()  # torch keeps the layout of what is, say, channels-last
    if (
        is_placed()
        and is_plain
        and carrier is not None
        and first.device.type == "cpu"
        and len(set(map(_dtype_of, samples))) == 1
    ):
        out = torch.from_numpy(placed_array((len(samples), *first.shape), carrier, len(samples) * first.nbytes))
        try:
            return torch.stack(samples, out=out if out.dtype is first.dtype else out.view(first.dtype))  # type: ignore[arg-type]
        except RuntimeError:
            pass  # shapes differ, or something requires a gradient: it is told, or made, without `out`
    return torch.stack(samples)  # type: ignore[arg-type]


def _arrays(samples: Sequence[np.ndarray[Any, Any]]) -> Batch:
    first = samples[0]
    if first.dtype.kind in "biufc" and first.size:
        shape = (len(samples), *first.shape)
        # of equal length: `concatenate` itself sees to it that all else is equal, too
        if is_placed() and first.ndim and first.dtype in _NATIVE and len(set(map(len, samples))) == 1:
            joined = placed_array(shape, first.dtype, len(samples) * first.nbytes)
            try:
                np.concatenate(samples, out=joined.reshape(-1, *first.shape[1:]), casting="no")
                return torch.from_numpy(joined)
            except (TypeError, ValueError):
                pass
        try:
            joined = np.array(samples)
        except ValueError:  # shapes differ: torch has the better words for it
            return torch_collate(list(samples))
        if joined.dtype == first.dtype and joined.shape == shape:
            return torch.from_numpy(joined)
    return torch_collate(list(samples))


def _integers(samples: Sequence[int]) -> Batch:
    try:
        joined = np.array(samples)
    except (ValueError, OverflowError):
        return torch_collate(list(samples))
    if joined.dtype == np.int64 and joined.ndim == 1:
        return torch.from_numpy(joined)
    return torch_collate(list(samples))


def _strings(samples: Sequence[Any]) -> Batch:
    return samples


def _columns(samples: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    size = len(samples[0])
    if any(len(sample) != size for sample in samples):
        lengths = sorted({len(sample) for sample in samples})
        raise RuntimeError(
            f"each sample of a batch should be of equal size, but there are sequences of {lengths} elements\n"
            "hint: pad them, or pass a collate_fn that does"
        )
    return list(zip(*samples))


def _mapping(first: Mapping[Any, Any], samples: Sequence[Mapping[Any, Any]]) -> Batch:
    joined = {key: collate([sample[key] for sample in samples]) for key in first}
    try:
        if isinstance(first, MutableMapping):
            # a copy, because the type may carry more than its items
            clone = copy.copy(first)
            clone.update(joined)
            return clone
        return type(first)(joined)  # type: ignore[call-arg]
    except TypeError:
        return joined


def _sequence(first: Sequence[Any], samples: Sequence[Sequence[Any]]) -> Batch:
    joined = [collate(column) for column in _columns(samples)]
    if isinstance(first, tuple):
        return joined
    try:
        if isinstance(first, MutableSequence):
            clone = copy.copy(first)
            for index, column in enumerate(joined):
                clone[index] = column
            return clone
        return type(first)(joined)  # type: ignore[call-arg]
    except TypeError:
        return joined


def _dataclass(first: Any, samples: Sequence[Any]) -> Batch:
    clone = copy.copy(first)
    for field in dataclasses.fields(first):
        # past `__setattr__`, because it may be frozen
        object.__setattr__(clone, field.name, collate([getattr(sample, field.name) for sample in samples]))
    return clone


def is_registered(sample: Any) -> bool:
    """Whether torch's table has an entry for the sample's type: a subclass of a tensor, or a type a user added."""
    return any(isinstance(sample, kind) for kind in default_collate_fn_map)


_LEAVES: dict[type, Callable[[Sequence[Any]], Batch]] = {
    torch.Tensor: _tensors,
    np.ndarray: _arrays,
    int: _integers,
    float: lambda samples: torch.tensor(samples, dtype=torch.float64),
    str: _strings,
    bytes: _strings,
}
_PRISTINE = {kind: default_collate_fn_map.get(kind) for kind in _LEAVES}
_torch_tensors: Any = _PRISTINE[torch.Tensor]
_NATIVE = frozenset(
    map(np.dtype, ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
)
_CARRIERS: dict[torch.dtype, Any] = {torch.from_numpy(np.empty(0, kind)).dtype: kind for kind in _NATIVE} | {
    torch.bfloat16: np.int16  # NumPy has none, so something of its size stands in
}
