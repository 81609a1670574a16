"""Datasets that the loader's tests share. At the top of a module, so that workers started by spawn can have them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import stoker


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __init__(self, length: int = 103) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.length:
            raise IndexError(position)
        return position


class Augmented(Numbers):
    """Each sample draws from every source of random numbers there is."""

    def __getitem__(self, position: int) -> Any:
        own = stoker.rng()
        return {
            "position": position,
            "own": float(own.random()),
            "own_again": float(stoker.rng().random()),
            "python": random.random(),
            "numpy": float(np.random.rand()),
            "torch": torch.rand(2),
        }


class KeyedOnly(Numbers):
    """Draws from `stoker.rng()` alone."""

    def __getitem__(self, position: int) -> Any:
        return position, float(stoker.rng().normal())


class Many(Numbers):
    """Reads a whole batch in one call."""

    def __getitems__(self, positions: list[int]) -> list[int]:
        assert isinstance(positions, list)
        assert all(type(position) is int for position in positions)
        return [position * 10 for position in positions]


class Broken(Numbers):
    """Some samples cannot be read."""

    def __init__(self, length: int, bad: set[int]) -> None:
        super().__init__(length)
        self.bad = bad

    def __getitem__(self, position: int) -> int:
        if position in self.bad:
            raise ValueError(f"sample {position} is broken")
        return position

    def describe(self, position: int) -> str:
        return f"file-{position}.bin"


class Counting(IterableDataset[int]):
    """The numbers up to a limit, with no regard to workers."""

    def __init__(self, length: int = 50) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class SizedCounting(Counting):
    """Says how long it is, perhaps wrongly."""

    def __init__(self, length: int, said: int) -> None:
        super().__init__(length)
        self.said = said

    def __len__(self) -> int:
        return self.said


class Sharing(Counting):
    """Shares itself out by its worker's number, as torch's documentation advises."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is None:
            return iter(range(self.length))
        return iter(range(info.id, self.length, info.num_workers))


class Remembering(IterableDataset[int]):
    """Knows where it is."""

    def __init__(self, length: int = 50) -> None:
        self.length = length
        self.at = 0
        self.num_read = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            self.num_read += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class ShuffleBuffer(Counting):
    """Draws from the process-wide generator between samples, as home-made shuffle buffers do."""

    def __iter__(self) -> Iterator[int]:
        held: list[int] = []
        for number in range(self.length):
            held.append(number)
            if len(held) > 8:
                yield held.pop(random.randrange(len(held)))
        random.shuffle(held)
        yield from held


class Point(NamedTuple):
    """A named tuple sample."""

    x: torch.Tensor
    y: int


@dataclass
class Record:
    """A dataclass sample."""

    name: str
    values: np.ndarray[Any, Any]


def plain(batch: Any) -> Any:
    """Return a batch as plain values that can be compared."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [plain(value) for value in batch]
    return batch


def listed(loader: Any) -> list[Any]:
    """Return all batches as plain values."""
    return [plain(batch) for batch in loader]


class KeyedMany(Numbers):
    """Draws by position, many samples in one call."""

    def __getitem__(self, position: int) -> Any:
        return position, float(stoker.rng(position).normal())

    def __getitems__(self, positions: list[int]) -> list[Any]:
        return [self[position] for position in positions]


class KeyedWhole(Numbers):
    """Draws by position, a batch in one call."""

    def __getitem__(self, position: int) -> Any:
        return np.int64(position), np.float64(stoker.rng(position).normal())

    def __getbatch__(self, positions: Any, empty: Any) -> list[Any]:
        drawn = [stoker.rng(position).normal() for position in np.asarray(positions).tolist()]
        return [np.array(positions), np.array(drawn)]
