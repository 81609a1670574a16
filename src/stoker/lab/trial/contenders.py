"""Loaders of others, made over one dataset as their users would: the same samples, in the same order, in batches.

Each is made in a process of its own (see `stoker.lab.trial.trial`), and nothing is imported before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from stoker.errors import ArgumentError
from stoker.lab.trial.drive import kind_of
from stoker.lab.trial.target import called, resolved

TORCH, STATEFUL, OURS = "torch", "StatefulDataLoader", "stoker"
SPDL_PROCESSES, SPDL_THREADS, GRAIN = "SPDL, processes", "SPDL, threads", "Grain"


class Unsuited(Exception):
    """A loader cannot do what is asked of all of them: no failure, but nothing to compare."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A loader that takes part."""

    name: str
    module: str
    """What it needs to import."""
    package: str
    """Where that comes from."""
    make: Callable[..., Any]

    @property
    def is_installed(self) -> bool:
        """Whether it can be imported, as far as that can be told without doing so."""
        return find_spec(self.module.partition(".")[0]) is not None


def make(
    contender: str,
    dataset: str,
    *,
    collate: str | None,
    batch_size: int,
    num_workers: int,
    num_threads: int,
    prefetch_factor: int,
) -> Any:
    """Return the loader of this name over the dataset that the function `dataset` makes."""
    made = called(resolved(dataset))
    _check_dataset(made, f"{dataset.rpartition(':')[2]}()")
    function = None if collate is None else resolved(collate)
    return Driven(
        CONTENDERS[contender].make(
            made,
            collate=function,
            batch_size=batch_size,
            num_workers=num_workers,
            num_threads=num_threads,
            prefetch_factor=prefetch_factor,
        ),
        batch_size=batch_size,
        num_workers=num_workers,
        num_threads=num_threads,
        prefetch_factor=prefetch_factor,
    )


def _check_dataset(made: Any, name: str) -> None:
    """Raise `ArgumentError` for what no loader can be made of."""
    hint = "name a function that makes the dataset"
    if kind_of(made) != "iterable":
        raise ArgumentError(
            f"{name} returned a {type(made).__name__}, and loaders are made here, over a dataset",
            hint=f"{hint}; `stoker bench loader` measures a loader as it is",
        )
    if not hasattr(type(made), "__getitem__") and not hasattr(type(made), "__iter__"):
        told = "None" if made is None else f"a {type(made).__name__}"
        forgotten = "; a `return` is often forgotten" if made is None else ""
        raise ArgumentError(f"{name} returned {told}, which has no samples", hint=f"{hint}{forgotten}")


class Driven:
    """A loader of any kind, with the arguments that it was made with."""

    def __init__(
        self, loader: Any, *, batch_size: int, num_workers: int, num_threads: int, prefetch_factor: int
    ) -> None:
        self.loader = loader
        self.batch_size, self.num_workers = batch_size, num_workers
        self.num_threads, self.prefetch_factor = num_threads, prefetch_factor

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def is_stream(dataset: Any) -> bool:
    """Whether a dataset has no positions: torch's iterable kind, or anything else that is only iterated."""
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__")


def _needs_positions(name: str, dataset: Any) -> None:
    if is_stream(dataset):
        raise Unsuited(f"{name} reads samples by position, and this dataset is a stream")


def _needs_workers(name: str, num_workers: int) -> None:
    if not num_workers:
        raise Unsuited(f"{name} has no loading without workers")


def _as_torch(make: Any, dataset: Any, batch_size: int, num_workers: int, prefetch_factor: int, **options: Any) -> Any:
    """Return a loader that has torch's arguments; without workers it would refuse one of them."""
    if num_workers or options.get("num_threads"):
        options["prefetch_factor"] = prefetch_factor
    return make(dataset, batch_size, num_workers=num_workers, **options)


def _torch(
    dataset: Any, *, collate: Any, batch_size: int, num_workers: int, num_threads: int, prefetch_factor: int
) -> Any:
    del num_threads  # torch has none
    loader = import_module("torch.utils.data").DataLoader
    return _as_torch(loader, dataset, batch_size, num_workers, prefetch_factor, collate_fn=collate)


def _stateful(
    dataset: Any, *, collate: Any, batch_size: int, num_workers: int, num_threads: int, prefetch_factor: int
) -> Any:
    del num_threads
    loader = import_module("torchdata.stateful_dataloader").StatefulDataLoader
    return _as_torch(loader, dataset, batch_size, num_workers, prefetch_factor, collate_fn=collate)


def _stoker(
    dataset: Any, *, collate: Any, batch_size: int, num_workers: int, num_threads: int, prefetch_factor: int
) -> Any:
    loader = import_module("stoker.loader").DataLoader
    return _as_torch(
        loader, dataset, batch_size, num_workers, prefetch_factor, collate_fn=collate, num_threads=num_threads
    )


def _spdl_processes(
    dataset: Any, *, collate: Any, batch_size: int, num_workers: int, num_threads: int, prefetch_factor: int
) -> Any:
    """SPDL's replacement for torch's loader: a pool of processes. By itself it would give batches as they come."""
    del num_threads
    _needs_positions("SPDL", dataset)
    _needs_workers("SPDL", num_workers)
    loader = import_module("spdl.dataloader").get_pytorch_dataloader
    return loader(
        dataset,
        batch_size,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        in_order=True,
        **({"collate_fn": collate} if collate is not None else {}),
    )


def _spdl_threads(
    dataset: Any, *, collate: Any, batch_size: int, num_workers: int, num_threads: int, prefetch_factor: int
) -> Any:
    """What SPDL recommends: one process full of threads, here as many as others have processes."""
    del num_threads
    _needs_positions("SPDL", dataset)
    _needs_workers("SPDL", num_workers)
    pipeline = import_module("spdl.pipeline")
    num_ahead = prefetch_factor * num_workers
    config = (
        pipeline.PipelineBuilder()
        .add_source(_Positions(len(dataset), batch_size))
        .pipe(_Collated(dataset, collate), concurrency=num_workers, output_order="input")
        .add_sink(num_ahead)
        .get_config()
    )
    return pipeline.run_pipeline_in_subprocess(config, num_threads=num_workers, buffer_size=num_ahead)


class _Positions:
    """The positions of each batch, in order."""

    def __init__(self, num_samples: int, batch_size: int) -> None:
        self.num_samples, self.batch_size = num_samples, batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, self.num_samples, self.batch_size):
            yield list(range(start, min(start + self.batch_size, self.num_samples)))


class _Collated:
    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None) -> None:
        self.dataset, self.collate = dataset, collate

    def __call__(self, positions: list[int]) -> Any:
        collate = self.collate or import_module("torch.utils.data").default_collate
        return collate([self.dataset[position] for position in positions])


def _grain(
    dataset: Any, *, collate: Any, batch_size: int, num_workers: int, num_threads: int, prefetch_factor: int
) -> Any:
    """Grain's loader. It batches arrays and not tensors, unless it is given a function for that."""
    _needs_positions("Grain", dataset)
    grain = import_module("grain")
    num_samples = len(dataset)
    return grain.DataLoader(
        data_source=dataset if collate is not None else _Arrays(dataset),
        sampler=grain.samplers.SequentialSampler(num_samples, grain.sharding.NoSharding()),
        operations=[grain.transforms.Batch(batch_size, batch_fn=collate)],
        worker_count=num_workers,
        worker_buffer_size=prefetch_factor,
        # by itself it would read with 16 threads in every worker, which others do not have
        read_options=grain.ReadOptions(
            num_threads=num_threads, prefetch_buffer_size=batch_size * prefetch_factor if num_threads else 0
        ),
    )


class _Arrays:
    """A dataset whose samples are arrays where they were tensors."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: Any) -> Any:
        return _arrays(self.dataset[int(position)])


def _arrays(sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return {name: _arrays(value) for name, value in sample.items()}
    if isinstance(sample, tuple | list):
        return tuple(map(_arrays, sample))
    return sample.numpy() if hasattr(sample, "numpy") else sample


CONTENDERS = {
    one.name: one
    for one in (
        Contender(TORCH, "torch.utils.data", "torch", _torch),
        Contender(STATEFUL, "torchdata.stateful_dataloader", "torchdata", _stateful),
        Contender(OURS, "stoker.loader", "stoker", _stoker),
        Contender(SPDL_PROCESSES, "spdl.dataloader", "spdl", _spdl_processes),
        Contender(SPDL_THREADS, "spdl.pipeline", "spdl", _spdl_threads),
        Contender(GRAIN, "grain", "grain", _grain),
    )
}
"""In the order in which they are shown; torch's comes first, as what others are compared with."""
