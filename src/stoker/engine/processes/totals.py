"""CPU time and memory of worker processes, from start to end, replaced ones included."""

from __future__ import annotations

import time
from dataclasses import dataclass

from stoker.engine.stats import ProcessStats
from stoker.foundation.machine import pss_bytes, usage_of

MEMORY_SECONDS = 10.0
"""How long the memory of a worker that has ended is as good as known, so that short epochs are not slowed down: a look
takes two milliseconds.
"""


@dataclass(slots=True)
class _WorkerUsage:
    """What was used by those who had a usage and are gone, and who has it now."""

    pid: int = 0
    cpu_seconds: float = 0.0
    delay_seconds: float = 0.0
    read_bytes: int = 0
    pss_bytes: int | None = None
    """Its memory, when it was last looked at."""
    looked: float = float("-inf")
    """When that was."""

    def look(self) -> None:
        """See how much memory it has, if it still has any."""
        found = pss_bytes(self.pid) if self.pid else None
        if found:  # a process that has just ended has none
            self.pss_bytes, self.looked = found, time.monotonic()


class WorkerTotals:
    """Adds up by worker. A worker sends its CPU time with every batch; the rest is read when stats are asked for."""

    def __init__(self) -> None:
        self.cpu_seconds: dict[int, float] = {}
        """What the process that has the usage now said last."""
        self._usages: dict[int, _WorkerUsage] = {}
        self.ended_read_bytes = 0
        """What workers that are gone have read, from their start on."""

    def started(self, worker: int, pid: int) -> None:
        """Note that a process has taken a usage."""
        self._usages.setdefault(worker, _WorkerUsage()).pid = pid
        self.cpu_seconds[worker] = 0.0

    def reset(self) -> None:
        """Count from now on."""
        self.ended_read_bytes = 0
        for worker, usage in list(self._usages.items()):
            if not usage.pid:
                del self._usages[worker]
                continue
            used = usage_of(usage.pid)
            usage.cpu_seconds = -max(self.cpu_seconds.get(worker, 0.0), used.cpu_seconds if used is not None else 0.0)
            usage.delay_seconds = -used.delay_seconds if used is not None else 0.0
            usage.read_bytes = -used.read_bytes if used is not None else 0

    def ending(self, worker: int) -> None:
        """Note that a process is about to leave its usage, or has left it."""
        usage = self._usages.get(worker)
        if usage is None or not usage.pid:
            return
        used = usage_of(usage.pid)
        if time.monotonic() - usage.looked > MEMORY_SECONDS:
            usage.look()
        if used is not None:
            usage.delay_seconds += used.delay_seconds
            usage.read_bytes += used.read_bytes
            self.ended_read_bytes += used.read_bytes
        usage.cpu_seconds += max(self.cpu_seconds.pop(worker, 0.0), used.cpu_seconds if used is not None else 0.0)
        usage.pid = 0

    def stats(self) -> list[tuple[int, ProcessStats]]:
        """Return a record for each worker there was, with its number."""
        return [(worker, self._stats_of(worker, usage)) for worker, usage in sorted(self._usages.items())]

    def _stats_of(self, worker: int, usage: _WorkerUsage) -> ProcessStats:
        usage.look()
        used = usage_of(usage.pid) if usage.pid else None
        now = max(self.cpu_seconds.get(worker, 0.0), used.cpu_seconds if used is not None else 0.0)
        return ProcessStats(
            pid=usage.pid,
            role=f"worker {worker}",
            cpu_seconds=usage.cpu_seconds + now,
            delay_seconds=usage.delay_seconds + (used.delay_seconds if used is not None else 0.0),
            read_bytes=usage.read_bytes + (used.read_bytes if used is not None else 0),
            pss_bytes=usage.pss_bytes,
        )
