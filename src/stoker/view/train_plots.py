"""A training step timed three ways, drawn: where its time goes, and how steady it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.bench.train_record import CACHED, COMPUTE, COPY, DATA, FETCH, PREPARATION, REAL, RESIDENT, Part, TrainBench
from stoker.view.plotting import FAINT, INK, heading, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {COMPUTE: "#3b6fa0", COPY: "#9a6fb0", PREPARATION: "#e8833a", FETCH: "#c8391b", DATA: "#d1632b"}
NAMES = {COMPUTE: "compute", COPY: "copy", PREPARATION: "preparation", FETCH: "fetch", DATA: "data"}
WAYS = {RESIDENT: "on the\ndevice", CACHED: "cached,\nloader", REAL: "real\nloader"}
INSIDE = {RESIDENT: (COMPUTE,), CACHED: (COMPUTE, COPY), REAL: tuple(COLOURS)}
"""The parts that are in the time of each way."""

LEAST_SHARE = 0.045
"""A part smaller than this, of the highest bar, has no room for its number."""

LABEL_SHARE = 0.05
"""How far apart numbers beside marks are kept, as a share of the panel's height."""


def train_figure(bench: TrainBench) -> Figure:
    """Return the bars of the three ways, made up of their parts, beside the quantiles of their steps."""
    figure = new_figure(10, 4.7)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _draw_parts(left, bench)
    _draw_quantiles(right, bench)
    gpus = "one GPU" if bench.num_gpus == 1 else f"{bench.num_gpus:,} GPUs"
    lost = f"{bench.lost_gpu_hours_per_day:.1f} GPU-hours a day lost on {gpus}" if bench.stall_share else "no stalls"
    name = bench.target.rpartition("/")[2]
    heading(
        figure,
        f"{name}: {lost}" if name else lost,
        f"On {bench.machine.get('gpu', bench.device)}; {len(bench.ways[0].step_seconds)} interleaved rounds; whiskers "
        "are standard deviations over rounds.",
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
            axes.bar(place, 1e3 * part.seconds, bottom=1e3 * bottom, width=0.55, color=COLOURS[name])
            if part.seconds > LEAST_SHARE * highest:
                _label(axes, place, bottom, part)
            bottom += part.seconds
        # above the parts, which noise may have made less than the way's own mean: see `TrainBench.parts`
        axes.errorbar(place, 1e3 * bottom, yerr=1e3 * way.deviation, color=INK, capsize=4, linewidth=1.2)
    for part in parts.values():
        told = f"{NAMES[part.name]} {1e3 * part.seconds:.1f} ms, {part.share:.0%}"
        axes.bar(0, 0, color=COLOURS[part.name], label=told)
    axes.set_xticks(range(len(bench.ways)), [WAYS[way.name] for way in bench.ways])
    axes.set_xlim(-0.5, len(bench.ways) - 0.5)
    axes.set_ylim(0, 1e3 * _top([way.mean + way.deviation for way in bench.ways]))
    axes.set_title("a step, in ms", loc="left", fontsize=10, color=INK)
    axes.legend(loc="upper left", fontsize=9, frameon=False, reverse=True, labelcolor=INK)
    plain(axes)
    axes.grid(visible=False, axis="x")


def _top(heights: Sequence[float]) -> float:
    """Return how high a panel is, with room for the legend above all but the last of what stands in it."""
    return max(1.14 * max(heights), *(1.5 * height for height in heights[:-1]))


def _label(axes: Axes, place: int, bottom: float, part: Part) -> None:
    middle = 1e3 * (bottom + part.seconds / 2)
    axes.text(place, middle, f"{1e3 * part.seconds:.1f}", ha="center", va="center", color="white", fontsize=9)


def _draw_quantiles(axes: Axes, bench: TrainBench) -> None:
    top = 1e3 * _top([way.quantiles.p99 for way in bench.ways])
    for place, way in enumerate(bench.ways):
        told = way.quantiles
        axes.plot([place, place], [1e3 * told.p50, 1e3 * told.p99], color=FAINT, linewidth=1.2, zorder=1)
        heights = kept_apart([1e3 * value for value in (told.p50, told.p90, told.p99)], LABEL_SHARE * top)
        marks = ((told.p50, "o", "p50"), (told.p90, "D", "p90"), (told.p99, "^", "p99"))
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
    axes.set_title("quantiles of steps, in ms", loc="left", fontsize=10, color=INK)
    axes.legend(loc="upper left", fontsize=9, frameon=False, labelcolor=INK)
    plain(axes)
    axes.grid(visible=False, axis="x")


def kept_apart(heights: Sequence[float], least: float) -> list[float]:
    """Return where to write numbers that belong at these heights, lowest first, so that none covers another.

    Those that are too close stand one above the other, around the middle of where they belong, and none below 0.
    """
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _span(groups[-1], least)[0] - _span(groups[-2], least)[1] < least:
            groups[-2:] = [[*groups[-2], *groups[-1]]]
    return [_span(group, least)[0] + place * least for group in groups for place in range(len(group))]


def _span(group: Sequence[float], least: float) -> tuple[float, float]:
    """Return where the lowest and the highest of numbers are written that stand one above the other."""
    half = least * (len(group) - 1) / 2
    middle = max(sum(group) / len(group), half + least / 2)
    return middle - half, middle + half
