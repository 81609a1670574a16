"""Inspect batches of any kind: how many samples they have, and what distinguishes these.

Tensors and arrays are recognized by their attributes, so that neither torch nor NumPy has to be imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.foundation import trees

MAX_DEPTH = 6
MAX_LEAVES = 64
MAX_SAMPLES = 8
"""Samples of a batch that get a fingerprint."""
MAX_TENSORS = 4
MAX_NUMBERS = 16
"""Numbers of a sample that go into its fingerprint, spread over all of it."""


def num_samples_of(batch: Any) -> int:
    """Return how many samples a batch has: the length of its first tensor, or of the list that it is."""
    for depth in range(MAX_DEPTH):
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else 1
        inside = trees.children(batch)
        if inside is None:
            return 1 if batch is not None else 0
        is_list = isinstance(batch, list | tuple) and len(batch) > 0
        # collated samples are a short list of tensors, others a list of samples
        if is_list and not hasattr(batch[0], "shape") and (depth or not isinstance(batch[0], Mapping | list | tuple)):
            return len(batch)
        batch = next(iter(inside), None)
    return 1


def sample_fingerprints(batch: Any) -> list[int]:
    """Return numbers that distinguish some samples of a batch from others: equal samples have equal ones."""
    parts: list[list[Any]] = []
    num_samples = 0
    for number, leaf in enumerate(_leaves(batch)):
        if number >= MAX_LEAVES or len(parts) >= MAX_TENSORS:
            break
        if isinstance(leaf, str | bytes) or not len(leaf.shape) or getattr(leaf, "is_cuda", False):
            continue
        if num_samples and len(leaf) != num_samples:
            continue
        num_samples = len(leaf)
        parts.append([_numbers(leaf[row]) for row in range(min(num_samples, MAX_SAMPLES))])
    return [hash(tuple(map(repr, sample))) for sample in zip(*parts)]


def _leaves(batch: Any) -> Iterator[Any]:
    """Yield the tensors, arrays and strings of a batch."""
    for leaf in trees.leaves(batch, max_depth=MAX_DEPTH):
        if isinstance(leaf, str | bytes) or hasattr(leaf, "shape"):
            yield leaf


def _numbers(sample: Any) -> Any:
    flat = sample.reshape(-1)
    return flat[:: max(1, len(flat) // MAX_NUMBERS)][:MAX_NUMBERS].tolist()
