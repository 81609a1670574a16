"""The memory of a process and all that it starts, one by one, looked at from outside."""

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
"""Looking takes the kernel a millisecond or so for each process; it is to take no more than that of one core."""

TRAINER, WORKER = "trainer", "worker"

HELPERS = {"multiprocessing.resource_tracker": "resource tracker", "multiprocessing.forkserver": "fork server"}
"""What Python starts beside workers, by what is on its command line; they make no batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory(Plain):
    """The memory (PSS) of one process."""

    name: str
    """"trainer", "worker 0" and so on in the order in which they were started, or "resource tracker"."""
    peak_bytes: int
    """The most that it had at any time. These do not add up: until it forks workers, a trainer's pages are its own."""
    held_bytes: int | None = None
    """What it had when all of them together had most: these add up. None if it was not there then."""

    @property
    def is_worker(self) -> bool:
        """Whether it is one of those that make batches."""
        return self.name.startswith(WORKER)


class ProcessMemoryWatch:
    """Looks at a process tree now and then, in a thread of its own, while the block is open."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stoker-witness")
        self._names: dict[int, str] = {}
        self._ended: set[int] = set()
        """Those that are still listed and have no memory any more."""
        self._peaks: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self.private_bytes: int | None = None
        """What all of them had, when they had most, without pages of files, of which others may come to use a share."""

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
        """Each process that was seen, the trainer first; nothing if the system does not tell.

        A worker that is started when another has ended, as for the next epoch, counts as the same one.
        """
        with self._lock:
            return [
                ProcessMemory(name=name, peak_bytes=peak, held_bytes=self._held.get(name))
                for name, peak in self._peaks.items()
            ]

    def look(self) -> None:
        """Look now."""
        with self._lock:
            self._look()

    def _watch(self) -> None:
        interval = 0.0
        while not self._is_over.wait(interval):
            begin = time.perf_counter()
            self.look()
            interval = max(INTERVAL_SECONDS, (time.perf_counter() - begin) / COST_SHARE)

    def _look(self) -> None:
        there = list(tree(self._pid))
        memory = {pid: held for pid in there if (held := memory_of(pid)) is not None and held.pss_bytes}
        # A process that was forked meanwhile shares pages with one that was looked at before, as if they were its own.
        if self._pid not in memory or set(there) != set(tree(self._pid)):
            return
        # And one that is just ending leaves its share of them to the others.
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
        """Give those that are new a name: the lowest number that nobody has who is there."""
        self._names = {pid: name for pid, name in self._names.items() if pid in pids} or {self._pid: TRAINER}
        taken = set(self._names.values())
        for pid in sorted(set(pids) - set(self._names)):  # numbered by the system as they are started
            name = _helper(pid)
            if name is None or name in taken:  # what a fork server has forked has its command line
                name = next(one for number in count() if (one := f"{WORKER} {number}") not in taken)
            self._names[pid] = name
            taken.add(name)


def _helper(pid: int) -> str | None:
    """Return what a process is that makes no batches."""
    command = " ".join(command_of(pid))
    return next((name for module, name in HELPERS.items() if f"from {module} import main" in command), None)
