"""What those who make batches did with their time: on a core, ready without one, or blocked.

Blocked is who waits for storage or the network; whatever the CPU does for a batch is preparation, and so is waiting for
a core to do it on.
"""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple, Protocol, Self

from stoker.foundation import machine

ENOUGH_SECONDS = 1e-3
"""Work that takes less than this in all is too little to judge by."""


class Effort(NamedTuple):
    """Of all who make batches, added up, in seconds."""

    busy_seconds: float = 0.0
    """How long they were making batches."""
    cpu_seconds: float = 0.0
    delay_seconds: float = 0.0
    """How long they were ready to run, and had no core."""

    def __add__(self, other: object) -> Self:
        assert isinstance(other, Effort)
        return self._replace(
            busy_seconds=self.busy_seconds + other.busy_seconds,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            delay_seconds=self.delay_seconds + other.delay_seconds,
        )

    def __sub__(self, other: Effort) -> Effort:
        return Effort(*(mine - theirs for mine, theirs in zip(self, other)))

    @property
    def blocked_share(self) -> float | None:
        """The part of the busy time for which they were blocked; None if there is too little of it."""
        if self.busy_seconds < ENOUGH_SECONDS:
            return None
        return min(1.0, max(0.0, 1 - (self.cpu_seconds + self.delay_seconds) / self.busy_seconds))


class Gauge(Protocol):
    """Reads the times used so far; callers take differences."""

    how: str
    """How it is found out, in words."""

    def read(self, iterator: Any, now: float) -> Effort:
        """Return what was used so far, by those who make the batches of `iterator`; the clock says `now`."""
        ...


class Counted:
    """A loader of ours with workers: it counts."""

    how = "by the loader's counters of its workers: busy time, less CPU time and time without a core, is blocked"

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def read(self, iterator: Any, now: float) -> Effort:  # noqa: ARG002
        """Return what the workers have used."""
        workers = self._loader.stats().workers
        return Effort(
            sum(worker.busy_seconds or 0.0 for worker in workers),
            sum(worker.cpu_seconds for worker in workers),
            sum(worker.delay_seconds or 0.0 for worker in workers),
        )


class Threaded:
    """A loader of ours with threads in the trainer's process: it counts how long they are busy."""

    how = (
        "by the loader's counter of busy time, and the CPU time of all threads but the training one, less what they "
        "use with cached batches"
    )

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def read(self, iterator: Any, now: float) -> Effort:  # noqa: ARG002
        """Return what threads other than the calling one have used."""
        trainer = self._loader.stats().trainer
        busy = 0.0 if trainer is None else trainer.busy_seconds or 0.0
        whole, own = machine.usage_of(), machine.thread_times(os.getpid(), threading.get_native_id())
        if whole is None or own is None:
            return Effort(busy)
        return Effort(busy, whole.cpu_seconds - own[0], whole.delay_seconds - own[1])


class Watched:
    """torch's loader with workers, looked at from outside."""

    how = (
        "by the CPU time of the worker processes, as the system reports it: they are assumed to be busy all the time, "
        "since the trainer waits for them"
    )

    def read(self, iterator: Any, now: float) -> Effort:
        """Return what the workers have used; each is busy from the beginning of the world."""
        total = Effort()
        for process in getattr(iterator, "_workers", ()):
            used = machine.usage_of(process.pid)
            if used is not None:
                total += Effort(now, used.cpu_seconds, used.delay_seconds)
        return total


def gauge_of(loader: Any, kind: str) -> Gauge | None:
    """Return what reads the workers' times; None for a loader without workers or of an unknown kind."""
    if loader is None:
        return None
    if kind == "stoker":
        return Counted(loader) if loader.num_workers else Threaded(loader) if loader.num_threads else None
    return Watched() if kind == "torch" and loader.num_workers else None
