"""The README's table of resumed runs is that of the saved results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.resume.contenders import CONTENDERS, format_error
from benchmarks.resume.judging import EXACT, FAILED, HANGS, REORDERED, WRONG
from benchmarks.resume.scenarios import FEWER, RANDOM, scenarios
from benchmarks.resume.summary import compact_table
from stoker.lab.trial.rounds import Measurement, Series, measurement_of

ROOT = Path(__file__).parents[2]


def saved_records() -> list[Measurement]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks/results/resume.json").read_text())
    return [Measurement(**record) for record in found["records"]]


def record(contender: str, scenario: str, *, lost: int = 0, repeated: int = 0, **kinds: int) -> Measurement:
    more = {"lost": lost, "repeated": repeated, "kinds": kinds}
    return measurement_of(contender, Series([0.0], [0.0]), None, {"scenario": scenario}, "run", more)


def test_the_table_in_the_readme_is_that_of_the_saved_results() -> None:
    assert compact_table(saved_records()) in (ROOT / "README.md").read_text()


def test_the_saved_results_have_every_contender_in_every_scenario_and_run() -> None:
    expected = {
        (name, scenario.name, len(scenario.runs)) for name in CONTENDERS for scenario in scenarios(is_quick=False)
    }
    found = [(one.contender, one.case["scenario"], sum(one.more["kinds"].values())) for one in saved_records()]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_a_cell_shows_the_worst_run_and_marks_what_the_documentation_excludes() -> None:
    records = [
        record("litdata", RANDOM, lost=1200, repeated=3, **{WRONG: 1, FAILED: 1, EXACT: 3}),
        record("litdata", FEWER, **{REORDERED: 1, EXACT: 1}),
        record("StatefulDataLoader", RANDOM, **{HANGS: 1, EXACT: 4}),
        record("StatefulDataLoader", FEWER, **{FAILED: 2}),
        record("stoker", RANDOM, **{EXACT: 5}),
        record("stoker", FEWER, **{EXACT: 2}),
    ]
    assert compact_table(records).splitlines() == [
        f"| lost / repeated | {RANDOM} | {FEWER} |",
        "| --- | --- | --- |",
        "| litdata | 1,200 / 3 | other order |",
        "| StatefulDataLoader | hangs | error † |",
        "| **stoker** | exact | exact |",
    ]


def test_an_error_is_one_line_without_paths_and_that_of_the_worker() -> None:
    assert format_error(ValueError("cannot read /home/me/data/part.bin,\n  sorry")) == (
        "ValueError: cannot read …/part.bin, sorry"
    )
    wrapped = (
        "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  x\nKeyError: 7"
    )
    assert format_error(RuntimeError(wrapped)) == "KeyError: 7"
    assert format_error(AssertionError()) == "AssertionError"


def test_the_saved_results_name_no_folder() -> None:
    for one in saved_records():
        for run in one.more["runs"]:
            assert "site-packages" not in run["text"]
            assert "/tmp" not in run["text"]
