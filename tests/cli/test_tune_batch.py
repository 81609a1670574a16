"""`stoker tune batch`: the table, the files, and errors of the user's step without what is ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stoker.cli.app import app
from stoker.lab.trial.batch_size import BatchTune

pytestmark = pytest.mark.timed

STEPS = """
import time
import numpy as np

def make_step(batch_size):
    return lambda: np.ones(batch_size << 17)  # a megabyte for each sample

def make_wrong(batch_size):
    def step():
        if batch_size == 16:
            raise ValueError("[16] is not my number")
    return step

def make_greedy(batch_size):
    return lambda: np.ones(1 << 40)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(STEPS)
    return tmp_path


def run(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["tune", "batch", *map(str, arguments), "--device", "cpu"], env={"COLUMNS": "100"})
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_the_largest_is_shown_with_what_each_size_achieves(folder: Path) -> None:
    shown = run("steps.py:make_step", "--memory", "200MiB", "--max", "256", "--repeat", "1", "--out", "measured")
    found = BatchTune.load(folder / "measured" / "batch.json")
    assert found.largest in (128, 160)
    assert f"batch_size={found.largest} is the largest that fits into 210 MB of cpu with 5% to spare" in shown
    assert "the largest that fits" in shown
    assert "does not fit" in shown
    assert "error of a size that did not fit: Unable to allocate" in shown
    assert (folder / "measured" / "batch.png").read_bytes().startswith(b"\x89PNG")


def test_everything_is_shown_as_json(folder: Path) -> None:
    found = BatchTune.from_dict(json.loads(run("steps.py:make_step", "--max", "16", "--repeat", "1", "--json")))
    assert found.largest == 16
    assert found.stopped == "sizes above 16 were not tried"


def test_an_error_of_the_step_is_shown_with_its_own_traceback(folder: Path) -> None:
    shown = run("steps.py:make_wrong", code=1)
    assert "error: ValueError: [16] is not my number" in shown
    assert "raised with a batch size of 16" in shown
    assert "steps.py" in shown
    assert "tune_batch" not in shown  # none of our own frames


def test_nothing_that_fits_is_an_error(folder: Path) -> None:
    assert "not even a batch of one sample fits" in run("steps.py:make_greedy", code=1)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("nowhere.py:make_step",), "there is no file nowhere.py"),
        (("steps.py",), "add the name of the function"),
        (("steps.py:make_step", "--memory", "lots"), "must be a memory size, got 'lots'"),
    ],
)
def test_what_cannot_be_tried_is_refused_at_once(folder: Path, arguments: tuple[str, ...], shown: str) -> None:
    output = run(*arguments, code=1)
    assert shown in output
    assert "hint: " in output
