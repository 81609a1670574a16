"""The loaders of `stoker bench compare`, built over one dataset as their users would: same samples, same order.

Each is built in a process of its own, and nothing is imported before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from stoker.errors import ArgumentError
from stoker.lab.trial.drive import kind_of
from stoker.lab.trial.target import call_with, resolve_function

TORCH, STATEFUL, OURS = "torch", "StatefulDataLoader", "stoker"
SPDL_PROCESSES, SPDL_THREADS, GRAIN = "SPDL, processes", "SPDL, threads", "Grain"


class Unsuited(Exception):
    """A loader cannot do what is asked of all of them. It is left out of the comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderArguments:
    """The arguments that all loaders get."""

    dataset: Any
    batch_size: int
    num_workers: int
    num_threads: int = 0
    prefetch_factor: int = 2
    collate: Callable[[list[Any]], Any] | None = None


@dataclass(frozen=True, slots=True)
class Contender:
    """A loader that takes part."""

    name: str
    module: str
    """Module to import."""
    package: str
    """Package to install."""
    make: Callable[[LoaderArguments], Any]

    @property
    def is_installed(self) -> bool:
        """Whether its package can be found; nothing is imported."""
        return find_spec(self.module.partition(".")[0]) is not None


class ContenderLoader:
    """A loader of any kind, with the arguments that it was made with."""

    def __init__(self, loader: Any, arguments: LoaderArguments) -> None:
        self.loader = loader
        self.batch_size, self.num_workers = arguments.batch_size, arguments.num_workers
        self.num_threads, self.prefetch_factor = arguments.num_threads, arguments.prefetch_factor

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def make(contender: str, dataset: str, *, collate: str | None, **options: int) -> ContenderLoader:
    """Return the loader of this name over the dataset that the function `dataset` makes."""
    made = call_with(resolve_function(dataset))
    _check_dataset(made, f"{dataset.rpartition(':')[2]}()")
    function = None if collate is None else resolve_function(collate)
    arguments = LoaderArguments(dataset=made, collate=function, **options)
    return ContenderLoader(CONTENDERS[contender].make(arguments), arguments)


def _check_dataset(made: Any, name: str) -> None:
    """Raise `ArgumentError` if no loader can be made of this."""
    hint = "name a function that returns the dataset"
    if kind_of(made) != "iterable":
        raise ArgumentError(
            f"{name} returned a {type(made).__name__}; expected a dataset, over which loaders are made here",
            hint=f"{hint}; `stoker bench loader` measures a loader as it is",
        )
    if not hasattr(type(made), "__getitem__") and not hasattr(type(made), "__iter__"):
        found = "None" if made is None else f"a {type(made).__name__}"
        forgotten = "; did you forget `return`?" if made is None else ""
        raise ArgumentError(f"{name} returned {found}, which has no samples", hint=f"{hint}{forgotten}")


def is_stream(dataset: Any) -> bool:
    """Whether a dataset has no positions: torch's `IterableDataset`, or anything else that can only be iterated."""
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__")


def _check_positions(name: str, arguments: LoaderArguments) -> None:
    if is_stream(arguments.dataset):
        raise Unsuited(f"{name} reads samples by position, and this dataset is a stream")


def _check_workers(name: str, arguments: LoaderArguments) -> None:
    if not arguments.num_workers:
        raise Unsuited(f"{name} cannot load without workers")


def _make_like_torch(make: Any, arguments: LoaderArguments, **options: Any) -> Any:
    """Call a loader with torch's arguments. Without workers it would refuse `prefetch_factor`."""
    if arguments.num_workers or options.get("num_threads"):
        options["prefetch_factor"] = arguments.prefetch_factor
    return make(
        arguments.dataset,
        arguments.batch_size,
        num_workers=arguments.num_workers,
        collate_fn=arguments.collate,
        **options,
    )


def _torch(arguments: LoaderArguments) -> Any:
    return _make_like_torch(import_module("torch.utils.data").DataLoader, arguments)


def _stateful(arguments: LoaderArguments) -> Any:
    return _make_like_torch(import_module("torchdata.stateful_dataloader").StatefulDataLoader, arguments)


def _stoker(arguments: LoaderArguments) -> Any:
    return _make_like_torch(import_module("stoker.loader").DataLoader, arguments, num_threads=arguments.num_threads)


def _spdl_processes(arguments: LoaderArguments) -> Any:
    """SPDL's replacement for torch's loader: a pool of processes. By default it gives batches out of order."""
    _check_positions("SPDL", arguments)
    _check_workers("SPDL", arguments)
    return import_module("spdl.dataloader").get_pytorch_dataloader(
        arguments.dataset,
        arguments.batch_size,
        num_workers=arguments.num_workers,
        prefetch_factor=arguments.prefetch_factor,
        in_order=True,
        **({"collate_fn": arguments.collate} if arguments.collate is not None else {}),
    )


def _spdl_threads(arguments: LoaderArguments) -> Any:
    """What SPDL recommends: one process full of threads, here as many as other loaders have processes."""
    _check_positions("SPDL", arguments)
    _check_workers("SPDL", arguments)
    return spdl_pipeline(arguments)


def spdl_pipeline(arguments: LoaderArguments, **options: Any) -> Any:
    """Return SPDL's pipeline in one process with `num_workers` threads."""
    pipeline = import_module("spdl.pipeline")
    num_ahead = arguments.prefetch_factor * arguments.num_workers
    config = (
        pipeline.PipelineBuilder()
        .add_source(_BatchPositions(len(arguments.dataset), arguments.batch_size))
        .pipe(
            _CollatedBatches(arguments.dataset, arguments.collate),
            concurrency=arguments.num_workers,
            output_order="input",
        )
        .add_sink(num_ahead)
        .get_config()
    )
    return pipeline.run_pipeline_in_subprocess(
        config, num_threads=arguments.num_workers, buffer_size=num_ahead, **options
    )


class _BatchPositions:
    """The positions of each batch, in order."""

    def __init__(self, num_samples: int, batch_size: int) -> None:
        self.num_samples, self.batch_size = num_samples, batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, self.num_samples, self.batch_size):
            yield list(range(start, min(start + self.batch_size, self.num_samples)))


class _CollatedBatches:
    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None) -> None:
        self.dataset, self.collate = dataset, collate

    def __call__(self, positions: list[int]) -> Any:
        collate = self.collate or import_module("torch.utils.data").default_collate
        return collate([self.dataset[position] for position in positions])


def _grain(arguments: LoaderArguments) -> Any:
    """Grain's loader. It collates arrays, not tensors, unless it is given a function for that."""
    _check_positions("Grain", arguments)
    if arguments.collate is None:
        arguments = replace(arguments, dataset=_ArraySamples(arguments.dataset))
    return grain_loader(arguments)


def grain_loader(arguments: LoaderArguments) -> Any:
    """Return Grain's loader over samples that it can collate."""
    grain = import_module("grain")
    batch_size, num_threads = arguments.batch_size, arguments.num_threads
    return grain.DataLoader(
        data_source=arguments.dataset,
        sampler=grain.samplers.SequentialSampler(len(arguments.dataset), grain.sharding.NoSharding()),
        operations=[grain.transforms.Batch(batch_size, batch_fn=arguments.collate)],
        worker_count=arguments.num_workers,
        worker_buffer_size=arguments.prefetch_factor,
        # by default it would read with 16 threads in every worker, which other loaders do not have
        read_options=grain.ReadOptions(
            num_threads=num_threads,
            prefetch_buffer_size=batch_size * arguments.prefetch_factor if num_threads else 0,
        ),
    )


class _ArraySamples:
    """A dataset whose samples have arrays in the place of tensors."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: Any) -> Any:
        return _to_arrays(self.dataset[int(position)])


def _to_arrays(sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return {name: _to_arrays(value) for name, value in sample.items()}
    if isinstance(sample, tuple | list):
        return tuple(map(_to_arrays, sample))
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
"""In the order in which they are shown; torch's is first, because the others are compared with it."""
