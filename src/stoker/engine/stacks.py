"""Where a worker is stuck: its stacks, asked for by a signal and written to a file that is only memory.

`faulthandler` writes them without the interpreter's lock, so they come also when native code holds it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from multiprocessing import reduction
from typing import Any
from weakref import finalize

from stoker.engine.arena import memory_file

STACKS_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 3
"""Asks a worker for its stacks. Not one of the signals that schedulers and users like to send."""


class Stacks:
    """The file, in the trainer and in its workers, however they are started."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = memory_file("stoker-stacks") if descriptor is None else descriptor
        self.close = finalize(self, os.close, self._descriptor)

    def __reduce__(self) -> Any:
        return _same_stacks, (reduction.DupFd(self._descriptor),)

    def answer(self) -> None:
        """In a worker: write the stacks whenever they are asked for."""
        faulthandler.register(STACKS_SIGNAL, file=self._descriptor, all_threads=True, chain=False)

    def of(self, process: int) -> str:
        """Return the stacks of a worker that is ready."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.kill(process, STACKS_SIGNAL)
        size, deadline = -1, time.monotonic() + 2
        # whoever writes does not say when it is done: wait until nothing more comes
        while time.monotonic() < deadline and (size <= 0 or size != os.fstat(self._descriptor).st_size):
            size = os.fstat(self._descriptor).st_size
            time.sleep(0.05)
        written = os.pread(self._descriptor, 1 << 20, 0).decode(errors="replace")
        return _users_part(written) if written else "(it does not answer)\n"


def _same_stacks(descriptor: Any) -> Stacks:
    return Stacks(descriptor.detach())


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
