"""`DataLoader`: the place where the rooms meet."""

from __future__ import annotations

import operator
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
from stoker.compose.mixtures.mixture import Mixture
from stoker.compose.packs.packed import differing_versions
from stoker.compose.step_contents import Content, contents
from stoker.compose.wrapped_datasets import (
    SHUFFLED_MIXTURE,
    SORTED_ROWS,
    fingerprint_of,
    has_sorted_rows,
    has_wrapped_mixture,
)
from stoker.deliver import DecodeSplit, Normalize, To, Widening, checked_device
from stoker.engine.processes.engine import Processes
from stoker.engine.slots.ring import Ring
from stoker.engine.stats import Stats
from stoker.errors import ArgumentError, StateError, StateMismatch, StateUnreadable, StokerError
from stoker.foundation import machine
from stoker.foundation.global_generators import BorrowedGenerators
from stoker.loader.arguments import (
    check_arguments,
    check_choices,
    check_expected,
    check_length,
    check_schedule,
    length_of,
    resolved_decode,
    room_of,
    workers_for,
)
from stoker.loader.auto import Auto
from stoker.loader.build import start_engine
from stoker.loader.iterator import LoaderIterator
from stoker.loader.metrics.counters import Counters
from stoker.loader.metrics.prometheus import register_with_prometheus
from stoker.loader.metrics.recorded_arguments import RecordedArguments
from stoker.loader.metrics.stats_log import StatsLog
from stoker.loader.metrics.stats_text import format_rank_stats, format_stats, gather_stats
from stoker.loader.order.locations import SampleLocation, find_locations
from stoker.loader.order.planned_sampler import positions_of
from stoker.loader.order.rebuilt_loader import describe_class, rebuilt
from stoker.loader.order.schedule import Schedule
from stoker.loader.sharing.mesh import Mesh, check_mesh_state, check_samplers, mesh_state, resolved_mesh
from stoker.loader.sharing.ranks import resolved_ranks, share_of_cores
from stoker.loader.state.dataset_state import load_own_state
from stoker.loader.state.growth import has_grown_from, next_epoch
from stoker.loader.state.plan_progress import PlanProgress
from stoker.loader.state.progress import Progress, check_sums, checksums, enclosed, readable
from stoker.loader.state.sampler_progress import SamplerProgress
from stoker.loader.state.stream_progress import StreamProgress
from stoker.loader.stream import Sharing, StreamSetting
from stoker.plan import Layout, Order, Plan, Recipe, Sequential, Shuffle, Tail, order_named
from stoker.source import LineStream
from stoker.tuning.parallelism import AUTO, Choice

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T_co = TypeVar("T_co", covariant=True)

# Streams of our own do not import torch, but are what torch calls an iterable dataset.
IterableDataset.register(LineStream)


class MapStyle(Protocol[T_co]):
    """What a map-style dataset needs, whatever it derives from; a length too, unless there is a sampler."""

    def __getitem__(self, position: Any, /) -> T_co: ...


class DataLoader(TorchDataLoader[T_co]):
    """torch's `DataLoader` with an order known in advance and exact resume.

    Every argument of torch's loader is here, with its meaning, default and checks; see torch's documentation for them.
    Without a sampler of your own, the order of a map-style dataset is a `Plan`: arithmetic on (seed, epoch, step) that
    costs no memory and no time at the start. What is added, all by keyword:

    Args:
        seed: what the order and all random numbers are made from. By default one is drawn from `generator`, or from
            torch's global generator (so `torch.manual_seed` governs it), and saved with the state; with several ranks
            it is 0.
        order: "sequential", "shuffle" (what `shuffle=True` means) or "window", near-sequential for data on disks and
            object stores; `stoker.Window(size=..., block=...)` sets its size.
        tail: what becomes of the last, incomplete batch of an epoch: "keep" (the default), "drop" (what
            `drop_last=True` means) or "pad" (filled up with samples marked in `recipe.padding`).
        rank, num_ranks: this process's share: `batch_size` samples of each global batch of `batch_size * num_ranks`.
        distributed: find out rank and num_ranks from torch.distributed or the launcher (torchrun, Slurm, MPI).
        mesh: a torch `DeviceMesh`, the sizes of its dimensions by name, or a `stoker.Mesh`: under tensor, context or
            pipeline parallelism, ranks that share data get the same batches, and each data-parallel group its share.
        num_workers, num_threads, prefetch_factor: numbers, or "auto" to have them measured at the start and refined
            while training; `loader.auto` tells what was chosen. `num_threads="auto"` is for datasets that may be read
            by several threads at once.
        num_threads: threads that load ahead, in this process or, with `num_workers`, in each worker process; the
            samples of one batch are spread over them. A dataset may ask for a process of their own by
            `prefers_process = True`, as `stoker.images` does: without `num_workers`, they are then in one worker.
        on_error: "raise", "skip" or a `stoker.Policy`: what to do about a sample that cannot be read.
        shard: "auto" shares an iterable dataset out, so that every sample comes exactly once whatever the number of
            workers and ranks. By default, as in torch, every worker reads all of it unless the dataset sees to it.
        skip: ranges (first, stop) of steps that are passed over, after a loss spike. They are saved with the state.
        device: where batches are to be, "cuda" for one. They are copied ahead, on a stream of their own, from
            page-locked memory; `pin_memory` is then not needed.
        to: a dtype that small ones are widened to after they were copied, or a mapping from dtypes or names of fields
            to dtypes: images travel as uint8, tokens as uint16.
        normalize: `(mean, std)` for each channel, or `stoker.Normalize`: (x / 255 - mean) / std of uint8 images, on
            the device.
        snapshot_every_n_steps: accepted for scripts written for torchdata's `StatefulDataLoader`. It has no effect: a
            state is exact after every batch.
        expect: settings that the data must have been prepared with, such as `{"tokenizer": "tokenizer.json"}`;
            otherwise it is refused, saying what differs. For stores and what is cut out of them.
    """

    shuffle: bool | None
    order: str | Order | None
    tail: Tail | None
    rank: int
    num_ranks: int
    distributed: bool
    mesh: DeviceMesh | Mapping[str, int] | Mesh | None
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
        if expect is not None:
            check_expected(dataset, expect)
        # every argument under its own name, as it was given: tools make loaders again from them
        given = {
            "shuffle": shuffle,
            "order": order,
            "tail": tail,
            "rank": rank,
            "num_ranks": num_ranks,
            "distributed": distributed,
            "mesh": mesh,
            "on_error": on_error,
            "to": to,
            "expect": expect,
            "snapshot_every_n_steps": snapshot_every_n_steps,
        }
        skip = tuple(skip)
        next_epoch, drawn_seed = 0, None
        parts = None if sampler is None and batch_sampler is None else rebuilt(dataset, sampler, batch_sampler)
        if parts is not None:  # the order is ours, whoever has taken it out of another loader
            schedule = parts.schedule
            sampler, batch_sampler, shuffle, order = None, None, None, schedule.order
            rank, num_ranks, distributed = parts.rank, parts.num_ranks, False
            batch_size = batch_size if parts.batch_size is None else parts.batch_size
            drop_last = drop_last if parts.drops_last is None else parts.drops_last
            tail = None if drop_last or (tail or schedule.tail) == "drop" else tail or schedule.tail
            skip, next_epoch = skip or schedule.skip, schedule.next_epoch
            # drawn by now, and the same for both; ranks that are shared out only now agree on their own
            drawn_seed = schedule.seed if parts.num_ranks == schedule.num_ranks else None
        check_choices(num_workers=num_workers, num_threads=num_threads, prefetch_factor=prefetch_factor)
        num_workers = workers_for(dataset, num_workers, num_threads)
        self._device = checked_device(device)
        self._widening = Widening.of(to, normalize)
        if self._widening is not None and self._device is None:
            self._device = torch.device("cpu")
        is_stream = isinstance(dataset, IterableDataset)
        self._is_foreign = isinstance(dataset, IterDataPipe | MapDataPipe)
        is_planned = not is_stream and sampler is None and batch_sampler is None and not self._is_foreign
        self._mesh = resolved_mesh(mesh, rank=rank, num_ranks=num_ranks, in_order=in_order)
        if self._mesh is None:
            rank, num_ranks = resolved_ranks(rank, num_ranks, distributed=distributed)
        else:
            rank, num_ranks = self._mesh.rank, self._mesh.num_ranks
            check_samplers(self._mesh, sampler, batch_sampler)
        self.auto: Auto | None = None
        """What was chosen for the arguments that are "auto", and why; None if there was nothing to choose."""
        if AUTO in (num_workers, num_threads, prefetch_factor):
            room = room_of(
                num_workers=num_workers,
                num_threads=num_threads,
                prefetch_factor=prefetch_factor,
                is_stream=is_stream,
                is_foreign=self._is_foreign,
                # what a worker has set up, is to be waited for, or is to stay, is not to be had without one
                may_be_inline=worker_init_fn is None and not timeout and not persistent_workers,
                num_cores=share_of_cores(),
            )
            chosen = Auto(room)
            num_workers, num_threads, prefetch_factor = chosen.arguments
            self.auto = None if room.is_fixed else chosen
        assert num_workers != AUTO
        assert num_threads != AUTO
        assert prefetch_factor != AUTO
        check_arguments(
            is_stream=is_stream,
            is_planned=is_planned,
            batch_size=batch_size,
            shuffle=shuffle,
            order=order,
            drop_last=drop_last,
            tail=tail,
            num_ranks=num_ranks,
            seed=seed,
            shard=shard,
            num_workers=num_workers,
            num_threads=num_threads,
            prefetch_factor=prefetch_factor,
            timeout=timeout,
            has_skip=bool(skip),
            is_mixed=isinstance(dataset, Mixture) and parts is None,
            sampler=describe_class(sampler if batch_sampler is None else batch_sampler),
        )
        seed = None if seed is None else operator.index(seed)
        self._schedule = Schedule(
            dataset,
            batch_size=batch_size,
            order=order_named(order if order is not None else Shuffle() if shuffle else Sequential()),
            tail=tail or ("drop" if drop_last else "keep"),
            skip=skip,
            rank=rank,
            num_ranks=num_ranks,
            seed=seed,
            generator=generator,
        )
        self._schedule.next_epoch = next_epoch
        self._schedule.has_peers = self._mesh is not None and self._mesh.num_peers > 1
        if seed is None:
            self._schedule.drawn_seed = drawn_seed
        drop_last = drop_last or (tail == "drop" and batch_size is not None)  # for code that looks at the attribute
        if is_planned:
            # made once here so that what cannot be a plan is refused where it is written
            plan = self._schedule.planned(length_of(dataset), seed=seed or 0)
            if not plan.steps_in(0):
                warnings.warn(
                    f"this loader will give no batch: {plan.num_samples} samples do not fill a batch of "
                    f"{plan.batch_size}, and incomplete batches are dropped",
                    stacklevel=2,
                )
            if not isinstance(plan.order, Sequential) and has_wrapped_mixture(dataset):
                warnings.warn(SHUFFLED_MIXTURE, stacklevel=2)
            if order is None and not shuffle and has_sorted_rows(dataset):
                warnings.warn(SORTED_ROWS, stacklevel=2)
            sampler = positions_of(self._schedule)
        super().__init__(
            cast("Dataset[T_co]", dataset),
            batch_size,
            None if is_planned else shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            # torch knows no threads, and refuses to prefetch without workers
            prefetch_factor=None if num_threads and not num_workers else prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if num_threads and not num_workers:
            self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.num_threads, self.shard, self.seed = num_threads, shard, seed
        self.device, self.skip = device, skip
        self.__dict__.update(given)
        self.rank, self.num_ranks = rank, num_ranks
        self.normalize = None if self._widening is None else self._widening.normalize
        self._decode = resolved_decode(
            dataset,
            self._device,
            collates=collate_fn in (None, default_collate) and self._auto_collation and not is_stream,
        )
        self.split: DecodeSplit | None = None
        """For pictures with decode="auto": the share of them that is left to the device, and who is waited for."""
        if self._decode == "auto":
            num_hands = max(1, num_workers) * max(1, num_threads)
            num_cores = machine.num_cores()
            self.split = DecodeSplit(num_cores=num_cores if self.auto is not None else min(num_hands, num_cores))
        # torch's defaults are what None stands for, and loaders made again from attributes have them
        self._own_collate = None if collate_fn in (default_collate, default_convert) else collate_fn
        self._is_stream, self._is_planned = is_stream, is_planned
        self._num_iterations = self._num_to_skip = 0
        self._chosen_epoch: int | None = None
        self._progress: Progress | None = None
        self._resume: Progress | None = None
        self._processes: Processes[Any] | None = None
        self._ring: Ring | None = None
        self._loan = BorrowedGenerators(is_repeatable=not is_stream)  # what was drawn from a stream is gone
        self.ledger = Ledger(Policy.named(on_error))
        """The samples that could not be read and were skipped."""
        self.counters = self._new_counters()
        """What `stats` tells; whoever watches may keep it when the loader is gone."""
        if self.auto is not None:
            self.auto.follow(self)

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
            progress = self._new_progress(schedule.next_epoch)
            if self._progress is not None:
                progress.go_on_from(self._progress)
        if self._mixture is not None:
            self._check_epoch(self._mixture, progress)
            if self._resume is None and not self._num_iterations:  # resumed, it may well have another batch size
                check_schedule(self._mixture.steps_of, schedule.batch_size * schedule.num_ranks)
        num_to_draw = progress.skip_first(self._num_to_skip) if self._num_to_skip else 0
        self._num_iterations += 1
        if isinstance(progress, StreamProgress):
            progress.iteration = self._num_iterations
        engine, helm = start_engine(self, progress)  # may fail, and then nothing has happened
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
            warns_of_copies=self._num_iterations == 1 and self._is_stream and self._setting.sharing == "own",
            counters=self.counters,
            helm=helm,
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
        """Let the next iteration be that of `epoch`. Samplers and datasets that have a `set_epoch` are told too.

        In the middle of a resume, naming the epoch that is resumed changes nothing.
        """
        if self._resume is None or self._resume.epoch != epoch:
            self._resume = None
            self._schedule.next_epoch = epoch
        self._chosen_epoch = epoch
        self._tell_epoch(epoch)

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

    def _tell_epoch(self, epoch: int) -> None:
        inner = getattr(self.batch_sampler, "sampler", None)
        parts = {id(part): part for part in (self.sampler, inner, self.batch_sampler, self.dataset)}
        for part in parts.values():
            if hasattr(part, "set_epoch") and not (self._is_planned and part is self.sampler):
                part.set_epoch(epoch)  # type: ignore[union-attr]

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
        progress = self._progress or self._new_progress(self._schedule.next_epoch)
        assert isinstance(progress, PlanProgress)
        return mixture.counts(mixture.number(progress.epoch, progress.ordinal))

    @property
    def _mixture(self) -> Mixture | None:
        dataset = self._schedule.dataset
        return dataset if isinstance(dataset, Mixture) and self._is_planned else None

    # ---------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iteration is: what was yielded, not what is prefetched. Small, and fit for JSON.

        A dataset or sampler with a `state_dict` of its own adds what that returns.
        """
        if self._is_foreign:
            raise StateError(
                "torch's DataPipes cannot tell where they are\nhint: use a dataset, or a stream with state_dict()"
            )
        progress = self._progress or self._new_progress(self._schedule.next_epoch)
        self._progress = progress
        state = progress.state()
        state["seed"] = self._schedule.seed
        state |= self._identity() | mesh_state(self._mesh)
        state["chosen_epoch"] = self._chosen_epoch
        state["served"], state["skipped"] = self.ledger.num_served, self.ledger.num_skipped
        if self._mixture is not None:
            assert isinstance(progress, PlanProgress)
            state["mixture"] = self._mixture.state(progress.epoch, progress.ordinal)
        if (dataset := self._stateful_dataset) is not None:
            if self._reads_ahead:
                warnings.warn(
                    f"the state of {describe_class(dataset)} is not saved: samples are read ahead, so its state_dict() "
                    "is not that of what was yielded\n"
                    "hint: draw random numbers from stoker.rng(), which is exact without a state; or read samples when "
                    "they are asked for (num_workers=0, num_threads=0, no device=)",
                    stacklevel=2,
                )
            else:
                state["dataset_state"] = deepcopy(dataset.state_dict())
        state["checksums"] = checksums(state)
        state = enclosed(state)
        own = self._own_entry(state)
        return state if own is None else state | {own: (state,)}

    def load_state_dict(self, state: dict[str, Any], *, grown: bool = False) -> None:
        """Let the next iteration go on where `state` was taken.

        The number of ranks, workers and threads and the batch size may be others. A state of another dataset, order or
        seed is refused, saying what differs. So is one of another mixture, unless it was made with `changes=True`.

        With `grown=True` a state from the end of an epoch is accepted, too, if the store has grown at its end since:
        the next epoch is one of all samples that there are now.
        """
        state = readable(state)
        own = self._own_entry(state)
        if own in state:
            state = readable(state[own][0])
        check_mesh_state(state, self._mesh)
        ours = "plan" if self._is_planned else "stream" if self._is_stream else "sampler"
        differences: dict[str, tuple[Any, Any]] = {}
        if state["kind"] != ours:
            differences["kind"] = (state["kind"], ours)
        if self.seed is not None and state["seed"] != self.seed:
            differences["seed"] = (state["seed"], self.seed)
        mixture: Any = self.dataset if self._mixture is not None else None
        for name, identity in self._identity().items() if mixture is None else ():
            if None not in (state.get(name), identity) and state[name] != identity:
                differences[name] = (state[name], identity)
        versions = differing_versions(*differences.get("dataset", (None, None)))
        if versions is not None:  # the same documents, put into other rows by another version of stoker
            differences = {"version of the packing of documents": versions, **differences}
            del differences["dataset"]
        if "mixture" in state and mixture is None:
            differences["mixture"] = (list(state["mixture"].get("counts", ())), None)
        has_grown = (
            grown
            and self._is_planned
            and set(differences) <= {"dataset", "dataset_length"}
            and "dataset" in differences
            and has_grown_from(self._schedule.dataset, state["dataset"])
        )
        if differences and not has_grown:
            raise StateMismatch(differences)
        schedule = self._schedule
        before, dataset = schedule.following, schedule.dataset
        if mixture is not None:  # as it was when the state was taken, or changed from there on
            resumed = mixture.resumed(state.get("mixture"))
            if state.get("ahead") and resumed.state(0, 0)["phases"] != state["mixture"]["phases"]:
                raise StateError(
                    "the state was taken with in_order=False while later batches had overtaken earlier ones, "
                    "so the mixture can only go on as it was\n"
                    "hint: resume as before, or save states with in_order=True"
                )
            schedule.dataset = resumed
            self._processes = None
        if self._is_stream or state["seed"] != schedule.drawn_seed:
            self._processes = None  # persistent workers have the seed, and the place in a stream, they had
        schedule.follow(None, state["seed"])
        try:
            progress = self._new_progress(0)
            if has_grown:
                assert isinstance(progress, PlanProgress)
                state = next_epoch(state, progress)
            progress = progress.resumed(state)
            check_sums(progress, state)
            progress.take_up()
            if "dataset_state" in state and self._stateful_dataset is not None:
                load_own_state(self._stateful_dataset, deepcopy(state["dataset_state"]))
        except Exception as error:
            schedule.dataset = dataset
            schedule.follow(*before)
            is_ours = isinstance(error, StokerError) and not isinstance(error, ArgumentError)
            if is_ours or isinstance(error, OSError | MemoryError):
                raise
            raise StateUnreadable(f"its fields do not fit together ({error})") from error
        self._progress = self._resume = progress
        self._num_to_skip = 0
        schedule.next_epoch, schedule.is_seed_drawn = progress.epoch, False
        if isinstance(progress, PlanProgress):
            schedule.follow(progress.plan, state["seed"])
        self._chosen_epoch = state.get("chosen_epoch")
        if self._chosen_epoch is not None:
            self._tell_epoch(self._chosen_epoch)
        self.ledger.num_served, self.ledger.num_skipped = state.get("served", 0), state.get("skipped", 0)

    @property
    def _stateful_dataset(self) -> Any:
        """The dataset, if it is map-style and has a state, as those written for torchdata may have."""
        dataset: Any = self._schedule.dataset
        has_state = callable(getattr(dataset, "state_dict", None)) and callable(
            getattr(dataset, "load_state_dict", None)
        )
        return dataset if has_state and not self._is_stream else None

    @property
    def _reads_ahead(self) -> bool:
        """Whether samples are read before the training loop asks for their batch."""
        return bool(self._has_workers or self.num_threads or self._device is not None or self.auto is not None)

    def _own_entry(self, state: dict[str, Any]) -> str | None:
        """Return the name under which a state that fits this rank alone is in it a second time, as one entry.

        torch.distributed.checkpoint keeps one value for each name, so that of what only this rank has the name must be
        its own. None for states that all ranks may load.
        """
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return None
        rank, num_ranks = self._schedule.rank, self._schedule.num_ranks
        is_in_order = (self.in_order or not self._has_workers) and "dataset_state" not in state
        if num_ranks > 1 or self._mesh is not None:
            is_shared = is_in_order and (state["kind"] != "stream" or state["sharing"] == "whole")
        else:  # each rank may have data, a sampler or a seed of its own
            is_shared = is_in_order and self._is_planned and self.seed is not None
            rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if is_shared:
            return None
        return f"rank_{rank}_of_{num_ranks}" if num_ranks > 1 else None

    # ---------------------------------------------------------------- counters

    def stats(self, *, laps: bool = False) -> Stats:
        """Return what was counted since the loader was made, or since `counters.reset()`, as a plain record.

        With `laps`, the latest batches are in it one by one. It may be asked for at any time, and costs milliseconds.
        """
        return self.counters.stats(laps=laps)

    def report(self, *, all_ranks: bool = False, file: TextIO | None = None) -> None:
        """Print what was counted, for people. With `all_ranks`, of all ranks together, and who is the slowest.

        That asks the other ranks through torch.distributed, so that all have to call it; the first one prints.
        """
        if not all_ranks:
            print(format_stats(self.stats()), file=file)
            return
        gathered = gather_stats(self.stats())
        if self._schedule.rank == 0:
            print(format_rank_stats(gathered), file=file)

    def log_stats(self, path: str | Path, *, every: float = 10.0) -> None:
        """Append a line of JSON, `Stats.as_json`, to a file every so many seconds, and at the end of each iteration.

        Several ranks may write to one file. `stoker top` follows it.
        """
        self.counters.write_to(StatsLog(path, every=every))

    def prometheus(self, name: str = "train", *, registry: Any = None) -> None:
        """Let `prometheus_client` tell what was counted, under this name and the rank. Nothing runs until it asks.

        A server is yours to start, `prometheus_client.start_http_server(9400)`, unless there is one already.
        """
        register_with_prometheus(self.counters, name=name, registry=registry)

    def _new_counters(self) -> Counters:
        schedule = self._schedule
        return Counters(RecordedArguments(self), rank=schedule.rank, num_ranks=schedule.num_ranks)

    # ---------------------------------------------------------------- inside

    def __getstate__(self) -> dict[str, Any]:
        # workers and slots stay with the process that has them
        return self.__dict__ | {"_processes": None, "_ring": None, "_iterator": None, "counters": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.counters = self._new_counters()
        if self.auto is not None:
            self.auto.follow(self)

    def __copy__(self) -> DataLoader[T_co]:
        """Return a loader whose next iteration is what this one's would be: to look without being noticed.

        They have the dataset in common, and nothing else: workers, ledger and place are each one's own.
        """
        if self._is_planned:
            _ = self._schedule.seed  # drawn by now, and the same for both
        twin = self._twin()
        if self._resume is not None:
            twin.load_state_dict(self.state_dict())
        return twin

    def _twin(self) -> DataLoader[T_co]:
        """Return a loader like this one, at the beginning of the epoch that comes next."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__getstate__())
        twin._schedule = copy(self._schedule)
        if self._is_planned:
            twin._take_order()
        twin._loan = BorrowedGenerators(is_repeatable=not self._is_stream)
        twin.ledger = Ledger(self.ledger.policy)
        twin.counters = twin._new_counters()
        twin.auto = deepcopy(self.auto)
        if twin.auto is not None:
            twin.auto.follow(twin)
        twin._progress = twin._resume = None
        return twin

    def adapted(self, **changes: Any) -> DataLoader[T_co]:
        """Return a loader like this one with some arguments changed, as by `adapt`; this one stays as it is."""
        twin = self._twin()
        twin.adapt(**changes)
        if self._resume is not None:
            twin.load_state_dict(self.state_dict())
        return twin

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
        state = None if self._resume is None else self.state_dict()
        schedule = self._schedule
        if (num_ranks or 1) > 1 and schedule.is_shared_out and (rank, num_ranks) != (schedule.rank, schedule.num_ranks):
            raise ArgumentError(
                f"this loader already reads only the part of rank {schedule.rank} of {schedule.num_ranks}, and would "
                f"be shared out a second time, as rank {rank} of {num_ranks}",
                hint="leave out distributed=, rank=, num_ranks= and mesh= where a trainer sets the rank",
            )
        changed = copy(schedule)
        if rank is not None or num_ranks is not None:
            changed.rank, changed.num_ranks = resolved_ranks(rank, num_ranks, distributed=False)
        changed.batch_size = schedule.batch_size if batch_size is None else batch_size
        changed.tail, changed.layout = tail or schedule.tail, layout or schedule.layout
        changed.order = schedule.order if order is None else order_named(order)
        if seed is not None and self.seed is None:
            changed.drawn_seed, changed.is_seed_drawn = seed, False
        elif changed.num_ranks > schedule.num_ranks == 1 and schedule.is_seed_drawn and schedule.generator is None:
            changed.drawn_seed = None  # each rank has drawn its own, and they have to agree
        changed.follow(None, changed.drawn_seed)
        if self._is_planned:
            changed.planned(length_of(schedule.dataset), seed=0)  # refuses what cannot be a plan
        vars(schedule).update(vars(changed))
        # torch forbids to assign these to a loader that is made
        fields = self.__dict__
        fields["rank"], fields["num_ranks"] = schedule.rank, schedule.num_ranks
        fields["order"] = self.order if order is None else order
        fields["tail"] = tail or self.tail
        fields["shard"] = shard or self.shard
        if device is not None:
            self._device, fields["device"] = checked_device(device), device
        if batch_size is not None and self.batch_size is not None:
            fields["batch_size"] = batch_size
        if tail is not None:
            fields["drop_last"] = tail == "drop" and self.batch_size is not None
        if self._is_planned:
            self._take_order()
        elif batch_sampler is not None:
            fields.update(batch_sampler=batch_sampler, batch_size=None, drop_last=False)
        elif sampler is not None:
            fields["sampler"] = sampler
            if self.batch_size is not None:
                fields["batch_sampler"] = BatchSampler(sampler, self.batch_size, self.drop_last)
        self._processes = self._progress = self._resume = None
        self.counters.rank, self.counters.num_ranks = schedule.rank, schedule.num_ranks
        if state is not None:
            self.load_state_dict(state)

    def _take_order(self) -> None:
        """Show the order of the schedule in the attributes that torch's loader has for it."""
        sampler = positions_of(self._schedule)
        self.__dict__["sampler"] = sampler
        if self.batch_sampler is not None:
            assert self.batch_size is not None
            self.__dict__["batch_sampler"] = BatchSampler(sampler, self.batch_size, self.drop_last)

    def _identity(self) -> dict[str, Any]:
        """Return what tells this dataset from another one."""
        dataset = self._schedule.dataset
        try:
            length = len(dataset)
        except (TypeError, ValueError, OverflowError):
            length = None
        return {"dataset": fingerprint_of(dataset), "dataset_length": length}

    def _new_progress(self, epoch: int) -> Progress:
        schedule = self._schedule
        if self._is_planned:
            plan = schedule.plan_for(epoch)
            return PlanProgress(
                plan,
                epoch,
                rank=schedule.rank,
                num_ranks=schedule.num_ranks,
                in_order=self.in_order or not self._has_workers,
            )
        if self._is_stream:
            return StreamProgress(
                self.dataset, epoch, self._setting, is_here=not self.num_workers, in_order=self.in_order
            )
        is_own_batching = self.batch_sampler is not None and self.batch_size is None
        return SamplerProgress(
            self.batch_sampler if is_own_batching else self.sampler,
            epoch,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            is_batched=self._auto_collation,
            in_order=self.in_order or not self._has_workers,
        )

    @property
    def _has_workers(self) -> bool:
        """Whether there are worker processes, or may come to be."""
        return bool(self.num_workers) or (self.auto is not None and self.auto.may_have_workers)

    @property
    def _setting(self) -> StreamSetting:
        schedule, num_workers = self._schedule, max(1, self.num_workers)
        sharing: Sharing = "whole"
        if num_workers * schedule.num_ranks > 1:
            if self.shard is None:
                sharing = "own"
            elif callable(getattr(self.dataset, "split", None)):
                sharing = "split"
        return StreamSetting(
            sharing=sharing,
            batch_size=schedule.batch_size,
            rank=schedule.rank,
            num_ranks=schedule.num_ranks,
            num_workers=num_workers,
            tail=schedule.tail,
            hides_worker=self.shard == "auto",
            stays=self.persistent_workers,
            layout=schedule.layout,
        )

    @staticmethod
    def _check_epoch(mixture: Mixture, progress: Progress) -> None:
        """Refuse an epoch that there is not, or not like this: here, and not in a worker."""
        assert isinstance(progress, PlanProgress)
        length = len(mixture.in_epoch(progress.epoch))
        if length != progress.plan.num_samples:
            raise ArgumentError(
                f"epoch {progress.epoch} of the mixture has {length} samples; since its terms changed, epochs have "
                f"{progress.plan.num_samples}",
                hint="load a state of that time to go back to it",
            )
        mixture.check_readable(progress.epoch, progress.ordinal)
