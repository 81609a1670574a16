"""What worker processes have used, from their start to their end, whoever had the seat."""

from __future__ import annotations

import time
from dataclasses import dataclass

from stoker.engine.stats import ProcessStats
from stoker.foundation.machine import pss_bytes, usage_of

LOOK_SECONDS = 10.0
"""How long the memory of a worker that has ended is as good as known, so that short epochs are not slowed down: a look
takes two milliseconds.
"""


@dataclass(slots=True)
class _Seat:
    """What was used by those who had a seat and are gone, and who has it now."""

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
    """Adds up by worker. A worker tells its CPU time with every batch; the rest is read when somebody asks."""

    def __init__(self) -> None:
        self.cpu_seconds: dict[int, float] = {}
        """What the process that has the seat now said last."""
        self._seats: dict[int, _Seat] = {}
        self.ended_read_bytes = 0
        """What workers that are gone have read, from their start on."""

    def started(self, worker: int, pid: int) -> None:
        """Note that a process has taken a seat."""
        self._seats.setdefault(worker, _Seat()).pid = pid
        self.cpu_seconds[worker] = 0.0

    def reset(self) -> None:
        """Count from now on."""
        self.ended_read_bytes = 0
        for worker, seat in list(self._seats.items()):
            if not seat.pid:
                del self._seats[worker]
                continue
            used = usage_of(seat.pid)
            seat.cpu_seconds = -max(self.cpu_seconds.get(worker, 0.0), used.cpu_seconds if used is not None else 0.0)
            seat.delay_seconds = -used.delay_seconds if used is not None else 0.0
            seat.read_bytes = -used.read_bytes if used is not None else 0

    def ending(self, worker: int) -> None:
        """Note that a process is about to leave its seat, or has left it."""
        seat = self._seats.get(worker)
        if seat is None or not seat.pid:
            return
        used = usage_of(seat.pid)
        if time.monotonic() - seat.looked > LOOK_SECONDS:
            seat.look()
        if used is not None:
            seat.delay_seconds += used.delay_seconds
            seat.read_bytes += used.read_bytes
            self.ended_read_bytes += used.read_bytes
        seat.cpu_seconds += max(self.cpu_seconds.pop(worker, 0.0), used.cpu_seconds if used is not None else 0.0)
        seat.pid = 0

    def stats(self) -> list[tuple[int, ProcessStats]]:
        """Return a record for each worker there was, with its number."""
        return [(worker, self._stats_of(worker, seat)) for worker, seat in sorted(self._seats.items())]

    def _stats_of(self, worker: int, seat: _Seat) -> ProcessStats:
        seat.look()
        used = usage_of(seat.pid) if seat.pid else None
        now = max(self.cpu_seconds.get(worker, 0.0), used.cpu_seconds if used is not None else 0.0)
        return ProcessStats(
            pid=seat.pid,
            role=f"worker {worker}",
            cpu_seconds=seat.cpu_seconds + now,
            delay_seconds=seat.delay_seconds + (used.delay_seconds if used is not None else 0.0),
            read_bytes=seat.read_bytes + (used.read_bytes if used is not None else 0),
            pss_bytes=seat.pss_bytes,
        )
