"""Ctrl-C in the middle of a measurement: results so far are printed and written, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer import Exit

from benchmarks.scale.record import Scale
from stoker.cli.app import INTERRUPTED
from stoker.cli.trials import File, conclude
from stoker.lab.trial.batch_size import BatchTune
from stoker.lab.trial.train_record import CACHED, REAL, RESIDENT, TrainBench

HERE = "tests.cli.interrupting"
SENTENCE = "- interrupted: results so far"

SCALE = ("scale", "--over", "samples", "--quick", "--repeat", "1")
TRAIN = ("bench", "train", f"{HERE}:make_step", "--seconds", "0.05", "--repeat", "20", "--device", "cpu")
BATCH = ("tune", "batch", f"{HERE}:make_batch_step", "--device", "cpu", "--max", "256")


class Ended(NamedTuple):
    """What a program that was interrupted has left."""

    printed: str
    files: set[str]


def interrupted(*arguments: str | Path, num_done: int, out: Path | None = None, **env: str) -> Ended:
    """Run the command line in a session of its own; Ctrl-C comes when so much is done."""
    where = [] if out is None else ["--out", str(out)]
    child = subprocess.Popen(
        [sys.executable, "-c", f"from {HERE} import begin; begin()", *map(str, arguments), *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "100", "NUM_DONE": str(num_done), **env},
    )
    printed, errors = child.communicate(timeout=100)
    assert child.returncode == INTERRUPTED, (printed, errors)
    assert "Traceback" not in printed + errors
    assert not of_session(child.pid), "its processes are still there"
    return Ended(printed, set() if out is None else {path.name for path in out.iterdir()})


def of_session(session: int) -> list[int]:
    found = []
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(stat[3]) == session and stat[0] != "Z":
            found.append(pid)
    return found


def test_benchmarks_scale_leaves_the_places_that_it_has_measured(tmp_path: Path) -> None:
    ended = interrupted(*SCALE, num_done=4, out=tmp_path)
    assert SENTENCE in ended.printed
    assert "first batch" in ended.printed and "slope" in ended.printed
    assert ended.files == {"scale.json", "scale.csv", "scale.png"}
    found = Scale.from_dict(json.loads((tmp_path / "scale.json").read_text()))
    assert found.is_interrupted
    places = {point.x for curve in found.curves for point in curve.points if point.values}
    assert places and max(places) <= 10**5, "four cases reach the second place at the most"
    assert not any(point.skipped for curve in found.curves for point in curve.points)


@pytest.mark.parametrize("loader", ["our_loader", "torch_loader"])
def test_bench_train_leaves_the_rounds_that_it_has_measured(loader: str, tmp_path: Path) -> None:
    # in each round of the real loader some batches pass that may have been made ahead, and 8 are timed
    ended = interrupted(*TRAIN, "--loader", f"{HERE}:{loader}", num_done=60, out=tmp_path)
    assert SENTENCE in ended.printed
    assert "real loader" in ended.printed and "where a step's time goes" in ended.printed
    assert ended.files == {"train.json", "train.png"}, "without a run.json, for which it would go on"
    found = TrainBench.load(tmp_path / "train.json")
    assert found.is_interrupted
    assert [way.name for way in found.ways] == [RESIDENT, CACHED, REAL]
    assert all(1 <= len(way.step_seconds) < 8 for way in found.ways)


def test_bench_train_leaves_the_ways_that_had_their_turn(tmp_path: Path) -> None:
    ended = interrupted(*TRAIN, "--loader", f"{HERE}:our_loader", num_done=20, out=tmp_path)
    assert SENTENCE in ended.printed
    assert "batches on the device" in ended.printed and "real loader" not in ended.printed
    assert ended.files == {"train.json"}, "what makes up a step is not known"
    found = TrainBench.load(tmp_path / "train.json")
    assert [way.name for way in found.ways] == [RESIDENT, CACHED]


def test_tune_batch_leaves_the_sizes_that_it_has_tried(tmp_path: Path) -> None:
    ended = interrupted(*BATCH, num_done=32, out=tmp_path)
    assert SENTENCE in ended.printed
    assert "batch_size=32 is the largest found to fit" in ended.printed
    assert "verified" not in ended.printed
    assert "larger sizes may fit: the search was interrupted" in ended.printed
    assert ended.files == {"batch.json", "batch.png"}
    found = BatchTune.load(tmp_path / "batch.json")
    assert (found.largest, found.num_verified, found.is_interrupted) == (32, 0, True)
    assert [trial.batch_size for trial in found.trials] == [8, 16, 32]


def test_tune_batch_leaves_a_result_that_was_verified(tmp_path: Path) -> None:
    target = f"{HERE}:make_batch_step_that_lasts"
    out = tmp_path / "out"
    ended = interrupted(
        "tune", "batch", target, "--device", "cpu", "--max", "16",
        num_done=2, out=out, COUNTED=str(tmp_path / "counted"),
    )  # fmt: skip
    assert SENTENCE in ended.printed
    found = BatchTune.load(out / "batch.json")
    assert (found.largest, found.num_verified, found.is_interrupted) == (16, 8, True)
    assert found.stopped == "sizes above 16 were not tried"


def test_while_files_are_written_those_that_are_there_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def files() -> Iterator[File]:
        yield "first.txt", lambda path: path.write_text("whole")
        raise KeyboardInterrupt  # as while a run is recorded, or a plot is drawn

    with pytest.raises(Exit) as caught:
        conclude(Scale(), lambda _: [], files(), out=tmp_path, is_json=False, is_interrupted=False)
    assert caught.value.exit_code == INTERRUPTED
    assert (tmp_path / "first.txt").read_text() == "whole"
    assert capsys.readouterr().out.splitlines()[-1] == "- interrupted: only the files above were written"


def test_interrupted_results_are_printed_as_json_too() -> None:
    ended = interrupted(*BATCH, "--json", num_done=8)
    found = BatchTune.from_dict(json.loads(ended.printed))
    assert (found.largest, found.is_interrupted) == (8, True)


@pytest.mark.parametrize(
    "arguments",
    [SCALE, (*TRAIN, "--loader", f"{HERE}:our_loader"), BATCH],
    ids=["scale", "train", "batch"],
)
def test_before_anything_is_measured_there_is_nothing_to_leave(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert interrupted(*arguments, num_done=0, out=tmp_path) == Ended("", set())
