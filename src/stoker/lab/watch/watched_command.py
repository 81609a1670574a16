"""Watch a command: it runs as it would without a doctor, and its loaders are recorded until it ends."""

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
"""How long a command may take to end after a signal, before it gets the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCommand:
    """What was recorded of a command, and how it ended."""

    run: Run
    code: int
    """Its exit code; 128 plus the signal's number if a signal ended it."""
    was_stopped: bool = False
    """Whether it was stopped after the seconds it was to be watched for."""
    had_loaders: bool = False
    """Whether one of its processes imported a module with loaders."""
    failures: list[str] = field(default_factory=list)
    """Tracebacks of what failed in watching. The command did not notice."""


def watch_command(
    command: Sequence[str],
    *,
    seconds: float | None = None,
    on_run: Callable[[Run], None] | None = None,
    every_seconds: float = 1.0,
    output: int | None = None,
) -> WatchedCommand:
    """Run a command and watch it. It has this process's input and output, and gets the signals sent to this process.

    If this process is killed, the command is killed too, with everything that it has started. If the command ends by
    itself, whatever it leaves running continues.

    Args:
        seconds: stop the command so long after its first batch.
        on_run: called with the record so far, every so many seconds, in this thread.
        output: a descriptor for its output and errors, instead of this process's.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    folder = new_folder()
    collector = Collector(folder.path)
    process: SupervisedProcess | None = None
    try:
        process = _start(command, folder.path, before, output)
        monitor = Monitor([process.pid], lambda: collector.trainers)

        def recorded() -> Run:
            collector.drain()
            return Run(
                title=shlex.join(command),
                machine=described(),
                seconds=perf_counter() - monitor.began,
                began=monitor.began,
                loaders=collector.stats(monitor.memory),
                moments=list(monitor.moments),
            )

        report = None if on_run is None else lambda: on_run(recorded())
        watcher = _CommandWatcher(process, collector, monitor, seconds, report, every_seconds)
        try:
            status = watcher.watch()
        except Exception:  # a failure in watching does not end the training
            watcher.wait()
            raise
        run = recorded()
        code = os.waitstatus_to_exitcode(status)
        return WatchedCommand(
            run=run,
            code=code if code >= 0 else 128 - code,
            was_stopped=watcher.was_stopped,
            had_loaders=bool(collector.commands),
            failures=list(collector.failures),
        )
    finally:
        if process is not None:
            process.close()
        collector.close()
        folder.remove()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(
    command: Sequence[str], folder: Path, mask: set[int | signal.Signals], output: int | None
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


class _CommandWatcher:
    """Samples a command until it ends, and passes signals on to it."""

    def __init__(
        self,
        process: SupervisedProcess,
        collector: Collector,
        monitor: Monitor,
        seconds: float | None,
        report: Callable[[], None] | None,
        report_every: float,
    ) -> None:
        self._process, self._collector, self._monitor, self._seconds = process, collector, monitor, seconds
        self._report, self._report_every = report, report_every
        self._stop_at: float | None = None
        """When it gets the next signal to stop."""
        self._stop_signals = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
        self.was_stopped = False

    def watch(self) -> int:
        """Return the wait status of the command when it has ended."""
        self._monitor.sample()
        due = perf_counter() + self._monitor.every_seconds
        report_due = perf_counter() if self._report is not None else inf
        while (status := self._process.poll()) is None:
            self._wait_for_signal(max(0.0, min(due, report_due) - perf_counter()))
            if self._report is not None and perf_counter() >= report_due:
                self._report()
                report_due = perf_counter() + self._report_every
            if (now := perf_counter()) >= due:
                with suppress(OSError):  # in watching: the command continues all the same
                    self._monitor.sample()
                    self._collector.drain()
                self._stop_if_due(now)
                due = perf_counter() + self._monitor.every_seconds
        return status

    def wait(self) -> None:
        """Return when the command has ended, and only pass signals on until then."""
        while self._process.poll() is None:
            self._wait_for_signal(self._monitor.every_seconds)

    def _wait_for_signal(self, seconds: float) -> None:
        try:
            received = signal.sigtimedwait(BLOCKED_SIGNALS, seconds)
        except KeyboardInterrupt:  # a thread that does not block it got it; the terminal sent it to the command, too
            return
        # What the kernel sends comes from the terminal, and has reached the whole group: passed on, it would be a
        # second Ctrl-C, which makes many programs exit at once.
        if received is not None and received.si_signo != signal.SIGCHLD and received.si_code <= 0:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, received.si_signo)

    def _stop_if_due(self, now: float) -> None:
        if self._seconds is None:
            return
        if self._stop_at is None:
            if self._collector.has_begun:
                self._stop_at = now + self._seconds
            return
        if now < self._stop_at or not self._stop_signals:
            return
        self.was_stopped = True
        self._stop_at = now + PATIENCE_SECONDS
        number = self._stop_signals.pop(0)
        group = os.getpgrp()
        for pid in list(tree(self._process.pid)):
            # as the terminal does for Ctrl-C: to every process in the group
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) == group or number == signal.SIGKILL:
                    os.kill(pid, number)
