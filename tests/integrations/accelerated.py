"""Loaders that Accelerate's tests prepare, and what they should give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from datasets import Dataset
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

import stoker
from tests.loader.datasets import Numbers

LENGTH = 21
DOCUMENTS = [np.full(size, number) for number, size in enumerate([5, 9, 3, 7, 6, 8, 4, 10, 2, 11] * 3)]


class Stream(IterableDataset[int]):
    """The numbers up to a limit, with a length that is known."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))

    def __len__(self) -> int:
        return self.length


class Wrapped:
    """A user's wrapper, as for a mask."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __len__(self) -> int:
        return len(self.inside)

    def __getitem__(self, position: int) -> Any:
        return self.inside[position]["tokens"]


class Lists(Numbers):
    """Reads a list of positions in one call, as datasets do that are read by a sampler of batches."""

    def __getitem__(self, position: Any) -> Any:
        return torch.tensor([super(Lists, self).__getitem__(one) for one in position])


class ByEpoch(SequentialSampler):
    """Has another order in each epoch, and no generator."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        length = len(self)
        return iter([(position * 4 + self.epoch) % length for position in range(length)])


class Batches(BatchSampler):
    """Batches of a size that is not known."""

    def __init__(self) -> None:
        self.batches = [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9]]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def packed() -> Any:
    return stoker.pack(DOCUMENTS, length=16)


def mixed() -> Any:
    return stoker.mix({"a": (Numbers(40), 0.7), "b": (list(range(100, 130)), 0.3)}, stop=24, seed=5)


Make = Callable[..., Any]

LOADERS: dict[str, Make] = {
    "shuffled": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, shuffle=True, **o),
    "sequential": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, **o),
    "dropping": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, drop_last=True, shuffle=True, **o),
    "padded": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, tail="pad", shuffle=True, **o),
    "threads": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, shuffle=True, num_threads=2, **o),
    "workers": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, shuffle=True, num_workers=2, **o),
    "unbatched": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=None, shuffle=True, **o),
    "pack": lambda **o: stoker.DataLoader(packed(), batch_size=2, shuffle=True, **o),
    "mixture": lambda **o: stoker.DataLoader(mixed(), batch_size=4, **o),
    "wrapped pack": lambda **o: stoker.DataLoader(Wrapped(packed()), batch_size=2, shuffle=True, **o),
    "stream": lambda **o: stoker.DataLoader(Stream(), batch_size=4, **o),
    "shared stream": lambda **o: stoker.DataLoader(Stream(), batch_size=4, shard="auto", num_workers=2, **o),
    "copied stream": lambda **o: stoker.DataLoader(Stream(), batch_size=4, num_workers=2, **o),
    "hugging face stream": lambda **o: stoker.DataLoader(
        Dataset.from_dict({"tokens": list(range(LENGTH))})
        .to_iterable_dataset(num_shards=3)
        .shuffle(seed=1, buffer_size=8),
        **{"batch_size": 4, "shard": "auto", "num_workers": 2, **o},
    ),
    "random sampler": lambda **o: stoker.DataLoader(
        Numbers(LENGTH), batch_size=4, sampler=RandomSampler(Numbers(LENGTH)), **o
    ),
    "dropping sampler": lambda **o: stoker.DataLoader(
        Numbers(LENGTH), batch_size=4, sampler=SequentialSampler(Numbers(LENGTH)), drop_last=True, **o
    ),
    "batch sampler": lambda **o: stoker.DataLoader(
        Numbers(LENGTH), batch_sampler=BatchSampler(SequentialSampler(Numbers(LENGTH)), 4, False), **o
    ),
    "sampler of batches": lambda **o: stoker.DataLoader(
        Lists(LENGTH), batch_size=None, sampler=BatchSampler(SequentialSampler(Numbers(LENGTH)), 4, False), **o
    ),
    "epoch sampler": lambda **o: stoker.DataLoader(
        Numbers(LENGTH), batch_size=4, sampler=ByEpoch(Numbers(LENGTH)), **o
    ),
    "epoch batches": lambda **o: stoker.DataLoader(
        Numbers(LENGTH), batch_sampler=BatchSampler(ByEpoch(Numbers(LENGTH)), 4, False), **o
    ),
    "own batches": lambda **o: stoker.DataLoader(Numbers(10), batch_sampler=Batches(), **o),
    "distributed sampler": lambda **o: stoker.DataLoader(
        Numbers(LENGTH), batch_size=4, sampler=DistributedSampler(Numbers(LENGTH), num_replicas=2, rank=0), **o
    ),
    "torch": lambda **o: torch.utils.data.DataLoader(Numbers(LENGTH), batch_size=4, **o),
}
LOADERS["torch dropping"] = lambda **o: torch.utils.data.DataLoader(Numbers(LENGTH), batch_size=4, drop_last=True, **o)
LOADERS["torch stream"] = lambda **o: torch.utils.data.DataLoader(Stream(), batch_size=4, **o)


def numbers(batch: Any) -> list[Any]:
    """Return what identifies the samples of a batch."""
    if isinstance(batch, dict):
        batch = batch["tokens"]
    return list(np.atleast_1d(np.asarray(batch)).tolist())


def accelerator(**configuration: Any) -> Accelerator:
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**configuration))


def served(loader: Any, num_epochs: int = 1) -> list[Any]:
    """Return the batches of some epochs, each with what marks its padding."""
    epochs: list[Any] = []
    for _ in range(num_epochs):
        epochs.append([])
        for batch in loader:
            recipe = getattr(loader, "recipe", None)
            padding = None if recipe is None or recipe.padding is None else recipe.padding.tolist()
            epochs[-1].append([numbers(batch), padding])
    return epochs


def real(batch: list[Any]) -> list[Any]:
    """Return the samples of a batch without padding."""
    samples, padding = batch
    return [sample for sample, is_padding in zip(samples, padding or [False] * len(samples)) if not is_padding]


def together(ranks: list[Any]) -> list[list[list[Any]]]:
    """Return the global batches of each epoch: those of the ranks, one after the other."""
    for epochs in zip(*ranks, strict=True):
        assert len({len(epoch) for epoch in epochs}) == 1, "ranks have different numbers of steps"
    return [
        [sum((real(batch) for batch in step), []) for step in zip(*epochs, strict=True)]
        for epochs in zip(*ranks, strict=True)
    ]


def flat(epoch: list[list[Any]]) -> list[Any]:
    return sum(epoch, [])


def expected(name: str, num_epochs: int, batch_size: int | None = None, **options: Any) -> list[list[list[Any]]]:
    """Return the batches of the plain loop, cut as several processes together do."""
    plain = LOADERS[name](**options)
    if batch_size is not None:
        plain.adapt(batch_size=batch_size)
    return [[real(batch) for batch in epoch] for epoch in served(plain, num_epochs)]
