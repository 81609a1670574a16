"""Spool files, into which a watched process writes what it does: rows of numbers, and a note in JSON.

The writer maps the file, so that a row costs a microsecond and survives if the process is killed in the next. The file
has a fixed size and is allocated when it is created: a full disk is noticed then, and is not a crash later. The rows
are a ring buffer; a reader has to read them before they are overwritten.

Layout: a head of 64 bytes (magic, row width in doubles, number of rows, rows written, notes written, lengths of
both notes), two places for notes, of which the latest is never the one being written, and the rows.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
from typing import Any, NamedTuple

CAPACITY = 1024
NOTE_BYTES = 24 * 1024
NOTE_TRIES = 100
"""How often a note is read again because another one was written meanwhile, so that it may be half of each."""

_MAGIC = b"STOKER-1"
_HEAD = struct.Struct("<8sII")
_COUNT, _TURN, _LENGTHS = 16, 24, 32
_U64 = struct.Struct("<Q")
_F64 = struct.Struct("<d")
_NOTES = 64
_ROWS = _NOTES + 2 * NOTE_BYTES

WORKER_SUFFIX, TRAINER_SUFFIX = ".work", ".laps"
"""How the names of files end: batches loaded in this process, and batches delivered to the trainer in this process."""


class WorkerRow(NamedTuple):
    """How one batch was loaded. Times are in seconds."""

    serial: float
    turn: float
    """Which fetcher of this process loaded it, from 0; a worker has a new one for each epoch."""
    ordinal: float
    """Which of this fetcher's batches it was, from 0."""
    began: float
    made: float
    sent: float
    """When it was pickled for the trainer; 0 until then."""
    read: float
    read_cpu: float
    collate: float
    collate_cpu: float
    delay: float
    """How long the thread was ready to run without a core."""
    num_samples: float
    cpu: float
    """Of the process, since it started."""
    read_bytes: float
    """From disk, by the process, since it started."""


BEGINS, HANDED, ENDS = 0.0, 1.0, 2.0


class TrainerRow(NamedTuple):
    """The beginning of an iteration, a batch that the trainer received, or the end of an iteration."""

    serial: float
    kind: float
    loader: float
    iteration: float
    asked: float
    handed: float
    worker: float
    """-1 if it was loaded in this process."""
    pid: float
    """Of the process that loaded it; 0 if unknown."""
    turn: float
    ordinal: float
    unpack: float
    copy: float
    num_samples: float
    """0 if unknown."""
    num_bytes: float
    """0 if not measured."""
    wait_cpu: float
    wait_delay: float
    cpu: float
    """Of the process, since it started."""
    delay: float
    """Of the thread, since it started."""
    read_bytes: float


class SpoolWriter:
    """A spool file being written."""

    def __init__(self, path: str, width: int) -> None:
        size = _ROWS + width * CAPACITY * 8
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
            self._memory = mmap.mmap(file, size)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(file)
        self.path, self.count = path, 0
        self._lock = threading.RLock()  # reentrant: garbage collected meanwhile may call `add`
        self._row = struct.Struct(f"<{width}d")
        self._turn = 0
        _HEAD.pack_into(self._memory, 0, _MAGIC, width, CAPACITY)

    def add(self, *values: float) -> int:
        """Write a row, given without its serial number, which is returned. Any thread may call this."""
        with self._lock:
            serial = self.count
            self._row.pack_into(self._memory, _ROWS + serial % CAPACITY * self._row.size, serial, *values)
            self.count = serial + 1
            _U64.pack_into(self._memory, _COUNT, self.count)
        return serial

    def put(self, serial: int, column: int, value: float) -> None:
        """Change one number of a row, unless it was overwritten."""
        if self.count - serial < CAPACITY:
            _F64.pack_into(self._memory, _ROWS + serial % CAPACITY * self._row.size + column * 8, value)

    def note(self, values: dict[str, Any]) -> bool:
        """Replace the note; return whether it fits. Readers get the one before until this one is complete."""
        content = json.dumps(values).encode()
        if len(content) > NOTE_BYTES:
            return False
        with self._lock:
            self._turn += 1
            side = self._turn & 1
            start = _NOTES + side * NOTE_BYTES
            self._memory[start : start + len(content)] = content
            _U64.pack_into(self._memory, _LENGTHS + side * 8, len(content))
            _U64.pack_into(self._memory, _TURN, self._turn)
        return True

    def close(self) -> None:
        """Unmap the file. It stays on disk."""
        self._memory.close()


class SpoolReader:
    """A spool file being read, while it is written or afterwards."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, width, self._capacity = _HEAD.unpack_from(self._memory, 0)
        if magic != _MAGIC or len(self._memory) < _ROWS + width * self._capacity * 8:
            self._memory.close()
            raise ValueError(f"{path} was not written by a version supported here")
        self._row = struct.Struct(f"<{width}d")
        self._next = 0

    def rows(self) -> list[tuple[float, ...]]:
        """Return the rows written since the last call, except those already overwritten."""
        (count,) = _U64.unpack_from(self._memory, _COUNT)
        found = []
        for serial in range(max(self._next, count - self._capacity), count):
            row = self.row(serial)
            if row is not None:
                found.append(row)
        self._next = count
        return found

    def row(self, serial: int) -> tuple[float, ...] | None:
        """Return one row as it is now; None if it was overwritten."""
        row = self._row.unpack_from(self._memory, _ROWS + serial % self._capacity * self._row.size)
        return row if row[0] == serial else None

    def note(self) -> dict[str, Any]:
        """Return the note; empty if there is none yet, or if it is replaced faster than it can be read."""
        for _ in range(NOTE_TRIES):
            (turn,) = _U64.unpack_from(self._memory, _TURN)
            if not turn:
                break
            side = turn & 1
            (length,) = _U64.unpack_from(self._memory, _LENGTHS + side * 8)
            start = _NOTES + side * NOTE_BYTES
            content = self._memory[start : start + length]
            if _U64.unpack_from(self._memory, _TURN) == (turn,):  # this place was not being written
                note: dict[str, Any] = json.loads(content)
                return note
        return {}

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()
