"""First measurement of `"auto"`: read a few samples with one thread, then with two.

A worker does this, never the training process: a dataset that opens its files on first read would have them open when
workers are forked, and all workers would share one file offset.
"""

from __future__ import annotations

import threading
import time
from math import ceil
from typing import NamedTuple, Protocol

from stoker.foundation.machine import thread_delay_seconds
from stoker.tuning.parallelism import INLINE_SECONDS, Kind, Parallelism, SearchSpace

LOOK_SECONDS = 0.05
"""Duration of each of the two measurements, if units are fast; a slow unit is not interrupted."""

TINY_SECONDS = 0.004
"""Too short to measure: then the same units are repeated."""

SCALES = 1.6
"""Minimum speedup of two threads over one for which threads are used: most of the work then releases the GIL."""

IMPLAUSIBLE, CLIPPED_TIMES = 2.5, 3
"""A speedup of two threads that must be an error; and the maximum weight of a unit, in times of the second longest."""

CHEAP_SECONDS = 1e-4
"""Batches that take no longer are loaded inline: sending one between processes would take as long."""

USUAL_STEP = 0.1
"""Assumed duration of a training step before it is known."""


class CostProbe(Protocol):
    """Sample work, to measure what the rest will cost."""

    num_units: int
    """Number of units to try, all different."""
    units_of_batch: int
    """Number of units in a batch."""

    def do(self, unit: int) -> None:
        """Do one unit, in any thread, and drop the result."""
        ...

    def finish_seconds(self) -> float:
        """Return how long it takes to collate a batch."""
        ...


class SampleCost(NamedTuple):
    """Result of the first measurement."""

    unit_seconds: float
    """Time of one unit in one thread."""
    unit_cpu_seconds: float
    """CPU time of one unit."""
    units_of_batch: int
    finish_seconds: float = 0.0
    speedup: float = 1.0
    """Throughput of two threads, compared with one."""
    draws: bool = False
    """Whether samples use random generators shared by all threads of a process: the scheduling of threads would decide
    which sample gets which number.
    """
    leaves_traces: bool = False
    """Whether reading leaves files open or threads running."""

    @property
    def batch_seconds(self) -> float:
        """Time of a batch in one thread."""
        return self.unit_seconds * self.units_of_batch + self.finish_seconds

    def __str__(self) -> str:
        cpu_share = self.unit_cpu_seconds / max(self.unit_seconds, 1e-12)
        return (
            f"a batch takes {self.batch_seconds * 1000:.3g} ms ({self.units_of_batch} parts of "
            f"{self.unit_seconds * 1e6:.0f} µs, {cpu_share:.0%} on a core); "
            f"two threads are {self.speedup:.2f} times as fast as one"
            + (", and share random generators" if self.draws else "")
            + ("; reading leaves files open or threads running" if self.leaves_traces else "")
        )


def measure_samples(probe: CostProbe) -> SampleCost:
    """Return the cost of samples, measured in about a tenth of a second, or the time of four units if those are slow.

    No unit is done twice, because data that was read once is in a cache; units that are very fast are repeated anyway.
    """
    num_units = probe.num_units
    began = time.perf_counter()
    probe.do(0)  # opens files, imports modules
    first = 1 if num_units > 1 else 0
    if num_units > 3 and time.perf_counter() - began < LOOK_SECONDS:
        probe.do(1)
        first = 2
    middle = first + max(1, (num_units - first) // 3)
    alone = _TimedUnits(probe, range(first, max(middle, first + 1)) if first < num_units else range(1))
    cpu_began = time.thread_time()
    unit_seconds = alone.unit_seconds()
    cpu_seconds = time.thread_time() - cpu_began
    others = range(middle, num_units) if middle + 1 < num_units else range(num_units)
    speedup = 1.0
    if len(others) > 1:
        rate = _TimedUnits(probe, others).rate_of_two()
        speedup = rate * unit_seconds
        if speedup > IMPLAUSIBLE:  # the first units were read from a disk, or another program interfered
            speedup = rate * _TimedUnits(probe, others).unit_seconds()
    return SampleCost(
        unit_seconds=unit_seconds,
        unit_cpu_seconds=min(unit_seconds, cpu_seconds / alone.num_done),
        units_of_batch=probe.units_of_batch,
        finish_seconds=probe.finish_seconds(),
        speedup=speedup,
    )


class _TimedUnits:
    """Units done by one thread or two, until time is up or no units are left."""

    def __init__(self, probe: CostProbe, units: range) -> None:
        self._probe, self.units = probe, units
        self._lock = threading.Lock()
        self._num_claimed = 0
        self._seconds: list[float] = []
        """Durations of the units."""
        self._began = self._ended = time.perf_counter()
        self._error: BaseException | None = None

    @property
    def num_done(self) -> int:
        """Number of units done."""
        return len(self._seconds)

    def unit_seconds(self) -> float:
        """Return how long one thread takes for a unit, without the time that other programs used its core."""
        began, delay_began = time.perf_counter(), thread_delay_seconds() or 0.0
        self._work()
        if self._error is not None:
            raise self._error
        delay_seconds = (thread_delay_seconds() or 0.0) - delay_began
        seconds = time.perf_counter() - began - delay_seconds
        *most, longest = sorted(self._seconds)
        # an outlier says more about the machine than about the units
        odd = max(0.0, longest - CLIPPED_TIMES * most[-1] - delay_seconds) if most else 0.0
        return max(seconds - odd, 1e-9) / self.num_done

    def rate_of_two(self) -> float:
        """Return how many units two threads do per second."""
        thread = threading.Thread(target=self._work, name="stoker-probe")
        thread.start()
        try:
            self._work()
        finally:
            thread.join()
        if self._error is not None:
            raise self._error
        return self.num_done / max(self._ended - self._began, 1e-9)

    def _work(self) -> None:
        """Do units until none are left to claim."""
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


def first_choice(space: SearchSpace, found: SampleCost | None) -> tuple[Parallelism, Kind]:
    """Return the first setting, and the kind of workers to add to it.

    Batches that cost almost nothing are loaded inline; work that releases the GIL gets threads in one process; all
    other work, and work that could not be measured, gets processes.
    """
    ahead = space.ahead[0]
    does_scale = found is not None and found.speedup >= SCALES and not found.draws
    kind: Kind = "threads" if space.threads and (does_scale or not space.processes) else "processes"
    ladder = space.candidates(kind)
    is_cheap = found is not None and _is_cheap(found, has_one_core=len(ladder) == 1)
    if not ladder or (space.can_be_inline and is_cheap):
        return Parallelism(0, 0, ahead), kind
    if found is None:
        return Parallelism(*ladder[0], ahead), kind
    # enough for a step of usual length, but at most half of the cores before more is known
    wanted = max(1, min(ceil(found.batch_seconds / USUAL_STEP), (len(ladder) + 1) // 2))
    if kind == "threads" and does_scale:
        wanted = max(2, wanted)
    return Parallelism(*ladder[min(wanted, len(ladder)) - 1], ahead), kind


def _is_cheap(found: SampleCost, *, has_one_core: bool) -> bool:
    """Return whether a batch costs no more than sending it; with one core, no more than the limit for inline."""
    is_on_core = found.unit_cpu_seconds > 0.9 * found.unit_seconds
    return found.batch_seconds <= (INLINE_SECONDS if has_one_core and is_on_core else CHEAP_SECONDS)
