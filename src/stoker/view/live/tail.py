"""The records at the end of a file that somebody is writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stoker.bench.run import FORMAT, Run, Stats

MOST_BYTES = 4 << 20
"""So much of the end of a file is read at first: a thousand lines or more, which is hours of a run."""


class Tail:
    """The new records of a file, each time it is asked. The file may come later, grow, and begin anew."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.num_bad = 0
        """Lines that are no record."""
        self._at = 0
        self._identity: tuple[int, int] | None = None
        self._is_cut = False

    @property
    def changed(self) -> float | None:
        """When the file was last written to, in seconds since 1970; None if it is not there."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return None

    def read(self) -> list[Stats]:
        """Return the records that are new since the last time, in order.

        A line that is still being written is left for the next time, and a file that is not there holds nothing.
        """
        try:
            with self.path.open("rb") as file:
                return self._new(file)
        except FileNotFoundError:
            self._identity = None
            return []

    def _new(self, file: Any) -> list[Stats]:
        told = file.seek(0, 2)
        identity = _identity(file)
        if identity != self._identity or told < self._at:  # another file of that name, or the same one emptied
            self._identity, self._at = identity, max(0, told - MOST_BYTES)
            self._is_cut = self._at > 0
        file.seek(self._at)
        text = file.read(told - self._at)
        whole, newline, rest = text.rpartition(b"\n")
        if self._at == 0 and not newline and _is_run(rest):  # a record of a whole run, which is one line without an end
            whole, newline, rest = rest, b"", b""
        self._at += len(whole) + len(newline)
        lines = whole.split(b"\n")
        if self._is_cut and newline:
            lines, self._is_cut = lines[1:], False  # its beginning was not read
        return [record for each in lines if each.strip() for record in self._records(each)]

    def _records(self, line: bytes) -> list[Stats]:
        try:
            values = json.loads(line)
            if isinstance(values, dict) and values.get("format") == FORMAT:
                return Run.from_dict(values).loaders
            if isinstance(values, dict) and "num_batches" in values:
                return [Stats.from_dict(values)]
        except (ValueError, TypeError, AttributeError, KeyError):
            pass
        self.num_bad += 1
        return []


def is_log(path: str | Path) -> bool:
    """Whether a file holds counters line by line, as far as its first line tells."""
    with Path(path).open("rb") as file:
        first = file.readline(MOST_BYTES)
    try:
        values = json.loads(first)
    except ValueError:  # no record, or half of one
        return False
    return isinstance(values, dict) and "num_batches" in values


def _identity(file: Any) -> tuple[int, int]:
    import os

    told = os.fstat(file.fileno())
    return told.st_dev, told.st_ino


def _is_run(text: bytes) -> bool:
    if not text.startswith(b"{") or FORMAT.encode() not in text:
        return False
    try:
        json.loads(text)
    except ValueError:  # still being written
        return False
    return True
