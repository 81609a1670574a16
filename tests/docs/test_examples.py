"""Every example runs as it is, says something, and ends well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert "quickstart.py" in {path.name for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_as_it_is(path: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    command = [sys.executable, "-W", "error", str(path)]
    # torch's optimizers make a folder for what they might compile; that is not the example's doing
    kept = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("inductor"))}
    environment = {**os.environ, **kept, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []  # nothing is left lying about


def faces(*arguments: str, folder: Path) -> str:
    """Run the exercise."""
    [path] = [path for path in EXAMPLES if path.name == "faces.py"]
    command = [sys.executable, "-W", "error", str(path), *arguments]
    environment = {**os.environ, "TMPDIR": str(folder), "MPLCONFIGDIR": str(folder)}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_exercise_shows_a_batch(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert "faces_batch.png" in faces("-visualize_batch", "--batch_size", "8", "--out", str(out), folder=tmp_path)
    assert [path.name for path in out.iterdir()] == ["faces_batch.png"]


def test_the_exercise_times_a_number_of_workers(tmp_path: Path) -> None:
    printed = faces(
        "-get_timing", "-num_workers", "1", "-batches_to_check", "2", "--batch_size", "4", folder=tmp_path
    ).splitlines()
    assert [line.split(",")[0] for line in printed] == ["1 workers", "1 workers"]
    assert all("ms per batch, standard deviation" in line for line in printed)


@pytest.mark.slow
def test_the_exercise_draws_the_plot_over_workers(tmp_path: Path) -> None:
    printed = faces("-get_timing", "-batches_to_check", "2", "--batch_size", "4", "--out", ".", folder=tmp_path)
    assert "0 workers" in printed
    assert "1 workers" in printed
    assert (tmp_path / "faces_timing.png").stat().st_size > 10_000


def test_the_quickstart_fits_on_a_screen() -> None:
    [quickstart] = [path for path in EXAMPLES if path.name == "quickstart.py"]
    assert len(quickstart.read_text().splitlines()) < 40
