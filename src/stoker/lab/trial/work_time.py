"""Measure what a loader's workers did with their time: on a core, ready to run without one, or blocked.

Blocked is a worker that waits for storage or the network. CPU time spent on a batch is preparation, and so is
waiting for a core.
"""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple, Protocol, Self

from stoker.foundation import machine

MIN_SECONDS = 1e-3
"""Work that takes less than this in all is too little to judge by."""


class WorkTime(NamedTuple):
    """Of all workers, added up, in seconds."""

    busy_seconds: float = 0.0
    """How long they were loading batches."""
    cpu_seconds: float = 0.0
    delay_seconds: float = 0.0
    """How long they were ready to run without a core."""

    def __add__(self, other: object) -> Self:
        assert isinstance(other, WorkTime)
        return type(self)(*(mine + theirs for mine, theirs in zip(self, other)))

    def __sub__(self, other: WorkTime) -> WorkTime:
        return WorkTime(*(mine - theirs for mine, theirs in zip(self, other)))

    @property
    def blocked_share(self) -> float | None:
        """The share of the busy time in which they were blocked; None if there is too little of it."""
        if self.busy_seconds < MIN_SECONDS:
            return None
        return min(1.0, max(0.0, 1 - (self.cpu_seconds + self.delay_seconds) / self.busy_seconds))


class WorkTimeGauge(Protocol):
    """Measures what was used so far; take the difference of two readings."""

    how: str
    """How it measures, in words."""

    def read(self, iterator: Any, now: float) -> WorkTime:
        """Return what the workers of `iterator` have used so far, at the time `now`."""
        ...


class WorkerGauge:
    """Of a Stoker loader with workers, from its counters."""

    how = "by the loader's counters of its workers: busy time, less CPU time and time without a core, is blocked"

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def read(self, iterator: Any, now: float) -> WorkTime:  # noqa: ARG002
        """Return what the workers have used."""
        workers = self._loader.stats().workers
        return WorkTime(
            sum(worker.busy_seconds or 0.0 for worker in workers),
            sum(worker.cpu_seconds for worker in workers),
            sum(worker.delay_seconds or 0.0 for worker in workers),
        )


class ThreadGauge:
    """Of a Stoker loader with threads in the trainer's process, from its counter of busy time."""

    how = (
        "by the loader's counter of busy time, and the CPU time of all threads but the training one, less what they "
        "use with cached batches"
    )

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def read(self, iterator: Any, now: float) -> WorkTime:  # noqa: ARG002
        """Return what threads other than the calling one have used."""
        trainer = self._loader.stats().trainer
        busy = 0.0 if trainer is None else trainer.busy_seconds or 0.0
        whole, own = machine.usage_of(), machine.thread_times(os.getpid(), threading.get_native_id())
        if whole is None or own is None:
            return WorkTime(busy)
        return WorkTime(busy, whole.cpu_seconds - own[0], whole.delay_seconds - own[1])


class ProcessGauge:
    """Of torch's loader with workers, from outside."""

    how = (
        "by the CPU time of the worker processes, as the system reports it: they are taken to be busy all the time, "
        "since the trainer waits for them"
    )

    def read(self, iterator: Any, now: float) -> WorkTime:
        """Return what the workers have used; each counts as busy since the clock began."""
        total = WorkTime()
        for process in getattr(iterator, "_workers", ()):
            used = machine.usage_of(process.pid)
            if used is not None:
                total += WorkTime(now, used.cpu_seconds, used.delay_seconds)
        return total


def gauge_of(loader: Any, kind: str) -> WorkTimeGauge | None:
    """Return how to measure a loader's workers; None for a loader without workers or of an unknown kind."""
    if loader is None:
        return None
    if kind == "stoker":
        return WorkerGauge(loader) if loader.num_workers else ThreadGauge(loader) if loader.num_threads else None
    return ProcessGauge() if kind == "torch" and loader.num_workers else None
