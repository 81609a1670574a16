"""Plot how costs grow: one log-log panel per axis and cost, so that a constant cost is a flat line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.scale.record import (
    AXES,
    FIRST,
    MEMORY,
    RANKS,
    RESOLUTION,
    SAMPLES,
    STATE,
    STEP,
    STEPS,
    WORKERS,
    Curve,
    Scale,
)
from stoker.lab.plots.plotting import FAINT, INK, LOADERS, add_label, add_title, finish, new_figure, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {SAMPLES: "samples in the dataset", WORKERS: "worker processes", RANKS: "ranks", STEPS: "steps already done"}
COSTS = {
    FIRST: ("first batch (ms)", 1e3),
    STEP: ("per batch (µs)", 1e6),
    MEMORY: ("memory added (MiB)", 1 / 2**20),
    STATE: ("state_dict (µs)", 1e6),
}
MARKS = {"stoker": "o", "torch": "s", "StatefulDataLoader": "^"}

LEAST_SPAN = 30.0
"""Minimum ratio of the top to the bottom of a panel, so that noise does not look like growth."""

LABEL_SPAN = 0.075
"""Minimum distance of the labels at line ends, as a fraction of the panel height."""


def scale_figure(scale: Scale) -> Figure:
    """Plot all curves: a row per axis, a column per cost."""
    curves = [curve for curve in scale.curves if any(point.values for point in curve.points)]
    rows = [axis for axis in AXES if any(curve.axis == axis for curve in curves)]
    columns = [measure for measure in COSTS if any(curve.measure == measure for curve in curves)]
    figure = new_figure(3.6 * len(columns), 1.0 + 2.3 * len(rows))
    panels = figure.subplots(len(rows), len(columns), squeeze=False)
    for row, axis in enumerate(rows):
        for column, measure in enumerate(columns):
            found = [curve for curve in curves if (curve.axis, curve.measure) == (axis, measure)]
            if found:
                _draw(panels[row, column], axis, measure, found)
            else:
                panels[row, column].set_axis_off()
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), fontsize=9, frameon=False)
    how_often = f"up to {scale.repetitions}" if scale.is_interrupted else f"{scale.repetitions}"
    finish(
        figure,
        "How costs grow",
        f"Samples that cost nothing to load, batches of 8; medians and standard deviations of {how_often} interleaved "
        f"repetitions on {scale.machine.get('cores', '?')} cores.\nLabels at line ends are slopes: 0 is flat, 1 is "
        "proportional. A cross: larger sizes were skipped because of the limits. Memory under 1 MiB is drawn "
        "as 1 MiB.",
    )
    return figure


def _draw(axes: Axes, axis: str, measure: str, curves: list[Curve]) -> None:
    name, unit = COSTS[measure]
    floor = RESOLUTION[measure]
    ends: list[tuple[float, float, str, str]] = []
    lowest, highest = float("inf"), 0.0
    for curve in curves:
        points = [point for point in curve.points if point.values]
        xs = [point.x for point in points]
        ys = [unit * max(point.median, floor) for point in points]
        errors = [unit * point.deviation for point in points]
        below = [min(error, 0.7 * y) for y, error in zip(ys, errors)]  # a log scale has no zero
        color = LOADERS.get(curve.loader, INK)
        axes.errorbar(
            xs,
            ys,
            yerr=[below, errors],
            color=color,
            marker=MARKS.get(curve.loader, "o"),
            linestyle="-" if curve.loader != "StatefulDataLoader" else (0, (3, 2)),
            markersize=4,
            linewidth=1.6,
            elinewidth=1,
            capsize=2,
            label=curve.loader,
        )
        lowest, highest = min(lowest, *ys), max(highest, *ys)
        if (slope := curve.exponent) is not None:
            ends.append((xs[-1], ys[-1], f"{slope:.2f}".replace("-0.00", "0.00"), color))
        if any(point.skipped for point in curve.points):
            axes.plot(xs[-1:], ys[-1:], marker="x", markersize=9, markeredgewidth=2, color=color)
    axes.set_xscale("log")
    axes.set_yscale("log")
    spare = max(1.0, LEAST_SPAN / (highest / lowest)) ** 0.5
    axes.set_ylim(lowest / spare / 1.6, highest * spare * 1.6)
    plain_numbers(axes.yaxis, room=100)
    _ticks(axes, axis, curves)
    _label(axes, ends)
    add_title(axes, name)
    axes.set_xlabel(TITLES[axis], fontsize=9, color=FAINT)


def _label(axes: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Label the line ends with slopes, stacked where lines end together."""
    bottom, top = axes.get_ylim()
    apart = (top / bottom) ** LABEL_SPAN
    last: tuple[float, float] | None = None
    for x, y, text, color in sorted(ends):
        at = y if last is None or last[0] != x else max(y, last[1] * apart)
        last = x, at
        add_label(axes, text, (x, at), dx=6, fontsize=8, color=color, annotation_clip=False)


def _ticks(axes: Axes, axis: str, curves: list[Curve]) -> None:
    places = sorted({point.x for curve in curves for point in curve.points})
    margin = max(2.0, places[-1] / places[0]) ** 0.05
    axes.set_xlim(places[0] / margin, places[-1] * margin**3)  # room for the labels at line ends
    if axis in (WORKERS, RANKS):
        axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.minorticks_off()
