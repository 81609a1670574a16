"""A training step timed three ways, as a record, and what follows: where the time of a step goes.

A step with batches that are on the device already only computes. Cached batches through the loader add the transfer:
the hand-over between processes and the copy. The real loader adds the loading: waiting for storage, and CPU work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from stoker.engine.stats import Plain, Quantiles
from stoker.lab.watch.record_file import load_record, save_record

FORMAT = "stoker-train"

RESIDENT, CACHED, REAL = "resident", "cached", "real"
WAYS = (RESIDENT, CACHED, REAL)

COMPUTE, COPY, PREPARATION, FETCH, DATA = "compute", "copy", "preparation", "fetch", "data"
PARTS = (COMPUTE, COPY, PREPARATION, FETCH, DATA)
"""Parts of a step's time: the step itself; hand-over and copy; preparing batches on the CPU; fetching from storage;
loading, where preparation and fetch could not be separated."""

HOURS = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way(Plain):
    """One of the three ways, measured in several rounds. Times are in seconds."""

    name: str
    num_steps: int = 0
    """Timed steps of all rounds."""
    step_seconds: list[float] = field(default_factory=list)
    """From step to step, the mean of each round."""
    wait_seconds: list[float] = field(default_factory=list)
    """Part of it spent waiting for the next batch, the mean of each round, by the clock of the training thread."""
    quantiles: Quantiles = field(default_factory=Quantiles)
    """From step to step, over all steps of all rounds."""

    @property
    def mean(self) -> float:
        """The mean time of a step."""
        return fmean(self.step_seconds)

    @property
    def deviation(self) -> float:
        """The standard deviation over rounds."""
        return stdev(self.step_seconds) if len(self.step_seconds) > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Plain):
    """One part of a step's time, in seconds."""

    name: str
    """One of `PARTS`."""
    seconds: float
    deviation: float = 0.0
    """Over rounds."""
    share: float = 0.0
    """Of the step with the real loader."""
    gpu_hours_per_day: float = 0.0
    """GPU time lost to it, over all GPUs; for computing, GPU time used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBench(Plain):
    """A training step, three ways."""

    format: str = FORMAT
    version: int = 1
    target: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    """The device of resident batches."""
    num_gpus: int = 1
    kind: str = "iterable"
    """Whose loader it is: "stoker", "torch", or "iterable" for anything else."""
    config: dict[str, Any] = field(default_factory=dict)
    """The loader's arguments."""
    num_samples: int | None = None
    """In a batch."""
    ways: list[Way] = field(default_factory=list)
    blocked_share: float | None = None
    """Fraction of the workers' busy time that they were blocked, such as waiting for storage; None if unknown."""
    making_cpu_seconds: float | None = None
    """CPU time to load a batch, if known."""
    split_by: str = ""
    """How `blocked_share` was measured, or why not."""
    counts_slowing: bool = False
    """Whether the training thread's clock includes the computation, as on a CPU, so that slowdowns show."""
    notes: list[str] = field(default_factory=list)
    """Notes for the reader."""
    is_interrupted: bool = False

    def way(self, name: str) -> Way | None:
        """Return one of the ways, if it was measured."""
        return next((way for way in self.ways if way.name == name), None)

    def _needed(self, name: str) -> Way:
        way = self.way(name)
        assert way is not None, f"a step was not timed with {name} batches"
        return way

    @property
    def has_parts(self) -> bool:
        """Whether the parts of a step are known: not if it was interrupted before all ways were measured."""
        return self.way(RESIDENT) is not None and self.way(REAL) is not None

    @property
    def slowing_seconds(self) -> float:
        """How much longer the step takes while batches are loaded, by workers on the same cores or in its thread.

        0 if unknown; at most the CPU time of loading, because the rest is noise.
        """
        before, real = self.way(CACHED) or self.way(RESIDENT), self.way(REAL)
        if not self.counts_slowing or before is None or real is None:
            return 0.0
        own = [[whole - wait for whole, wait in zip(way.step_seconds, way.wait_seconds)] for way in (before, real)]
        most = float("inf") if self.making_cpu_seconds is None else self.making_cpu_seconds
        return min(most, max(0.0, fmean(own[1]) - fmean(own[0])))

    @property
    def compute_seconds(self) -> float:
        """Time of a step without stalls: with batches on the device, unless noise made another way faster."""
        return self.parts()[0].seconds

    def parts(self) -> list[Part]:
        """Return the parts of a step's time with the real loader, which add up to all of it.

        If noise makes a way faster than one that does less, both count as taking as long as the faster one.
        """
        real = self._needed(REAL)
        found: list[tuple[str, float, float]] = []
        above, whole = real, real.mean
        for name, way in ((DATA, self.way(CACHED)), (COPY if self.way(CACHED) else DATA, self._needed(RESIDENT))):
            if way is not None:
                least = min(way.mean, whole)
                found.insert(0, (name, whole - least, _deviation_between(above, way)))
                above, whole = way, least
        found.insert(0, (COMPUTE, whole, above.deviation))
        if self.blocked_share is not None:
            _, data, deviation = found.pop()
            preparation, fetch = split_data_seconds(data, self.slowing_seconds, self.blocked_share)
            found += [(PREPARATION, preparation, deviation), (FETCH, fetch, deviation)]
        return [
            Part(
                name=name,
                seconds=seconds,
                deviation=deviation,
                share=seconds / real.mean,
                gpu_hours_per_day=HOURS * self.num_gpus * seconds / real.mean,
            )
            for name, seconds, deviation in found
        ]

    @property
    def stall_share(self) -> float:
        """Fraction of a step in which the device does not compute."""
        return 1 - self.parts()[0].share

    @property
    def lost_gpu_hours_per_day(self) -> float:
        """GPU time lost to all stalls, over all GPUs."""
        return HOURS * self.num_gpus * self.stall_share

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, whole or not at all."""
        save_record(self, path)

    @staticmethod
    def load(path: str | Path) -> TrainBench:
        """Return what `save` wrote; refuse other files."""
        hint = "`stoker bench train --out folder` writes one"
        return load_record(TrainBench, path, format_name=FORMAT, what="a record of a training step", hint=hint)


def split_data_seconds(data_seconds: float, slowing_seconds: float, blocked_share: float) -> tuple[float, float]:
    """Split the time to load batches into preparation and fetch.

    A slowdown of the step is due to work on its cores, so it is preparation. The rest is split by what workers did.
    """
    slowing = min(max(0.0, slowing_seconds), data_seconds)
    fetch = (data_seconds - slowing) * min(1.0, max(0.0, blocked_share))
    return data_seconds - fetch, fetch


def _deviation_between(more: Way, less: Way) -> float:
    """Return the standard deviation of differences within rounds, in which noise that lasts for a round cancels."""
    each = [one - other for one, other in zip(more.step_seconds, less.step_seconds)]
    return stdev(each) if len(each) > 1 else 0.0
