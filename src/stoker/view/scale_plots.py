"""How costs grow, drawn: a panel for each axis and cost, all scales logarithmic, so that what does not grow is flat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.bench.scale_record import (
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
from stoker.view.plotting import FAINT, INK, LOADERS, heading, new_figure, plain, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {SAMPLES: "samples in the dataset", WORKERS: "worker processes", RANKS: "ranks", STEPS: "steps done before"}
COSTS = {
    FIRST: ("first batch (ms)", 1e3),
    STEP: ("a batch (µs)", 1e6),
    MEMORY: ("memory added (MiB)", 1 / 2**20),
    STATE: ("state_dict (µs)", 1e6),
}
MARKS = {"stoker": "o", "torch": "s", "StatefulDataLoader": "^"}

LEAST_SPAN = 30.0
"""How many times the lowest value the highest of a panel is, at the least: noise is not to look like growth."""

LABEL_SPAN = 0.075
"""How far apart the numbers at the ends of lines are kept, as a share of the panel's height."""


def scale_figure(scale: Scale) -> Figure:
    """Return the figure of all curves: a row for each axis, a column for each cost."""
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
    heading(
        figure,
        "How costs grow",
        f"Samples that cost nothing, batches of 8; medians and standard deviations of {how_often} interleaved "
        f"repetitions on {scale.machine.get('cores', '?')} cores.\nAt the ends of lines their slopes: 0 is flat, 1 is "
        "proportional. A cross: what would come after it takes too much, and was left out. Memory under 1 MiB is drawn "
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
        below = [min(error, 0.7 * y) for y, error in zip(ys, errors)]  # a logarithmic scale has no zero
        colour = LOADERS.get(curve.loader, INK)
        axes.errorbar(
            xs,
            ys,
            yerr=[below, errors],
            color=colour,
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
            ends.append((xs[-1], ys[-1], f"{slope:.2f}".replace("-0.00", "0.00"), colour))
        if any(point.skipped for point in curve.points):
            axes.plot(xs[-1:], ys[-1:], marker="x", markersize=9, markeredgewidth=2, color=colour)
    axes.set_xscale("log")
    axes.set_yscale("log")
    spare = max(1.0, LEAST_SPAN / (highest / lowest)) ** 0.5
    axes.set_ylim(lowest / spare / 1.6, highest * spare * 1.6)
    plain_numbers(axes.yaxis, room=100)
    _ticks(axes, axis, curves)
    _label(axes, ends)
    axes.set_title(name, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(TITLES[axis], fontsize=9, color=FAINT)
    plain(axes)


def _label(axes: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Write the slopes beside the ends of lines; those of lines that end together, one above the other."""
    bottom, top = axes.get_ylim()
    apart = (top / bottom) ** LABEL_SPAN
    last: tuple[float, float] | None = None
    for x, y, text, colour in sorted(ends):
        at = y if last is None or last[0] != x else max(y, last[1] * apart)
        last = x, at
        axes.annotate(
            text,
            (x, at),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=colour,
            annotation_clip=False,
        )


def _ticks(axes: Axes, axis: str, curves: list[Curve]) -> None:
    places = sorted({point.x for curve in curves for point in curve.points})
    margin = max(2.0, places[-1] / places[0]) ** 0.05
    axes.set_xlim(places[0] / margin, places[-1] * margin**3)  # room for the numbers at the ends of lines
    if axis in (WORKERS, RANKS):
        axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.minorticks_off()
