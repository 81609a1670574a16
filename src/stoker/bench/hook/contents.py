"""What is in a batch, whatever it is made of: how large it is, how many samples it has, what tells them apart.

Tensors and arrays are known by what they can do, so that neither torch nor NumPy has to be imported here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DEPTH = 6
MAX_LEAVES = 64
PRINTED_SAMPLES = 8
"""Samples of a batch that are told apart."""
PRINTED_LEAVES = 4
PRINTED_NUMBERS = 16
"""Numbers of a sample that are looked at, spread over all of it."""


def leaves(batch: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors, arrays and texts of a batch."""
    if depth > MAX_DEPTH:
        return
    if isinstance(batch, str | bytes) or hasattr(batch, "shape"):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from leaves(part, depth + 1)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from leaves(part, depth + 1)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for one in dataclasses.fields(batch):
            yield from leaves(getattr(batch, one.name, None), depth + 1)


def size_of(batch: Any) -> int:
    """Return the bytes of a batch."""
    size = 0
    for leaf in leaves(batch):
        if isinstance(leaf, str | bytes):
            size += len(leaf)
        elif hasattr(leaf, "element_size"):
            size += leaf.numel() * leaf.element_size()
        else:
            size += int(getattr(leaf, "nbytes", 0))
    return size


def num_samples_of(batch: Any) -> int:
    """Return how many samples a batch has: the length of its first tensor, or of the list that it is."""
    for depth in range(MAX_DEPTH):
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else 1
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, list | tuple) and batch:
            # collated samples are a short list of tensors; others, a list of samples
            if not hasattr(batch[0], "shape") and not (depth == 0 and isinstance(batch[0], Mapping | list | tuple)):
                return len(batch)
            batch = batch[0]
        elif dataclasses.is_dataclass(batch) and dataclasses.fields(batch):
            batch = getattr(batch, dataclasses.fields(batch)[0].name, None)
        else:
            return 1 if batch is not None else 0
    return 1


def prints_of(batch: Any) -> list[int]:
    """Return numbers that tell some samples of a batch from others: equal samples have equal ones."""
    parts: list[list[Any]] = []
    num_samples = 0
    for number, leaf in enumerate(leaves(batch)):
        if number >= MAX_LEAVES or len(parts) >= PRINTED_LEAVES:
            break
        if isinstance(leaf, str | bytes) or not len(leaf.shape) or getattr(leaf, "is_cuda", False):
            continue
        if num_samples and len(leaf) != num_samples:
            continue
        num_samples = len(leaf)
        parts.append([_numbers(leaf[row]) for row in range(min(num_samples, PRINTED_SAMPLES))])
    return [hash(tuple(map(repr, sample))) for sample in zip(*parts)]


def _numbers(sample: Any) -> Any:
    flat = sample.reshape(-1)
    return flat[:: max(1, len(flat) // PRINTED_NUMBERS)][:PRINTED_NUMBERS].tolist()
