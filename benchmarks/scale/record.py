"""How costs grow, as a record: curves of points, each measured several times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from stoker.engine.stats import Plain
from stoker.foundation import machine
from stoker.lab.watch.record_file import csv_of, save_record

STOKER, TORCH, STATEFUL = "stoker", "torch", "StatefulDataLoader"
"""The loaders that are measured; the last if torchdata is installed."""

SAMPLES, WORKERS, RANKS, STEPS = "samples", "workers", "ranks", "steps"
AXES = (SAMPLES, WORKERS, RANKS, STEPS)

FIRST, STEP, STATE, MEMORY = "first_batch_seconds", "step_seconds", "state_seconds", "memory_bytes"
"""What is measured: from making the loader (or from the state that it resumes) to its first batch; a step; taking a
state; the memory of all processes together that has been added by then."""

MEASURES = (FIRST, STEP, STATE, MEMORY)

RESOLUTION = {MEMORY: 2.0**20, FIRST: 1e-6, STEP: 1e-6, STATE: 1e-7}
"""Less than this is indistinguishable from nothing: pages that happen to be touched, the clock."""

MIN_FITTED = 3
"""Places that an exponent is taken from, at the least: those at the far end, where what grows is largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Plain):
    """What one measurement may take."""

    seconds: float = 10.0
    """For all of it, not only for the reported part."""
    memory_bytes: int | None = None

    @staticmethod
    def usual() -> Limit:
        """Return a limit that leaves the machine most of its memory: a quarter of what is free, 4 GiB at most."""
        free = machine.available_bytes()
        return Limit(memory_bytes=4 << 30 if free is None else min(4 << 30, free // 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Plain):
    """One place of a curve."""

    x: int
    values: list[float] = field(default_factory=list)
    """One for each repetition."""
    skipped: str | None = None
    """Why there are none."""

    @property
    def median(self) -> float:
        """The median of the repetitions: one that was disturbed does not move it."""
        return median(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Their standard deviation."""
        return stdev(self.values) if len(self.values) > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve(Plain):
    """How one cost of one loader grows along one axis."""

    axis: str
    """"samples", "workers", "ranks" or "steps"."""
    measure: str
    """"first_batch_seconds", "step_seconds", "state_seconds" or "memory_bytes"."""
    loader: str
    points: list[Point] = field(default_factory=list)

    @property
    def exponent(self) -> float | None:
        """The slope in a plot with logarithmic axes, at the far end: 0 is flat, 1 is proportional.

        It is fitted to the upper half of the places, three at the least; None if there are not two.
        """
        found = [point for point in self.points if point.values]
        return exponent(
            [(point.x, max(point.median, RESOLUTION[self.measure])) for point in found][
                -max(MIN_FITTED, len(found) // 2) :
            ]
        )

    @property
    def factor(self) -> float | None:
        """How many times as much it costs at the last place as at the first."""
        found = [max(point.median, RESOLUTION[self.measure]) for point in self.points if point.values]
        return found[-1] / found[0] if len(found) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShares(Plain):
    """What all ranks of a job get, together."""

    num_ranks: int
    num_steps: int
    num_samples: int
    """Of a rank at a step."""
    are_equal: bool
    """Whether every rank gets as many samples and steps as every other, and no sample twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(Plain):
    """All curves."""

    format: str = "stoker-scale"
    version: int = 1
    machine: dict[str, Any] = field(default_factory=dict)
    limit: Limit = field(default_factory=Limit)
    repetitions: int = 1
    curves: list[Curve] = field(default_factory=list)
    shares: list[RankShares] = field(default_factory=list)
    is_interrupted: bool = False

    def curve(self, axis: str, measure: str, loader: str) -> Curve | None:
        """Return one curve, if it was measured."""
        for curve in self.curves:
            if (curve.axis, curve.measure, curve.loader) == (axis, measure, loader):
                return curve
        return None

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, whole or not at all."""
        save_record(self, path)

    def csv(self) -> str:
        """Return every place of every curve as a line of a table."""
        return csv_of(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return every place of every curve as a row of a table."""
        return [
            {
                "axis": curve.axis,
                "x": point.x,
                "loader": curve.loader,
                "measure": curve.measure,
                "median": point.median if point.values else None,
                "deviation": point.deviation if point.values else None,
                "repetitions": len(point.values),
                "skipped": point.skipped,
            }
            for curve in self.curves
            for point in curve.points
        ]


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of the straight line through the logarithms of points (x, y); None if it takes more of them."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    if len(set(xs)) < 2:
        return None
    middle, height = fmean(xs), fmean(ys)
    return sum((x - middle) * (y - height) for x, y in zip(xs, ys)) / sum((x - middle) ** 2 for x in xs)
