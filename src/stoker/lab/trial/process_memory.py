"""Measure the memory of a process and all its descendants, one by one, from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self

from stoker.engine.stats import Plain
from stoker.foundation.machine import command_of, memory_of, tree

INTERVAL_SECONDS = 0.5
COST_SHARE = 0.02
"""Share of a core that measuring may take: the kernel needs a millisecond or so for each process."""

TRAINER, WORKER = "trainer", "worker"

HELPERS = {"multiprocessing.resource_tracker": "resource tracker", "multiprocessing.forkserver": "fork server"}
"""Processes that Python starts next to workers, by their command lines; they load no batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory(Plain):
    """The memory (PSS) of one process."""

    name: str
    """"trainer", "worker 0" and so on in the order in which they were started, or "resource tracker"."""
    peak_bytes: int
    """The most that it had at any time. Peaks do not add up: until it forks workers, a trainer's pages are its own."""
    held_bytes: int | None = None
    """What it had when all of them together had most: these add up. None if it was not there then."""

    @property
    def is_worker(self) -> bool:
        """Whether it loads batches."""
        return self.name.startswith(WORKER)


class ProcessMemoryWatch:
    """Measures a process tree now and then, in a thread of its own, while the block is open."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stoker-memory-watch")
        self._names: dict[int, str] = {}
        self._ended: set[int] = set()
        """Processes that are still listed but have no memory any more."""
        self._peaks: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self.private_bytes: int | None = None
        """What all of them had, when they had most, without pages of files, which others may come to share."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def processes(self) -> list[ProcessMemory]:
        """All processes so far, the trainer first; empty if the system does not report memory.

        A worker started when another has ended, as for the next epoch, counts as the same one.
        """
        with self._lock:
            return [
                ProcessMemory(name=name, peak_bytes=peak, held_bytes=self._held.get(name))
                for name, peak in self._peaks.items()
            ]

    def measure(self) -> None:
        """Measure now."""
        with self._lock:
            self._measure()

    def _watch(self) -> None:
        interval = 0.0
        while not self._is_over.wait(interval):
            begin = time.perf_counter()
            self.measure()
            interval = max(INTERVAL_SECONDS, (time.perf_counter() - begin) / COST_SHARE)

    def _measure(self) -> None:
        there = list(tree(self._pid))
        memory = {pid: held for pid in there if (held := memory_of(pid)) is not None and held.pss_bytes}
        # A process forked meanwhile shares pages that were counted as another one's own.
        if self._pid not in memory or set(there) != set(tree(self._pid)):
            return
        # And a process that is just ending leaves its share of them to the others.
        ending = set(there) - set(memory) - self._ended
        self._ended |= ending
        if ending & set(self._names):
            return
        self._name(memory)
        now = {name: memory[pid].pss_bytes for pid, name in self._names.items()}
        for name, pss_bytes in now.items():
            self._peaks[name] = max(pss_bytes, self._peaks.get(name, 0))
        if sum(now.values()) > sum(self._held.values()):
            self._held = now
            self.private_bytes = sum(held.private_bytes for held in memory.values())

    def _name(self, pids: Iterable[int]) -> None:
        """Name new processes, with the lowest number that no running process has."""
        self._names = {pid: name for pid, name in self._names.items() if pid in pids} or {self._pid: TRAINER}
        taken = set(self._names.values())
        for pid in sorted(set(pids) - set(self._names)):  # the system numbers them as they are started
            name = _helper(pid)
            if name is None or name in taken:  # processes forked by a fork server have its command line
                name = next(one for number in count() if (one := f"{WORKER} {number}") not in taken)
            self._names[pid] = name
            taken.add(name)


def _helper(pid: int) -> str | None:
    """Return the name of a helper process; None if it is not one."""
    command = " ".join(command_of(pid))
    return next((name for module, name in HELPERS.items() if f"from {module} import main" in command), None)
