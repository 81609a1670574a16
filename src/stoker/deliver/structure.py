"""Find and replace the tensors of a nested batch, each with the name of its field."""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.foundation import trees

OnTensor = Callable[[Tensor, str | None], Any]
"""Takes a tensor and its field: the nearest dict key, named tuple field or dataclass field around it."""

OnKind = Callable[[Any, str | None], Any]
"""The same for objects of one type."""

ATOMS = frozenset({str, bytes, int, float, complex, bool, type(None), np.str_, np.bytes_})
"""Types that hold no tensors, so that nothing else needs to be checked."""


def mapped(
    on_tensor: OnTensor,
    batch: Any,
    *,
    on_mover: Callable[[Any, str | None], Any] | None = None,
    on_rest: Callable[[Any], None] | None = None,
    on_kind: Mapping[type, OnKind] | None = None,
    field: Any = None,
) -> Any:
    """Return `batch` with every tensor replaced by the result of `on_tensor`.

    Dicts and other mappings, lists, tuples, named tuples and dataclasses are rebuilt, with the same types; `batch`
    itself is not changed. Anything else stays as it is. `on_mover`, if given, is called for an object that moves itself
    (see `moves_itself`), whose inside is then not visited; `on_rest` for leaves that may hold memory: arrays, and
    objects of unknown types. `on_kind` takes precedence, for objects of exactly the types it names.
    """
    kind = type(batch)
    if kind in ATOMS:
        return batch
    if isinstance(batch, Tensor):
        return on_tensor(batch, field)
    if on_kind is not None and kind in on_kind:
        return on_kind[kind](batch, field)

    def inner(item: Any, name: str | None) -> Any:
        return mapped(on_tensor, item, on_mover=on_mover, on_rest=on_rest, on_kind=on_kind, field=name)

    if kind is list:
        return [item if type(item) in ATOMS else inner(item, field) for item in batch]  # there may be many strings
    if moves_itself(batch):
        if on_mover is not None:
            return on_mover(batch, field)
        if isinstance(batch, tuple):
            return batch  # a PackedSequence: its parts belong together
    entries = trees.items(batch)
    if entries is not None:
        return trees.rebuild(batch, [inner(item, _named(name, field)) for name, item in entries])
    if on_rest is not None:
        on_rest(batch)
    return batch


def put_row(batch: Any, row: int, one: Any) -> None:
    """Write the only row of `one`, a batch of the same structure, into row `row` of `batch`."""
    is_list_of_atoms = isinstance(batch, list) and all(type(item) in ATOMS for item in batch)
    if is_list_of_atoms or isinstance(batch, Tensor | np.ndarray):
        batch[row] = one[0]
    elif isinstance(batch, Mapping):
        for key, part in batch.items():
            put_row(part, row, one[key])
    elif (parts := trees.children(batch)) is not None:
        for part, its_one in zip(parts, trees.children(one) or (), strict=True):
            put_row(part, row, its_one)


def moves_itself(thing: Any) -> bool:
    """Whether `thing` has a method `to` of its own: a `PackedSequence`, a tokenizer's output, a user's batch class."""
    return not isinstance(thing, type) and callable(getattr(type(thing), "to", None))


def moved(thing: Any, device: torch.device, *, is_blocking: bool) -> Any:
    """Return `thing`, which moves itself, on `device`."""
    if is_blocking or not _takes_non_blocking(type(thing)):  # type: ignore[arg-type]
        return thing.to(device)
    return thing.to(device, non_blocking=True)


def tensors_in(thing: Any) -> list[Tensor] | None:
    """Return all tensors inside `thing`, through containers and attributes; None if some may be hidden."""
    found: list[Tensor] = []
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        item = waiting.pop()
        if type(item) in ATOMS or isinstance(item, _NO_TENSORS) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            found.append(item)
            continue
        parts = _parts(item)
        if parts is None:
            return None
        waiting.extend(parts)
    return found


_NO_TENSORS = (
    *(str, bytes, bytearray, memoryview, int, float, complex, range, slice, type, enum.Enum, np.generic),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType),
)


def _parts(thing: Any) -> Iterable[Any] | None:
    """Return the parts directly inside; None if they are hidden, as in a C extension type."""
    if isinstance(thing, np.ndarray):
        return thing.flat if thing.dtype == object else ()
    parts: list[Any] = []
    can_be_seen = True
    if isinstance(thing, dict):
        parts.extend(thing.values())
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        parts.extend(thing)
    else:
        can_be_seen = False
    if (attributes := getattr(thing, "__dict__", None)) is not None:
        parts.extend(attributes.values())
        can_be_seen = True
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = kind.__dict__.get(f"_{kind.__name__.lstrip('_')}{name}" if _is_private(name) else name)
            if isinstance(member, types.MemberDescriptorType):
                can_be_seen = True
                try:
                    parts.append(member.__get__(thing))
                except AttributeError:  # never set
                    continue
    return parts if can_be_seen else None


def _is_private(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _named(key: Any, field: str | None) -> str | None:
    return key if isinstance(key, str) else field


@lru_cache(maxsize=256)
def _takes_non_blocking(kind: type) -> bool:
    try:
        parameters = signature(kind.to).parameters  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return False
    return "non_blocking" in parameters or any(part.kind is Parameter.VAR_KEYWORD for part in parameters.values())
