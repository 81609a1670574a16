"""Measure the load by other programs, which would distort timings."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter, process_time

from stoker.foundation.machine import usable_cores

MAX_OTHERS = 0.2
"""Maximum cores used by other programs to judge speed: overlap needs a second core."""


class Others:
    """Measures how many of our cores other programs have used since this object was created."""

    def __init__(self) -> None:
        self._begin = perf_counter(), process_time(), _busy_seconds()

    def num_cores(self) -> float | None:
        """Return the mean number of cores used by other programs; None if the system does not report it."""
        begin, ours, busy = self._begin
        now = _busy_seconds()
        if busy is None or now is None:
            return None
        return max(0.0, (now - busy - (process_time() - ours)) / (perf_counter() - begin))


def _busy_seconds() -> float | None:
    """Return the total busy time of our cores since boot."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    cores = {f"cpu{number}" for number in usable_cores()}
    ticks = 0
    for name, *fields in map(str.split, lines):
        if name in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")
