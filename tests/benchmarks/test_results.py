"""Every saved result can be drawn again, and has a section in the README of the results."""

from __future__ import annotations

import json
import re
from importlib import import_module

import matplotlib as mpl
import pytest

from benchmarks.__main__ import MODULES, NAMES
from benchmarks.report import RESULTS
from stoker.lab.trial.rounds import Measurement

SAVED = sorted(path.stem for path in RESULTS.glob("*.json"))


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_result_can_be_drawn(name: str) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    saved = json.loads((RESULTS / f"{name}.json").read_text())
    figure = import_module(f"benchmarks.{MODULES.get(name, name)}").draw(
        [Measurement(**record) for record in saved["records"]], saved
    )
    assert any(axes.has_data() for axes in figure.axes)
    plt.close(figure)


def test_every_saved_result_is_of_a_benchmark_and_has_a_section() -> None:
    assert {MODULES.get(name, name) for name in SAVED} <= set(NAMES)
    sections = re.findall(r"^## (\w+)$", (RESULTS / "README.md").read_text(), flags=re.MULTILINE)
    assert sections == SAVED
