"""A small disk that a preparation fills, and commands stopped in the middle of their work: for tests of preparations."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.prepare.corpora import contents


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


def check_full_disk(make: Callable[[Path], Any], disk: Path, size: str, *, whole: Path) -> None:
    """Check that `make` stops cleanly on a disk that is too small, and continues when that is enlarged."""
    with small_disk(disk, size):
        with pytest.raises(OSError, match="No space left on device") as raised:
            make(disk / "out")
        assert raised.value.errno == errno.ENOSPC
        assert "finished pieces are kept" in raised.value.__notes__
        assert any("run the same command again" in note for note in raised.value.__notes__)
        assert not (disk / "out" / "manifest.json").exists()
        subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
        assert make(disk / "out").num_reused > 0
        assert contents(disk / "out") == contents(whole)


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

    def interrupt(self) -> None:
        """Press Ctrl-C, and check that everything ends with a hint."""
        os.killpg(self.process.pid, signal.SIGINT)
        _, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 130
        assert "run the same command again to continue" in errors
        assert "Traceback" not in errors
        assert self.family() == []

    def kill(self) -> None:
        """Kill the command, and check that its workers end, too."""
        family = [os.pidfd_open(pid) for pid in self.family()]
        assert len(family) == 1 + self._num_workers
        self.process.kill()
        for process in family:
            assert select.select([process], [], [], 30)[0], "a worker outlives its command"
            os.close(process)

    def family(self) -> list[int]:
        """Return the living processes of its group."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.process.pid and fields[0] != "Z":
                    found.append(int(entry.name))
        return found
