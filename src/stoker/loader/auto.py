"""`"auto"`: the parallelism chosen for a loader, measured at its start and refined while it trains."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

from stoker.batch.result import BatchResult
from stoker.engine.processes.in_flight import LANES
from stoker.foundation import machine
from stoker.tuning.autotuner import Autotuner
from stoker.tuning.batch_window import BatchWindow, Observation
from stoker.tuning.parallelism import Parallelism, SearchSpace
from stoker.tuning.sample_cost import SampleCost, first_choice

if TYPE_CHECKING:
    from stoker.loader.tuned_engine import TunedEngine

log = logging.getLogger("stoker")

STARVED = 0.2
"""If the training loop waits for a larger share of the time and nothing more can be done, a decision says why."""

MEMORY_SHARE = 0.1
"""Maximum share of the available memory for batches in flight."""

MEMORY = ("/dev/shm/", "/dev/hugepages/", "/dev/mqueue/")
"""Folders below /dev that hold files, such as data that was copied there to be read quickly."""


class Auto:
    """The current choice for a loader, and why. As text, the arguments to paste.

    The choice outlives an iteration: the next one begins with it and refines it.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.setting, self._kind = first_choice(space, None)
        """The current setting."""
        self.sample_cost: SampleCost | None = None
        """Result of the first measurement."""
        self.decisions: list[str] = []
        """All decisions in order, each with the numbers it is based on."""
        self.tuner: Autotuner | None = None
        """Makes the decisions; None before the first measurement."""
        self.meter = BatchWindow()
        self.measured: Parallelism | None = None
        """The setting that the meter measures."""
        self.num_iterations = 0
        """Number of iterations so far; only the latest one is tuned."""
        self.footprint = Footprint()
        """What reading leaves open in this process. Loaders over one dataset share it."""
        self._loader: Callable[[], Any] = _no_loader
        self._is_limit_noted = False

    def __str__(self) -> str:
        return str(self.setting)

    def __repr__(self) -> str:
        return f"<Auto: {self.setting}; {len(self.decisions)} decisions>"

    def __getstate__(self) -> dict[str, Any]:
        # in another process, nothing was read yet
        return self.__dict__ | {"_loader": _no_loader, "footprint": Footprint()}

    def follow(self, loader: Any) -> None:
        """Show the chosen values in the attributes of a loader."""
        self._loader, self.footprint = ref(loader), footprint_of(loader.dataset)
        self._show()

    @property
    def arguments(self) -> tuple[int, int, int | None]:
        """Workers, threads and prefetch factor, which is None for inline loading, as in torch."""
        setting = self.setting
        return setting.num_workers, setting.num_threads, None if setting.is_inline else setting.prefetch_factor

    @property
    def most_workers(self) -> int:
        """Maximum number of worker processes; 0 if neither their number nor their threads will change."""
        candidates = {candidate for candidate in (*self.space.processes, *self.space.threads) if candidate[0]}
        return max(candidate[0] for candidate in candidates) if len(candidates) > 1 else 0

    @property
    def may_have_workers(self) -> bool:
        """Whether the search space contains worker processes."""
        return any(candidate[0] for candidate in (*self.space.processes, *self.space.threads))

    @property
    def is_to_measure(self) -> bool:
        """Whether a worker has to measure samples before the first choice."""
        space = self.space
        return self.tuner is None and self.setting.num_workers > 0 and len({*space.processes, *space.threads}) > 1

    def choose(self, found: SampleCost | None) -> Parallelism:
        """Choose the first setting from the first measurement, or without one if it failed."""
        self.sample_cost = found
        if found is not None:  # a worker loads two batches at once; threads beyond their units have no work
            most = LANES * found.units_of_batch
            self.space = replace(
                self.space,
                threads=tuple(candidate for candidate in self.space.threads if candidate[1] <= most),
                # forks share what is open in the training process: those of this loader, and of others
                can_be_inline=self.space.can_be_inline and not found.leaves_traces,
            )
        self.setting, self._kind = first_choice(self.space, found)
        work = None if found is None else found.batch_seconds
        self.tuner = Autotuner(self.space, self.setting, kind=self._kind, work=work)
        self.decide(str(found) if found is not None else "the cost of samples could not be measured")
        return self.setting

    def stay(self) -> None:
        """Continue without workers, because they can no longer be forked."""
        self.space = replace(
            self.space, processes=(), threads=tuple(candidate for candidate in self.space.threads if not candidate[0])
        )
        self.setting, self._kind = first_choice(self.space, None)
        self.tuner = Autotuner(self.space, self.setting, kind=self._kind)
        self.decide("reading has opened files or started threads in this process, which a fork would share")

    def begin(self) -> None:
        """Begin an iteration without a measurement phase: with the present setting, or inline if that seems better."""
        if self.tuner is None:
            self.tuner = Autotuner(self.space, self.setting, kind=self._kind)
        why = self.tuner.begin_iteration()
        self.setting = self.tuner.setting
        if why is not None:
            self.decide(why)

    def decide(self, why: str) -> None:
        """Record and log the current setting, and why it was chosen."""
        decision = f"{self.setting}: {why}"
        self.decisions.append(decision)
        log.info("auto: %s", decision)
        self._show()

    def note_limit(self, seen: Observation) -> None:
        """Record, once, that the training loop waits although the maximum number of workers is reached."""
        if not self._is_limit_noted:
            self._is_limit_noted = True
            waits = f"the training loop waits {seen.stall_share:.0%} of {seen.period * 1000:.3g} ms"
            loader = self._loader()
            if loader is not None and loader._is_stream:
                limit = "one worker reads a stream; to share it out, set shard='auto' and more workers"
            else:
                limit = "there are no more cores; if loading mostly waits for I/O, set more workers or threads"
            self.decide(f"{waits}, and {limit} yourself")

    def _show(self) -> None:
        loader = self._loader()
        if loader is None:
            return
        loader.num_workers, loader.num_threads, loader.prefetch_factor = self.arguments
        loader.counters.decisions[:] = self.decisions


def _no_loader() -> None:
    return None


class TuningDriver:
    """Applies the tuner's decisions to the running engine. Called by the training thread, for each batch."""

    def __init__(self, auto: Auto, engine: TunedEngine) -> None:
        self._auto, self._engine = auto, engine
        self._quota = machine.quota_cores()
        self._began: _CpuCounters | None = None
        """CPU counters at the beginning of the window."""
        self._is_settled = self._is_due = False
        """Whether the engine runs with the setting (batches before that are not measured), and whether a window is
        complete.
        """
        self._num_before = 0
        """Batches that were in flight when the setting last changed."""
        self._thread: int | None = None
        auto.num_iterations += 1
        self._number = auto.num_iterations
        auto.meter.pause()

    def note(self, made: BatchResult, asked: float, handed: float) -> None:
        """Measure a batch that was returned to the training loop."""
        meter = self._auto.meter
        if self._auto.num_iterations != self._number:
            return  # a newer iteration uses the meter
        if self._thread is None:
            self._thread = threading.get_ident()
        if not self._is_settled or self._thread != threading.get_ident():
            meter.pause()
            return
        _, ended, read, transform, collate = made.times
        worker, sent, _ = made.handover
        self._is_due = meter.add(asked, handed, ended if worker < 0 else sent, read + transform + collate)

    def steer(self) -> None:
        """Decide if a window is complete, and change the engine. Called before a batch is requested."""
        auto = self._auto
        if auto.num_iterations != self._number or auto.tuner is None:
            return  # another iteration has begun meanwhile, or this one has not
        if self._thread is not None and self._thread != threading.get_ident():
            return  # where several threads take batches in turn, a step cannot be distinguished from waiting
        if not self._is_settled:
            self._settle(auto, auto.tuner)
        elif self._began is None and auto.meter.num_seen:
            self._began = _CpuCounters(self._quota)
        elif self._is_due and self._began is not None and auto.meter.num_seen:
            self._is_due = False
            self._decide(auto, auto.tuner)

    def _settle(self, auto: Auto, tuner: Autotuner) -> None:
        """Begin or continue the window if the engine runs with the setting."""
        engine = self._engine
        if engine.setting != tuner.setting and engine.most_workers != 0:
            engine.change(tuner.setting)  # an interrupt has cut it short
        if not engine.is_settled:
            return
        self._is_settled, self._began = True, None
        most, setting = engine.most_workers, engine.setting
        if most is not None and (setting != tuner.setting or setting.num_workers > most):
            auto.setting = replace(setting, num_workers=min(most, setting.num_workers))
            tuner.limit(most, auto.setting)
            engine.change(auto.setting)
            auto.decide(f"there can be no more than {most} workers")
        num_in_flight = auto.setting.num_in_flight
        if auto.setting != auto.measured:
            auto.measured = auto.setting
            auto.meter.begin(self._num_before + num_in_flight + 2, num_in_flight=num_in_flight)

    def _decide(self, auto: Auto, tuner: Autotuner) -> None:
        engine, now, began = self._engine, _CpuCounters(self._quota), self._began
        assert began is not None
        self._num_before = engine.setting.num_in_flight
        most_ahead = self._most_ahead(self._num_before)
        can_have_workers = engine.can_have_workers
        if auto.num_iterations != self._number:
            return  # begun by another thread, meanwhile
        seen = auto.meter.observation(
            cpu_share=now.cpu_share_since(began),
            delay_share=now.delay_share_since(began),
            most_ahead=most_ahead,
            can_have_workers=can_have_workers,
        )
        why = tuner.observe(seen)
        if tuner.setting == auto.setting:
            if tuner.is_at_the_top and seen.stall_share > STARVED:
                auto.note_limit(seen)
            auto.meter.begin(0, num_in_flight=self._num_before)
            self._began = now
            return
        self._is_settled = False
        auto.setting = tuner.setting
        engine.change(tuner.setting)
        auto.decide(why or "")

    def _most_ahead(self, num_in_flight: int) -> int:
        num_bytes, available = self._engine.batch_bytes, machine.available_bytes()
        if not num_bytes or available is None:
            return 1 << 30
        return max(1, int(MEMORY_SHARE * (available + num_in_flight * num_bytes) / num_bytes))


class _CpuCounters:
    """CPU counters at one instant."""

    def __init__(self, quota: float | None) -> None:
        self.at = time.perf_counter()
        self._delay = machine.thread_delay_seconds()
        self._cores = machine.our_core_seconds()
        self._quota = quota
        self._used = None if quota is None else machine.quota_used_seconds()

    def cpu_share_since(self, before: _CpuCounters) -> float:
        """Return the share of the usable cores that was in use; 0 if unknown."""
        shares = [0.0]
        if self._cores is not None and before._cores is not None and self._cores[1] > before._cores[1]:
            shares.append((self._cores[0] - before._cores[0]) / (self._cores[1] - before._cores[1]))
        if self._quota is not None and self._used is not None and before._used is not None:
            shares.append((self._used - before._used) / (self._quota * max(self.at - before.at, 1e-9)))
        return min(1.0, max(shares))

    def delay_share_since(self, before: _CpuCounters) -> float:
        """Return the share of the time that this thread was ready to run but had no core; 0 if unknown."""
        if self._delay is None or before._delay is None:
            return 0.0
        return max(0.0, self._delay - before._delay) / max(self.at - before.at, 1e-9)


def footprint_of(dataset: Any) -> Footprint:
    """Return the footprint of a dataset; parts of it, such as torch's `Subset`, share it."""
    while (inner := getattr(dataset, "dataset", None)) is not None:
        dataset = inner
    try:
        return _footprints.setdefault(_Key(dataset), Footprint())
    except TypeError:  # lists and the like have no weak references, and no files
        return Footprint()


_footprints: dict[_Key, Footprint] = {}


class _Key:
    """Identity of a dataset, whatever its `__eq__` says, for as long as it exists."""

    def __init__(self, dataset: Any) -> None:
        self._number = id(dataset)
        footprints = _footprints  # a dataset may end with the interpreter, when the module has lost its names
        self._dataset = ref(dataset, lambda _: footprints.pop(self, None))

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._number == other._number


class Footprint:
    """Watches whether reading data in the training process opens files or starts threads.

    A fork would share the offsets of those files, and lack those threads: then no more workers can be started.
    This is checked around batches 1, 2, 4, ..., and for everything new before a fork.
    """

    def __init__(self) -> None:
        self._num_made = 0
        self._leaves_traces = False
        self._last: frozenset[str] | None = None

    def watched(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return `make`, watched."""

        def made(recipe: Any) -> Any:
            self._num_made += 1
            if self._leaves_traces or self._num_made & (self._num_made - 1):  # not a power of two
                return make(recipe)
            before = machine.held()
            is_new = self._last is not None and _may_be_of_data(before - self._last)
            try:
                return make(recipe)
            finally:
                self._last = machine.held()
                self._leaves_traces = is_new or not self._last <= before

        return made

    def is_clean(self) -> bool:
        """Return whether nothing was left open, neither by the watched batches nor by anything since."""
        if self._leaves_traces:
            return False
        return self._last is None or not _may_be_of_data(machine.held() - self._last)


def _may_be_of_data(new: frozenset[str]) -> bool:
    """Return whether files or threads that appeared between two checks may come from reading data.

    In doubt they do: rather no worker than one that shares a file. But training, when it first computes, starts
    threads that Python does not know, and opens devices, together with pipes and the like.
    """
    files = [one.split(" ", 2)[2] for one in new if one.startswith("file ")]
    devices = [name for name in files if name.startswith("/dev/") and not name.startswith(MEMORY)]
    of_training = (*devices, "anon_inode:", *(("pipe:",) if devices else ()))
    ours = {f"thread {thread.native_id}" for thread in threading.enumerate()}
    return bool(ours & new) or not all(name.startswith(of_training) for name in files)
