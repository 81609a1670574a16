"""What is found out before anything is chosen: a few samples, read by one thread and then by two.

Only a worker scouts. In the trainer's process, a dataset that opens its files when it is first read would have them
open before workers are forked, which would then share their places in them.
"""

from __future__ import annotations

import threading
import time
from math import ceil
from typing import NamedTuple, Protocol

from stoker.foundation.machine import thread_delay_seconds
from stoker.tuning.parallelism import INLINE_SECONDS, Kind, Parallelism, SearchSpace

LOOK_SECONDS = 0.05
"""How long each of the two looks takes, if units are quick: a slow one is not cut short."""

TINY_SECONDS = 0.004
"""Less than this is no time to judge by: then the same units are done again."""

SCALES = 1.6
"""How much quicker two threads have to be than one, for threads to be worth it: beyond it, most of the work lets go of
the interpreter's lock.
"""

IMPLAUSIBLE, CLIPPED_TIMES = 2.5, 3
"""Two threads are not so much quicker than one; and no unit counts for more than so many times the longest but one."""

CHEAP_SECONDS = 1e-4
"""A batch that takes no longer is made by whoever wants it: handing it over would take as long."""

USUAL_STEP = 0.1
"""What a training step takes, as long as nothing is known of it."""


class CostProbe(Protocol):
    """Work that tells what other work will cost."""

    num_units: int
    """How many there are to be tried, all different from each other."""
    units_of_batch: int
    """How many make up a batch."""

    def do(self, unit: int) -> None:
        """Do one. Called from any thread; what comes of it is not needed."""
        ...

    def finish_seconds(self) -> float:
        """Return how long it takes to put a batch together."""
        ...


class SampleCost(NamedTuple):
    """What was found."""

    unit_seconds: float
    """Of one unit, done by one thread."""
    unit_cpu_seconds: float
    """The part of it that needs a core."""
    units_of_batch: int
    finish_seconds: float = 0.0
    speedup: float = 1.0
    """How many units two threads do in the time in which one does one."""
    draws: bool = False
    """Random numbers are drawn from generators that all threads of a process have in common: which thread is first
    would decide who gets which.
    """
    leaves_traces: bool = False
    """Reading opens files, or starts threads, and leaves them so."""

    @property
    def batch_seconds(self) -> float:
        """What a batch costs, done by one thread."""
        return self.unit_seconds * self.units_of_batch + self.finish_seconds

    def __str__(self) -> str:
        return (
            f"a batch takes {self.batch_seconds * 1000:.3g} ms, {self.unit_seconds * 1e6:.0f} us for each of "
            f"{self.units_of_batch} units, {self.unit_cpu_seconds / max(self.unit_seconds, 1e-12):.0%} on a core; "
            f"two threads do {self.speedup:.2f} times as much as one"
            + (", and share random numbers" if self.draws else "")
            + ("; reading leaves files open or threads running" if self.leaves_traces else "")
        )


def measure_samples(probe: CostProbe) -> SampleCost:
    """Return what a probe costs, in about a tenth of a second, or the time of four units if those are slow.

    No unit is done twice, unless they are so quick that it does not matter: what was read once is in a cache.
    """
    num_units = probe.num_units
    began = time.perf_counter()
    probe.do(0)  # opens files, imports modules
    first = 1 if num_units > 1 else 0
    if num_units > 3 and time.perf_counter() - began < LOOK_SECONDS:
        probe.do(1)
        first = 2
    middle = first + max(1, (num_units - first) // 3)
    alone = _Look(probe, range(first, max(middle, first + 1)) if first < num_units else range(1))
    cpu_began = time.thread_time()
    unit_seconds = alone.unit_seconds()
    cpu_seconds = time.thread_time() - cpu_began
    others = range(middle, num_units) if middle + 1 < num_units else range(num_units)
    speedup = 1.0
    if len(others) > 1:
        rate = _Look(probe, others).rate_of_two()
        speedup = rate * unit_seconds
        if speedup > IMPLAUSIBLE:  # what was read first had to come from a disk, or something came between
            speedup = rate * _Look(probe, others).unit_seconds()
    return SampleCost(
        unit_seconds=unit_seconds,
        unit_cpu_seconds=min(unit_seconds, cpu_seconds / alone.num_done),
        units_of_batch=probe.units_of_batch,
        finish_seconds=probe.finish_seconds(),
        speedup=speedup,
    )


class _Look:
    """Units done by one thread or two, until time is up or there are no more."""

    def __init__(self, probe: CostProbe, units: range) -> None:
        self._probe, self.units = probe, units
        self._lock = threading.Lock()
        self._num_claimed = 0
        self._seconds: list[float] = []
        """Of each unit."""
        self._began = self._ended = time.perf_counter()
        self._error: BaseException | None = None

    @property
    def num_done(self) -> int:
        """How many units were done."""
        return len(self._seconds)

    def unit_seconds(self) -> float:
        """Return how long one thread takes for a unit, without what other programs had the core for."""
        began, delay_began = time.perf_counter(), thread_delay_seconds() or 0.0
        self._work()
        if self._error is not None:
            raise self._error
        delay_seconds = (thread_delay_seconds() or 0.0) - delay_began
        seconds = time.perf_counter() - began - delay_seconds
        *most, longest = sorted(self._seconds)
        # one that is far from all others tells more of the machine than of the units
        odd = max(0.0, longest - CLIPPED_TIMES * most[-1] - delay_seconds) if most else 0.0
        return max(seconds - odd, 1e-9) / self.num_done

    def rate_of_two(self) -> float:
        """Return how many units two threads do in a second."""
        thread = threading.Thread(target=self._work, name="stoker-scout")
        thread.start()
        try:
            self._work()
        finally:
            thread.join()
        if self._error is not None:
            raise self._error
        return self.num_done / max(self._ended - self._began, 1e-9)

    def _work(self) -> None:
        """Do units, each one once."""
        try:
            while (unit := self._claimed()) is not None:
                began = time.perf_counter()
                self._probe.do(unit)
                with self._lock:
                    self._ended = time.perf_counter()
                    self._seconds.append(self._ended - began)
        except BaseException as error:
            self._error = error

    def _claimed(self) -> int | None:
        with self._lock:
            seconds = time.perf_counter() - self._began
            if (self._num_claimed and seconds > LOOK_SECONDS) or self._error is not None:
                return None
            if self._num_claimed >= len(self.units) and seconds > TINY_SECONDS:
                return None
            self._num_claimed += 1
            return self.units[(self._num_claimed - 1) % len(self.units)]


def first_choice(room: SearchSpace, found: SampleCost | None) -> tuple[Parallelism, Kind]:
    """Return the setting to begin with, and the kind of hands that will be added to it.

    Batches that cost next to nothing are made inline; work that lets go of the interpreter's lock gets threads in one
    process; all else gets processes, and so does what nothing is known of.
    """
    ahead = room.ahead[0]
    does_scale = found is not None and found.speedup >= SCALES and not found.draws
    kind: Kind = "threads" if room.threads and (does_scale or not room.processes) else "processes"
    ladder = room.ladder(kind)
    is_cheap = found is not None and _is_cheap(found, has_one_core=len(ladder) == 1)
    if not ladder or (room.can_be_inline and is_cheap):
        return Parallelism(0, 0, ahead), kind
    if found is None:
        return Parallelism(*ladder[0], ahead), kind
    # as many as a usual step needs, and not more than half of the cores before it is known what is needed
    wanted = max(1, min(ceil(found.batch_seconds / USUAL_STEP), (len(ladder) + 1) // 2))
    if kind == "threads" and does_scale:
        wanted = max(2, wanted)
    return Parallelism(*ladder[min(wanted, len(ladder)) - 1], ahead), kind


def _is_cheap(found: SampleCost, *, has_one_core: bool) -> bool:
    """Return whether a batch costs so little that handing it over would cost as much; or, with one core, as it cannot
    be made beside the step anyway.
    """
    is_on_core = found.unit_cpu_seconds > 0.9 * found.unit_seconds
    return found.batch_seconds <= (INLINE_SECONDS if has_one_core and is_on_core else CHEAP_SECONDS)
