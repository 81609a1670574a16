"""What is shared by all that is watched in this process: one hook, one folder, one thread that looks."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from time import perf_counter
from weakref import finalize

from stoker.engine.stats import Stats
from stoker.lab.watch.collector import Collector
from stoker.lab.watch.folder import Folder, new_folder
from stoker.lab.watch.hook import install, ours, recording
from stoker.lab.watch.hook.ticker import Ticker
from stoker.lab.watch.monitor import Monitor


class Session:
    """The watching of this process, from the first loader that is watched to the last.

    Threads run only while something is iterated over. A doctor that has started this process is not disturbed: it and
    the session then read the same folder.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        before = recording.current
        self._is_owner = before is None
        folder: Folder | None = None
        if before is None:
            folder = new_folder()
            path = folder.path
        else:
            path = Path(before.folder)
        self._end = finalize(self, _ended, folder, self.process)
        self.now = install.attach(str(path))
        self._collector = Collector(path, is_owner=self._is_owner)
        self.monitor = Monitor([self.process], lambda: self._collector.trainers)
        self._lock = threading.RLock()
        self._ticker = Ticker("stoker-monitor", lambda: self.monitor.every_seconds, lambda _: self._tick())
        self._num_iterating = 0
        self.num_users = 0
        self._active_seconds = 0.0
        self._began = 0.0

    def enter(self) -> None:
        """An iteration begins."""
        with self._lock:
            self._num_iterating += 1
            if self._num_iterating == 1:
                self._began = perf_counter()
                self.monitor.look()
        self._ticker.start()

    def leave(self) -> None:
        """An iteration is over, or given up."""
        if os.getpid() != self.process:  # a worker that was forked in the middle of it, perhaps of the lock too
            return
        with self._lock:
            self._num_iterating -= 1
            is_last = not self._num_iterating
            if is_last:
                self._active_seconds = perf_counter() - self.monitor.began
        if is_last:
            self._ticker.stop()
            self.now.probe.stop()
            self._tick()

    @property
    def seconds(self) -> float:
        """From the beginning to the end of the last iteration, or to now."""
        return perf_counter() - self.monitor.began if self._num_iterating else self._active_seconds

    def stats_of(self, number: int) -> Stats | None:
        """Return what was counted of a loader; None if it has given no batch."""
        with self._lock:
            if recording.current is self.now:
                ours.counted.write(self.now.folder)
                self.now.note_laps()
            self._collector.drain()
            return self._collector.stats_of(self.process, number, self.monitor.memory)

    @property
    def failures(self) -> list[str]:
        """What has failed of ours."""
        return self._collector.failures

    def _tick(self) -> None:
        with self._lock:
            self.monitor.look()
            self._collector.drain()

    def close(self) -> None:
        """Take the hook out, and remove the folder."""
        self._ticker.stop()
        with self._lock:
            self._collector.close()
        self._end()


def _ended(folder: Folder | None, process: int) -> None:
    if folder is not None and os.getpid() == process:
        install.detach()
        folder.remove()


_shared: Session | None = None
_lock = threading.RLock()


def join() -> Session:
    """Return the session of this process, for one more user. Several threads may begin to watch at the same time."""
    global _shared
    with _lock:
        if _shared is None or _shared.process != os.getpid():
            _shared = Session()
        install.install()  # what was imported since
        _shared.num_users += 1
        return _shared


def part(session: Session) -> None:
    """Let a user go; the session ends with the last one."""
    global _shared
    with _lock:
        session.num_users -= 1
        if session.num_users > 0:
            return
        if _shared is session:
            _shared = None
        if session.process == os.getpid():
            session.close()


def _after_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # whoever held the other one is not here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_in_child)
