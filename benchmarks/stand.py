"""Contenders in processes of their own.

Loaders with worker processes bring threads, start methods and queues of their own, which would get into each other's
way in one trainer. So each gets a *stand*: a fresh process that plays the trainer, has its own children, and works only
when it is asked to. All that a stand uses is what this process and its descendants use, so CPU time and memory can be
told apart.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Serving = Callable[..., AbstractContextManager[Callable[..., Any]]]
"""Sets up what a stand serves, and takes it down again; in between, it is called for each question."""

HERE = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
LIMIT_SECONDS = 300
"""So long a stand may take for an answer before it counts as hanging."""
HANGS = "it hangs: no answer"
QUIET_SECONDS = 0.06
"""So long nobody may use a tick of CPU time (10 ms) before a stand counts as quiet."""


class StandFailed(RuntimeError):
    """A contender raised an error; the text is its own traceback."""


class Stand:
    """A process in which `serving(*args)` waits for questions, and has `limit_seconds` to answer each."""

    def __init__(self, serving: Serving, *args: Any, limit_seconds: float = LIMIT_SECONDS) -> None:
        self._limit_seconds = limit_seconds
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 closed with the stand
        ours, theirs = socket.socketpair()
        # Not a child of `multiprocessing`, which would have all stands share one tracker of named memory, ours.
        # With -c there is no main module that spawned workers would have to import.
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from benchmarks.stand import serve; serve({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            # read when torch is imported: torch's own workers use one thread, so others' should not use more
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=HERE,
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._connection.send((serving, args))
        self._is_ready = False
        self.is_well = True

    def wait_until_ready(self) -> None:
        if not self._is_ready:
            self._answer()
            self._is_ready = True

    def ask(self, *args: Any) -> Any:
        """Return what the stand answers; it is the only one at work meanwhile."""
        self.wait_until_ready()
        self._connection.send(args)
        return self._answer()

    def _answer(self) -> Any:
        try:
            if self._connection.poll(self._limit_seconds):
                is_well, answer = self._connection.recv()
            else:
                is_well, answer = False, f"{HANGS} for {self._limit_seconds} s"
        except (EOFError, ConnectionResetError):
            is_well, answer = False, "it ended without a word"
        if not is_well:
            self.is_well = False
            self._log.seek(0)
            raise StandFailed(f"{answer}\n{self._log.read()[-3000:].decode(errors='replace')}")
        return answer

    def dismiss(self) -> None:
        """Let the process end when it has answered."""
        if not self._connection.closed:
            self._connection.close()

    def close(self) -> None:
        """End the process and all that it started."""
        self.dismiss()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(15 if self.is_well else 1)
        # It leads a group of its own. Trackers of named memory outlive it, to clean up; what else is left ends here.
        with contextlib.suppress(ProcessLookupError):
            for _ in range(200):
                os.killpg(self._process.pid, 0)
                time.sleep(0.01)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


@contextmanager
def stands(servings: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Stand]]:
    """Open a stand for each name; they start together, and all are ready when the block begins."""
    opened = {}
    try:
        for name, (serving, *args) in servings.items():
            opened[name] = Stand(serving, *args)
        for stand in opened.values():
            stand.wait_until_ready()
        yield opened
    finally:
        for stand in opened.values():
            stand.dismiss()
        for stand in opened.values():
            stand.close()


def alone(function: Callable[..., Any], *args: Any, limit_seconds: float = LIMIT_SECONDS) -> Any:
    """Return what `function(*args)` returns in a fresh process."""
    stand = Stand(_calling, function, limit_seconds=limit_seconds)
    try:
        return stand.ask(*args)
    finally:
        stand.close()


@contextmanager
def _calling(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    yield function


def serve(descriptor: int) -> None:
    """Be a stand, for the process at the other end of a socket."""
    connection = Connection(descriptor)
    try:
        serving, args = connection.recv()
        with serving(*args) as answer:
            connection.send((True, None))
            while True:
                try:
                    question = connection.recv()
                except EOFError:
                    return
                connection.send((True, answer(*question)))
    except BaseException:
        with contextlib.suppress(OSError):
            connection.send((False, traceback.format_exc()))


# ---------------------------------------------------------------- what a process and its descendants use


def family(root: int) -> list[int]:
    """Return the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, fields in _stats().items():
        children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for pid in found:  # grows while it is walked
        found += children.get(pid, [])
    return found


def cpu_seconds(root: int) -> float:
    """Return the CPU time, user and system, of the process and all its descendants, those that ended among them."""
    stats = _stats()
    members = [pid for pid in family(root) if pid in stats]
    return sum(int(ticks) for pid in members for ticks in stats[pid][11:15]) / TICKS


def pss_bytes(pid: int) -> int:
    """Return the proportional set size: pages that several processes share count in parts that add up to one."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def become_quiet(root: int, *, limit_seconds: float = 3.0) -> None:
    """Return when the process and its descendants have nothing more to do: their queues are full, and they sleep."""
    end = time.perf_counter() + limit_seconds
    before = cpu_seconds(root)
    while time.perf_counter() < end:
        time.sleep(QUIET_SECONDS)
        now = cpu_seconds(root)
        if now == before:
            return
        before = now


def _stats() -> dict[int, list[str]]:
    """Return, for each process, what follows its name in /proc/PID/stat: state, parent, ..., CPU times at 11 to 14."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found[int(entry.name)] = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
    return found
