"""Files as memory: each process maps them for itself, and all share the pages."""

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
    """The content of one file, for as long as something refers to it."""

    __slots__ = ("_file", "_map", "content", "watched")

    def __init__(self, file: KnownFile, watch: FileWatch) -> None:
        """Map the file. Raises `StaleSource` if it is not the one that `file` was made of."""
        self._file = file
        self._map: mmap.mmap | None = None
        with file.open() as opened:
            if file.size_bytes:  # nothing cannot be mapped
                self._map = mmap.mmap(opened.fileno(), file.size_bytes, access=mmap.ACCESS_READ)
            self.watched: WatchedFile = watch.add(file.path, os.fstat(opened.fileno()))
        self.content: NDArray[np.uint8] = np.frombuffer(self._map or b"", dtype=np.uint8)
        """All bytes of the file, read-only."""

    def check(self) -> None:
        """Raise `StaleSource` if the file has shrunk: to touch what is gone would end the process with a signal.

        Call it before every read; it takes a third of a microsecond.
        """
        if self._map is not None and (size_bytes := self._map.size()) < self._file.size_bytes:
            self.watched.check()  # it knows more, if the file is still at its path
            raise StaleSource(self._file.path, what=f"it had {self._file.size_bytes} bytes and has {size_bytes}")


class MappedFiles:
    """Any number of files, mapped when they are first asked for, and not too many at a time.

    Each mapping holds a descriptor, so that there are at most as many as an eighth of what the process may have. For
    any number of threads; pickles as its files; a forked child uses its parent's mappings.
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
        """Return the file `number`, checked to be as long as it was. Keep it only while it is read.

        All files that are mapped are looked at from time to time, too; after a read of many samples, `check` does so.
        """
        # No lock on the way that is taken for every read: looking into a dict is atomic.
        mapped = self._mapped.get(number) or self._map(number)
        mapped.check()
        self._watch.check()
        return mapped

    def check(self) -> None:
        """Raise `StaleSource` if a file that is mapped has changed, as far as it is time to look."""
        self._watch.check()

    def _map(self, number: int) -> MappedFile:
        # The lock belongs to the process: one that another thread held during a fork would stay locked in the child.
        with self._locks.setdefault(os.getpid(), Lock()):
            mapped = self._mapped.get(number)
            if mapped is None:
                mapped = MappedFile(self.files[number], self._watch)
                most = _most_mappings()
                while len(self._mapped) >= most:
                    # The one mapped first. A thread that is reading it holds a reference; it is unmapped after that.
                    self._watch.discard(self._mapped.pop(next(iter(self._mapped))).watched)
                self._mapped[number] = mapped
            return mapped


def _most_mappings() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if limit == resource.RLIM_INFINITY else max(8, min(4096, limit // 8))
