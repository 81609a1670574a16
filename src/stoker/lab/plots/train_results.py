"""Show a training step timed three ways, where its time goes and how much it varies: plot, tables and conclusions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from stoker.foundation.text import format_count, format_duration, format_number, format_percent, format_spread
from stoker.lab.plots.plotting import FAINT, INK, add_label, add_legend, add_title, finish, new_figure
from stoker.lab.plots.tables import shorten_target, table_of_rows
from stoker.lab.trial.train_record import (
    CACHED,
    COMPUTE,
    COPY,
    DATA,
    FETCH,
    PREPARATION,
    REAL,
    RESIDENT,
    TrainBench,
    Way,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAYS = {RESIDENT: "batches on the device", CACHED: "cached batches, loader", REAL: "real loader"}
PARTS = {
    COMPUTE: "compute",
    COPY: "copy stall: handover, copy",
    PREPARATION: "preparation stall: CPU",
    FETCH: "fetch stall: storage",
    DATA: "data stall: fetch, prepare",
}

SHORT_WAYS = {RESIDENT: "on the\ndevice", CACHED: "cached,\nloader", REAL: "real\nloader"}
SHORT_PARTS = {COMPUTE: "compute", COPY: "copy", PREPARATION: "preparation", FETCH: "fetch", DATA: "data"}
COLORS = {COMPUTE: "#3b6fa0", COPY: "#9a6fb0", PREPARATION: "#e8833a", FETCH: "#c8391b", DATA: "#d1632b"}
INSIDE = {RESIDENT: (COMPUTE,), CACHED: (COMPUTE, COPY), REAL: tuple(COLORS)}
"""The parts included in the time of each way."""

NOISY_SHARE = 0.15
"""Warn about rounds whose standard deviation exceeds this fraction of their mean."""

LEAST_SHARE = 0.045
"""Parts smaller than this fraction of the highest bar are not labeled."""

LABEL_SHARE = 0.05
"""Minimum distance of the labels beside marks, as a fraction of the panel height."""


def ways_table(bench: TrainBench, *, width: int = 200) -> Table:
    """Return a table with a row per way: mean and quantiles of the step time, in milliseconds."""
    rows = []
    for way in bench.ways:
        times = way.quantiles
        quantiles = {"p50": times.p50, "p90": times.p90, "p99": times.p99, "max": times.most}
        rows.append(
            {
                "ms from step to step": WAYS[way.name],
                "mean": format_spread(way.mean, way.deviation, scale=1e-3),
                **{name: format_number(1e3 * value) for name, value in quantiles.items()},
                "steps": f"{way.num_steps:,}",
            }
        )
    return table_of_rows(rows, texts=("ms from step to step",), spare=("steps", "max", "p90"), width=width)


def parts_table(bench: TrainBench, *, width: int = 200) -> Table:
    """Return a table with a row per part of the step time: its duration, and its cost per day."""
    rows = [
        {
            "where a step's time goes": PARTS[part.name],
            "ms": format_spread(part.seconds, part.deviation, scale=1e-3),
            "share": format_percent(part.share),
            "GPU-hours per day": format_number(part.gpu_hours_per_day),
        }
        for part in bench.parts()
    ]
    return table_of_rows(rows, texts=("where a step's time goes",), spare=("GPU-hours per day",), width=width)


def train_remarks(bench: TrainBench) -> list[str]:
    """Return conclusions and notes on the tables, one sentence each."""
    resident, real = bench.way(RESIDENT), bench.way(REAL)
    if resident is None or real is None:
        return bench.notes
    gpus = "a GPU" if bench.num_gpus == 1 else format_count(bench.num_gpus, "GPU")
    hours = format_number(bench.lost_gpu_hours_per_day)
    found = [
        f"stalls take {format_percent(bench.stall_share)} of a step: {hours} hours per day of {gpus}; without them a "
        f"step takes {format_duration(bench.compute_seconds)} instead of {format_duration(real.mean)}"
    ]
    if bench.num_samples:
        speeds = [format_number(bench.num_samples / seconds) for seconds in (real.mean, bench.compute_seconds)]
        found.append(f"that is {speeds[0]} samples per second, and {speeds[1]} without stalls")
    found += _describe_noise(bench)
    if bench.blocked_share is not None:
        found.append(f"fetch and preparation are separated {bench.split_by}")
    elif bench.split_by:
        found.append(bench.split_by)
    if bench.slowing_seconds > 0.02 * real.mean:
        found.append(_describe_slowdown(bench))
    noisy = [way for way in bench.ways if way.deviation > NOISY_SHARE * way.mean]
    if noisy or resident.mean > (1 + NOISY_SHARE) * real.mean:
        found.append(
            "the machine is noisy: rounds differ too much to show small stalls; use more rounds (--repeat), longer "
            "ones (--seconds) or a quieter machine"
        )
    return found + bench.notes


def _describe_noise(bench: TrainBench) -> list[str]:
    """Return a sentence for each way that was faster than one that does less, which can only be noise."""
    found = []
    ways = sorted(bench.ways, key=lambda way: list(WAYS).index(way.name))
    quickest: Way | None = None
    for way in reversed(ways):
        if quickest is not None and way.mean > quickest.mean:
            found.append(
                f"{WAYS[way.name]}: {format_duration(way.mean)}, longer than {WAYS[quickest.name]} "
                f"({format_duration(quickest.mean)}), which can only be noise: both count as "
                f"{format_duration(quickest.mean)}"
            )
        else:
            quickest = way
    return found


def _describe_slowdown(bench: TrainBench) -> str:
    """Return how much loading slows down the step itself, and why."""
    longer = f"the step itself takes {format_duration(bench.slowing_seconds)} longer"
    for name, noun in (("num_workers", "workers"), ("num_threads", "threads")):
        if bench.config.get(name):
            return f"while {noun} are busy, {longer}: they compete for its cores"
    if bench.kind == "iterable":
        return f"with the real loader, {longer}: loading competes for its cores"
    return f"after loading a batch in the same thread, {longer}: perhaps loading evicts the CPU caches"


def train_figure(bench: TrainBench) -> Figure:
    """Plot the three ways as stacked bars, next to the quantiles of their steps."""
    figure = new_figure(10, 4.7)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _draw_parts(left, bench)
    _draw_quantiles(right, bench)
    gpus = "one GPU" if bench.num_gpus == 1 else format_count(bench.num_gpus, "GPU")
    hours = format_number(bench.lost_gpu_hours_per_day)
    lost = f"{hours} GPU-hours per day lost on {gpus}" if bench.stall_share else "no stalls"
    name = shorten_target(bench.target)
    finish(
        figure,
        f"{name}: {lost}" if name else lost,
        f"On {bench.machine.get('gpu', bench.device)}; {len(bench.ways[0].step_seconds)} interleaved rounds; error "
        "bars are standard deviations over rounds.",
        grid="y",
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
                middle = 1e3 * (bottom + part.seconds / 2)
                add_label(
                    axes, format_number(1e3 * part.seconds), (place, middle), color="white", va="center", fontsize=9
                )
            bottom += part.seconds
        # on top of the parts, whose sum noise may keep below the mean of the way: see `TrainBench.parts`
        axes.errorbar(place, 1e3 * bottom, yerr=1e3 * way.deviation, color=INK, capsize=4, linewidth=1.2)
    for part in parts.values():
        label = f"{SHORT_PARTS[part.name]} {format_duration(part.seconds)}, {format_percent(part.share)}"
        axes.bar(0, 0, color=COLORS[part.name], label=label)
    axes.set_xticks(range(len(bench.ways)), [SHORT_WAYS[way.name] for way in bench.ways])
    axes.set_xlim(-0.5, len(bench.ways) - 0.5)
    axes.set_ylim(0, 1e3 * _top([way.mean + way.deviation for way in bench.ways]))
    add_title(axes, "time per step, in ms")
    add_legend(axes, loc="upper left", reverse=True)


def _top(heights: Sequence[float]) -> float:
    """Return the height of a panel, with room for the legend above all bars but the last."""
    return max(1.14 * max(heights), *(1.5 * height for height in heights[:-1]))


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
            add_label(axes, format_number(1e3 * value), (place, height), dx=9)
    axes.set_xticks(range(len(bench.ways)), [SHORT_WAYS[way.name] for way in bench.ways])
    axes.set_xlim(-0.5, len(bench.ways) - 0.3)
    axes.set_ylim(0, top)
    add_title(axes, "quantiles of step time, in ms")
    add_legend(axes, loc="upper left")


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
