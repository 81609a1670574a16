"""`stoker bench train`: a step and a loader are found, timed, told, drawn and recorded; what is no step is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stoker.cli.app import app
from stoker.lab.trial.train_record import TrainBench
from stoker.lab.watch.run import Run

pytestmark = pytest.mark.timed

MODULE = """
import time

import torch
from torch.utils.data import DataLoader


class Slow:
    def __len__(self):
        return 1000

    def __getitem__(self, position):
        time.sleep(0.002)
        return torch.zeros(8)


def make_loader():
    return DataLoader(Slow(), 5)


def step(batch):
    assert batch.shape == (5, 8)
    time.sleep(0.001)


def make_step():
    return step


def make_both():
    return make_loader(), step


def make_alone():
    return [1, 2, 3]


def make_nothing():
    pass


def make_broken():
    def broken(batch):
        raise ZeroDivisionError("in the step")

    return broken


def other_loader(shape=(5, 8)):
    return [torch.zeros(*shape)] * 100
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "stalling.py").write_text(MODULE)
    (tmp_path / "lonely.py").write_text(
        "def make_step():\n    return lambda batch: None\n"
        "def make_sized_step(batch_size):\n    return lambda: None\n"
        "def make_own():\n    return lambda: None\n"
    )
    yield tmp_path
    for name in ("stalling", "lonely"):
        sys.modules.pop(name, None)


def run(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["bench", "train", *map(str, arguments)], env={"COLUMNS": "100"})
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


QUICK = ("--seconds", "0.1", "--repeat", "2")


def test_stalls_are_told_drawn_and_recorded(folder: Path) -> None:
    told = run("stalling.py:make_step", *QUICK, "--gpus", "8", "--out", "measured")
    assert "cached batches, loader" in told
    assert "fetch stall: storage" in told
    assert "hours per day of 8 GPUs" in told
    out = folder / "measured"
    assert sorted(path.name for path in out.iterdir()) == ["run.json", "train.json", "train.png"]
    found = TrainBench.load(out / "train.json")
    assert found.num_gpus == 8
    assert found.target == "stalling.py:make_step"
    assert found.num_samples == 5
    fetch = next(part for part in found.parts() if part.name == "fetch")
    assert 0.004 < fetch.seconds < 0.04  # 10 ms a batch
    assert Run.load(out / "run.json").loaders[0].num_batches > 0
    assert (out / "train.png").read_bytes().startswith(b"\x89PNG")


def test_a_pair_brings_its_loader_and_another_may_be_named(folder: Path) -> None:
    found = TrainBench.from_dict(json.loads(run("stalling:make_both", *QUICK, "--json")))
    assert found.kind == "torch"
    found = TrainBench.from_dict(
        json.loads(run("stalling:make_both", *QUICK, "--json", "--loader", "stalling:other_loader"))
    )
    assert found.kind == "iterable"
    found = TrainBench.from_dict(
        json.loads(run("stalling:make_step", *QUICK, "--json", "--loader", "stalling:other_loader"))
    )
    assert found.kind == "iterable"


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("stalling:make_alone", "returned a list of 3, expected (loader, step)"),
        ("stalling:make_nothing", "returned None, expected a step"),
        ("stalling:make_stap", "did you mean `make_step`"),
        ("lonely.py:make_step", "lonely.py:make_loader does not exist"),
        ("lonely.py:make_sized_step", "make_sized_step() needs an argument, such as a batch size, and here a loader"),
        ("lonely.py:make_own", "make_own() returned a step that cannot be called with a batch"),
        ("nowhere.py:make_step", "there is no file nowhere.py"),
    ],
)
def test_what_is_no_step_is_refused_with_a_hint(folder: Path, target: str, told: str) -> None:
    output = run(target, code=1)
    assert told in output
    assert "hint: " in output


def test_an_error_of_the_users_own_is_raised_as_it_is_on_request(folder: Path) -> None:
    done = CliRunner().invoke(app, ["--debug", "bench", "train", "stalling:make_broken"])
    assert isinstance(done.exception, ZeroDivisionError)
    done = CliRunner().invoke(app, ["bench", "train", "stalling:make_broken"])
    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.output


def test_an_error_of_the_step_is_told_from_the_users_own_line_on(folder: Path) -> None:
    (folder / "failing.py").write_text(
        "def make_step():\n    return [[1, 2]] * 8, step\n\n\ndef step(batch):\n    raise KeyError('no such field')\n"
    )
    command = [sys.executable, "-m", "stoker", "bench", "train", "failing.py:make_step", *QUICK]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "failing.py" in done.stderr and "KeyError: 'no such field'" in done.stderr
    assert "typer" not in done.stderr and "train_bench.py" not in done.stderr
    debugged = subprocess.run(
        [*command[:3], "--debug", *command[3:]], cwd=folder, capture_output=True, text=True, check=False
    )
    assert "train_bench.py" in debugged.stderr


@pytest.mark.parametrize(
    ("raised", "num_workers"), [("KeyError('no such field')", 1), ("OSError(2, 'gone', 'x.pt')", 0)]
)
def test_so_are_errors_of_a_worker_and_of_files(folder: Path, raised: str, num_workers: int) -> None:
    (folder / "failing.py").write_text(
        "import stoker\n\n\nclass Bad(list):\n    def __getitem__(self, position):\n"
        f"        raise {raised}\n\n\ndef make_step():\n"
        f"    return stoker.DataLoader(Bad([1] * 8), num_workers={num_workers}), print\n"
    )
    command = [sys.executable, "-m", "stoker", "bench", "train", "failing.py:make_step", *QUICK]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "failing.py" in done.stderr and raised.partition("(")[0].replace("OSError", "FileNotFoundError") in done.stderr
    )
    assert "typer" not in done.stderr
