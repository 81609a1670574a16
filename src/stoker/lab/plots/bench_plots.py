"""Plot loader benchmarks as Matplotlib figures. Error bars are standard deviations over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stoker.foundation.text import format_bytes, time_unit
from stoker.lab.plots.bench_axes import BAD, SERIES, add_legend, draw_against, empty_figure, finish
from stoker.lab.plots.plotting import FAINT, INK, plain_numbers
from stoker.lab.trial.sweep import Result, Sweep, bytes_per_worker

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINER, WORKERS, OTHERS = "#3b6fa0", "#e8833a", "#7f8b99"
PARTS = {
    "interpreter": ("interpreter_seconds", "#b7bec6"),
    "imports": ("import_seconds", "#7f8b99"),
    "construction": ("construction_seconds", "#9a6fb0"),
    "first batch": ("first_batch_seconds", "#e8833a"),
}


def loader_figures(sweep: Sweep) -> dict[str, Figure]:
    """Plot a sweep over a loader's arguments. Return the figures by file name."""
    results = sweep.results()
    if not any(result.num_ok for result in results):
        return {}
    name = sweep.target.rpartition("/")[2]
    return {
        "throughput": throughput_figure(f"{name}: throughput", results, has_step=sweep.step is not None),
        "memory": memory_figure(f"{name}: memory", results),
        "startup": startup_figure(f"{name}: start-up", results),
        "quantiles": quantiles_figure(f"{name}: time per batch", results),
    }


def throughput_figure(title: str, results: Sequence[Result], *, has_step: bool = False) -> Figure:
    """Plot throughput, and time per batch or step, against the varied argument."""
    figure = empty_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    times = [mean for result in results if (mean := result.mean("seconds_per_batch"))]
    unit, size = time_unit(min(times, default=1.0))
    draw_against(left, results, "samples_per_second")
    draw_against(right, results, "seconds_per_batch", scale=size)
    left.set_ylabel("samples per second", color=INK)
    what = "step, including the wait for its batch" if has_step else "batch"
    right.set_ylabel(f"time per {what} ({unit})", color=INK)
    add_legend(left)
    finish(figure, title)
    return figure


def memory_figure(title: str, results: Sequence[Result]) -> Figure:
    """Plot the memory of all processes, stacked; and per worker against num_workers, if that varies."""
    known = [result for result in results if result.mean("memory_bytes") is not None]
    working = [result for result in known if result.mean("worker_bytes") is not None]
    has_growth = len({result.config.get("num_workers") for result in working} - {None}) > 1
    width = max(6.0, 1.6 + 0.9 * len(known))
    figure = empty_figure(width + (4.6 if has_growth else 0.0), 4.6)
    panels = figure.subplots(1, 1 + has_growth, squeeze=False, width_ratios=(width, 4.6)[: 1 + has_growth])[0]
    _draw_processes(panels[0], known)
    growth = bytes_per_worker(results)
    if growth is not None:
        text = f"grows by {format_bytes(max(0.0, growth))} per worker, not counting file pages"
        panels[0].set_title(text, loc="left", fontsize=10, color=INK)
    if has_growth:
        _draw_worker(panels[1], working)
    finish(figure, title)
    return figure


def _draw_processes(axes: Axes, results: Sequence[Result]) -> None:
    """Draw the memory of each process as a stacked bar, the trainer at the bottom."""
    at = np.arange(len(results))
    height = np.zeros(len(results))
    legend = {TRAINER: "trainer", WORKERS: "workers, one by one", OTHERS: "other child processes"}
    names = dict.fromkeys(name for result in results for name in result.processes)
    for name in sorted(names, key=lambda name: (name != "trainer", not name.startswith("worker"))):
        color = TRAINER if name == "trainer" else WORKERS if name.startswith("worker") else OTHERS
        part = np.array([one.processes[name].mean / 1e6 if name in one.processes else 0.0 for one in results])
        axes.bar(
            at, part, width=0.62, bottom=height, color=color, edgecolor="white", lw=0.6, label=legend.pop(color, None)
        )
        height = height + part
    spread = np.array([result.deviation("memory_bytes") / 1e6 for result in results])
    axes.errorbar(at, height, yerr=spread, fmt="none", ecolor=INK, capsize=4, lw=1.2)
    axes.set_xticks(at, [result.label for result in results])
    if any(len(result.label) > 14 for result in results):
        axes.tick_params(axis="x", rotation=28)
        for tick in axes.get_xticklabels():
            tick.set_horizontalalignment("right")
    axes.set_ylabel("memory (MB, PSS)", color=INK)
    axes.set_ylim(0, 1.22 * max([*(height + spread), 1.0]))
    add_legend(axes)


def _draw_worker(axes: Axes, results: Sequence[Result]) -> None:
    """Draw the mean and the largest memory of a worker against num_workers."""
    for quantity, is_dashed in (("worker_bytes", False), ("largest_worker_bytes", True)):
        draw_against(axes, results, quantity, scale=1e6, over="num_workers", is_dashed=is_dashed)
    axes.plot([], [], color=FAINT, marker="o", label="mean of all workers")
    axes.plot([], [], color=FAINT, marker="o", mfc="white", ls="--", label="largest")
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.set_ylabel("one worker (MB, PSS)", color=INK)
    add_legend(axes)


def startup_figure(title: str, results: Sequence[Result]) -> Figure:
    """Plot the parts of the start-up time before the first batch."""
    well = [result for result in results if result.num_ok]
    figure = empty_figure(9.5, 1.9 + 0.42 * len(well))
    axes = figure.subplots()
    at = np.arange(len(well))
    left = np.zeros(len(well))
    for name, (quantity, color) in PARTS.items():
        part = np.array([result.mean(quantity) or 0.0 for result in well])
        axes.barh(at, part, left=left, height=0.6, color=color, label=name)
        left = left + part
    spread = [result.deviation("startup_seconds") for result in well]
    axes.errorbar(left, at, xerr=spread, fmt="none", ecolor=INK, capsize=3, lw=1.1)
    axes.set_yticks(at, [result.label for result in well])
    axes.invert_yaxis()
    axes.set_xlabel("seconds from the start of the program to the first batch", color=INK)
    axes.set_xlim(0, 1.05 * float((left + spread).max()))
    add_legend(axes, above=True)
    finish(figure, title, grid="x")
    return figure


def quantiles_figure(title: str, results: Sequence[Result]) -> Figure:
    """Plot the p50, p90 and p99 of the time per batch."""
    well = [result for result in results if result.num_ok]
    figure = empty_figure(9.5, 1.9 + 0.5 * len(well))
    axes = figure.subplots()
    unit, size = time_unit(min((result.mean("p50_seconds") or 1.0 for result in well), default=1.0))
    highest = max(result.mean("p99_seconds") or 0.0 for result in well)
    is_log = highest > 20 * min(result.mean("p50_seconds") or 1.0 for result in well)
    at = np.arange(len(well))
    for name, color, shift in (("p50", SERIES[0], -0.2), ("p90", SERIES[1], 0.0), ("p99", BAD, 0.2)):
        values = [(result.mean(f"{name}_seconds") or 0.0) / size for result in well]
        spread = [result.deviation(f"{name}_seconds") / size for result in well]
        # times are positive, and a log scale has no zero
        below = [min(one, (0.7 if is_log else 1.0) * value) for one, value in zip(spread, values)]
        axes.errorbar(
            values,
            at + shift,
            xerr=[below, spread],
            fmt="o",
            color=color,
            ecolor=color,
            capsize=3,
            ms=6,
            lw=1.4,
            label=name,
            clip_on=False,
        )
    axes.set_yticks(at, [result.label for result in well])
    axes.set_ylim(len(well) - 0.5, -0.5)
    if is_log:
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel(f"time from batch to batch ({unit})", color=INK)
    add_legend(axes, above=True)
    finish(figure, title, grid="x")
    return figure
