"""Whether this machine was free enough for a time to mean something."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter, process_time

from stoker.foundation.machine import usable_cores

MAX_OTHERS = 0.2
"""Cores that other programs may use while speed is judged. Overlap needs a second core, and they would take it."""


class Others:
    """Measures how much of our cores other programs use, from its making on."""

    def __init__(self) -> None:
        self._begin = perf_counter(), process_time(), _busy_seconds()

    def num_cores(self) -> float | None:
        """Return how many cores others kept busy since the beginning; None where the system does not tell."""
        begin, ours, busy = self._begin
        now = _busy_seconds()
        if busy is None or now is None:
            return None
        return max(0.0, (now - busy - (process_time() - ours)) / (perf_counter() - begin))


def _busy_seconds() -> float | None:
    """Return the time that our cores have been busy since the start of the machine, with whatever."""
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
