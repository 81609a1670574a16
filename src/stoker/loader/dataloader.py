"""`DataLoader`: torch's loader, with an order known in advance, exact resume and batches on their device."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from copy import copy, deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO, TypeVar, cast

import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler, default_collate, default_convert
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from stoker.batch.ledger import Ledger, Policy
from stoker.compose.wrapped_datasets import (
    HIDDEN_EPOCHS,
    SHUFFLED_MIXTURE,
    SORTED_ROWS,
    has_sorted_rows,
    has_wrapped_mixture,
    hides_epochs,
)
from stoker.errors import ArgumentError, StateError
from stoker.foundation.global_generators import BorrowedGenerators
from stoker.loader.adapt import adapt_loader
from stoker.loader.arguments import ARGUMENT_NAMES, Arguments, RecordedArguments
from stoker.loader.build_iteration import start_engine, stream_setting
from stoker.loader.checks import (
    check_epoch,
    check_expected,
    check_length,
    check_together,
    length_of,
    resolved_decode,
    warn_of_other_steps,
)
from stoker.loader.iterator import LoaderIterator
from stoker.loader.metrics.counters import Counters
from stoker.loader.metrics.loader_metrics import LoaderMetrics
from stoker.loader.order.planned_sampler import planned_sampler
from stoker.loader.order.rebuilt_loader import describe_class, take_over
from stoker.loader.order.schedule import Schedule
from stoker.loader.parallelism_arguments import resolve_parallelism
from stoker.loader.sharing.placement import find_placement
from stoker.loader.state.loader_state import load_state, new_progress, save_state
from stoker.loader.state.plan_progress import PlanProgress
from stoker.loader.state.progress import Progress
from stoker.plan import Layout, Order, Plan, Recipe, Sequential, Tail
from stoker.source.protocols import mixes_sources, owns_order, set_epoch
from stoker.tuning.parallelism import Choice

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from stoker.compose.step_contents import Content
    from stoker.deliver import DecodeSplit, Normalize, To, Widening
    from stoker.engine.processes.engine import Processes
    from stoker.engine.slots.ring import Ring
    from stoker.engine.stats import Stats
    from stoker.loader.auto import Auto
    from stoker.loader.order.locations import SampleLocation
    from stoker.loader.sharing.mesh import Mesh
    from stoker.loader.stream import StreamSetting

T_co = TypeVar("T_co", covariant=True)

if "stoker.source.line_stream" in sys.modules:  # imported later, it does this itself
    # Streams of our own do not import torch, but are what torch calls an iterable dataset.
    IterableDataset.register(sys.modules["stoker.source.line_stream"].LineStream)


class MapStyle(Protocol[T_co]):
    """What a map-style dataset needs, whatever it derives from; a length too, unless there is a sampler."""

    def __getitem__(self, position: Any, /) -> T_co: ...


class DataLoader(TorchDataLoader[T_co]):
    """torch's `DataLoader` with an order known in advance and exact resume.

    Every argument of torch's loader is here, with its meaning, default and checks; see torch's documentation for them.
    Without a sampler of your own, the order of a map-style dataset is a `Plan`: arithmetic on (seed, epoch, step) that
    costs no memory and no time at the start. Arguments after `generator` are keyword-only.

    Args:
        dataset: Map-style dataset (`__len__` and `__getitem__`) or iterable dataset.
        shuffle: `True` shuffles all samples, differently in each epoch; same as `order="shuffle"`.
        order: `"sequential"`, `"shuffle"`, `"window"` (near-sequential, for disks and object stores) or
            `stoker.Window(size=..., block=...)`. By default `shuffle` decides.
        seed: Integer from which the order and all random numbers are derived. By default it is drawn from `generator`
            or torch's global generator and saved in the state; with several ranks it is 0.
        generator: Torch generator from which the seed is drawn when `seed` is not given.
        sampler: Your own order of positions, instead of `shuffle` and `order`.
        batch_sampler: Your own lists of positions, one for each batch.
        skip: Ranges `(first, stop)` of steps to skip, for example after a loss spike. They are saved in the state.
        expect: Settings that the data must have been prepared with, such as `{"tokenizer": "tokenizer.json"}`; a
            mismatch is an error. For stores and datasets built from them.
        batch_size: Samples per batch on this rank; the global batch has `batch_size * num_ranks`. `None` turns batching
            off.
        drop_last: `True` drops the incomplete batch at the end of an epoch; same as `tail="drop"`.
        tail: What happens to the incomplete batch at the end of an epoch: `"keep"` it short (the default), `"drop"` it,
            or `"pad"` it with samples marked in `loader.recipe.padding`.
        collate_fn: Function that makes a batch from a list of samples. By default tensors, arrays and numbers are
            stacked, as in torch.
        num_workers: Worker processes, or `"auto"`: measured at the start and adjusted while training. `0` loads in the
            calling process.
        num_threads: Threads in each worker process, or in the calling process without workers; the samples of a batch
            are spread over them. Without `num_workers`, `stoker.images` runs them in one worker process. `"auto"`
            measures, for datasets that several threads may read at once.
        prefetch_factor: Batches loaded ahead for each worker process, or in total with threads only: a number or
            `"auto"`. The default is 2. With a GPU as `device`, it also limits the batches copied ahead.
        persistent_workers: `True` keeps worker processes alive between epochs.
        worker_init_fn: Function called with the worker's number when a worker process starts.
        multiprocessing_context: How worker processes start: `"fork"`, `"spawn"`, `"forkserver"` or a context.
        in_order: `False` yields batches from worker processes as they are finished.
        timeout: Seconds to wait for a batch before raising an error; `0` waits without limit. Needs workers or threads.
        distributed: `True` reads rank and number of ranks from torch.distributed or the launcher (torchrun, Slurm,
            MPI).
        rank: Rank of this process, from 0. Pass it together with `num_ranks`.
        num_ranks: Number of ranks that split each global batch.
        mesh: Torch `DeviceMesh`, dict of dimension sizes, or `stoker.Mesh`: for tensor, context or pipeline
            parallelism, where some ranks need the same batch.
        shard: `"auto"` splits an iterable dataset across workers and ranks, so that each sample is read once. By
            default, as in torch, every worker reads all of it unless the dataset splits itself.
        device: Device for the batches, such as `"cuda"`: they are copied ahead of time from pinned memory, on a
            separate CUDA stream.
        to: Dtype to convert to after the copy, or a dict from dtypes or field names to dtypes; tokens then travel as
            uint16, images as uint8.
        normalize: `(mean, std)` per channel, or `stoker.Normalize`: computes `(x / 255 - mean) / std` of uint8 images
            on the device.
        pin_memory: `True` yields batches in pinned (page-locked) memory, for you to copy. Not needed with `device`.
        pin_memory_device: Deprecated and ignored, as in torch.
        on_error: What to do about a sample that cannot be read: `"raise"`, `"skip"`, or a `stoker.Policy` with limits.
            Skipped samples are listed in `loader.ledger`.
        snapshot_every_n_steps: Accepted for scripts written for torchdata's `StatefulDataLoader`; no effect, because
            the state is exact after every batch.
    """

    shuffle: bool | None
    order: str | Order | None
    tail: Tail | None
    rank: int
    num_ranks: int
    distributed: bool
    mesh: DeviceMesh | Mapping[str, int] | Mesh | None
    shard: Literal["auto"] | None
    device: str | int | torch.device | None
    on_error: str | Policy
    to: To | None
    expect: Mapping[str, Any] | None
    snapshot_every_n_steps: int | None

    def __init__(
        self,
        dataset: Dataset[T_co] | MapStyle[T_co] | Iterable[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: Choice = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: Choice | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        order: str | Order | None = None,
        tail: Tail | None = None,
        rank: int | None = None,
        num_ranks: int | None = None,
        distributed: bool = False,
        mesh: DeviceMesh | Mapping[str, int] | Mesh | None = None,
        num_threads: Choice = 0,
        on_error: str | Policy = "raise",
        shard: Literal["auto"] | None = None,
        skip: Iterable[tuple[int, int]] = (),
        device: str | int | torch.device | None = None,
        to: To | None = None,
        normalize: Normalize | Iterable[Any] | None = None,
        expect: Mapping[str, Any] | None = None,
        snapshot_every_n_steps: int | None = None,
    ) -> None:
        given = Arguments.of(locals())
        if expect is not None:
            check_expected(dataset, expect)
        # a sampler of ours brings along the order of the loader that it was taken from
        arguments, taken_from = take_over(given)
        is_stream = isinstance(dataset, IterableDataset)
        self._is_foreign = isinstance(dataset, IterDataPipe | MapDataPipe)
        has_sampler = arguments.sampler is not None or arguments.batch_sampler is not None
        is_planned = not is_stream and not has_sampler and not self._is_foreign
        self._is_stream, self._is_planned = is_stream, is_planned
        self._resolve_device(given)
        placement = find_placement(arguments)
        self.auto: Auto | None
        """What was chosen for the arguments that are "auto", and why; None if there was nothing to choose."""
        arguments, self.auto = resolve_parallelism(arguments, is_stream=is_stream, is_foreign=self._is_foreign)
        check_together(
            arguments,
            is_stream=is_stream,
            is_planned=is_planned,
            num_ranks=placement.num_ranks,
            owns_order=owns_order(dataset) and taken_from is None,
            sampler=describe_class(sampler if batch_sampler is None else batch_sampler),
        )
        self._schedule = Schedule(arguments, placement)
        if taken_from is not None:
            self._schedule.next_epoch = taken_from.next_epoch
            if seed is None and taken_from.num_ranks == placement.num_ranks:
                self._schedule.drawn_seed = taken_from.seed  # drawn by now, and the same for both
        if is_planned:
            self._check_plan(arguments)
        self._init_torch(arguments)
        # Tools make loaders again from the attributes. Not by setattr: torch's __setattr__ takes 0.5 us for each.
        vars(self).update({name: getattr(given, name) for name in ARGUMENT_NAMES if not hasattr(self, name)})
        self.rank, self.num_ranks = placement.rank, placement.num_ranks
        self.seed, self.skip, self.num_threads = arguments.seed, arguments.skip, cast("int", arguments.num_threads)
        self.normalize = None if self._widening is None else self._widening.normalize
        self._resolve_decode(collate_fn)
        # torch's defaults are what None stands for, and loaders made again from attributes have them
        self._own_collate = None if collate_fn in (default_collate, default_convert) else collate_fn
        self._num_iterations = self._num_to_skip = 0
        self._chosen_epoch: int | None = None
        self._progress: Progress | None = None
        self._resume: Progress | None = None
        self._processes: Processes[Any] | None = None
        self._ring: Ring | None = None
        self._generators = BorrowedGenerators(is_repeatable=not is_stream)  # what was drawn from a stream is gone
        self.ledger = Ledger(Policy.named(on_error))
        """The samples that could not be read and were skipped."""
        self._count_anew()

    def _resolve_device(self, given: Arguments) -> None:
        """Check `device`, `to` and `normalize`, which together say where batches end up and as what."""
        self._device: torch.device | None = None
        self._widening: Widening | None = None
        if given.device is None and given.to is None and given.normalize is None:
            return
        from stoker.deliver import Widening, checked_device

        self._device = checked_device(given.device)
        self._widening = Widening.of(given.to, given.normalize)
        if self._widening is not None and self._device is None:
            self._device = torch.device("cpu")

    def _resolve_decode(self, collate_fn: Any) -> None:
        """Find out whether workers or the device decode images."""
        collates = collate_fn in (None, default_collate) and self._auto_collation and not self._is_stream
        self._decode = resolved_decode(self.dataset, self._device, collates=collates)
        self.split: DecodeSplit | None = None
        """For images with decode="auto": the share of them that the device decodes."""
        if self._decode == "auto":
            from stoker.deliver import DecodeSplit
            from stoker.foundation import machine

            most = max(1, self.num_workers) * max(1, self.num_threads)
            num_cores = machine.num_cores()
            self.split = DecodeSplit(num_cores=num_cores if self.auto is not None else min(most, num_cores))

    def _check_plan(self, arguments: Arguments) -> None:
        """Refuse, where the loader is made, what cannot be a plan; warn of a plan that is probably not wanted."""
        dataset = arguments.dataset
        plan = self._schedule.planned(length_of(dataset), seed=arguments.seed or 0)
        if not plan.steps_in(0):
            warnings.warn(
                f"this loader will give no batch: {plan.num_samples} samples do not fill a batch of "
                f"{plan.batch_size}, and incomplete batches are dropped",
                stacklevel=3,
            )
        if not isinstance(plan.order, Sequential) and has_wrapped_mixture(dataset):
            warnings.warn(SHUFFLED_MIXTURE, stacklevel=3)
        if arguments.order is None and not arguments.shuffle and has_sorted_rows(dataset):
            warnings.warn(SORTED_ROWS, stacklevel=3)
        if hides_epochs(dataset):
            warnings.warn(HIDDEN_EPOCHS, stacklevel=3)

    def _init_torch(self, arguments: Arguments) -> None:
        """Let torch's loader check its arguments, and set the attributes that code around training looks at."""
        is_planned = self._is_planned
        # torch knows no threads, and refuses to prefetch without workers
        has_only_threads = bool(arguments.num_threads) and not arguments.num_workers
        prefetch_factor: Any = arguments.prefetch_factor
        super().__init__(
            arguments.dataset,
            arguments.batch_size,
            None if is_planned else arguments.shuffle,
            planned_sampler(self._schedule) if is_planned else arguments.sampler,
            arguments.batch_sampler,
            cast("int", arguments.num_workers),
            arguments.collate_fn,
            arguments.pin_memory,
            arguments.drop_last or (arguments.tail == "drop" and arguments.batch_size is not None),
            arguments.timeout,
            arguments.worker_init_fn,
            arguments.multiprocessing_context,
            arguments.generator,
            prefetch_factor=None if has_only_threads else prefetch_factor,
            persistent_workers=arguments.persistent_workers,
            pin_memory_device=arguments.pin_memory_device,
            in_order=arguments.in_order,
        )
        if has_only_threads:
            self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor

    # ---------------------------------------------------------------- iterating

    def __iter__(self) -> Any:
        if self._is_foreign:
            return super().__iter__()
        schedule = self._schedule
        if not self._is_planned:
            # one draw, as in torch's loader, so that a sampler that draws next sees what it would there
            drawn = schedule.draw()
            if schedule.drawn_seed is None and schedule.draws_seed:
                schedule.drawn_seed, schedule.is_seed_drawn = drawn, True
        progress = self._resume
        if progress is None:
            progress = new_progress(self, schedule.next_epoch)
            if self._progress is not None:
                progress.go_on_from(self._progress)
        if self._mixture is not None:
            check_epoch(self._mixture, progress)
            if self._resume is None and not self._num_iterations:  # resumed, it may well have another batch size
                warn_of_other_steps(self._mixture.steps_of, schedule.batch_size * schedule.num_ranks)
        num_to_draw = progress.skip_first(self._num_to_skip) if self._num_to_skip else 0
        self._num_iterations += 1
        if self._is_stream:
            cast("Any", progress).iteration = self._num_iterations
        engine, tuner = start_engine(self, progress)  # may fail, and then nothing has happened
        self._resume = None
        self._num_to_skip = 0
        schedule.next_epoch = progress.epoch + 1
        self._progress = progress
        iterator = LoaderIterator(
            engine,
            progress,
            self.ledger,
            length=self.__len__,
            promised=self._IterableDataset_len_called,
            doubts=None if self._widening is None else self._widening.doubts,
            warns_of_copies=self._num_iterations == 1 and self._is_stream and self._stream_setting.sharing == "own",
            counters=self.counters,
            tuner=tuner,
        )
        for _ in range(num_to_draw):
            next(iterator, None)
        return iterator

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, also after a resume in the middle of one."""
        if self._is_planned:
            plan = self._schedule.plan
            epoch = self._progress.epoch if self._progress else self._schedule.next_epoch
            epoch = max(plan.origin.epoch, epoch)
            num_skipped = plan.steps_in(epoch) - plan.num_steps(epoch)
            return plan.steps_in(plan.origin.epoch + 1) - num_skipped
        if self._is_stream:
            check_length(self.dataset)
        length = super().__len__()
        if self._is_stream and self._schedule.num_ranks > 1:
            samples = len(self.dataset)  # type: ignore[arg-type]
            whole = self._schedule.batch_size * self._schedule.num_ranks
            return samples // whole if self._schedule.tail == "drop" else -(-samples // whole)
        return length

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of `epoch`. Samplers and datasets that have a `set_epoch` get it too.

        In the middle of a resume, naming the epoch that is resumed changes nothing.
        """
        if self._resume is None or self._resume.epoch != epoch:
            self._resume = None
            self._schedule.next_epoch = epoch
        self._chosen_epoch = epoch
        self._set_epoch_of_parts(epoch)

    def skip_first(self, num_batches: int) -> None:
        """Let the next iteration leave out the first batches of its epoch, for trainers that resume by counting steps.

        They are not read, but for streams. After `load_state_dict` in the middle of an epoch nothing changes: the state
        knows the place, whatever the batch size and number of ranks were.
        """
        if num_batches < 0:
            raise ArgumentError(
                f"num_batches={num_batches} is negative", hint="give the number of batches to leave out"
            )
        if self._resume is not None and not self._resume.is_at_start:
            return
        schedule = self._schedule
        is_shuffled = self._is_planned and not isinstance(schedule.order, Sequential) and self._mixture is None
        seed = schedule.seed if is_shuffled else None
        if num_batches and seed is not None and schedule.is_seed_drawn:
            warnings.warn(
                f"the first {num_batches} batches of the epoch are left out, but this loader's order comes from a seed "
                f"that it drew itself ({seed}), so they may not be the batches that an earlier run has served\n"
                "hint: pass seed= to stoker.DataLoader, or load the state_dict() of the earlier run's loader",
                stacklevel=3,
            )
        self._num_to_skip = num_batches

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration gives, or goes on with."""
        return self._schedule.next_epoch if self._resume is None else self._resume.epoch

    @property
    def is_resumed(self) -> bool:
        """Whether the next iteration goes on where a state was taken that has been loaded."""
        return self._resume is not None

    def _set_epoch_of_parts(self, epoch: int) -> None:
        inner = getattr(self.batch_sampler, "sampler", None)
        parts = {id(part): part for part in (self.sampler, inner, self.batch_sampler, self.dataset)}
        for part in parts.values():
            if not (self._is_planned and part is self.sampler):
                set_epoch(part, epoch)

    @property
    def plan(self) -> Plan | None:
        """Which sample comes when, for a map-style dataset without a sampler of its own; otherwise None."""
        return self._schedule.plan if self._is_planned else None

    @property
    def recipe(self) -> Recipe | None:
        """What is in the batch that was yielded last: its step, positions and padding."""
        return self._progress.last if self._progress is not None else None

    def find(self, number: int, epoch: int = 0, *, source: str | None = None) -> list[SampleLocation]:
        """Return when and where the sample at position `number` comes; of packed rows, document `number`.

        A document that was cut comes at several places, its parts in their order. For a mixture say of which source;
        `epoch` is then the source's own: its fourth pass is `epoch=3`, whatever the loader's. What does not come (the
        tail is dropped, the mixture ends before) has no place.
        """
        if not self._is_planned:
            raise StateError(
                "where a sample comes is known only without a sampler or stream\nhint: let the loader have the order"
            )
        from stoker.loader.order.locations import find_locations

        schedule = self._schedule
        return find_locations(
            schedule.dataset, schedule.plan, number, epoch=epoch, num_ranks=schedule.num_ranks, source=source
        )

    def contents(self, step: int) -> list[Content]:
        """Return what is in a step, of all ranks: the positions, and of packed rows the documents, with their sources.

        Steps are those of this loader's plan; after a resume with another batch size, those since then.
        """
        if not self._is_planned:
            raise StateError(
                "what is in a step is known only without a sampler or stream\nhint: let the loader have the order"
            )
        from stoker.compose.step_contents import contents

        schedule = self._schedule
        return list(contents(schedule.dataset, schedule.plan, step, range(schedule.num_ranks), schedule.num_ranks))

    @property
    def counts(self) -> dict[str, int]:
        """How many samples each source of a mixture has given, up to what was yielded last and over all ranks."""
        mixture = self._mixture
        if mixture is None:
            # not an error of ours: what asks `hasattr`, or lists all members, expects this one
            raise AttributeError(
                "only mixtures have counts\nhint: the ledger counts what was served: ledger.num_served"
            )
        progress = self._progress or new_progress(self, self._schedule.next_epoch)
        assert isinstance(progress, PlanProgress)
        return cast("dict[str, int]", mixture.counts(mixture.number(progress.epoch, progress.ordinal)))

    @property
    def _mixture(self) -> Any:
        """The dataset, if the loader keeps its order and it takes its samples from several sources; else None."""
        dataset = self._schedule.dataset
        return dataset if self._is_planned and mixes_sources(dataset) else None

    @property
    def _has_workers(self) -> bool:
        """Whether there are worker processes, or may come to be."""
        return bool(self.num_workers) or (self.auto is not None and self.auto.may_have_workers)

    @property
    def _reads_ahead(self) -> bool:
        """Whether samples are read before the training loop asks for their batch."""
        return bool(self._has_workers or self.num_threads or self._device is not None or self.auto is not None)

    @property
    def _stream_setting(self) -> StreamSetting:
        return stream_setting(self)

    # ---------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iteration is: what was yielded, not what is prefetched. Small, and fit for JSON.

        A dataset or sampler with a `state_dict` of its own adds what that returns.
        """
        return save_state(self)

    def load_state_dict(self, state: dict[str, Any], *, grown: bool = False) -> None:
        """Let the next iteration go on where `state` was taken.

        The number of ranks, workers and threads and the batch size may be others. A state of another dataset, order or
        seed is refused, saying what differs. So is one of another mixture, unless it was made with `changes=True`.

        With `grown=True` a state from the end of an epoch is accepted, too, if the store has grown at its end since:
        the next epoch is one of all samples that there are now.
        """
        load_state(self, state, grown=grown)

    # ---------------------------------------------------------------- metrics

    @property
    def metrics(self) -> LoaderMetrics:
        """What the loader has counted: `stats()`, a printed `report()`, a `log()` in a file, `prometheus()`."""
        return LoaderMetrics(self.counters)

    def stats(self, *, laps: bool = False) -> Stats:
        """Return what was counted, as a plain record: `metrics.stats`."""
        return self.metrics.stats(laps=laps)

    def report(self, *, all_ranks: bool = False, file: TextIO | None = None) -> None:
        """Print what was counted, for people; with `all_ranks`, all ranks have to call it: `metrics.report`."""
        self.metrics.report(all_ranks=all_ranks, file=file)

    def log_stats(self, path: str | Path, *, every: float = 10.0) -> None:
        """Append stats to a file every so many seconds: `metrics.log`."""
        self.metrics.log(path, every=every)

    def prometheus(self, name: str = "train", *, registry: Any = None) -> None:
        """Register stats with `prometheus_client`, under this name and the rank: `metrics.prometheus`."""
        self.metrics.prometheus(name, registry=registry)

    def _count_anew(self) -> None:
        self.counters = Counters(RecordedArguments(self), rank=self._schedule.rank, num_ranks=self._schedule.num_ranks)
        """What `metrics` shows; it holds nothing of the loader, and may be kept when the loader is gone."""
        if self.auto is not None:
            self.auto.follow(self)

    # ---------------------------------------------------------------- copies and changes

    def __getstate__(self) -> dict[str, Any]:
        # workers and slots stay with the process that has them
        return self.__dict__ | {"_processes": None, "_ring": None, "_iterator": None, "counters": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._count_anew()

    def __copy__(self) -> DataLoader[T_co]:
        """Return a loader whose next iteration is what this one's would be: to look without being noticed.

        They have the dataset in common, and nothing else: workers, ledger and place are each one's own.
        """
        if self._is_planned:
            _ = self._schedule.seed  # drawn by now, and the same for both
        return self.adapted()

    def adapted(self, **changes: Any) -> DataLoader[T_co]:
        """Return a loader like this one with some arguments changed, as by `adapt`; this one stays as it is."""
        changed = type(self).__new__(type(self))
        changed.__dict__.update(self.__getstate__())
        changed._schedule = copy(self._schedule)
        if self._is_planned:
            changed._set_planned_sampler()
        changed._generators = BorrowedGenerators(is_repeatable=not self._is_stream)
        changed.ledger = Ledger(self.ledger.policy)
        changed.auto = deepcopy(self.auto)
        changed._count_anew()
        changed._progress = changed._resume = None
        if changes:
            changed.adapt(**changes)
        if self._resume is not None:
            changed.load_state_dict(self.state_dict())
        return changed

    def adapt(
        self,
        *,
        rank: int | None = None,
        num_ranks: int | None = None,
        batch_size: int | None = None,
        order: str | Order | None = None,
        tail: Tail | None = None,
        layout: Layout | None = None,
        seed: int | None = None,
        shard: Literal["auto"] | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        device: str | int | torch.device | None = None,
    ) -> None:
        """Change arguments of this loader between two iterations.

        For trainers, which share a loader out among ranks or cut its batches otherwise. A state that was loaded stays
        loaded; otherwise the epoch that comes next begins.

        Args:
            rank, num_ranks, batch_size, order, tail, shard, device: as in the constructor.
            layout: "blocks" gives each rank neighbours, so that the batches of all ranks put one behind the other are
                in the plan's order; "interleaved" gives it every `num_ranks`-th sample.
            seed: takes the place of a seed that would be drawn, not of one that was given.
            sampler, batch_sampler: in the place of a sampler of the user's own.
        """
        adapt_loader(
            self,
            rank=rank,
            num_ranks=num_ranks,
            batch_size=batch_size,
            order=order,
            tail=tail,
            layout=layout,
            seed=seed,
            shard=shard,
            sampler=sampler,
            batch_sampler=batch_sampler,
            device=device,
        )

    def _set_planned_sampler(self) -> None:
        """Show the order of the schedule in the attributes that torch's loader has for it."""
        sampler = planned_sampler(self._schedule)
        self.__dict__["sampler"] = sampler
        if self.batch_sampler is not None:
            assert self.batch_size is not None
            self.__dict__["batch_sampler"] = BatchSampler(sampler, self.batch_size, self.drop_last)
