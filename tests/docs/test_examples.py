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


def test_the_quickstart_fits_on_a_screen() -> None:
    [quickstart] = [path for path in EXAMPLES if path.name == "quickstart.py"]
    assert len(quickstart.read_text().splitlines()) < 40
