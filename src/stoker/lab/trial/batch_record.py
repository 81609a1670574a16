"""Which batch sizes fit into memory, and how fast each is, as a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, stdev
from typing import Any

from stoker.engine.stats import Plain
from stoker.lab.watch.record_file import load_record, save_record

FORMAT = "stoker-batch"

OK, OUT_OF_MEMORY, SLOW = "ok", "out-of-memory", "slow"

KNEE_SHARE = 0.05
"""A size pays as long as it is not within this share of the best throughput already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTrial(Plain):
    """One batch size, tried once."""

    batch_size: int
    outcome: str = OK
    """"ok", "out-of-memory" or "slow"."""
    step_seconds: list[float] = field(default_factory=list)
    """Of each step that was timed."""
    peak_bytes: int | None = None
    """The most memory that was in use: of the device, or else of the process."""
    error: str | None = None
    """What was said when it did not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize(Plain):
    """What all trials of one batch size came to. Times are in seconds."""

    batch_size: int
    fits: bool
    step_seconds: float | None = None
    """The median of all steps that were timed: one that was disturbed does not move it."""
    deviation: float | None = None
    samples_per_second: float | None = None
    peak_bytes: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTune(Plain):
    """What a search for the largest batch size found."""

    format: str = FORMAT
    version: int = 1
    target: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    memory_bytes: int | None = None
    """What a step may use; None if it is all that the device has."""
    margin: float = 0.0
    """The share of it that was kept free in all trials."""
    most: int = 0
    """Larger sizes were not tried."""
    trials: list[BatchTrial] = field(default_factory=list)
    """In the order in which they were done."""
    largest: int | None = None
    """The largest batch size that fits, a multiple of 32 (or 16, 8 where it is smaller); None if not even 1 does, or if
    it was interrupted before one did."""
    num_verified: int = 0
    """Steps that it was verified with, in a process of its own; 0 if it was interrupted before."""
    stopped: str | None = None
    """Why larger sizes were not tried, if memory was not the reason."""
    num_repeated: int | None = None
    """Samples of the loader's first batch, which other sizes repeat; None if the step brings its own batch."""
    is_interrupted: bool = False

    def sizes(self) -> list[BatchSize]:
        """Return what each size came to, smallest first."""
        return [self._size(size) for size in sorted({trial.batch_size for trial in self.trials})]

    def _size(self, size: int) -> BatchSize:
        mine = [trial for trial in self.trials if trial.batch_size == size]
        bad = next((trial for trial in reversed(mine) if trial.outcome != OK), None)
        well = [trial for trial in mine if trial.outcome == OK]
        times = [seconds for trial in well for seconds in trial.step_seconds]
        # one that has failed once, or that is larger than one that has, is not to be trusted, whatever it did before
        fits = bool(well) and bad is None and (self.largest is None or size <= self.largest)
        if not times:
            return BatchSize(batch_size=size, fits=fits, error=bad.error if bad is not None else None)
        return BatchSize(
            batch_size=size,
            fits=fits,
            step_seconds=median(times),
            deviation=stdev(times) if len(times) > 1 else None,
            samples_per_second=size / median(times),
            peak_bytes=max((trial.peak_bytes for trial in well if trial.peak_bytes is not None), default=None),
            error=None if fits or bad is None else bad.error,
        )

    @property
    def knee(self) -> int | None:
        """The smallest size within 5 % of the best throughput: larger ones hardly pay. None if nothing fits."""
        speeds = self.speeds()
        enough = [size for size, speed in speeds.items() if speed >= (1 - KNEE_SHARE) * max(speeds.values())]
        return enough[0] if enough else None

    @property
    def fastest(self) -> int | None:
        """The size with the best throughput. None if nothing fits."""
        speeds = self.speeds()
        return max(speeds, key=speeds.__getitem__) if speeds else None

    @property
    def is_slower_when_larger(self) -> bool:
        """Whether the largest size falls short of the best throughput by more than 5 %."""
        speeds = self.speeds()
        return bool(speeds) and speeds[max(speeds)] < (1 - KNEE_SHARE) * max(speeds.values())

    def speeds(self) -> dict[int, float]:
        """Return the samples per second of each size that fits, smallest first."""
        known = (one for one in self.sizes() if one.fits)
        return {one.batch_size: one.samples_per_second for one in known if one.samples_per_second is not None}

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, whole or not at all."""
        save_record(self, path)

    @staticmethod
    def load(path: str | Path) -> BatchTune:
        """Return what `save` wrote; refuse other files."""
        hint = "`stoker tune batch --out folder` writes one"
        return load_record(BatchTune, path, format_name=FORMAT, what="a record of batch sizes", hint=hint)
