"""What can go wrong when a worker process is started."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle

from stoker.errors import NotPicklable, OutOfDescriptors, WorkerError

STREAM_PATIENCE_SECONDS = 5.0
"""How long a worker that reads a stream may take to end by itself: its `finally` blocks may have files to write, and
torch's workers have as long.
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


def launch_error(error: BaseException, *, worker: int, start_method: str) -> BaseException:
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
