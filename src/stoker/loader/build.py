"""Build what makes the batches of one iteration: the batch maker, the engine that runs it, the delivery to a device."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stoker.batch.ledger import Skipped
from stoker.deliver import CudaPageLock, Delivery, NvJpeg
from stoker.engine.inline import Inline
from stoker.engine.processes.engine import Processes
from stoker.engine.processes.requests import WorkerOptions
from stoker.engine.processes.worker import WorkerJob
from stoker.engine.slots.batch_pickle import SMALL_BYTES
from stoker.engine.slots.ring import Ring
from stoker.engine.task import Engine
from stoker.engine.threads import Threads
from stoker.foundation.finalizer import Finalizer
from stoker.foundation.torch_private import pin_memory
from stoker.loader.auto import TuningDriver
from stoker.loader.engine_factory import EngineFactory, start_tuned_engine
from stoker.loader.requests import ErrorCapturingIterator, MapRequests, StreamRequests
from stoker.loader.sample_costs import CostProbingForwarder
from stoker.loader.state.progress import Progress
from stoker.loader.state.stream_progress import StreamProgress
from stoker.loader.stream import StreamMaker
from stoker.loader.work import (
    BatchResult,
    Beginning,
    EndOfStream,
    EpochForwarder,
    Finisher,
    MapMaker,
    epoch_setter_state,
)
from stoker.plan import derived_key
from stoker.tuning.parallelism import Parallelism

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader


def start_engine(
    loader: DataLoader[Any], progress: Progress
) -> tuple[Engine[BatchResult | EndOfStream], TuningDriver | None]:
    """Start what gives the batches of one iteration, on their device; and what tunes it, with "auto"."""
    engine, driver = EngineBuilder(loader, progress).start()
    if loader._device is None:
        return engine, driver
    fallback: Any = None if loader._decode == "cpu" else HostDecodeFallback(build_batch_maker(loader))
    delivery: Engine[BatchResult | EndOfStream] = Delivery(
        engine,
        loader._device,
        depth=loader.prefetch_factor or 1,
        widen=loader._widening,
        of=_batch_of,
        replaced=_with_batch,
        on_rest=None if loader._ring is None else loader._ring.unwatch,
        decoder=None if loader._decode == "cpu" else NvJpeg,
        rescue=fallback,
        split=loader.split,
        counter=loader.counters.copies,
    )
    return delivery, driver


def build_batch_maker(loader: DataLoader[Any], pin: Callable[[Any], Any] | None = None) -> Any:
    """Return what turns a recipe into a batch: a `MapMaker`, or a `StreamMaker` for an iterable dataset."""
    own_collate = loader._own_collate if loader._auto_collation else loader.collate_fn
    part = None if loader._mesh is None else loader._mesh.part
    finish = Finisher(own_collate, is_batched=loader._auto_collation, pin=pin, mixture=loader._mixture, part=part)
    schedule, policy, loan = loader._schedule, loader.ledger.policy, loader._loan
    if loader._is_stream:
        return StreamMaker(loader.dataset, finish, loader._setting, seed=schedule.seed, policy=policy, loan=loan)
    return MapMaker(
        schedule.dataset, finish, seed=schedule.seed, policy=policy, loan=loan, owns_order=loader._is_planned
    )


class EngineBuilder:
    """Builds the engines of one iteration of a loader: inline, threads, or worker processes.

    With "auto", `EngineFactory` asks it for one after the other.
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
            return start_tuned_engine(EngineFactory(self, loader.auto, recipes), loader.auto)
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
        maker = build_batch_maker(loader, self._pin)
        if isinstance(maker, MapMaker):
            maker.tell = self._epoch_state()
        if setting.is_inline:
            return Inline(recipes, maker.make if loader.auto is None else loader.auto.footprint.watched(maker.make))
        tasks: Iterator[Any] = map(maker.task, recipes)
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
        if isinstance(self.progress, StreamProgress):
            return StreamRequests(self.progress, recipes, chosen_epoch=chosen)
        return MapRequests(recipes, chosen_epoch=chosen, tell=self._epoch_state())

    def _epoch_state(self) -> Callable[[], Any]:
        loader = self.loader
        return epoch_setter_state(loader._schedule.dataset) if loader.split is None else loader.split.batch_hint

    def peeked_state(self) -> Any:
        """Return what goes with a recipe that is only looked at, and does not count."""
        loader = self.loader
        return epoch_setter_state(loader._schedule.dataset)() if loader.split is None else loader.split.share

    def context(self) -> Any:
        """Return the multiprocessing context that worker processes are started with."""
        return self.loader.multiprocessing_context or multiprocessing.get_context()

    def workers(self, setting: Parallelism) -> Processes[BatchResult | EndOfStream]:
        """Return the worker processes: those that persist from the iteration before, or new ones."""
        loader = self.loader
        locks = self._pin is not None and self._pin.device is not None
        if loader._ring is not None and loader._ring.is_foreign:
            loader._ring = loader._processes = None  # they are the parent's, and so are its slots
        if loader._processes is not None:
            return loader._processes
        is_delivered = loader._device is not None and loader._device.type == "cuda"
        if loader._ring is None:
            # a delivery sees to it that slots are not used again before their copies are complete
            loader._ring = Ring(CudaPageLock() if locks else None, is_watched=is_delivered)
            Finalizer(loader, loader._ring.close)
        options = WorkerOptions(
            num_workers=setting.num_workers,
            num_threads=setting.num_threads,
            prefetch_factor=setting.prefetch_factor,
            context=self.context(),
            seed=derived_key(loader._schedule.seed, self.progress.epoch) >> 1,
            timeout=loader.timeout,
            in_order=loader.in_order,
            is_assigned=loader._is_stream,
            # what goes to a device at once need not be kept apart from its batch
            small_bytes=0 if is_delivered else SMALL_BYTES,
            pins_small=locks,
            most_workers=0 if loader.auto is None else loader.auto.most_workers,
        )
        forwarder = EpochForwarder if loader.auto is None else CostProbingForwarder
        maker = forwarder(build_batch_maker(loader), loader._chosen_epoch)
        job = WorkerJob(maker, loader._schedule.dataset, Beginning(loader.worker_init_fn))
        workers: Processes[BatchResult | EndOfStream] = Processes(
            job, options, loader._ring, is_persistent=loader.persistent_workers, tally=loader.counters.tally
        )
        if loader.persistent_workers:
            loader._processes = workers
        return workers


def _batch_of(made: BatchResult | EndOfStream) -> Any:
    return made.batch if isinstance(made, BatchResult) else None


def _with_batch(made: BatchResult | EndOfStream, batch: Any) -> BatchResult | EndOfStream:
    return made._replace(batch=batch) if isinstance(made, BatchResult) else made


class HostDecodeFallback:
    """Reads images that the device could not decode in the trainer's process, as a worker would.

    What cannot be read here either is an error, or is replaced and noted.
    """

    def __init__(self, maker: MapMaker) -> None:
        self._maker = maker

    def read(self, made: BatchResult, position: Any, row: int) -> tuple[Any, list[Skipped]]:
        """Return a batch of the sample at `position` alone, and what is to go into the ledger."""
        skipped: list[Skipped] = []
        samples = self._maker.read(made.recipe, [position], skipped, row)
        return self._maker.finish(made.recipe, samples), skipped

    @staticmethod
    def noted(made: BatchResult, notes: Sequence[list[Skipped]]) -> BatchResult:
        """Return a batch with more for the ledger."""
        return made._replace(skipped=[*made.skipped, *(entry for skipped in notes for entry in skipped)])


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
