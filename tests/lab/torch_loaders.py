"""torch's and our loaders over datasets that sleep, and what others write around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

import stoker

NAP_SECONDS = 0.02
"""What a batch of four takes."""


class Sleepy:
    """Samples that take a while."""

    def __init__(self, seconds: float = NAP_SECONDS / 4, num_samples: int = 40_000) -> None:
        self.seconds, self.num_samples = seconds, num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, position: int) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {"image": np.full((3, 4, 4), position % 7, np.float32), "label": position}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number in range(40_000):
            yield np.full(6, number, np.float32)


class Hoarding(Sleepy):
    """Every worker keeps memory of its own that it has written to: the first 225 MB, the others 25 MB."""

    kept: Any = None

    def __getitem__(self, position: int) -> dict[str, Any]:
        info = torch.utils.data.get_worker_info()
        if self.kept is None and info is not None:
            self.kept = np.ones(225_000_000 if info.id == 0 else 25_000_000, np.uint8)
        return super().__getitem__(position)


def hoarding() -> DataLoader[Any]:
    dataset: Any = Hoarding()
    return DataLoader(dataset, 4, num_workers=2)


def our_hoarding() -> stoker.DataLoader[Any]:
    return stoker.DataLoader(Hoarding(), 4, num_workers=2)


def short_epochs() -> DataLoader[Any]:
    """Workers that are started again for each of many epochs."""
    dataset: Any = Sleepy(num_samples=16)
    return DataLoader(dataset, 4, num_workers=2)


def unmodified() -> DataLoader[Any]:
    """As many a script has it: no argument, all kinds of options."""
    dataset: Any = Sleepy()
    return DataLoader(
        dataset, 4, False, None, None, 3, prefetch_factor=4, persistent_workers=True, timeout=30, pin_memory=False
    )


def ours() -> stoker.DataLoader[Any]:
    return stoker.DataLoader(Sleepy(), 4, num_workers=1)


def lazily() -> Any:
    """Makes its loader only when it is iterated."""
    yield from DataLoader(Stream(), 4, num_workers=2)


def spawned() -> DataLoader[Any]:
    dataset: Any = Sleepy(0.001)
    return DataLoader(dataset, 4, num_workers=1, multiprocessing_context="spawn")


def from_a_server() -> DataLoader[Any]:
    dataset: Any = Sleepy(0.001)
    return DataLoader(dataset, 4, num_workers=2, multiprocessing_context="forkserver")


def any_options(**options: Any) -> DataLoader[Any]:
    dataset: Any = Sleepy()
    return DataLoader(dataset, **options)


def own_sampler() -> DataLoader[Any]:
    dataset: Any = Sleepy()
    return DataLoader(dataset, batch_sampler=[[1, 2, 3]] * 100)


def pair() -> tuple[DataLoader[Any], DataLoader[Any]]:
    return unmodified(), unmodified()


class Wrapped:
    """What many libraries put around a loader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self._loader


def wrapped() -> Wrapped:
    return Wrapped(unmodified())


def make_dataset() -> Sleepy:
    return Sleepy(0.0005)


def make_random_dataset() -> Any:
    return torch.utils.data.TensorDataset(torch.rand(5000, 3))


def make_stream() -> Stream:
    return Stream()


def collate(samples: list[Any]) -> dict[str, Any]:
    return {"image": torch.stack([torch.from_numpy(one["image"]) for one in samples]), "num": len(samples)}


def make_step() -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        assert batch["image"].shape[0] == 4
        time.sleep(1.25 * NAP_SECONDS)

    return step
