"""Attending a command: it runs as it would without us, and is watched from the first loader in it to its end."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import perf_counter

from stoker.errors import ArgumentError
from stoker.foundation.machine import described, tree
from stoker.foundation.processes import BLOCKED_SIGNALS
from stoker.lab.watch.collector import Collector
from stoker.lab.watch.monitor import Monitor
from stoker.lab.watch.run import Run
from stoker.lab.watch.shared_folder import new_folder
from stoker.lab.watch.supervised_process import SupervisedProcess, inherited_descriptors

DOOR = Path(__file__).parent / "hook" / "door"
"""The folder that is put on Python's path."""

PATIENCE_SECONDS = 10.0
"""How long a command that is to end may take, before it is asked less kindly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCommand:
    """What was seen of a command, and how it ended."""

    run: Run
    code: int
    """Its exit code; 128 and the number of the signal, if one ended it."""
    was_stopped: bool = False
    """It was ended by us, after the seconds that it was to be watched for."""
    had_loaders: bool = False
    """Whether a process of it had imported anything that has loaders."""
    failures: list[str] = field(default_factory=list)
    """What has failed of ours. The command did not notice."""


def watch_command(
    command: Sequence[str],
    *,
    seconds: float | None = None,
    teller: Callable[[Run], None] | None = None,
    every_seconds: float = 1.0,
    output: int | None = None,
) -> WatchedCommand:
    """Run a command and watch it. It has our input and output; signals that come to us reach it.

    If this process is killed, the command is too, with all that it has started. What it leaves running when it ends by
    itself goes on.

    Args:
        seconds: it is ended after it was watched for so long, counted from its first batch.
        teller: is told what was seen so far, every so many seconds, in this thread.
        output: a descriptor that it writes to in the place of our output, and of our errors.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    folder = new_folder()
    collector = Collector(folder.path)
    process: SupervisedProcess | None = None
    try:
        process = _started(command, folder.path, before, output)
        monitor = Monitor([process.pid], lambda: collector.trainers)

        def seen() -> Run:
            collector.drain()
            return Run(
                title=shlex.join(command),
                machine=described(),
                seconds=perf_counter() - monitor.began,
                began=monitor.began,
                loaders=collector.stats(monitor.memory),
                moments=list(monitor.moments),
            )

        tell = None if teller is None else lambda: teller(seen())
        vigil = _Vigil(process, collector, monitor, seconds, tell, every_seconds)
        try:
            status, was_stopped = vigil.kept()
        except Exception:  # a failure of ours does not end the training
            vigil.wait()
            raise
        run = seen()
        code = os.waitstatus_to_exitcode(status)
        return WatchedCommand(
            run=run,
            code=code if code >= 0 else 128 - code,
            was_stopped=was_stopped,
            had_loaders=bool(collector.commands),
            failures=list(collector.failures),
        )
    finally:
        if process is not None:
            process.close()
        collector.close()
        folder.remove()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(
    command: Sequence[str], folder: Path, mask: set[int | signal.Signals], output: int | None = None
) -> SupervisedProcess:
    path = os.environ.get("PYTHONPATH")
    environment = os.environ | {
        "STOKER_DOCTOR": str(folder),
        "PYTHONPATH": f"{DOOR}{os.pathsep}{path}" if path else str(DOOR),
    }
    try:
        return SupervisedProcess(
            command,
            environment=environment,
            output=output,
            descriptors=inherited_descriptors(),
            blocked_signals=mask - set(BLOCKED_SIGNALS),
        )
    except OSError as error:
        raise ArgumentError(
            f"{command[0]!r} cannot be run: {error.strerror}",
            hint="write the command after two dashes, as you would without a doctor: stoker doctor -- python train.py",
        ) from None


class _Vigil:
    """Stays with a process until it ends."""

    def __init__(
        self,
        process: SupervisedProcess,
        collector: Collector,
        monitor: Monitor,
        seconds: float | None,
        tell: Callable[[], None] | None = None,
        tell_every: float = 1.0,
    ) -> None:
        self._process, self._collector, self._monitor, self._seconds = process, collector, monitor, seconds
        self._tell, self._tell_every = tell, tell_every
        self._over: float | None = None
        """When it has been watched for long enough."""
        self._urges = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
        self._was_urged = False

    def kept(self) -> tuple[int, bool]:
        """Return how the process ended, and whether that was our doing."""
        self._monitor.look()
        due = perf_counter() + self._monitor.every_seconds
        tell_due = perf_counter() if self._tell is not None else inf
        while True:
            status = self._process.poll()
            if status is not None:
                return status, self._was_urged
            self._wait_for_signal(max(0.0, min(due, tell_due) - perf_counter()))
            if self._tell is not None and perf_counter() >= tell_due:
                self._tell()
                tell_due = perf_counter() + self._tell_every
            if (now := perf_counter()) >= due:
                with suppress(OSError):  # of ours: the command is waited for all the same
                    self._monitor.look()
                    self._collector.drain()
                self._end_if_over(now)
                due = perf_counter() + self._monitor.every_seconds

    def wait(self) -> None:
        """Return when the process has ended, and do nothing else but pass signals on."""
        while self._process.poll() is None:
            self._wait_for_signal(self._monitor.every_seconds)

    def _wait_for_signal(self, seconds: float) -> None:
        try:
            told = signal.sigtimedwait(BLOCKED_SIGNALS, seconds)
        except KeyboardInterrupt:  # a thread that does not block it got it; the terminal has told the command too
            return
        # What the kernel sends comes from the terminal, and has gone to the whole group: to pass it on would be a
        # second Ctrl-C, which many programs take for an order to end at once.
        if told is not None and told.si_signo != signal.SIGCHLD and told.si_code <= 0:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, told.si_signo)

    def _end_if_over(self, now: float) -> None:
        if self._seconds is None:
            return
        if self._over is None:
            if self._collector.has_begun:
                self._over = now + self._seconds
            return
        if now < self._over or not self._urges:
            return
        self._was_urged = True
        self._over = now + PATIENCE_SECONDS
        urge = self._urges.pop(0)
        group = os.getpgrp()
        for pid in list(tree(self._process.pid)):
            # as the terminal does for Ctrl-C: everyone in the group is told
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) == group or urge == signal.SIGKILL:
                    os.kill(pid, urge)
