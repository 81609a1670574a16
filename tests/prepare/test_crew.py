from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import WorkerDied
from stoker.prepare.worker_pool import Cell, WorkerPool


def described(job: Any) -> str:
    return f"job {job}"


def doubled(job: int, cell: Cell) -> int:
    cell[0] = job
    return 2 * job


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_every_job_is_done_once(num_workers: int) -> None:
    with WorkerPool(doubled, num_workers=num_workers, describe=described) as crew:
        assert sorted(crew.results(range(20))) == [(number, 2 * number) for number in range(20)]


def failing(job: int, _: Cell) -> int:
    if job == 3:
        raise OSError(28, "No space left on device", "file")
    return job


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_a_job_is_raised_with_its_fields(num_workers: int) -> None:
    with WorkerPool(failing, num_workers=num_workers, describe=described) as crew:
        with pytest.raises(OSError, match="No space left on device") as raised:
            list(crew.results(range(10)))
        assert (raised.value.errno, raised.value.filename) == (28, "file")


class Deadly:
    """Kills its worker once over each job, or always over one."""

    def __init__(self, folder: Path, always: int | None = None) -> None:
        self.folder, self.always = folder, always

    def __call__(self, job: int, _: Cell) -> int:
        mark = self.folder / str(job)
        if job == self.always or (self.always is None and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return job


def test_a_job_whose_worker_is_killed_is_done_by_another(tmp_path: Path) -> None:
    with WorkerPool(Deadly(tmp_path), num_workers=2, describe=described) as crew:
        assert sorted(crew.results(range(5))) == [(number, number) for number in range(5)]


def test_a_job_that_kills_three_workers_is_named(tmp_path: Path) -> None:
    told = "3 worker processes died in a row at job 2: SIGKILL, SIGKILL, SIGKILL"
    crew = WorkerPool(Deadly(tmp_path, always=2), num_workers=2, describe=described)
    with crew, pytest.raises(WorkerDied, match=told):
        list(crew.results(range(5)))


def begin_badly() -> None:
    os._exit(3)


def test_workers_that_cannot_start_are_an_error() -> None:
    crew = WorkerPool(doubled, num_workers=2, describe=described, begin=begin_badly)
    with crew, pytest.raises(WorkerDied, match="3 worker processes died in a row at start-up: exit code 3"):
        list(crew.results(range(5)))


def test_jobs_in_work_can_be_watched(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    seen: list[list[int]] = []

    def waiting(_: int, cell: Cell) -> int:
        cell[:] = (1, 2, 3)
        (tmp_path / "go").read_text()
        return 0

    def watch(counts: list[int]) -> None:
        is_first = counts == [1, 2, 3] and counts not in seen
        seen.append(counts)
        if is_first:
            (tmp_path / "go").write_text("go")

    with WorkerPool(waiting, num_workers=1, describe=described, watch=watch) as crew:
        assert list(crew.results([5])) == [(0, 0)]
    assert [1, 2, 3] in seen
