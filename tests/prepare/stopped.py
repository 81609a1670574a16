"""A small disk, and commands that are stopped in the middle of their work, for tests of preparations."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


class StoppedCommand:
    """`stoker prepare`, started by a script that makes each worker print "working" and then wait for the gate."""

    def __init__(self, script: str, arguments: Sequence[object], *, out: Path, gate: Path, num_workers: int) -> None:
        os.mkfifo(gate)
        given = ["prepare", *arguments, "--out", out, "--workers", num_workers]
        self._num_workers = num_workers
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"GATE": str(gate), "STORE": str(out)},
        )

    def __enter__(self) -> StoppedCommand:
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline() for _ in range(self._num_workers)]
        if lines != ["working\n"] * self._num_workers:
            os.killpg(self.process.pid, signal.SIGKILL)
            pytest.fail(f"it printed {lines} {self.process.communicate()}")
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def family(self) -> list[int]:
        """Return the living processes of its group."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.process.pid and fields[0] != "Z":
                    found.append(int(entry.name))
        return found
