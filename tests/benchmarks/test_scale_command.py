"""`python -m benchmarks.scale`: tables, files, and sizes as people write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.scale.__main__ import app
from benchmarks.scale.record import Scale
from stoker.cli.trials import parse_bytes
from stoker.errors import ArgumentError

pytestmark = pytest.mark.timed


def run(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "100"})
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.slow
def test_a_quick_look_prints_a_table_and_writes_numbers_and_a_plot(tmp_path: Path) -> None:
    out = tmp_path / "measured"
    shown = run("--quick", "--over", "samples", "--over", "ranks", "--repeat", "1", "--memory", "100MB", "--out", out)
    assert "10^3-10^9" in shown
    assert "skipped: torch with 10^7 and 10^9 samples" in shown
    assert "every one of up to 1,024 ranks gets 8 samples" in shown
    assert sorted(path.name for path in out.iterdir()) == ["scale.csv", "scale.json", "scale.png"]
    scale = Scale.from_dict(json.loads((out / "scale.json").read_text()))
    assert {curve.axis for curve in scale.curves} == {"samples", "ranks"}
    assert (out / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_measured_or_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not a folder" in run("--out", tmp_path / "file", code=1)
    assert "there is no axis 'epochs'" in run("--over", "epochs", code=1)
    assert "--memory must be a memory size, got 'much'" in run("--memory", "much", code=1)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("2GiB", 2 << 30), ("500 MB", 500_000_000), ("1.5g", 3 << 29), ("4096", 4096), ("64KiB", 1 << 16), ("7b", 7)],
)
def test_sizes_of_memory_are_understood(text: str, num_bytes: int) -> None:
    assert parse_bytes(text, "--memory") == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2 Gibberish", "0", "0.1", "2 GiB more"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="must be a memory size, got .*\nhint: write --memory 2GiB"):
        parse_bytes(text, "--memory")
