"""Samplers that may give a position several times in an epoch, and the numbers of their draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

_KNOWN = frozenset({"stoker", "torch", "torchdata", "accelerate", "transformers", "lightning", "pytorch_lightning"})
"""Packages whose samplers give each position once, unless they say that they replace it or take it from elsewhere."""

_INNER = ("sampler", "batch_sampler", "_sampler", "_batch_sampler")
"""Where samplers have those that they take positions from."""

_RANKS = (("rank", "num_replicas"), ("process_index", "num_processes"))
"""How samplers that give a rank its share name the rank, and the number of ranks."""


class Draws(NamedTuple):
    """The numbers of what a sampler draws on one rank, counted over all ranks."""

    rank: int
    num_ranks: int

    @classmethod
    def of(cls, sampler: Any, *, is_of_batches: bool = False) -> Draws | None:
        """Return how the draws of a sampler are numbered; None if it gives each position once."""
        if not may_repeat(sampler, is_of_batches=is_of_batches):
            return None
        for part in _parts(sampler, set()):
            for names in _RANKS:
                rank, num_ranks = (getattr(part, name, None) for name in names)
                if isinstance(rank, int) and isinstance(num_ranks, int) and 0 <= rank < num_ranks:
                    return cls(rank, num_ranks)
        return cls(0, 1)

    def between(self, start: int, stop: int) -> range:
        """Return the numbers of the draws that are number `start` to before `stop` on this rank."""
        return range(start * self.num_ranks + self.rank, stop * self.num_ranks + self.rank, self.num_ranks)


def may_repeat(sampler: Any, *, is_of_batches: bool = False) -> bool:
    """Return whether a sampler may give a position several times in an epoch; True where that is not known.

    A sampler of a user's own says that it does not by an attribute `replacement = False`, as torch's have. Of one that
    is a list, the positions are looked at.
    """
    if isinstance(sampler, list | tuple | range | np.ndarray | torch.Tensor):
        return not _is_distinct(sampler, is_of_batches=is_of_batches)
    replaces = getattr(sampler, "replacement", None)
    module = getattr(getattr(type(sampler), "__iter__", None), "__module__", None) or ""
    if replaces is True or (replaces is None and module.partition(".")[0] not in _KNOWN):
        return True
    if _draws_more_than_all(sampler) or not _is_distinct(getattr(sampler, "indices", ())):
        return True
    return any(may_repeat(part, is_of_batches=name.endswith("batch_sampler")) for name, part in _inner(sampler))


def _inner(sampler: Any) -> Iterator[tuple[str, Any]]:
    for name in _INNER:
        part = getattr(sampler, name, None)
        if part is not None:
            yield name, part
    wrapped = getattr(getattr(sampler, "dataset", None), "_sampler", None)  # by Lightning, to share it among ranks
    if wrapped is not None:
        yield "sampler", wrapped


def _parts(sampler: Any, seen: set[int]) -> Iterator[Any]:
    if id(sampler) not in seen:
        seen.add(id(sampler))
        yield sampler
        for _, part in _inner(sampler):
            yield from _parts(part, seen)


def _is_distinct(positions: Iterable[Any], *, is_of_batches: bool = False) -> bool:
    if isinstance(positions, range):
        return True
    listed: Any = positions.tolist() if isinstance(positions, np.ndarray | torch.Tensor) else positions
    try:
        flat = list(chain.from_iterable(listed) if is_of_batches else listed)
        return len(set(flat)) == len(flat)
    except TypeError:  # what is not hashed is not compared
        return False


def _draws_more_than_all(sampler: Any) -> bool:
    """Return whether a random sampler is to give more than there is: then it goes round again."""
    try:
        return bool(sampler.num_samples > len(sampler.data_source))
    except (AttributeError, TypeError):
        return False
