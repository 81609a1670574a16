"""Child processes: start them without losing Ctrl-C, let them die with their parent, end them, say how they ended."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from typing import Any

PATIENCE_SECONDS = 1.0
"""How long a process may take to end by itself, and then to end after SIGTERM, before it is killed."""

FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a process which runs a command for the user passes on to that command."""

BLOCKED_SIGNALS = (*FORWARDED_SIGNALS, signal.SIGCHLD)

_PR_SET_PDEATHSIG = 1


def block_forwarded_signals() -> None:
    """Keep `BLOCKED_SIGNALS` pending until `sigtimedwait` asks for them, in this thread and those that it starts.

    A signal goes to any thread that does not block it, and a thread inherits the mask of the one that starts it. So
    call this before NumPy is imported, which starts threads.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back. A process that is started meanwhile holds it back, too, until it has set up its signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent, process `parent`, ends. Exit now if that has happened already.

    The kernel acts when the *thread* ends that started this process: use it where that was the parent's main thread.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_process(pid: int, *, is_started_by_its_main_thread: bool) -> None:
    """Let this process die with process `pid`, which need not be its parent: a fork server may be.

    A thread waits for the process. It cannot act while native code holds the GIL, so the kernel is asked to kill this
    process as well, where that is possible.
    """
    if is_started_by_its_main_thread and os.getppid() == pid:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)
    except (OSError, AttributeError):
        descriptor = -1  # an old kernel, one that does not allow it, a Python built without: ask once a second
    threading.Thread(target=_die_after, args=(pid, descriptor), name="stoker-watch", daemon=True).start()


def _die_after(pid: int, descriptor: int) -> None:
    poll = select.poll()
    if descriptor >= 0:
        poll.register(descriptor, select.POLLIN)
    while not poll.poll(None if descriptor >= 0 else 1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
    os.kill(os.getpid(), signal.SIGKILL)


def end_processes(processes: dict[int, Any], *, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for processes of `multiprocessing` to end by themselves, then terminate, then kill them.

    When this returns they are gone, and `processes` is empty.
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
    deadline = time.monotonic() + patience_seconds
    left = list(processes.values())
    while left and (seconds := deadline - time.monotonic()) > 0:
        connection.wait([process.sentinel for process in left], seconds)
        left = [process for process in left if process.is_alive()]


def describe_exit(exitcode: int | None) -> str:
    """Return how a process ended: `SIGKILL`, or `exit code 1`."""
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"
