"""Measuring contenders side by side.

Machines drift, and other work comes and goes. So contenders are never measured one after the other: in each *round*
every contender runs once, and ratios are taken inside a round before their median is. The order rotates from round to
round and every other round runs backwards, so that nobody always comes after the same neighbour.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any


class Clock:
    """Adds up what a contender lets it time."""

    def __init__(self) -> None:
        self.wall_seconds = self.cpu_seconds = 0.0
        self.num_units = 0

    @contextmanager
    def timing(self, num_units: int = 1) -> Iterator[None]:
        """Time the block, which does `num_units` units of work."""
        cpu = time.process_time()  # outside the other, because it is the dearer call
        wall = time.perf_counter()
        yield
        self.wall_seconds += time.perf_counter() - wall
        self.cpu_seconds += time.process_time() - cpu
        self.num_units += num_units


Contender = Callable[[Clock], None]


@dataclass(frozen=True, slots=True)
class Record:
    """How one contender did in one case; times are in microseconds per unit of work."""

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
    """This contender's best by the reference's best; None where there is no reference."""
    median_ratio: float | None
    """The median, over all rounds, of this contender's time by the reference's in the same round."""
    more: dict[str, Any] = field(default_factory=dict)
    """What else a benchmark measured."""


@dataclass(slots=True)
class Pace:
    """How long to measure one case: rounds go on until there are enough of them or the time is up."""

    seconds: float
    max_rounds: int = 200
    min_rounds: int = 5


@dataclass(slots=True)
class Series:
    """One contender's times in all rounds, in microseconds per unit of work."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def interleaved(
    contenders: Mapping[str, Contender], *, case: dict[str, Any], unit: str, pace: Pace, reference: str | None = None
) -> list[Record]:
    """Return a record for each contender, measured in rounds; a first round that does not count warms up caches.

    The garbage collector runs between the measurements, and not during them.
    """
    names = list(contenders)
    series = {name: Series() for name in names}
    for name in names:
        contenders[name](Clock())
    gc.collect()
    gc.freeze()  # what was there before is not looked through again for every measurement, which would empty the caches
    begin = time.perf_counter()
    num_rounds = 0
    while num_rounds < pace.max_rounds and (num_rounds < pace.min_rounds or time.perf_counter() - begin < pace.seconds):
        for name in in_turn(names, num_rounds):
            clock = Clock()
            with _collected():
                contenders[name](clock)
            series[name].wall.append(clock.wall_seconds / clock.num_units * 1e6)
            series[name].cpu.append(clock.cpu_seconds / clock.num_units * 1e6)
        num_rounds += 1
    gc.unfreeze()
    base = series[reference].wall if reference is not None else None
    return [record_of(name, series[name], base, case, unit) for name in names]


def in_turn(names: Sequence[str], number: int) -> list[str]:
    """Return the order in which contenders come in the round of this number."""
    shift = number % len(names)
    turn = [*names[shift:], *names[:shift]]
    return turn[::-1] if number % 2 else turn


def record_of(
    name: str,
    series: Series,
    base: list[float] | None,
    case: dict[str, Any],
    unit: str,
    more: dict[str, Any] | None = None,
) -> Record:
    """Sum up the rounds; `base` has the reference's times of the same rounds."""
    wall = sorted(series.wall)
    return Record(
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


@contextmanager
def _collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
