"""Memory-mapped files: each process maps them itself, and all processes share the pages."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from stoker.errors import StaleSource
from stoker.foundation.file_watch import FileWatch, WatchedFile
from stoker.source.known_file import KnownFile


class MappedFile:
    """The memory-mapped content of one file."""

    __slots__ = ("_file", "_map", "content", "watched")

    def __init__(self, file: KnownFile, watch: FileWatch) -> None:
        """Map the file. Raises `StaleSource` if it has changed."""
        self._file = file
        self._map: mmap.mmap | None = None
        with file.open() as opened:
            if file.size_bytes:  # an empty file cannot be mapped
                self._map = mmap.mmap(opened.fileno(), file.size_bytes, access=mmap.ACCESS_READ)
            self.watched: WatchedFile = watch.add(file.path, os.fstat(opened.fileno()))
        self.content: NDArray[np.uint8] = np.frombuffer(self._map or b"", dtype=np.uint8)
        """All bytes of the file, read-only."""

    def check(self) -> None:
        """Raise `StaleSource` if the file has shrunk: reading pages beyond its end would end the process with SIGBUS.

        Call it before every read; it takes a third of a microsecond.
        """
        if self._map is not None and (size_bytes := self._map.size()) < self._file.size_bytes:
            self.watched.check()  # raises a more specific error if the file is still at its path
            raise StaleSource(self._file.path, what=f"it had {self._file.size_bytes} bytes and has {size_bytes}")


class MappedFiles:
    """Any number of files, mapped on first use, with a limit on open mappings.

    Each mapping holds a descriptor, so there are at most an eighth of the process's limit. Thread-safe; pickles as its
    files; a forked child uses its parent's mappings.
    """

    def __init__(self, files: Sequence[KnownFile]) -> None:
        self.files = tuple(files)
        self._mapped: dict[int, MappedFile] = {}
        self._locks: dict[int, Lock] = {}
        self._watch = FileWatch()

    def __getstate__(self) -> tuple[KnownFile, ...]:
        return self.files

    def __setstate__(self, files: tuple[KnownFile, ...]) -> None:
        MappedFiles.__init__(self, files)

    def __getitem__(self, number: int) -> MappedFile:
        """Return file `number`, after checking that it has not shrunk. Do not keep it.

        This also checks all mapped files for changes from time to time; `check` does so after a large read.
        """
        # No lock on the path of every read: a dict lookup is atomic.
        mapped = self._mapped.get(number) or self._map(number)
        mapped.check()
        self._watch.check()
        return mapped

    def check(self) -> None:
        """Raise `StaleSource` if a mapped file has changed, unless it was checked a moment ago."""
        self._watch.check()

    def _map(self, number: int) -> MappedFile:
        # One lock per process: one held by another thread during a fork would stay locked in the child.
        with self._locks.setdefault(os.getpid(), Lock()):
            mapped = self._mapped.get(number)
            if mapped is None:
                mapped = MappedFile(self.files[number], self._watch)
                most = _most_mappings()
                while len(self._mapped) >= most:
                    # Drop the oldest. A thread that reads it holds a reference, so it is unmapped after that.
                    self._watch.discard(self._mapped.pop(next(iter(self._mapped))).watched)
                self._mapped[number] = mapped
            return mapped


def _most_mappings() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if limit == resource.RLIM_INFINITY else max(8, min(4096, limit // 8))
