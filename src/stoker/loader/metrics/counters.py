"""The counters of a loader: always on, cheap while it runs, summed up when somebody asks.

They hold nothing of the loader, so that they may be kept when the loader is gone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stoker.engine.stats import ProcessStats, Stats
from stoker.engine.timing import FOLDED_TOGETHER, WIDTH, BatchTimeline
from stoker.foundation import trees
from stoker.foundation.machine import Usage, pss_bytes, thread_delay_seconds, usage_of

if TYPE_CHECKING:
    from stoker.batch.result import BatchResult
    from stoker.deliver import CopyCounter
    from stoker.engine.processes.totals import WorkerTotals
    from stoker.loader.metrics.stats_log import StatsLog

on_begin: list[Callable[[Counters], None]] = []
"""Called at the start of each iteration of every loader: `stoker.watch` adds itself here."""

SIZED_EVERY = 64
"""Batches of which one is looked at for its size; and the first ones."""


class Counters:
    """What one loader has counted since it was made, or since `reset`."""

    def __init__(self, config: Callable[[], dict[str, Any]], *, rank: int, num_ranks: int) -> None:
        self._config, self.rank, self.num_ranks = config, rank, num_ranks
        self._log: StatsLog | None = None
        self.is_due = False
        """Whether `attend` has something to do before the next batch is taken."""
        self.decisions: list[str] = []
        """What "auto" has decided."""
        self.laps = BatchTimeline()
        self._workers_used: WorkerTotals | None = None
        self._copies: CopyCounter | None = None
        self._extend, self._unsummed = self.laps.extend, self.laps.unsummed
        self._thread: int | None = None
        self._process = os.getpid()
        self.reset()

    @property
    def worker_totals(self) -> WorkerTotals:
        """What worker processes have used; they add to it."""
        if self._workers_used is None:
            from stoker.engine.processes.totals import WorkerTotals

            self._workers_used = WorkerTotals()
        return self._workers_used

    @property
    def copies(self) -> CopyCounter:
        """How long copies to a device took; the delivery adds to it."""
        if self._copies is None:
            from stoker.deliver import CopyCounter

            self._copies = CopyCounter()
        return self._copies

    def reset(self) -> None:
        """Count from now on, also in the middle of an iteration."""
        for part in (self.laps, self._workers_used, self._copies):
            if part is not None:
                part.reset()
        self._num_samples = self._num_iterations = 0
        self._sized_bytes = self._num_sized = 0
        self._num_left = 1
        self._copied = 0.0
        self._began: Usage | None = None if self._thread is None else usage_of()
        self._delay_before = None if self._thread is None else thread_delay_seconds(self._thread)

    def begin(self) -> None:
        """Note that an iteration begins, in the calling thread."""
        self.laps.begin()
        self._num_iterations += 1
        if self._began is None:
            self._began = usage_of()
        if self._thread != threading.get_native_id():
            self._thread = threading.get_native_id()
            self._delay_before = thread_delay_seconds()
        for watcher in on_begin:
            watcher(self)

    def note(self, made: BatchResult, num_samples: int, asked: float, handed: float) -> None:
        """Count a batch that is handed to the training loop."""
        # Every batch comes through here, so this is as short as it can be.
        copy, copies = 0.0, self._copies
        if copies is not None and copies.num:
            copy, self._copied = copies.seconds - self._copied, copies.seconds
        self._extend((asked, handed, copy) + made.times + made.handover)  # noqa: RUF005  # half the time of unpacking
        self._num_samples += num_samples
        self._num_left -= 1
        if self._num_left <= 0:
            self._look_at(made.batch)

    def _look_at(self, batch: Any) -> None:
        """Measure how large a batch is; most batches are not looked at."""
        self._sized_bytes += trees.num_bytes(batch)
        self._num_sized += 1
        self._num_left = 1 if self._num_sized < 4 else SIZED_EVERY
        self.is_due = True

    def attend(self) -> None:
        """Do what takes longer than to note a batch: sum up, and write to the log."""
        if len(self._unsummed) >= FOLDED_TOGETHER * WIDTH:
            self.laps.fold()
        self.is_due = self._log is not None
        if self._log is not None:
            self._log.note(perf_counter(), self.stats)

    def write_to(self, log: StatsLog) -> None:
        """Write stats there from now on, every now and then and at the end of each iteration."""
        self._log, self.is_due = log, True

    def end(self) -> None:
        """Note that an iteration is over."""
        if self._log is not None and os.getpid() == self._process:
            self._log.write(self.stats())

    def stats(self, *, laps: bool = False) -> Stats:
        """Return what was counted; with `laps`, the latest batches one by one too."""
        self.laps.fold()  # what each worker has loaded is known only then
        return Stats.of_timeline(
            self.laps,
            config=self._config(),
            rank=self.rank,
            num_ranks=self.num_ranks,
            num_iterations=self._num_iterations,
            num_samples=self._num_samples,
            num_bytes=self._sized_bytes * len(self.laps) // self._num_sized if self._num_sized else 0,
            trainer=self._trainer(),
            workers=self._workers(),
            copies=None if self._copies is None else self._copies.record(),
            decisions=list(self.decisions),
            laps=self.laps.latest() if laps else None,
        )

    def _trainer(self) -> ProcessStats | None:
        now = usage_of()
        if self._began is None or now is None or os.getpid() != self._process:
            return None
        delay = None if self._thread is None else thread_delay_seconds(self._thread)
        before = self._delay_before
        ended_read_bytes = 0 if self._workers_used is None else self._workers_used.ended_read_bytes
        return ProcessStats(
            pid=self._process,
            role="trainer",
            cpu_seconds=now.cpu_seconds - self._began.cpu_seconds,
            delay_seconds=None if delay is None or before is None else delay - before,
            # the kernel adds what ended children have read to what their parent has
            read_bytes=max(0, now.read_bytes - self._began.read_bytes - ended_read_bytes),
            pss_bytes=pss_bytes(),
            num_batches=self.laps.num_by_worker.get(-1),
            busy_seconds=self.laps.busy_by_worker.get(-1),
        )

    def _workers(self) -> list[ProcessStats]:
        counted = self.laps
        if self._workers_used is None:
            return []
        return [
            ProcessStats.from_dict(
                record.as_dict()
                | {
                    "num_batches": counted.num_by_worker.get(worker, 0),
                    "busy_seconds": counted.busy_by_worker.get(worker, 0.0),
                }
            )
            for worker, record in self._workers_used.stats()
        ]
