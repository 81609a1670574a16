"""Plot a training step timed three ways: where its time goes, and how much it varies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.lab.plots.plotting import FAINT, INK, heading, new_figure, plain
from stoker.lab.trial.train_record import (
    CACHED,
    COMPUTE,
    COPY,
    DATA,
    FETCH,
    PREPARATION,
    REAL,
    RESIDENT,
    Part,
    TrainBench,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {COMPUTE: "#3b6fa0", COPY: "#9a6fb0", PREPARATION: "#e8833a", FETCH: "#c8391b", DATA: "#d1632b"}
NAMES = {COMPUTE: "compute", COPY: "copy", PREPARATION: "preparation", FETCH: "fetch", DATA: "data"}
WAYS = {RESIDENT: "on the\ndevice", CACHED: "cached,\nloader", REAL: "real\nloader"}
INSIDE = {RESIDENT: (COMPUTE,), CACHED: (COMPUTE, COPY), REAL: tuple(COLORS)}
"""The parts included in the time of each way."""

LEAST_SHARE = 0.045
"""Parts smaller than this fraction of the highest bar are not labeled."""

LABEL_SHARE = 0.05
"""Minimum distance of the labels beside marks, as a fraction of the panel height."""


def train_figure(bench: TrainBench) -> Figure:
    """Plot the three ways as stacked bars, next to the quantiles of their steps."""
    figure = new_figure(10, 4.7)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _draw_parts(left, bench)
    _draw_quantiles(right, bench)
    gpus = "one GPU" if bench.num_gpus == 1 else f"{bench.num_gpus:,} GPUs"
    lost = f"{bench.lost_gpu_hours_per_day:.1f} GPU-hours per day lost on {gpus}" if bench.stall_share else "no stalls"
    name = bench.target.rpartition("/")[2]
    heading(
        figure,
        f"{name}: {lost}" if name else lost,
        f"On {bench.machine.get('gpu', bench.device)}; {len(bench.ways[0].step_seconds)} interleaved rounds; error "
        "bars are standard deviations over rounds.",
    )
    return figure


def _draw_parts(axes: Axes, bench: TrainBench) -> None:
    parts = {part.name: part for part in bench.parts()}
    highest = max(way.mean for way in bench.ways)
    for place, way in enumerate(bench.ways):
        bottom = 0.0
        for name in INSIDE[way.name]:
            part = parts.get(name)
            if part is None:
                continue
            axes.bar(place, 1e3 * part.seconds, bottom=1e3 * bottom, width=0.55, color=COLORS[name])
            if part.seconds > LEAST_SHARE * highest:
                _label(axes, place, bottom, part)
            bottom += part.seconds
        # on top of the parts, whose sum noise may keep below the mean of the way: see `TrainBench.parts`
        axes.errorbar(place, 1e3 * bottom, yerr=1e3 * way.deviation, color=INK, capsize=4, linewidth=1.2)
    for part in parts.values():
        label = f"{NAMES[part.name]} {1e3 * part.seconds:.1f} ms, {part.share:.0%}"
        axes.bar(0, 0, color=COLORS[part.name], label=label)
    axes.set_xticks(range(len(bench.ways)), [WAYS[way.name] for way in bench.ways])
    axes.set_xlim(-0.5, len(bench.ways) - 0.5)
    axes.set_ylim(0, 1e3 * _top([way.mean + way.deviation for way in bench.ways]))
    axes.set_title("time per step, in ms", loc="left", fontsize=10, color=INK)
    axes.legend(loc="upper left", fontsize=9, frameon=False, reverse=True, labelcolor=INK)
    plain(axes)
    axes.grid(visible=False, axis="x")


def _top(heights: Sequence[float]) -> float:
    """Return the height of a panel, with room for the legend above all bars but the last."""
    return max(1.14 * max(heights), *(1.5 * height for height in heights[:-1]))


def _label(axes: Axes, place: int, bottom: float, part: Part) -> None:
    middle = 1e3 * (bottom + part.seconds / 2)
    axes.text(place, middle, f"{1e3 * part.seconds:.1f}", ha="center", va="center", color="white", fontsize=9)


def _draw_quantiles(axes: Axes, bench: TrainBench) -> None:
    top = 1e3 * _top([way.quantiles.p99 for way in bench.ways])
    for place, way in enumerate(bench.ways):
        times = way.quantiles
        axes.plot([place, place], [1e3 * times.p50, 1e3 * times.p99], color=FAINT, linewidth=1.2, zorder=1)
        heights = spread_labels([1e3 * value for value in (times.p50, times.p90, times.p99)], LABEL_SHARE * top)
        marks = ((times.p50, "o", "p50"), (times.p90, "D", "p90"), (times.p99, "^", "p99"))
        for (value, mark, name), height in zip(marks, heights):
            axes.plot(
                [place],
                [1e3 * value],
                marker=mark,
                markersize=7,
                linestyle="none",
                color=INK,
                markerfacecolor="white" if name == "p90" else INK,
                label=name if not place else None,
            )
            axes.annotate(
                f"{1e3 * value:.1f}",
                (place, height),
                xytext=(9, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
                color=INK,
            )
    axes.set_xticks(range(len(bench.ways)), [WAYS[way.name] for way in bench.ways])
    axes.set_xlim(-0.5, len(bench.ways) - 0.3)
    axes.set_ylim(0, top)
    axes.set_title("quantiles of step time, in ms", loc="left", fontsize=10, color=INK)
    axes.legend(loc="upper left", fontsize=9, frameon=False, labelcolor=INK)
    plain(axes)
    axes.grid(visible=False, axis="x")


def spread_labels(heights: Sequence[float], least: float) -> list[float]:
    """Return label positions near these heights, lowest first, so that labels do not overlap.

    Labels that are too close are stacked around their mean height, and none is below 0.
    """
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _span(groups[-1], least)[0] - _span(groups[-2], least)[1] < least:
            groups[-2:] = [[*groups[-2], *groups[-1]]]
    return [_span(group, least)[0] + place * least for group in groups for place in range(len(group))]


def _span(group: Sequence[float], least: float) -> tuple[float, float]:
    """Return the positions of the lowest and the highest label of a stack."""
    half = least * (len(group) - 1) / 2
    middle = max(sum(group) / len(group), half + least / 2)
    return middle - half, middle + half
