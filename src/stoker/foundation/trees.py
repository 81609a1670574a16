"""Nested batches: dicts, lists, tuples, named tuples and dataclasses, in any combination.

Everything else is a leaf: tensors, arrays, numbers, strings, objects. Nothing is imported for it, so a process that
only watches a loader can look into its batches without torch or NumPy.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

Name = str | int | None
"""How a container calls one of its parts: a key, a field, or an index."""

MAX_DEPTH = 16
"""Deeper than that, `leaves` does not look: a list may contain itself."""


def is_named_tuple(tree: Any) -> bool:
    """Whether `tree` is an instance of a named tuple."""
    return isinstance(tree, tuple) and hasattr(tree, "_fields")


def is_dataclass_instance(tree: Any) -> bool:
    """Whether `tree` is an instance of a dataclass, not the class itself."""
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)


def children(tree: Any) -> Iterable[Any] | None:
    """Return what is directly inside a container, in order; None for a leaf."""
    if isinstance(tree, Mapping):
        return tree.values()
    if isinstance(tree, list | tuple):
        return tree
    if is_dataclass_instance(tree):
        return [getattr(tree, field.name, None) for field in dataclasses.fields(tree)]
    return None


def items(tree: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return (key, field or index) and value of what is directly inside a container; None for a leaf."""
    if isinstance(tree, Mapping):
        return tree.items()
    if is_named_tuple(tree):
        return zip(tree._fields, tree)
    if isinstance(tree, list | tuple):
        return enumerate(tree)
    if is_dataclass_instance(tree):
        return [(field.name, getattr(tree, field.name, None)) for field in dataclasses.fields(tree)]
    return None


def rebuild(tree: Any, values: Iterable[Any]) -> Any:
    """Return a container like `tree` with other values inside, in the order of `children`. `tree` is not changed.

    Subclasses of dict and list are copied with their attributes. A mapping that cannot be changed is made by calling
    its class with a dict; where that fails, the result is a dict. Frozen dataclasses are copied without `__init__`.
    """
    kind = type(tree)
    if kind is list:
        return list(values)
    if kind is tuple:
        return tuple(values)
    if kind is dict:
        return dict(zip(tree, values))
    clone: Any
    if isinstance(tree, Mapping):
        entries = dict(zip(tree, values))
        if isinstance(tree, MutableMapping):
            clone = copy.copy(tree)
            clone.update(entries)
            return clone
        try:
            return kind(entries)
        except TypeError:
            return entries
    if is_named_tuple(tree):
        return kind(*values)
    if isinstance(tree, list):
        clone = copy.copy(tree)
        clone[:] = values
        return clone
    if isinstance(tree, tuple):
        return kind(list(values))
    if is_dataclass_instance(tree):
        clone = copy.copy(tree)
        for field, value in zip(dataclasses.fields(tree), values):
            object.__setattr__(clone, field.name, value)  # past `__setattr__`: it may be frozen
        return clone
    raise TypeError(f"expected a container, got {kind.__name__}")


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return `tree` with every leaf replaced by what `function` returns for it."""
    inside = children(tree)
    return function(tree) if inside is None else rebuild(tree, [map_leaves(function, child) for child in inside])


def leaves(tree: Any, *, max_depth: int = MAX_DEPTH) -> Iterator[Any]:
    """Yield every leaf, in order."""
    inside = children(tree)
    if inside is None:
        yield tree
    elif max_depth:
        for child in inside:
            yield from leaves(child, max_depth=max_depth - 1)


def num_bytes(tree: Any) -> int:
    """Return the bytes of the tensors, arrays and strings in a batch; one character counts as one byte."""
    total = 0
    for leaf in leaves(tree):
        if isinstance(leaf, str | bytes | bytearray | memoryview):
            total += len(leaf)
        elif isinstance(size := getattr(leaf, "nbytes", None), int):
            total += size
        elif hasattr(leaf, "element_size"):  # torch's sparse and old tensors have no `nbytes`
            total += leaf.numel() * leaf.element_size()
    return total
