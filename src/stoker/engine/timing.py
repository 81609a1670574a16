"""Times of each batch: recorded while a loader runs, summed up when stats are asked for.

Keeping the times of a batch costs less than a microsecond: its numbers are put at the end of a list. Sums and
quantiles are worked out over many at once.
All times are those of `time.perf_counter`, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class BatchTimes(NamedTuple):
    """One batch. Times are in seconds."""

    asked: float
    """When the trainer asked for it."""
    handed: float
    """When the trainer had it."""
    copy: float
    """How long the trainer took to start the copy to the device, or for the copy itself where that is not ahead."""
    began: float
    """When its making began."""
    made: float
    """When it was made. It may have been ready long before it was asked for."""
    read: float
    """How long samples were read, by all threads together, without what is `transform`."""
    transform: float
    """How long samples were transformed, as far as that is marked."""
    collate: float
    """How long samples were put together."""
    worker: float
    """Who made it; -1 if that was the trainer itself, or threads of its own."""
    sent: float
    """When it had left the worker; when it was made, if there was none."""
    unpack: float
    """How long the trainer took to unpack what a worker had sent."""


Times = tuple[float, float, float, float, float]
"""What the builder of a batch reports: `began`, `made`, `read`, `transform`, `collate`."""

HandoverTimes = tuple[float, float, float]
"""How a batch came to the trainer: `worker`, `sent`, `unpack`."""

HERE: HandoverTimes = (-1.0, 0.0, 0.0)
"""It was made in the trainer's process. What was never sent has a `sent` of 0, until laps are summed up."""

WIDTH = len(BatchTimes._fields)
_AT = {name: number for number, name in enumerate(BatchTimes._fields)}

FOLDED_TOGETHER = 1024
"""Laps that are summed up in one go: NumPy's cost per call is then nothing beside a batch."""

NUM_KEPT = 4096
"""The latest laps, which are kept one by one, for the timeline of a report."""

MOST_FIRSTS = 1000
"""Iterations whose first batch is remembered."""

PER_OCTAVE, SMALLEST, NUM_OCTAVES = 64, 2.0**-24, 40
"""Quantiles are those of buckets about 1 % wide, from 60 ns to 18 hours."""


class Histogram:
    """How often a duration came, by buckets that are each about one percent wide."""

    def __init__(self) -> None:
        self._counts = np.zeros(PER_OCTAVE * NUM_OCTAVES, np.int64)
        self.num = 0
        self.total = self.total_of_squares = self.most = 0.0

    def add(self, seconds: NDArray[np.float64]) -> None:
        """Count durations."""
        if not len(seconds):
            return
        where = np.log2(np.maximum(seconds, SMALLEST) / SMALLEST) * PER_OCTAVE
        buckets = np.minimum(where.astype(np.int64), len(self._counts) - 1)
        self._counts += np.bincount(buckets, minlength=len(self._counts))
        self.num += len(seconds)
        self.total += float(seconds.sum())
        self.total_of_squares += float(np.square(seconds).sum())
        self.most = max(self.most, float(seconds.max()))

    def quantile(self, share: float) -> float:
        """Return the duration that so much of them do not exceed, to one percent; 0 if there are none."""
        if not self.num:
            return 0.0
        rank = min(self.num - 1, int(share * self.num))
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank, side="right"))
        return float(min(self.most, SMALLEST * 2 ** ((bucket + 0.5) / PER_OCTAVE)))

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.total / self.num if self.num else 0.0

    @property
    def deviation(self) -> float:
        """Their standard deviation."""
        if self.num < 2:
            return 0.0
        return float(max(0.0, self.total_of_squares / self.num - self.mean**2) ** 0.5)


class BatchTimeline:
    """All laps of a loader: the latest one by one, all of them as sums."""

    def __init__(self) -> None:
        # A list takes a lap in a tenth of the time that an array of doubles would.
        self.unsummed: list[float] = []
        """The numbers of laps that were not summed up yet, one lap after the other."""
        self._lock = threading.Lock()
        self._num_before = 0
        self._kept = np.empty((0, WIDTH))
        self.extend = self.unsummed.extend
        """Add a lap, given as a tuple of its numbers."""
        self.periods, self.waits, self.steps, self.makings = Histogram(), Histogram(), Histogram(), Histogram()
        self.sums = dict.fromkeys(("read", "transform", "collate", "pack", "unpack", "copy", "ready"), 0.0)
        self.num_asked = self.num_empty = 0
        self.depths = 0.0
        """Batches that were ready when one was asked for, summed up over all of `num_asked`."""
        self.num_stalls, self.stall_seconds = 0, 0.0
        self.num_by_worker: dict[int, int] = {}
        self.busy_by_worker: dict[int, float] = {}
        self.first_seconds: list[float] = []
        """How long the first batch of each iteration was waited for, of the latest ones."""
        self.forgotten_seconds = 0.0
        """The same of all others, together."""
        self._is_first = True
        self._last_handed = 0.0
        self._num_in_iteration = 0
        """Laps of the iteration that is on, as far as they are summed up."""

    def __len__(self) -> int:
        """How many laps there were."""
        return self._num_before + len(self.unsummed) // WIDTH

    def reset(self) -> None:
        """Forget all batches; the running iteration is still counted."""
        self.fold()
        is_first, last_handed, unsummed = self._is_first, self._last_handed, self.unsummed
        self.__init__()  # type: ignore[misc]
        self._is_first, self._last_handed = is_first, last_handed
        self.unsummed, self.extend = unsummed, unsummed.extend

    def begin(self) -> None:
        """A new iteration begins: between its first batch and the last one of before lies no step."""
        self.fold()
        self._is_first = True
        self._num_in_iteration = 0

    def fold(self) -> None:
        """Sum up what is new. Any thread may ask for it, while another one adds."""
        with self._lock:
            # each a single call, so that no lap is lost that is added meanwhile
            new = self.unsummed[:]
            del self.unsummed[: len(new)]
            if new:
                self._fold(np.fromiter(new, np.float64, len(new)).reshape(-1, WIDTH))

    def _fold(self, laps: NDArray[np.float64]) -> None:
        sent = laps[:, _AT["sent"]]
        np.copyto(sent, laps[:, _AT["made"]], where=sent == 0)
        self._num_before += len(laps)
        column = {name: laps[:, at] for name, at in _AT.items()}
        waits = column["handed"] - column["asked"]
        begins = np.concatenate(([self._last_handed], column["handed"][:-1]))
        periods, steps = column["handed"] - begins, column["asked"] - begins
        if self._is_first:
            if len(self.first_seconds) >= MOST_FIRSTS:
                self.forgotten_seconds += self.first_seconds.pop(0)
            self.first_seconds.append(float(waits[0]))
            waits, periods, steps = waits[1:], periods[1:], steps[1:]
            self._is_first = False
        self._last_handed = float(laps[-1, _AT["handed"]])
        self.periods.add(periods)
        self.waits.add(waits)
        self.steps.add(steps)
        is_stall = (waits > STALL_SECONDS) & (waits > STALL_SHARE * periods)
        self.num_stalls += int(is_stall.sum())
        self.stall_seconds += float(waits[is_stall].sum())
        self._sum_up(column)
        self._kept = np.concatenate((self._kept, laps))[-NUM_KEPT:]

    def _sum_up(self, column: dict[str, NDArray[np.float64]]) -> None:
        sums = self.sums
        for name in ("read", "transform", "collate", "unpack", "copy"):
            sums[name] += float(column[name].sum())
        sums["pack"] += float((column["sent"] - column["made"]).sum())
        ready = column["asked"] - column["sent"]
        sums["ready"] += float(ready[ready > 0].sum())
        self.makings.add(column["made"] - column["began"])
        # a batch was ready at all asks, its own among them, from when it was sent: also at those summed up before
        before = self._kept[len(self._kept) - min(self._num_in_iteration, len(self._kept)) :, _AT["asked"]]
        asked = np.concatenate((before, column["asked"]))
        own = len(before) + np.arange(len(ready))
        self.depths += float(np.maximum(own + 1 - np.searchsorted(asked, column["sent"]), 0).sum())
        self.num_asked += len(ready)
        self._num_in_iteration += len(ready)
        self.num_empty += int((ready < 0).sum())
        busy = column["read"] + column["transform"] + column["collate"] + column["sent"] - column["made"]
        workers = column["worker"].astype(np.int64)
        for worker in np.unique(workers).tolist():
            is_its = workers == worker
            self.num_by_worker[worker] = self.num_by_worker.get(worker, 0) + int(is_its.sum())
            self.busy_by_worker[worker] = self.busy_by_worker.get(worker, 0.0) + float(busy[is_its].sum())

    def latest(self, most: int = NUM_KEPT) -> dict[str, list[float]]:
        """Return the latest laps, column by column."""
        self.fold()
        laps = self._kept[-most:]
        return {name: laps[:, at].tolist() for name, at in _AT.items()}

    @property
    def mean_depth(self) -> float:
        """How many batches were ready, on average, when one was asked for."""
        return self.depths / self.num_asked if self.num_asked else 0.0


STALL_SECONDS, STALL_SHARE = 1e-3, 0.05
"""A wait is a stall if it is longer than a millisecond and than a twentieth of the time from batch to batch."""
