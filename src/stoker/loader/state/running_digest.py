"""The running digest of batches whose positions come one by one: many are summed up together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.foundation.randomness import key_of
from stoker.plan import added, digests

SUMMED_TOGETHER = 64
"""Batches whose digest is worked out in one go: NumPy's cost per call is then small beside the rest of a batch."""


class RunningDigest:
    """A digest that batches are added to."""

    def __init__(self, value: int = 0) -> None:
        self._value = value
        self._unsummed: list[tuple[int, NDArray[np.int64], Any]] = []

    def add(self, epoch: int, ordinals: NDArray[np.int64], positions: Any) -> None:
        """Count a batch: an array of positions, or a list of whatever a sampler uses for them."""
        self._unsummed.append((epoch, ordinals, positions))
        if len(self._unsummed) >= SUMMED_TOGETHER:
            self._sum_up()

    @property
    def value(self) -> int:
        """The digest of all that was added."""
        self._sum_up()
        return self._value

    def _sum_up(self) -> None:
        by_epoch: dict[int, list[tuple[Any, Any]]] = {}
        for epoch, ordinals, positions in self._unsummed:
            by_epoch.setdefault(epoch, []).append((ordinals, positions))
        self._unsummed.clear()
        for epoch, batches in by_epoch.items():
            ordinals = np.concatenate([ordinals for ordinals, _ in batches])
            keys = _keys([positions for _, positions in batches])
            self._value = added(self._value, int(digests(epoch, ordinals, keys).sum(dtype=np.uint64)))


def _keys(batches: list[Any]) -> NDArray[np.int64]:
    if isinstance(batches[0], np.ndarray):
        return np.concatenate(batches)
    positions = [position for batch in batches for position in batch]
    if all(type(position) is int for position in positions):
        keys = np.array(positions)
        if keys.dtype == np.int64:
            return keys
    return np.array([key_of(position) for position in positions], dtype=np.uint64).view(np.int64)
