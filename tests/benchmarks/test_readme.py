"""The benchmark that the README shows runs as it is, and leaves a record and a plot; so does the block on growth."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from benchmarks.report import Setting, write

ROOT = Path(__file__).parents[2]
README, SCALE = ROOT / "benchmarks" / "README.md", ROOT / "docs" / "guides" / "scale.md"


def test_the_benchmark_in_the_readme_runs(tmp_path: Path) -> None:
    mpl.use("Agg")
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    module: dict[str, Any] = {}
    exec(code, module)
    report = module["run"](Setting(is_quick=True))
    write(report, tmp_path)
    saved = json.loads((tmp_path / "columns.json").read_text())
    assert [record["contender"] for record in saved["records"]] == ["NumPy", "torch"]
    assert saved["machine"]["cores"] >= 1
    assert (tmp_path / "columns.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timed
def test_the_block_on_growth_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"```python\n(.*?)```", SCALE.read_text(), flags=re.DOTALL)
    exec(code, {})
    assert "memory grows like the number of samples to the power of" in capsys.readouterr().out
