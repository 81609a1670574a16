"""Create what one iteration needs: the builders of batches, the engine that runs them, the delivery to a device."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch

from stoker.batch.builder import Builders, MapBuilders
from stoker.batch.collation import Collation, positions_of
from stoker.batch.result import BatchResult, EndOfStream
from stoker.engine.engine_protocols import Engine
from stoker.engine.inline import Inline
from stoker.foundation.torch_private import pin_memory
from stoker.loader.requests import ErrorCapturingIterator, MapRequests, StreamRequests
from stoker.loader.state.progress import Progress
from stoker.plan import Recipe
from stoker.source.protocols import batch_hint_of, can_split
from stoker.tuning.parallelism import Parallelism

if TYPE_CHECKING:
    from stoker.engine.processes.engine import Processes
    from stoker.engine.threads import Threads
    from stoker.loader.auto import TuningDriver
    from stoker.loader.dataloader import DataLoader
    from stoker.loader.state.stream_progress import StreamProgress
    from stoker.loader.stream import Sharing, StreamSetting


def start_engine(
    loader: DataLoader[Any], progress: Progress
) -> tuple[Engine[BatchResult | EndOfStream], TuningDriver | None]:
    """Start what gives the batches of one iteration, on their device; and what tunes it, with "auto"."""
    engine, driver = EngineBuilder(loader, progress).start()
    if loader._device is None:
        return engine, driver
    from stoker.loader.build_delivery import build_delivery

    return build_delivery(loader, loader._device, engine), driver


def batch_builders(loader: DataLoader[Any], pin: Callable[[Any], Any] | None = None) -> Builders[Any]:
    """Return what creates the builder of each batch of a loader."""
    mixture = loader._mixture
    collation = Collation(
        loader._own_collate if loader._auto_collation else loader.collate_fn,
        is_batched=loader._auto_collation,
        pin=pin,
        check=None if mixture is None else SampleCheck(mixture),
        part=loader._schedule.placement.part,
    )
    schedule, policy, borrowed = loader._schedule, loader.ledger.policy, loader._generators
    if loader._is_stream:
        from stoker.loader.stream import StreamBuilders

        return StreamBuilders(
            loader.dataset, collation, loader._stream_setting, seed=schedule.seed, policy=policy, borrowed=borrowed
        )
    return MapBuilders(
        schedule.dataset,
        collation,
        seed=schedule.seed,
        policy=policy,
        borrowed=borrowed,
        is_planned=loader._is_planned,
    )


class SampleCheck:
    """Refuses samples of several datasets that do not go together in one batch."""

    def __init__(self, mixture: Any) -> None:
        self._mixture = mixture

    def __call__(self, recipe: Recipe, samples: list[Any]) -> None:
        """Raise if one of the samples has other fields than the first one."""
        self._mixture.in_epoch(recipe.epoch).check_forms(positions_of(recipe), samples)


def stream_setting(loader: DataLoader[Any]) -> StreamSetting:
    """Return how an iterable dataset is shared out among workers and ranks, and cut into batches."""
    from stoker.loader.stream import StreamSetting

    schedule, num_workers = loader._schedule, max(1, loader.num_workers)
    sharing: Sharing = "whole"
    if num_workers * schedule.num_ranks > 1:
        if loader.shard is None:
            sharing = "own"
        elif can_split(loader.dataset):
            sharing = "split"
    return StreamSetting(
        sharing=sharing,
        batch_size=schedule.batch_size,
        rank=schedule.rank,
        num_ranks=schedule.num_ranks,
        num_workers=num_workers,
        tail=schedule.tail,
        hides_worker=loader.shard == "auto",
        stays=loader.persistent_workers,
        layout=schedule.layout,
    )


class EngineBuilder:
    """Builds the engines of one iteration of a loader: inline, threads, or worker processes.

    With "auto", `TunedEngine` asks it for the engine that it runs.
    """

    def __init__(self, loader: DataLoader[Any], progress: Progress) -> None:
        self.loader, self.progress = loader, progress
        self._pin = _build_pin(loader)

    def start(self) -> tuple[Engine[BatchResult | EndOfStream], TuningDriver | None]:
        """Start the engine that the loader's arguments name; with "auto", also what tunes it."""
        loader, recipes = self.loader, ErrorCapturingIterator(self._recipes())
        if loader._has_workers and self._pin is not None and self._pin.device is None:
            warnings.warn("worker processes give page-locked batches for CUDA alone; these are not", stacklevel=4)
        if loader.auto is not None:
            from stoker.loader.auto import TuningDriver
            from stoker.loader.tuned_engine import TunedEngine

            tuned = TunedEngine(self, loader.auto, recipes)
            return tuned, TuningDriver(loader.auto, tuned)
        setting = Parallelism(loader.num_workers, loader.num_threads, loader.prefetch_factor or 1)
        if setting.num_workers:
            return self.workers(setting).run(self.requests(recipes)), None
        return self.in_process(setting, recipes), None

    def _recipes(self) -> Iterator[Any]:
        """Return the recipes; padding is never read from a source that a mixture no longer has."""
        mixture, progress = self.loader._mixture, self.progress
        if mixture is None or len(mixture.sources) == len(mixture.names):
            return progress.recipes()
        view = mixture.in_epoch(progress.epoch)
        return (
            recipe if recipe.padding is None else recipe._replace(positions=view.filling(recipe.positions))
            for recipe in progress.recipes()
        )

    def in_process(self, setting: Parallelism, recipes: Iterator[Any]) -> Inline[Any, Any] | Threads[Any]:
        """Return an engine in this process."""
        loader = self.loader
        builders = batch_builders(loader, self._pin)
        if isinstance(builders, MapBuilders):
            builders.next_hint = self._next_hint()
        if setting.is_inline:
            build = builders.build
            return Inline(recipes, build if loader.auto is None else loader.auto.footprint.watched(build))
        from stoker.engine.threads import Threads

        tasks: Iterator[Any] = map(builders.builder, recipes)
        return Threads(
            tasks,
            num_threads=setting.num_threads,
            depth=setting.prefetch_factor,
            timeout=loader.timeout,
            draws=loader._is_stream,  # drawing from a stream is the work
        )

    def requests(self, recipes: Iterator[Any]) -> MapRequests | StreamRequests:
        """Return what is asked of worker processes."""
        chosen = self.loader._chosen_epoch
        if self.loader._is_stream:
            return StreamRequests(cast("StreamProgress", self.progress), recipes, chosen_epoch=chosen)
        return MapRequests(recipes, chosen_epoch=chosen, next_hint=self._next_hint())

    def _next_hint(self) -> Callable[[], Any]:
        loader = self.loader
        return batch_hint_of(loader._schedule.dataset) if loader.split is None else loader.split.batch_hint

    def peeked_hint(self) -> Any:
        """Return the hint for a recipe that is only measured, and does not count."""
        loader = self.loader
        return batch_hint_of(loader._schedule.dataset)() if loader.split is None else loader.split.share

    def context(self) -> Any:
        """Return the multiprocessing context that worker processes are started with."""
        return self.loader.multiprocessing_context or multiprocessing.get_context()

    def workers(self, setting: Parallelism) -> Processes[BatchResult | EndOfStream]:
        """Return the worker processes: those that persist from the iteration before, or new ones."""
        from stoker.loader.build_workers import build_workers

        is_page_locked = self._pin is not None and self._pin.device is not None
        return build_workers(
            self.loader, setting, epoch=self.progress.epoch, context=self.context(), is_page_locked=is_page_locked
        )


class _Pin:
    """Moves a batch to page-locked memory, for the device of the thread that made the loader's iterator."""

    def __init__(self, device: int | None) -> None:
        self.device = device

    def __call__(self, batch: Any) -> Any:
        # a new thread begins on device 0, and would set up a context there for nothing
        if self.device is not None and torch.cuda.current_device() != self.device:
            torch.cuda.set_device(self.device)
        return pin_memory(batch)


def _build_pin(loader: DataLoader[Any]) -> _Pin | None:
    """Return what moves a batch to page-locked memory, with the warnings torch gives."""
    device = loader._device
    if device is not None and device.type == "cuda":
        return _Pin(device.index if device.index is not None else torch.cuda.current_device())
    if not loader.pin_memory:
        return None
    if loader.pin_memory_device:
        warnings.warn(
            f"pin_memory_device={loader.pin_memory_device!r} is deprecated and ignored",
            stacklevel=5,
        )
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type == "mps":
        lack = "there is no accelerator" if accelerator is None else "MPS has none"
        warnings.warn(f"pin_memory=True, but {lack}, so page-locked memory is not used", stacklevel=5)
        return None
    return _Pin(torch.cuda.current_device() if accelerator.type == "cuda" else None)
