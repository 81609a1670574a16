"""Faults for real: hangs, Ctrl-C, iterators dropped half-way, in every engine. Nothing is left, nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.errors import WorkerStuck
from tests.loader.datasets import Numbers, plain


class Sleepy(Numbers):
    """Takes a while."""

    def __getitem__(self, position: int) -> int:
        time.sleep(0.02)
        return position


class Hanging(Numbers):
    """Hangs at one sample, longer than anyone waits."""

    def __getitem__(self, position: int) -> int:
        if position == 5:
            time.sleep(1.5)
        return position


def test_a_hang_in_a_thread_shows_where() -> None:
    loader = stoker.DataLoader(Hanging(12), batch_size=4, num_threads=2, timeout=0.3)
    iterator = iter(loader)
    assert plain(next(iterator)) == [0, 1, 2, 3]
    with pytest.raises(WorkerStuck) as caught:
        next(iterator)
    assert "time.sleep(1.5)" in str(caught.value)
    assert loader.state_dict()["step"] == 1
    time.sleep(1.5)
    assert plain(next(iterator)) == [4, 5, 6, 7]  # it was only slow, and nothing is lost
    iterator.close()
    del caught


def test_a_hang_in_a_worker_is_an_error() -> None:
    loader = stoker.DataLoader(Hanging(12), batch_size=4, num_workers=1, timeout=0.5)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(WorkerStuck, match=r"no batch came within timeout=0.5 s"):
        next(iterator)
    assert loader.state_dict()["step"] == 1
    time.sleep(1.0)
    assert plain(next(iterator)) == [4, 5, 6, 7]  # it was only slow, and nothing is lost
    iterator.close()


@pytest.mark.parametrize("engine", [{}, {"num_threads": 3}, {"num_workers": 2}], ids=["inline", "threads", "workers"])
def test_an_iterator_dropped_half_way_leaves_nothing(engine: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Sleepy(100), batch_size=2, **engine)
    for number, _ in enumerate(loader):
        if number == 2:
            break
    iterator = iter(loader)
    next(iterator)
    del iterator


RUN = """
import sys, time, stoker
from torch.utils.data import Dataset
class Slow(Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, position):
        time.sleep(0.01)
        return position
if __name__ == "__main__":
    for number, batch in enumerate(stoker.DataLoader(Slow(), batch_size=2, {engine})):
        if number == 2: print("ready", flush=True)
"""


def family(pid: int) -> list[int]:
    """Return the process and its descendants."""
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return [pid, *(member for child in children for member in family(child))]


@pytest.mark.parametrize("engine", ["num_threads=3", "num_workers=2", "num_workers=2, persistent_workers=True"])
def test_ctrl_c_in_a_terminal_ends_every_process(engine: str, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN.format(engine=engine))
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    members = family(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    deadline = time.monotonic() + 15
    while any(Path(f"/proc/{pid}").exists() for pid in members):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.05)


def test_a_killed_trainer_leaves_no_worker(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN.format(engine="num_workers=2"))
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    members = family(process.pid)
    assert len(members) >= 3
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in members):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.05)
