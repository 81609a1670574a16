"""The start and the end of a process, and what can go wrong with them."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any

from stoker.errors import NotPicklable, OutOfDescriptors, WorkerError

PATIENCE_SECONDS = 1.0
"""How long a worker may take to end by itself, and then to end after SIGTERM, before it is killed."""

STREAM_PATIENCE_SECONDS = 5.0
"""The first of the two for a worker that reads a stream: its `finally` blocks may have files to write. torch's workers
have as long.
"""


def make_sure_of_descriptors(any_descriptor: int) -> None:
    """Fail now if there are too few: a process's start that fails half-way leaves some of its own open."""
    spare: list[int] = []
    try:
        while len(spare) < 8:
            spare.append(os.dup(any_descriptor))
    finally:
        for descriptor in spare:
            os.close(descriptor)


def close_pipes_of_launch(error: BaseException) -> None:
    """Close the pipes that the standard library opens for a child and forgets if it cannot be forked."""
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if frame.f_code.co_name == "_launch":
            names = ("parent_r", "child_w", "child_r", "parent_w")
            for descriptor in [frame.f_locals[name] for name in names if name in frame.f_locals]:
                os.close(descriptor)


def told_of_launch(error: BaseException, *, worker: int, start_method: str) -> BaseException:
    """Return what is to be raised for an error at the start of a worker: one that says what to do, if we know that."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return OutOfDescriptors(f"worker process {worker}")
    if isinstance(error, OSError):
        return WorkerError(
            f"worker process {worker} could not be started: {error}\n"
            "hint: there may be too little memory or too many processes (`ulimit -u`); use fewer workers"
        )
    if isinstance(error, AssertionError) and multiprocessing.current_process().daemon:
        return WorkerError(
            f"worker process {worker} could not be started: this process is a daemon, and {error}\n"
            "hint: load with threads instead (num_workers=0, num_threads=...), or start this process with daemon=False "
            "(concurrent.futures.ProcessPoolExecutor does, multiprocessing.Pool does not)"
        )
    if isinstance(error, TypeError | AttributeError | pickle.PicklingError):
        return NotPicklable("the dataset", reason=f"{type(error).__name__}: {error}", start_method=start_method)
    return error


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back. A process that is started meanwhile begins so, too, until it has seen to its signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_all(processes: dict[int, Any], *, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for processes to end by themselves, then terminate, then kill them; they are gone when this returns, and
    `processes` is empty.
    """
    try:
        _wait_for(processes, patience_seconds)
        for process in processes.values():
            process.terminate()
        _wait_for(processes, PATIENCE_SECONDS)
    finally:  # also when Ctrl-C comes a second time
        for process in processes.values():
            process.kill()
        while processes:
            number, process = next(iter(processes.items()))
            process.join(PATIENCE_SECONDS)  # one that waits for a dead disk cannot even be killed
            del processes[number]
            if process.exitcode is not None:
                process.close()


def _wait_for(processes: dict[int, Any], patience_seconds: float) -> None:
    """Wait for processes to end, as long as we have patience."""
    deadline = time.monotonic() + patience_seconds
    left = list(processes.values())
    while left and (seconds := deadline - time.monotonic()) > 0:
        connection.wait([process.sentinel for process in left], seconds)
        left = [process for process in left if process.is_alive()]


def named_end(exitcode: int | None) -> str:
    """Return how a process has ended, in words."""
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"
