"""Read new records from the end of a file that is being written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stoker.lab.watch.run import FORMAT, Run, Stats

MOST_BYTES = 4 << 20
"""Bytes read from the end of a file at first: at least a thousand lines, hours of a run."""


class Tail:
    """Reads the new records of a file at each call. The file may appear later, grow, or be replaced."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.num_bad = 0
        """Lines that are not records."""
        self._at = 0
        self._identity: tuple[int, int] | None = None
        self._is_cut = False

    @property
    def changed(self) -> float | None:
        """Time of the last write, in seconds since 1970; None if the file does not exist."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return None

    def read(self) -> list[Stats]:
        """Return the records added since the last call, in order.

        An incomplete last line is left for the next call, and a missing file has no records.
        """
        try:
            with self.path.open("rb") as file:
                return self._new(file)
        except FileNotFoundError:
            self._identity = None
            return []

    def _new(self, file: Any) -> list[Stats]:
        size = file.seek(0, 2)
        identity = _identity(file)
        if identity != self._identity or size < self._at:  # the file was replaced or truncated
            self._identity, self._at = identity, max(0, size - MOST_BYTES)
            self._is_cut = self._at > 0
        file.seek(self._at)
        text = file.read(size - self._at)
        whole, newline, rest = text.rpartition(b"\n")
        if self._at == 0 and not newline and _is_run(rest):  # a run record: one line without a newline
            whole, newline, rest = rest, b"", b""
        self._at += len(whole) + len(newline)
        lines = whole.split(b"\n")
        if self._is_cut and newline:
            lines, self._is_cut = lines[1:], False  # the first line is incomplete
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
    """Return whether a file is a log of counters, judging by its first line."""
    with Path(path).open("rb") as file:
        first = file.readline(MOST_BYTES)
    try:
        values = json.loads(first)
    except ValueError:  # not a record, or an incomplete one
        return False
    return isinstance(values, dict) and "num_batches" in values


def _identity(file: Any) -> tuple[int, int]:
    import os

    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def _is_run(text: bytes) -> bool:
    if not text.startswith(b"{") or FORMAT.encode() not in text:
        return False
    try:
        json.loads(text)
    except ValueError:  # still being written
        return False
    return True
