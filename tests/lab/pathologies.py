"""Datasets that are slow on purpose, each in its own way. At the top of a module, so that spawned workers have them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset


class Quick(Dataset[torch.Tensor]):
    """Costs nothing."""

    def __init__(self, length: int = 4096) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> torch.Tensor:
        return torch.full((16,), float(position))


class Sleeping(Quick):
    """Waits for each sample, as for a disk."""

    def __init__(self, seconds: float, length: int = 4096) -> None:
        super().__init__(length)
        self.seconds = seconds

    def __getitem__(self, position: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return super().__getitem__(position)


class Meeting(Sleeping):
    """Waits for each sample, and for the first one of each process until so many processes have come: however long one
    of them takes to start, none does all the work.
    """

    def __init__(self, seconds: float, length: int, *, num: int, folder: Path) -> None:
        super().__init__(seconds, length)
        self.num, self.folder = num, folder

    def __getitem__(self, position: int) -> torch.Tensor:
        (self.folder / str(os.getpid())).touch()
        over = time.monotonic() + 60
        while len(os.listdir(self.folder)) < self.num and time.monotonic() < over:
            time.sleep(0.001)
        return super().__getitem__(position)


class Hashing(Quick):
    """Computes in native code that gives up the interpreter's lock, as decoders do."""

    def __init__(self, length: int = 4096, num_bytes: int = 2 << 20) -> None:
        super().__init__(length)
        self.content = bytes(num_bytes)

    def __getitem__(self, position: int) -> torch.Tensor:
        hashlib.sha256(self.content).digest()
        return super().__getitem__(position)


class Counting(Quick):
    """Computes in Python: for each sample longer than Python keeps its lock when somebody wants it."""

    def __init__(self, length: int = 4096, num_rounds: int = 250_000) -> None:
        super().__init__(length)
        self.num_rounds = num_rounds

    def __getitem__(self, position: int) -> torch.Tensor:
        total = 0
        for number in range(self.num_rounds):
            total += number * number
        return super().__getitem__(position)


class Leaking(Quick):
    """Keeps something of every sample."""

    def __init__(self, length: int = 4096) -> None:
        super().__init__(length)
        self.kept: list[bytes] = []

    def __getitem__(self, position: int) -> torch.Tensor:
        self.kept.append(b"x" * (512 << 10))
        return super().__getitem__(position)


class Huge(Quick):
    """Gives whole batches that are ready, and large."""

    def __init__(self, length: int = 400, num_bytes: int = 32 << 20) -> None:
        super().__init__(length)
        self.batch = torch.ones(num_bytes, dtype=torch.uint8)

    def __getitem__(self, position: int) -> torch.Tensor:
        return self.batch


class Stream(IterableDataset[torch.Tensor]):
    """Numbers, all of them in every worker."""

    def __init__(self, length: int = 2048) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.length):
            yield torch.tensor([number, number * 7])


class SharedStream(Stream):
    """Numbers, each in one worker."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(start, self.length, step):
            yield torch.tensor([number, number * 7])


def slow_collate(samples: list[Any]) -> Any:
    """Take time for putting samples together."""
    time.sleep(0.03)
    return torch.stack(samples)


def slow_start(worker: int) -> None:
    """Take time for starting."""
    time.sleep(0.15)


class Listing(Quick):
    """Holds a million Python objects."""

    def __init__(self, length: int = 4096) -> None:
        super().__init__(length)
        self.names = [f"{number}.jpg" for number in range(1_000_000)]


class Pooled(Counting):
    """Computes in a pool of threads of its own, all in Python."""

    def __init__(self, length: int = 4096, num_rounds: int = 30_000) -> None:
        super().__init__(length, num_rounds)
        self.pool: ThreadPoolExecutor | None = None

    def __getitem__(self, position: int) -> torch.Tensor:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(4)
        return next(iter(list(self.pool.map(super().__getitem__, [position] * 4))))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"pool": None}


class Copying(Quick):
    """Copies an array of 12 MB three times, and returns a few numbers of it."""

    def __init__(self, length: int = 4096) -> None:
        super().__init__(length)
        self.content = np.zeros(12_000_000, np.uint8)

    def __getitem__(self, position: int) -> torch.Tensor:
        copies = [self.content.copy() for _ in range(3)]
        return torch.from_numpy(copies[-1][:16])


def item_by_item(batch: torch.Tensor) -> float:
    """Train by reading each number of a batch by itself."""
    total = 0.0
    for _ in range(8):
        for value in batch.flatten():
            total += value.item()
    return total


def computing_step(seconds: float, batch: Any) -> None:
    """Be on a core for so long, in native code."""
    until = time.thread_time() + seconds
    content = bytes(1 << 20)
    while time.thread_time() < until:
        hashlib.sha256(content).digest()
