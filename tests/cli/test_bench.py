"""`stoker bench loader` and `stoker bench compare`: what is printed, what is written, and clear words otherwise."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from stoker.cli.app import INTERRUPTED, app
from stoker.cli.trials import parse_numbers
from stoker.errors import ArgumentError
from stoker.lab.trial.sweep import Sweep
from stoker.lab.watch.run import Run

pytestmark = pytest.mark.timed

PLAIN, TORCH = "tests.lab.plain_loaders", "tests.lab.torch_loaders"
QUICK = ("--seconds", "0.08", "--repeat", "2")


def run(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["bench", *map(str, arguments)], env={"COLUMNS": "140"})
    assert done.exit_code == code, done.output
    return done.output


def test_a_loader_is_measured_and_everything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "measured" / "here"
    shown = run("loader", f"{PLAIN}:long", "--workers", "1,2", "--batch-size", "4", *QUICK, "--out", out)
    assert "plain_loaders:long: 2 x 0.08 s each, interleaved (mean ± deviation)" in shown
    assert "samples/s" in shown and " ± " in shown
    assert "memory grows by" in shown
    assert {path.name for path in out.iterdir()} == {
        "loader.json", "loader.csv", "loader_trials.csv", "loader_processes.csv", "run.json",
        "throughput.png", "memory.png", "startup.png", "quantiles.png",
    }  # fmt: skip
    assert all(f"wrote {path}" in shown for path in out.iterdir())
    sweep = Sweep.load(out / "loader.json")
    assert sweep.configs == [{"num_workers": number, "batch_size": 4} for number in (1, 2)]
    assert len(sweep.trials) == 4
    rows = list(csv.DictReader((out / "loader.csv").read_text().splitlines()))
    assert [row["num_workers"] for row in rows] == ["1", "2"]
    assert float(rows[0]["samples_per_second"]) == pytest.approx(sweep.results()[0].mean("samples_per_second"))
    assert len(list(csv.DictReader((out / "loader_trials.csv").read_text().splitlines()))) == 4
    processes = list(csv.DictReader((out / "loader_processes.csv").read_text().splitlines()))
    assert [row["process"] for row in processes] == ["trainer"] * 4
    for picture in out.glob("*.png"):
        with Image.open(picture) as image:
            image.load()
            assert min(image.size) > 150
    recorded = Run.load(out / "run.json")
    assert recorded.loaders[0].num_batches
    assert recorded.moments


def test_a_file_and_a_step_are_named_too(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def make_loader(): return [[1, 2, 3]] * 500\ndef make_step(): return len\n")
    shown = run("loader", f"{file}:make_loader", "--step", f"{file}:make_step", "--batches", "50", "--repeat", "1")
    assert "train.py:make_loader: 50 batches each" in shown
    assert "current settings" in shown
    assert "/step" in shown


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """And not with `:one:` and `[b]` read as a picture and as bold."""
    folder = tmp_path / "a [b] ü"
    folder.mkdir()
    (folder / "one.py").write_text("def one(): return [[1, 2, 3]] * 500\n")
    shown = run("loader", f"{folder}/one.py:one", *QUICK, "--out", folder / "[red]out")
    assert "one.py:one: 2 x 0.08 s each" in shown
    assert f"wrote {folder}/[red]out/loader.json" in shown


def test_what_was_measured_is_shown_also_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "loader_trials.csv").mkdir()
    shown = run("loader", f"{PLAIN}:long", "--workers", "1", *QUICK, "--out", tmp_path, code=1)
    assert "samples/s" in shown
    assert f"wrote {tmp_path}/loader.csv" in shown
    assert f"error: Is a directory: {tmp_path}/loader_trials.csv" in shown


def test_everything_can_be_had_as_json() -> None:
    shown = json.loads(run("loader", f"{PLAIN}:long", "--workers", "1", "--seconds", "0.08", "--repeat", "1", "--json"))
    assert shown["target"] == f"{PLAIN}:long"
    assert shown["trials"][0]["outcome"] == "ok"


def test_what_fails_is_a_row_and_its_traceback_stands_below() -> None:
    shown = run("loader", f"{PLAIN}:failing", "--workers", "0-1", *QUICK)
    assert "1 worker: failed: RuntimeError: no luck with one" in shown
    assert "in failing" in shown
    assert "0  " in shown


def test_where_nothing_works_the_exit_code_says_so() -> None:
    shown = run("loader", f"{PLAIN}:failing_later", *QUICK, code=1)
    assert "failed: OSError: [Errno 5] the disk is gone: 'data.bin'" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["loader", f"{PLAIN}:lnog"], "error: tests.lab.plain_loaders has no 'lnog'\nhint: did you mean `long`"),
        (["loader", "nowhere.py:make"], "error: there is no file nowhere.py"),
        (["loader", "train"], "error: 'train' does not name a function that makes a loader"),
        (
            ["loader", f"{PLAIN}:long", "--workers", "two"],
            "error: --workers must be a list of numbers, got 'two'\nhint: write",
        ),
        (["loader", f"{PLAIN}:long", "--batch-size", "0"], "error: batch_size must be at least 1, got 0"),
        (
            ["loader", f"{PLAIN}:long", "--timeout", "1"],
            "error: the timeout must be longer than the measurement of 3 s, got 1 s",
        ),
        (["loader", f"{PLAIN}:long", "--out", __file__], "is not a folder"),
        (["loader", f"{PLAIN}:long", "--step", "step"], "error: 'step' does not name a function that makes a step"),
        (["compare", "dataset"], "error: 'dataset' does not name a function that makes a dataset"),
        (
            ["compare", f"{TORCH}:make_dataset", "--only", "x"],
            "error: there is no loader 'x'\nhint: choose among 'torch'",
        ),
    ],
)
def test_bad_arguments_are_told_without_a_traceback(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 1
    assert message in done.stderr.replace("\n\n", "\n"), done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("width", ["30", "60", "100"])
def test_numbers_are_whole_on_terminals_of_any_width(width: str) -> None:
    arguments = ["bench", "loader", f"{PLAIN}:long", "--workers", "1,2", "--batch-size", "4,8", *QUICK]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": width})
    assert done.exit_code == 0, done.output
    assert "…" not in done.output
    assert len(re.findall(r"^ +[12] +[48] +\d", done.output, re.MULTILINE)) == 4
    assert not done.stderr, "nothing is said of progress where nobody looks"


def test_a_step_of_another_shape_is_shown_before_anything_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def sized(batch_size): return lambda: None\ndef alone(): return lambda: None\n")
    shown = run("loader", f"{PLAIN}:long", "--step", f"{file}:sized", *QUICK, code=1)
    assert "error: sized() needs an argument, such as a batch size, and here a loader gives the batches" in shown
    assert "hint: write `def make_step(): ...; return step`, with `def step(batch): ...`" in shown
    shown = run("loader", f"{PLAIN}:long", "--step", f"{file}:alone", *QUICK, code=1)
    assert "error: alone() returned a step that cannot be called with a batch" in shown


def test_a_dataset_is_no_loader_and_a_loader_no_dataset() -> None:
    shown = run("loader", f"{TORCH}:make_dataset", *QUICK, code=1)
    assert "failed: make_dataset() returned a dataset (Sleepy), which yields samples, not batches" in shown
    assert "hint: return a loader of it: `DataLoader(dataset, batch_size=32)`" in shown
    shown = run("compare", f"{TORCH}:unmodified", "--workers", "0", "--only", "stoker", *QUICK, code=1)
    assert "torch; stoker: failed: unmodified() returned a DataLoader" in shown
    assert "hint: name a function that returns the dataset" in shown
    shown = run("compare", f"{PLAIN}:nothing", "--workers", "0", "--only", "torch", *QUICK, code=1)
    assert "failed: nothing() returned None, which has no samples" in shown
    assert "Traceback" not in shown


def test_ctrl_c_shows_what_there_is() -> None:
    command = [sys.executable, "-m", "stoker", "bench", "loader", f"{PLAIN}:interrupting", "--workers", "1,2,3", *QUICK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=None)
    assert done.returncode == INTERRUPTED, done.stderr
    assert "interrupted: results so far" in done.stdout
    assert "samples/s" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_loaders_are_compared_on_a_dataset(tmp_path: Path) -> None:
    shown = run(
        "compare", f"{TORCH}:make_dataset", "--workers", "0", "--batch-size", "4", "--only", "stoker",
        "--seconds", "0.08", "--repeat", "1", "--out", tmp_path,
    )  # fmt: skip
    assert "x torch" in shown
    assert {path.name for path in tmp_path.iterdir()} == {
        "compare.json", "compare.csv", "compare_trials.csv", "compare_processes.csv", "compare.png"
    }  # fmt: skip
    assert [config["contender"] for config in Sweep.load(tmp_path / "compare.json").configs] == ["torch", "stoker"]


def test_lists_of_numbers_are_read() -> None:
    assert parse_numbers("0,1,2,4", "--workers") == [0, 1, 2, 4]
    assert parse_numbers("0-3, 8,8", "--workers") == [0, 1, 2, 3, 8]
    assert parse_numbers(None, "--workers") is None
    for text in ("", "a", "1,", "-1", "3-1", "1-"):
        with pytest.raises(ArgumentError, match="must be a list of numbers"):
            parse_numbers(text, "--workers")


@pytest.mark.parametrize(
    "verb", [["bench", "loader"], ["bench", "compare"], ["tune"], ["tune", "loader"]], ids=" ".join
)
def test_help_has_an_example_and_imports_nothing_heavy(verb: list[str]) -> None:
    code = (
        "import sys\nfrom stoker.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    print('\\nimported:', [one for one in ('torch', 'numpy', 'matplotlib') if one in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *verb, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"Example: stoker {verb[0]}" in done.stdout
    assert done.stdout.splitlines()[-1] == "imported: []"
