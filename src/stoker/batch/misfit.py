"""Why samples do not make a batch: the first place in them that does not fit, and what to write instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from stoker.batch.collate import is_registered
from stoker.foundation import trees

_AS_THEY_ARE = "or pass a collate_fn: collate_fn=list gives the samples as they are"


class Misfit(NamedTuple):
    """One sample of a batch that does not fit, or not with the first one."""

    row: int
    field: str
    """Where in the sample, as it is written behind it: `['image'][0]`."""
    found: str
    """What is there, in words."""
    first: str | None
    """What the first sample has there, if that is what it does not fit with."""
    hint: str


def explain(error: Exception, samples: Sequence[Any], name: Callable[[int], str]) -> None:
    """Add to an error of collation what does not fit; `name` says which sample is in a row."""
    try:
        misfit = first_misfit(samples)
    except Exception:  # samples may be anything, and the error that there is must not be lost
        return
    if misfit is not None:
        unlike = "" if misfit.first is None else f", unlike the one at {name(0)}, which {misfit.first}"
        error.add_note(
            f"sample{misfit.field} at {name(misfit.row)} {misfit.found}{unlike}\nhint: {misfit.hint}; {_AS_THEY_ARE}"
        )


def first_misfit(samples: Sequence[Any], field: str = "") -> Misfit | None:
    """Return the first place in samples that keeps them from being put together; None if there is none."""
    first = samples[0]
    for row, sample in enumerate(samples):
        unfit = _unfit(sample, field)
        if unfit is not None:
            return Misfit(row, field, unfit[0], None, unfit[1])
        unlike = _unlike(first, sample)
        if unlike is not None:
            return Misfit(row, field, *unlike)
    if is_registered(first) or _is_leaf(first):
        return None
    for key, read in _entries(first):
        misfit = first_misfit([read(sample) for sample in samples], f"{field}{key}")
        if misfit is not None:
            return misfit
    return None


def _unfit(sample: Any, field: str) -> tuple[str, str] | None:
    """Return what a sample is, and what to write, if no batch can be made of its kind."""
    if sample is None:
        if not field:
            return "is None", "return a sample; to leave out a bad one, raise in __getitem__ and pass on_error='skip'"
        return "is None", "return what stands for nothing, such as -1 or an empty string, or leave the field out"
    if hasattr(sample, "getbands") and hasattr(sample, "convert"):
        return f"is a PIL image, {sample.width} x {sample.height}", "return arrays or tensors: np.array(image)"
    if isinstance(sample, np.ndarray) and sample.dtype.kind not in "biufc":
        return f"is an array of dtype {sample.dtype}", "return an array of numbers, or a list"
    if is_registered(sample) or _is_leaf(sample) or _form(sample) is not None:
        return None
    what = "return tensors, arrays, numbers, strings, or dicts, lists and tuples of them"
    return f"is of type {type(sample).__qualname__}", what


def _unlike(first: Any, sample: Any) -> tuple[str, str, str] | None:
    """Return what a sample is, what the first one is, and what to write, if they cannot be put together."""
    shapes, forms = [_shape(one) for one in (first, sample)], [_form(one) for one in (first, sample)]
    for pair in (shapes, forms):
        if (pair[0] is None) != (pair[1] is None):
            found, theirs = (f"is of type {type(one).__qualname__}" for one in (sample, first))
            return found, theirs, "return the same type for every sample"
    if shapes[0] != shapes[1]:
        hint = "pad, crop or resize all to one shape (torch.nn.utils.rnn.pad_sequence pads)"
        return f"has the shape {shapes[1]}", f"has {shapes[0]}", hint
    if isinstance(first, Mapping) and isinstance(sample, Mapping):
        missing = [key for key in first if key not in sample]
        return (f"has no {missing[0]!r}", "has", "give every sample the same fields") if missing else None
    if forms[0] != forms[1]:
        found, theirs = (
            f"has {len(one)} elements" if isinstance(one, Sequence) else f"is of type {type(one).__qualname__}"
            for one in (sample, first)
        )
        return found, theirs, "pad all to one length"
    return None


def _shape(sample: Any) -> tuple[int, ...] | None:
    return tuple(sample.shape) if isinstance(sample, torch.Tensor | np.ndarray) else None


def _is_leaf(sample: Any) -> bool:
    return isinstance(sample, torch.Tensor | np.ndarray | np.generic | int | float | complex | str | bytes)


def _form(sample: Any) -> Any:
    """Return what containers must have in common; None for what is no container."""
    if _is_leaf(sample):
        return None
    if isinstance(sample, Mapping):
        return Mapping
    if dataclasses.is_dataclass(sample):
        return type(sample)
    return len(sample) if isinstance(sample, Sequence) else None


def _entries(sample: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield the parts of a container: how each is written in Python, and a function that reads it."""
    is_by_name = trees.is_named_tuple(sample) or trees.is_dataclass_instance(sample)
    for name, _ in trees.items(sample) or ():
        yield (f".{name}", attrgetter(name)) if is_by_name else (f"[{name!r}]", itemgetter(name))
