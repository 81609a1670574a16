"""How costs grow, drawn and in tables, from hand-made records."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from benchmarks.scale.plots import scale_figure
from benchmarks.scale.record import (
    FIRST,
    MEMORY,
    RANKS,
    SAMPLES,
    STATE,
    STATEFUL,
    STEP,
    STEPS,
    STOKER,
    TORCH,
    WORKERS,
    Curve,
    Point,
    RankShares,
    Scale,
)
from benchmarks.scale.tables import format_place, scale_remarks, scale_table


def curve(axis: str, measure: str, loader: str, ys: list[float], *, skipped: str | None = None) -> Curve:
    points = [Point(x=10**power, values=[y, 1.1 * y]) for power, y in enumerate(ys, 3)]
    if skipped:
        points.append(Point(x=10 ** (3 + len(ys)), skipped=skipped))
    return Curve(axis=axis, measure=measure, loader=loader, points=points)


@pytest.fixture
def scale() -> Scale:
    curves = [
        curve(SAMPLES, FIRST, STOKER, [1e-3] * 4),
        curve(SAMPLES, FIRST, TORCH, [1e-3, 1e-2, 1e-1], skipped="would take about 9.0 GiB"),
        curve(SAMPLES, MEMORY, STOKER, [0.0, -5000.0, 12.0, 0.0]),
        curve(SAMPLES, MEMORY, TORCH, [1e5, 1e7, 1e8], skipped="would take about 9.0 GiB"),
        curve(STEPS, STATE, STATEFUL, [1e-4] * 3),
    ]
    shares = [RankShares(num_ranks=ranks, num_steps=9, num_samples=8, are_equal=True) for ranks in (1, 64)]
    return Scale(machine={"cores": 2}, repetitions=2, curves=curves, shares=shares)


def test_a_panel_for_each_axis_and_cost_is_flat_where_nothing_grows(scale: Scale) -> None:
    figure = scale_figure(scale)
    panels = [panel for panel in figure.axes if panel.axison]
    assert [panel.get_title(loc="left") for panel in panels] == [
        "first batch (ms)",
        "memory added (MiB)",
        "state_dict (µs)",
    ]
    for panel in panels:
        assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
        low, high = panel.get_ylim()
        assert high / low >= 30  # noise does not fill a panel
    assert {text.get_text() for text in panels[0].texts} == {"0.00", "1.00"}
    drawn = [np.asarray(line.get_ydata()).tolist() for line in panels[1].lines]
    assert [1.0] * 4 in drawn  # what cannot be told from nothing
    file = io.BytesIO()
    figure.savefig(file)
    assert min(Image.open(file).size) > 300


def test_the_table_tells_first_and_last_and_how_steep(scale: Scale) -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(scale_table(scale))
    lines = [line.split() for line in console.export_text().splitlines() if line.strip()]
    assert ["first", "batch", "stoker", "10^3-10^6", "1.05", "ms", "1.05", "ms", "1.00", "0.00"] in lines
    assert ["torch", "10^3-10^5", "1.05", "ms", "105", "ms", "100", "1.00"] in lines
    assert ["memory", "stoker", "10^3-10^6", "<", "1", "MB", "<", "1", "MB", "1.00", "0.00"] in lines


def test_what_was_left_out_and_shares_are_told_once(scale: Scale) -> None:
    shown = scale_remarks(scale)
    assert shown[1:] == [
        "skipped: torch with 10^6 samples, which would take about 9.0 GiB",
        "every one of up to 64 ranks gets 8 samples at every step, and the same number of steps; no sample goes to "
        "two ranks",
    ]
    odd = [RankShares(num_ranks=3, num_steps=9, num_samples=8, are_equal=False)]
    assert scale_remarks(Scale(shares=odd))[-1] == "ranks get unequal shares with 3 ranks"


def test_one_axis_alone_is_drawn_too() -> None:
    curves = [Curve(axis=RANKS, measure=STEP, loader=STOKER, points=[Point(x=1, values=[1e-5])])]
    assert len(scale_figure(Scale(curves=curves)).axes) == 1
    curves = [Curve(axis=WORKERS, measure=STEP, loader=STOKER, points=[Point(x=x, values=[1e-5]) for x in (1, 2, 4)])]
    [axes] = scale_figure(Scale(curves=curves)).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4"]


def test_places_are_shown_as_powers_from_a_thousand_on() -> None:
    assert [format_place(x) for x in (1, 100, 1000, 1024, 10**9)] == ["1", "100", "10^3", "1,024", "10^9"]
