"""Interleaved rounds: in each round every contender is measured once, so that a drifting machine harms all alike.

Machines drift, and other work comes and goes, so contenders are never measured one after the other, and ratios are
taken inside a round before they are averaged. Every other round runs backwards, and the order rotates, so that nobody
always comes first.

`interleaved` measures functions in this process. `stoker.lab.trial.sweep` and `benchmarks.turns` measure loaders in
processes of their own.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any, TypeVar

from stoker.engine.stats import Plain
from stoker.foundation import machine

T = TypeVar("T")

QUIET_SECONDS, QUIET_CORES = 0.05, 0.25
"""A process tree is idle if, for so long, everything but this thread uses no more than that of a core."""


def in_turn(things: Sequence[T], number: int) -> list[T]:
    """Return `things` in the order of round `number`."""
    if not things:
        return []
    shift = number // 2 % len(things)
    turn = [*things[shift:], *things[:shift]]
    return turn[::-1] if number % 2 else turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Plain):
    """A number that was measured several times."""

    mean: float
    deviation: float | None = None
    """The standard deviation; None of a single measurement."""
    num: int = 1

    @staticmethod
    def of(values: Iterable[float | None]) -> Spread | None:
        """Return the spread of the values that are known, or None if there are none."""
        known = [float(value) for value in values if value is not None]
        if not known:
            return None
        return Spread(mean=fmean(known), deviation=stdev(known) if len(known) > 1 else None, num=len(known))


class BlockTimer:
    """Adds up the time of what a contender wraps in `timing`."""

    def __init__(self) -> None:
        self.wall_seconds = self.cpu_seconds = 0.0
        self.num_units = 0

    @contextmanager
    def timing(self, num_units: int = 1) -> Iterator[None]:
        """Time the block, which does `num_units` units of work."""
        cpu = time.process_time()  # outside, because it is the more expensive call
        wall = time.perf_counter()
        yield
        self.wall_seconds += time.perf_counter() - wall
        self.cpu_seconds += time.process_time() - cpu
        self.num_units += num_units


TimedFunction = Callable[[BlockTimer], None]


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """How long to measure: until there are `max_rounds`, or `min_rounds` and `seconds` have passed."""

    seconds: float
    max_rounds: int = 200
    min_rounds: int = 5


@dataclass(slots=True)
class Series:
    """The times of one contender in all rounds, in microseconds per unit of work."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one contender took in one case. Times are microseconds per unit of work."""

    case: dict[str, Any]
    contender: str
    unit: str
    num_rounds: int
    best: float
    median: float
    p90: float
    best_cpu: float
    """CPU time of all threads of the process."""
    median_cpu: float
    best_ratio: float | None
    """Best time divided by the best of the reference; None without a reference."""
    median_ratio: float | None
    """Median over rounds of the time divided by the reference's in the same round."""
    more: dict[str, Any] = field(default_factory=dict)
    """Other numbers of this benchmark."""


def interleaved(
    contenders: Mapping[str, TimedFunction],
    *,
    case: dict[str, Any],
    unit: str,
    rounds: RoundLimits,
    reference: str | None = None,
) -> list[Measurement]:
    """Measure contenders in rounds, after one that does not count, and return one measurement of each.

    The garbage collector runs between measurements, not during them.
    """
    names = list(contenders)
    series = {name: Series() for name in names}
    for name in names:
        contenders[name](BlockTimer())
    gc.collect()
    gc.freeze()  # else each collection would scan everything that is imported, and empty the CPU caches
    began, num_done = time.perf_counter(), 0
    while num_done < rounds.max_rounds and (
        num_done < rounds.min_rounds or time.perf_counter() - began < rounds.seconds
    ):
        for name in in_turn(names, num_done):
            watch = BlockTimer()
            gc.collect()
            gc.disable()
            try:
                contenders[name](watch)
            finally:
                gc.enable()
            series[name].wall.append(watch.wall_seconds / watch.num_units * 1e6)
            series[name].cpu.append(watch.cpu_seconds / watch.num_units * 1e6)
        num_done += 1
    gc.unfreeze()
    base = series[reference].wall if reference is not None else None
    return [measurement_of(name, series[name], base, case, unit) for name in names]


def measurement_of(
    name: str,
    series: Series,
    base: list[float] | None,
    case: dict[str, Any],
    unit: str,
    more: dict[str, Any] | None = None,
) -> Measurement:
    """Summarize the rounds of a contender. `base` has the times of the reference in the same rounds."""
    wall = sorted(series.wall)
    return Measurement(
        case=case,
        contender=name,
        unit=unit,
        num_rounds=len(wall),
        best=wall[0],
        median=median(wall),
        p90=wall[min(len(wall) - 1, len(wall) * 9 // 10)],
        best_cpu=min(series.cpu),
        median_cpu=median(series.cpu),
        best_ratio=wall[0] / min(base) if base else None,
        median_ratio=median(ours / theirs for ours, theirs in zip(series.wall, base)) if base else None,
        more=more or {},
    )


def wait_until_idle(limit_seconds: float) -> None:
    """Wait until no other thread or child process works, at most `limit_seconds`.

    Loaders that were just measured have then prefetched all they may, and do not disturb the next measurement.
    """
    deadline = time.perf_counter() + limit_seconds
    before = _others_cpu_seconds()
    while time.perf_counter() < deadline:
        time.sleep(QUIET_SECONDS)
        now = _others_cpu_seconds()
        if now - before <= QUIET_CORES * QUIET_SECONDS:
            return
        before = now


def _others_cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants, without this thread."""
    own = machine.thread_times(os.getpid(), threading.get_native_id())
    used = (machine.usage_of(pid) for pid in machine.tree(os.getpid()))
    return sum(usage.cpu_seconds for usage in used if usage is not None) - (own[0] if own is not None else 0.0)
