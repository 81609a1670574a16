"""What a worker leaves for the trainer to read, in files that are only memory: its stacks, and the files it has mapped.

`faulthandler` writes stacks when a signal asks for them, without the interpreter's lock, so they come also when native
code holds it. The list of mapped files is written ahead, so that a worker that SIGBUS has ended need not say anything.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import time
from multiprocessing import reduction
from typing import Any
from weakref import finalize

from stoker.engine.slots.arena import memory_file
from stoker.foundation.file_watch import changed_files, report_to

STACKS_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 3
"""Asks a worker for its stacks. Not one of the signals that schedulers and users like to send."""

MOST_NAMED = 3
"""How many files an error names."""


class Stacks:
    """The files, in the trainer and in its workers, however they are started."""

    def __init__(self, descriptors: tuple[int, int] | None = None) -> None:
        self._descriptor, self._mapped = descriptors or _memory_files()
        self.close = finalize(self, _close, self._descriptor, self._mapped)

    def __reduce__(self) -> Any:
        return _same_stacks, (reduction.DupFd(self._descriptor), reduction.DupFd(self._mapped))

    def answer(self) -> None:
        """In a worker: write the stacks whenever they are asked for, and list the files that are mapped."""
        faulthandler.register(STACKS_SIGNAL, file=self._descriptor, all_threads=True, chain=False)
        report_to(self._mapped)

    def explained(self, end: str, process: int) -> str:
        """Return how a worker has ended; for SIGBUS with the files that have changed under its memory maps."""
        changed = changed_files(self._mapped, process) if end == "SIGBUS" else []
        if not changed:
            return end
        more = f", and {len(changed) - MOST_NAMED} more files" if len(changed) > MOST_NAMED else ""
        return f"{end} while reading {'; '.join(changed[:MOST_NAMED])}{more}"

    def of(self, process: int) -> str:
        """Return the stacks of a worker that is ready."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.kill(process, STACKS_SIGNAL)
        size, deadline = -1, time.monotonic() + 2
        # the writer does not say when it is done: wait until nothing more comes
        while time.monotonic() < deadline and (size <= 0 or size != os.fstat(self._descriptor).st_size):
            size = os.fstat(self._descriptor).st_size
            time.sleep(0.05)
        written = os.pread(self._descriptor, 1 << 20, 0).decode(errors="replace")
        return _users_part(written) if written else "(it does not answer)\n"


def _same_stacks(descriptor: Any, mapped: Any) -> Stacks:
    return Stacks((descriptor.detach(), mapped.detach()))


def _memory_files() -> tuple[int, int]:
    stacks = memory_file("stoker-stacks")
    try:
        mapped = memory_file("stoker-mapped")
    except BaseException:
        os.close(stacks)
        raise
    fcntl.fcntl(mapped, fcntl.F_SETFL, os.O_APPEND)  # workers write to it at the same time
    return stacks, mapped


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _users_part(stacks: str) -> str:
    """Return what is worth reading: no thread of ours that only waits, nothing below the worker's own beginning."""
    shown = []
    for stack in stacks.split("\n\n"):
        lines = stack.splitlines()
        if any("_wait_for_end" in line for line in lines):
            continue
        beginning = [at for at, line in enumerate(lines) if "worker.py" in line and line.endswith(" in work")]
        shown.append("\n".join(lines[: min(beginning, default=len(lines))]))
    return "\n\n".join(shown)
