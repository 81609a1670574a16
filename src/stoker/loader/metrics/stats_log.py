"""Stats written to a file while a loader runs: a line of JSON every few seconds."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from stoker.engine.stats import Stats
from stoker.errors import ArgumentError


class StatsLog:
    """Appends lines to a file. Each line is written whole, so that several ranks may share one file."""

    def __init__(self, path: str | Path, *, every: float) -> None:
        if not every > 0:
            raise ArgumentError(
                f"every={every!r} is not a positive number of seconds",
                hint="give the seconds between two lines, such as 10",
            )
        # a script that goes to another folder later still writes here
        self.path, self._every = Path(path).absolute(), every
        with self.path.open("ab"):  # what cannot be written is refused here, and not in the middle of a run
            pass
        self._mend()
        self._due = time.perf_counter() + every
        self._is_broken = False

    def _mend(self) -> None:
        """End the last line, if its process was killed while writing: ours would become a part of it."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return
            file.seek(-1, os.SEEK_END)
            is_cut = file.read() != b"\n"
        if is_cut:
            with self.path.open("ab") as file:
                file.write(b"\n")

    def note(self, now: float, stats: Callable[[], Stats]) -> None:
        """Write a line if it is time for one."""
        if now >= self._due:
            self.write(stats())

    def write(self, stats: Stats) -> None:
        """Write a line. A disk that is full, or whatever else goes wrong, ends the log, with a warning, and not the
        training.
        """
        self._due = time.perf_counter() + self._every
        if self._is_broken:
            return
        try:
            line = (stats.as_json() + "\n").encode()
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.write(descriptor, line) != len(line):
                    raise OSError("only a part of the line could be written")
            finally:
                os.close(descriptor)
        except Exception as error:
            self._is_broken = True
            warnings.warn(f"stats are no longer written to {self.path}: {error}", stacklevel=2)
