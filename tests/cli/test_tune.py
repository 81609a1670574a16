"""`stoker tune`: the arguments to paste, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from stoker.cli.app import app
from stoker.cli.tune import format_verdict
from stoker.lab.trial.tuning import Tuning

pytestmark = pytest.mark.timed

PLAIN, TORCH = "tests.lab.plain_loaders", "tests.lab.torch_loaders"
QUICK = ("--seconds", "0.1", "--repeat", "2", "--prefetch", "2", "--max-workers", "2")


def run(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["tune", *map(str, arguments)], env={"COLUMNS": "140"})
    assert done.exit_code == code, done.output
    return done.output


def test_the_best_arguments_are_printed_as_code_with_what_to_expect(tmp_path: Path) -> None:
    told = run(f"{PLAIN}:long", *QUICK, "--out", tmp_path)
    assert "DataLoader(..., num_workers=2)" in told
    assert "expected time per batch: " in told
    assert "currently (1 worker)" in told
    assert "best" in told
    assert {path.name for path in tmp_path.iterdir()} == {
        "tune.json", "tune.csv", "tune_trials.csv", "tune_processes.csv", "tune.png", "run.json"
    }  # fmt: skip
    tuning = Tuning.from_dict(json.loads((tmp_path / "tune.json").read_text()))
    assert tuning.best == {"num_workers": 2}
    with Image.open(tmp_path / "tune.png") as image:
        assert min(image.size) > 300


def test_with_a_step_its_time_is_told_as_json_too_and_the_word_loader_may_be_written() -> None:
    told = json.loads(run("loader", f"{PLAIN}:long", "--step", f"{PLAIN}:make_step", *QUICK, "--json"))
    assert told["code"].startswith("DataLoader(..., num_workers=")
    assert told["step_seconds"] >= 0.006
    assert told["seconds"]["mean"] >= told["step_seconds"]
    assert told["sweep"]["trials"]
    tuning = Tuning.from_dict(told)
    verdict = str(format_verdict(tuning))
    assert "expected time per step: " in verdict
    assert "waiting for the batch" in verdict


def test_what_cannot_be_tuned_is_told() -> None:
    assert "num_workers=1 could not be set: the function makes no DataLoader" in run(f"{PLAIN}:once", *QUICK, code=1)
    assert "does not work as it is: RuntimeError: no luck with one" in run(f"{PLAIN}:unlucky", *QUICK, code=1)
    assert "hint: did you mean `long`" in run(f"{PLAIN}:lnog", *QUICK, code=1)
    told = run(f"{TORCH}:make_dataset", *QUICK, code=1)
    assert (
        "make_dataset does not work as it is: make_dataset() returned a dataset (Sleepy), which yields samples" in told
    )
    assert "hint: return a loader of it: `DataLoader(dataset, batch_size=32)`" in told


def test_the_batch_size_has_a_command_of_its_own() -> None:
    told = run("--help")
    assert "MODULE:FUNCTION | batch MODULE:FUNCTION" in told
    assert "batch" in run("batch", "--help")
