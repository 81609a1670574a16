"""Two runs in one report: the answer first, and of the settings those that differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stoker.lab.page.run_tables import format_setting
from stoker.lab.watch.run import Run
from tests.lab import runs
from tests.lab.test_report import text_of


def test_the_answer_stands_above_the_verdicts() -> None:
    slow, quick = runs.starved(), runs.healthy()
    text = text_of(quick, against=slow)
    ratio = quick.loaders[0].samples_per_second / slow.loaders[0].samples_per_second
    order = [
        f"This run has {ratio:.2f}\N{MULTIPLICATION SIGN} the throughput of the baseline: better. Throughput: ",
        "waiting for data, without first batches: ",
        "peak memory: ",
        "Compute-bound",
        "Why",
        "Differences Bars to the right are better",
    ]
    below = text.partition("Settings")[2]  # the last of the links at the top
    places = [below.index(words) for words in order]
    assert places == sorted(places)
    assert "This run has" not in below.partition("Compute-bound")[2], "once"


def test_without_an_answer_there_is_no_line_for_it() -> None:
    assert "This run has" not in text_of(Run(), against=runs.healthy())


def configured(kind: str, facts: dict[str, Any] | None = None, **config: Any) -> Run:
    run = runs.healthy()
    [stats] = run.loaders
    return replace(run, loaders=[replace(stats, kind=kind, config=stats.config | config, facts=facts or {})])


def differing(ours: Run, theirs: Run) -> str:
    text = text_of(ours, against=theirs)
    return text.partition("Different settings")[2].partition("Timeline")[0]


def test_what_one_of_two_kinds_of_loaders_does_not_record_is_no_difference() -> None:
    ours = configured("stoker", {"workers_before": [0.0955, 0.08]}, start_method=None, collate_fn=None, num_workers=16)
    theirs = configured("torch", {"num_files": 12}, start_method="fork", collate_fn="default_collate", timeout=3)
    text = differing(ours, theirs)
    assert "loader stoker torch" in text
    assert "num_workers 16 4" in text
    for name in ("start_method", "collate_fn", "workers_before", "timeout", "num_files", "\N{EN DASH}"):
        assert name not in text, name


def test_loaders_of_one_kind_mean_the_same_by_what_is_not_set() -> None:
    text = differing(configured("stoker", device=None), configured("stoker", device="cuda"))
    assert "device not set cuda" in text


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("mount", {"point": "/", "kind": "ext4", "is_remote": False, "is_rotational": None}, "point: /, kind: ext4"),
        ("sizes", [1, 2000], "1, 2,000"),
        ("files_bytes", 1 << 20, "1.05 MB"),
        ("device", None, "not set"),
    ],
)
def test_settings_are_written_in_words(name: str, value: Any, expected: str) -> None:
    assert format_setting(name, value).replace("\N{NO-BREAK SPACE}", " ").startswith(expected)
    assert not {"{", "["} & set(format_setting(name, value))


def test_mean_p50_and_p99_of_one_duration_stand_next_to_each_other() -> None:
    text = text_of(runs.healthy(), against=runs.starved()).partition("Differences")[2]
    names = ["from batch to batch, mean", "from batch to batch, p50", "from batch to batch, p99", "step, mean"]
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "waiting for data" not in text[places[0] : places[3]]
