"""Iterable datasets in worker processes are closed at the end: their `finally` blocks and context managers run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

import stoker


class Closing(IterableDataset[int]):
    """Numbers, and a file for each iterator that was begun and that has ended."""

    def __init__(self, folder: Path, *, length: int = 10_000, kind: str = "generator") -> None:
        self.folder, self.length, self.kind = folder, length, kind
        self.kept: Any = None

    def _read(self) -> Iterator[int]:
        info = get_worker_info()
        name = f"{os.getpid()}-{len(os.listdir(self.folder))}"
        (self.folder / f"begun {name}").touch()
        try:
            yield from range(self.length)
        finally:
            (self.folder / f"ended {name}").write_text(str(info and info.id))

    def __iter__(self) -> Iterator[int]:
        iterator = self._read()
        if self.kind == "held":
            self.kept = iterator  # nobody lets go of it
        return Wrapped(iterator) if self.kind == "object" else iterator


class Wrapped:
    """An iterator that is not a generator, but has one."""

    def __init__(self, iterator: Iterator[int]) -> None:
        self.iterator = iterator

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self.iterator)


def begun_and_ended(folder: Path) -> tuple[set[str], set[str]]:
    names = os.listdir(folder)
    return tuple({name.split()[1] for name in names if name.startswith(kind)} for kind in ("begun", "ended"))  # type: ignore[return-value]


def check_ended(folder: Path, count: int) -> None:
    begun, ended = begun_and_ended(folder)
    assert begun == ended
    assert len(begun) == count


@pytest.mark.parametrize("is_persistent", [False, True], ids=["each epoch", "persistent"])
@pytest.mark.parametrize(
    ("method", "kind", "num_threads"),
    [
        *(("fork", kind, num_threads) for kind in ("generator", "object", "held") for num_threads in (0, 2)),
        ("spawn", "generator", 0),
        ("spawn", "held", 2),
    ],
)
def test_breaking_off_closes_the_stream_in_every_worker(
    method: str, is_persistent: bool, kind: str, num_threads: int, tmp_path: Path
) -> None:
    loader: Any = stoker.DataLoader(
        Closing(tmp_path, kind=kind),
        batch_size=4,
        num_workers=2,
        num_threads=num_threads,
        shard="auto",
        persistent_workers=is_persistent,
        multiprocessing_context=method,
    )
    for step, _ in enumerate(loader):
        if step == 3:
            break
    if is_persistent:
        loader = None  # the workers' end
    check_ended(tmp_path, 2)


def test_closing_an_iterator_closes_the_stream(tmp_path: Path) -> None:
    loader = stoker.DataLoader(Closing(tmp_path), batch_size=4, num_workers=2, shard="auto")
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    iterator.close()
    check_ended(tmp_path, 2)


class Reporting(Closing):
    """Says through a pipe that an iterator has ended."""

    def __init__(self, folder: Path, pipe: int) -> None:
        super().__init__(folder)
        self.pipe = pipe

    def _read(self) -> Iterator[int]:
        try:
            yield from range(self.length)
        finally:
            os.write(self.pipe, b".")


def test_workers_that_stay_close_the_stream_when_the_iteration_is_broken_off(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    loader = stoker.DataLoader(
        Reporting(tmp_path, writing), batch_size=4, num_workers=2, shard="auto", persistent_workers=True
    )
    for _ in range(3):
        got = []
        for step, batch in enumerate(loader):
            got.append(batch.tolist())
            if step == 3:
                break
        assert got == [[4 * step + n for n in range(4)] for step in range(4)]
        assert os.read(reading, 1) + os.read(reading, 1) == b".."  # before the next one begins
    del loader
    os.close(reading)
    os.close(writing)


def test_a_stream_that_is_read_to_its_end_is_closed_once(tmp_path: Path) -> None:
    loader = stoker.DataLoader(
        Closing(tmp_path, length=20), batch_size=4, num_workers=2, shard="auto", persistent_workers=True
    )
    for _ in range(3):
        assert sum(len(batch) for batch in loader) == 20
    del loader
    check_ended(tmp_path, 6)


class Stubborn(Closing):
    """Cannot be closed properly: by an error, or because that never ends."""

    def __init__(self, folder: Path, how: str) -> None:
        super().__init__(folder)
        self.how = how

    def _read(self) -> Iterator[int]:
        try:
            yield from super()._read()
        finally:
            if self.how == "hangs":
                signal.pause()
            raise OSError("the disk is full")


@pytest.mark.parametrize("kind", ["generator", "held"])
def test_an_error_while_a_stream_is_closed_ends_nothing(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = Stubborn(tmp_path, "fails")
    dataset.kind = kind
    loader = stoker.DataLoader(dataset, batch_size=4, num_workers=2, shard="auto", persistent_workers=True)
    for _ in range(2):
        for step, batch in enumerate(loader):
            assert batch.tolist() == [4 * step + n for n in range(4)]
            if step == 3:
                break
    del loader
    check_ended(tmp_path, 4)
    if kind == "held":  # by Python itself otherwise, or by what the test runner has put in its place
        shown = capfd.readouterr().err
        assert shown.count("OSError: the disk is full\nraised while the stream was closed at the end of a worker") == 2


def test_a_stream_whose_end_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engine.processes.worker_requests.STREAM_PATIENCE_SECONDS", 0.2)
    loader = stoker.DataLoader(Stubborn(tmp_path, "hangs"), batch_size=4, num_workers=2, shard="auto")
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    iterator.close()  # and no process is left behind
    check_ended(tmp_path, 2)


PROGRAM = """
import sys
from pathlib import Path
import stoker
from tests.loader.test_stream_ends import Closing

if __name__ == "__main__":
    loader = stoker.DataLoader(
        Closing(Path(sys.argv[1])), batch_size=4, num_workers=2, shard="auto",
        multiprocessing_context=sys.argv[2], persistent_workers=sys.argv[3] == "True",
    )
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    if sys.argv[4] == "break":
        del iterator, loader
        begun, ended = (len(list(Path(sys.argv[1]).glob(f"{kind} *"))) for kind in ("begun", "ended"))
        assert begun == ended == 2
"""


@pytest.mark.parametrize("is_persistent", [False, True], ids=["each epoch", "persistent"])
@pytest.mark.parametrize(
    ("method", "end"), [("fork", "end of the program"), ("forkserver", "break"), ("forkserver", "end of the program")]
)
def test_the_end_of_the_program_closes_the_stream(method: str, end: str, is_persistent: bool, tmp_path: Path) -> None:
    folder = tmp_path / "marks"
    folder.mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.run(
        [sys.executable, program, folder, method, str(is_persistent), end],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.returncode == 0, process.stderr
    check_ended(folder, 2)
