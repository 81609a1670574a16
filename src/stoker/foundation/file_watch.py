"""Notice when files change that this process has memory-mapped or open.

A memory map shows the current content of the file: another program's writes appear in the middle of a batch, and
reading a part that was truncated kills the process with SIGBUS. So readers check their files regularly by `os.stat`,
which needs no open descriptor. Replacing a file by renaming another one over it is safe: the map keeps the old content.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from stoker.errors import StaleSource

LOOK_SHARE = 0.01
"""The largest share of the time that checking files may take. With it, a single local file is checked every 150
microseconds, and each of a thousand files about six times a second."""

clock: Callable[[], float] = time.perf_counter
"""Monotonic seconds. Where it does not advance (tests), every `check` looks at every file."""


def difference(size_bytes: int, mtime_ns: int, found: os.stat_result) -> str | None:
    """Describe how a file differs from what it was; None if size and modification time are the same."""
    if (found.st_size, found.st_mtime_ns) == (size_bytes, mtime_ns):
        return None
    times = f"last written at {_utc(mtime_ns)} then, at {_utc(found.st_mtime_ns)} now"
    if found.st_size != size_bytes:
        return f"it had {size_bytes} bytes and has {found.st_size} ({times})"
    return f"its size is the same but it was written to since ({times})"


def _utc(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    with suppress(OverflowError, ValueError, OSError):  # a file may claim any time
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))}.{rest:09d} UTC"
    return f"{ns} ns"


class WatchedFile:
    """Identity of a file when it was mapped or opened: path, inode, size and modification time."""

    __slots__ = ("device", "inode", "mtime_ns", "path", "size_bytes")

    def __init__(self, path: str | Path, found: os.stat_result) -> None:
        self.path = str(path)
        self.device, self.inode = found.st_dev, found.st_ino
        self.size_bytes, self.mtime_ns = found.st_size, found.st_mtime_ns

    def difference(self) -> str | None:
        """Describe how the file has changed; None if it has not, or if its path now names another file."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        if found.st_mtime_ns == self.mtime_ns and found.st_size == self.size_bytes:
            return None
        if (found.st_ino, found.st_dev) != (self.inode, self.device):
            return None
        return difference(self.size_bytes, self.mtime_ns, found)

    def check(self) -> None:
        """Raise `StaleSource` if the file has changed."""
        if (what := self.difference()) is not None:
            raise StaleSource(self.path, what=what)


class FileWatch:
    """The files of one reader. Safe to use from threads; a forked child keeps watching its parent's files."""

    __slots__ = ("__weakref__", "_at", "_due", "_files")

    def __init__(self) -> None:
        self._files: list[WatchedFile] = []
        self._at = 0
        self._due = clock()
        """When to check again."""
        _watches.add(self)

    def add(self, path: str | Path, found: os.stat_result) -> WatchedFile:
        """Watch a file that was just mapped or opened; `found` is the `os.fstat` of its descriptor."""
        file = WatchedFile(path, found)
        self._files.append(file)
        if _report.descriptor is not None:
            _report.write(file)
        return file

    def discard(self, file: WatchedFile) -> None:
        """Stop watching a file."""
        with suppress(ValueError):
            self._files.remove(file)

    def check(self) -> None:
        """Raise `StaleSource` if a file has changed. Call it before and after a read of any number of samples.

        Takes 0.1 microseconds when no check is due.
        """
        if clock() >= self._due:
            self._look()

    def check_now(self) -> None:
        """Raise `StaleSource` if any file has changed, after checking all of them."""
        for file in list(self._files):
            file.check()

    def _look(self) -> None:
        """Check files in turn: one, or more if the last check was a while ago."""
        began = now = clock()
        allowed = LOOK_SHARE * (began - self._due)
        files = self._files
        for _ in range(len(files)):
            at = self._at + 1
            self._at = at = at if at < len(files) else 0
            try:
                file = files[at]
            except IndexError:  # another thread has discarded one
                continue
            file.check()  # if it raises, a check stays due, so every further read raises as well
            now = clock()
            if now - began > allowed:
                break
        self._due = now + (now - began) / LOOK_SHARE

    def __iter__(self) -> Iterator[WatchedFile]:
        return iter(list(self._files))


_watches: WeakSet[FileWatch] = WeakSet()


class _WatchReport:
    """Lists the files that this process watches, for the parent to read if this process dies of SIGBUS."""

    def __init__(self) -> None:
        self.descriptor: int | None = None
        self._written: set[tuple[Any, ...]] = set()

    def write(self, file: WatchedFile) -> None:
        entry = (file.path, file.device, file.inode, file.size_bytes, file.mtime_ns)
        if self.descriptor is None or entry in self._written:  # files that are mapped repeatedly are listed once
            return
        self._written.add(entry)
        with suppress(OSError):  # without memory for the list, the error after a death names no file
            os.write(self.descriptor, json.dumps([os.getpid(), *entry]).encode() + b"\n")


_report = _WatchReport()


def report_to(descriptor: int) -> None:
    """List the files that this process watches, now and later, in a file that was opened for appending."""
    _report.descriptor = descriptor
    _report._written.clear()  # after a fork, entries of the parent do not count
    for watch in list(_watches):
        for file in watch:
            _report.write(file)


def changed_files(descriptor: int, process: int) -> list[str]:
    """Describe how the files that a process listed have changed: those that shrank, or all if none did."""
    files: dict[str, WatchedFile] = {}  # by path: of one that was mapped several times, the latest
    for line in os.pread(descriptor, os.fstat(descriptor).st_size, 0).splitlines():
        with suppress(ValueError):  # the process may have died while writing it
            owner, path, device, inode, size_bytes, mtime_ns = json.loads(line)
            if owner == process:
                files[path] = file = WatchedFile.__new__(WatchedFile)
                file.path, file.device, file.inode = path, device, inode
                file.size_bytes, file.mtime_ns = size_bytes, mtime_ns
    shrunk, changed = [], []
    for path, file in files.items():
        if (what := file.difference()) is not None:
            changed.append(f"{path}: {what}")
            with suppress(OSError):
                shrunk += changed[-1:] if os.stat(path).st_size < file.size_bytes else []
    return shrunk or changed
