"""Figures of a run: one list for the report, its comparison and settings, and the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from stoker.foundation.text import format_count
from stoker.lab import key_figures
from stoker.lab.key_figures import COMPARISON, KEY_FIGURES, SETTINGS, TERMINAL, TILE, KeyFigure, Measured
from stoker.lab.live import LiveFrame, Tracks
from stoker.lab.watch.run import Run, Stats
from tests.lab import runs
from tests.lab.test_report import text_of

ITERATIONS = KeyFigure(
    label="epochs",
    meaning="Iterations over the loader.",
    value=lambda measured: measured.stats.num_iterations,
    format=lambda number: format_count(number, "epoch"),
    detail=lambda measured: f"{measured.stats.num_batches:,} batches in all",
    is_more_better=True,
    shown=(TILE, COMPARISON, SETTINGS, TERMINAL),
)


def test_a_figure_added_to_the_list_is_shown_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_figures, "KEY_FIGURES", (*KEY_FIGURES, ITERATIONS))
    text = text_of(runs.healthy())
    assert "epochs 1 epoch 1,500 batches in all" in text.partition("Timeline")[0]
    assert "epochs 1 epoch, 1,500 batches in all" in text.partition("Settings and facts")[2]
    compared = text_of(runs.healthy(), against=runs.starved())
    assert "epochs 1 epoch 1 epoch 1\N{MULTIPLICATION SIGN} = same" in compared
    tracks = Tracks()
    tracks.add(runs.healthy().loaders)
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(LiveFrame(tracks))
    assert "epochs      1 epoch, 1,500 batches in all" in console.export_text()


def test_every_figure_has_a_label_of_its_own_and_a_meaning_where_it_can_be_pointed_at() -> None:
    labels = [figure.label for figure in KEY_FIGURES]
    assert len(set(labels)) == len(labels)
    assert all(figure.meaning.endswith(".") for figure in KEY_FIGURES if TILE in figure.shown)


def test_figures_of_a_loader_that_counted_nothing_are_unknown() -> None:
    empty = Stats()
    measured = Measured(stats=empty, ranks=[empty], parts=[Run(loaders=[empty])])
    for figure in KEY_FIGURES:
        value = figure.value(measured)
        assert value is None or value == 0, figure.label
        assert isinstance(figure.describe(measured), str)
