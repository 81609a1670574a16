"""Plot sweeps over a loader's arguments, comparisons of loaders and tuning. Error bars are deviations over rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stoker.foundation.text import format_bytes, format_count, format_ratio, time_unit
from stoker.lab.plots.plotting import (
    BAD,
    FAINT,
    INK,
    LOADERS,
    SERIES,
    STOKER_WITH_THREADS,
    add_label,
    add_legend,
    add_title,
    draw_line,
    finish,
    new_figure,
    plain_numbers,
)
from stoker.lab.plots.tables import shorten_target
from stoker.lab.trial.compare import ratio
from stoker.lab.trial.override import SWEPT
from stoker.lab.trial.sweep import Result, Sweep, bytes_per_worker, label_of
from stoker.lab.trial.tuning import Tuning

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "num_workers": "workers",
    "num_threads": "threads",
    "batch_size": "batch size",
    "prefetch_factor": "prefetch factor",
}
"""Arguments that can be the x axis, and their labels."""

TRAINER, WORKERS, OTHERS = "#3b6fa0", "#e8833a", "#7f8b99"
PARTS = {
    "interpreter": ("interpreter_seconds", "#b7bec6"),
    "imports": ("import_seconds", "#7f8b99"),
    "construction": ("construction_seconds", "#9a6fb0"),
    "first batch": ("first_batch_seconds", "#e8833a"),
}
"""Parts of the start-up time, with their colors."""


def loader_figures(sweep: Sweep) -> dict[str, Figure]:
    """Plot a sweep over a loader's arguments. Return the figures by file name."""
    results = sweep.results()
    well = [result for result in results if result.num_ok]
    if not well:
        return {}
    name = shorten_target(sweep.target)
    return {
        "throughput": _throughput_figure(f"{name}: throughput", results, has_step=sweep.step is not None),
        "memory": _memory_figure(f"{name}: memory", results),
        "startup": _startup_figure(f"{name}: start-up", well),
        "quantiles": _quantiles_figure(f"{name}: time per batch", well),
    }


def compare_figures(sweep: Sweep) -> dict[str, Figure]:
    """Plot loaders side by side. Return the figure by file name."""
    results = [result for result in sweep.results() if result.num_ok]
    if not results:
        return {}
    figure = new_figure(11.5, 7.4)
    cpu, cpu_size = time_unit(max((result.mean("cpu_seconds_per_sample") or 0.0 for result in results), default=1.0))
    panels = (
        ("samples_per_second", 1.0, "samples per second"),
        ("cpu_seconds_per_sample", cpu_size, f"CPU time per sample ({cpu})"),
        ("memory_bytes", 1e6, "memory of all processes (MB)"),
        ("startup_seconds", 1.0, "start-up to the first batch (s)"),
    )
    for axes, (quantity, scale, label) in zip(figure.subplots(2, 2).flat, panels):
        _draw_contenders(axes, sweep, results, quantity, scale)
        axes.set_ylabel(label, color=INK)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, labelcolor=INK)
    batches = f"batches of {sweep.settings['batch_size']}"
    finish(figure, f"{shorten_target(sweep.target)}: loaders side by side, {batches}", grid="y")
    return {"compare": figure}


def tune_figures(tuning: Tuning) -> dict[str, Figure]:
    """Plot step time against num_workers, with the best setting circled. Return the figure by file name."""
    sweep = tuning.sweep
    results = [result for result in sweep.results() if result.config]
    unit, size = time_unit(tuning.seconds.mean)
    figure = new_figure(8.6, 5.2)
    axes = figure.subplots()
    plain = [result for result in results if "prefetch_factor" not in result.config]
    spots = _draw_against(axes, plain, "seconds_per_batch", scale=size, over="num_workers")
    places = sorted({result.config["num_workers"] for result in plain})
    others = [result for result in results if "prefetch_factor" in result.config and result.num_ok]
    means, deviations = _values(others, "seconds_per_batch", size)
    for number, (result, mean, deviation) in enumerate(zip(others, means, deviations)):
        at = spots[result.label] = places.index(result.config["num_workers"]) + 0.09 * (number + 1)
        label = "with this prefetch factor" if not number else None
        draw_line(axes, [at], [mean], [deviation], marker="D", ms=5, color=FAINT, ls="none", label=label)
        # above the ring
        add_label(axes, str(result.config["prefetch_factor"]), (at, mean + deviation), dy=10, color=FAINT)
    best = next(result for result in results if result.config == tuning.best)
    ring: dict[str, Any] = {"ms": 17, "mfc": "none", "mec": BAD, "mew": 1.8}
    axes.plot([spots[best.label]], [tuning.seconds.mean / size], "o", label=tuning.code, **ring)
    if tuning.before is not None:
        axes.axhline(tuning.before.mean / size, color=FAINT, lw=1.2, ls="--", label="current settings")
    if tuning.step_seconds is not None:
        axes.axhline(tuning.step_seconds / size, color=SERIES[2], lw=1.2, ls=":", label="step without loading")
    what = "step, including the wait for its batch" if sweep.step is not None else "batch"
    axes.set_ylabel(f"time per {what} ({unit})", color=INK)
    axes.set_ylim(0, 1.32 * axes.get_ylim()[1])
    add_legend(axes, columns=2)
    finish(figure, f"{shorten_target(sweep.target)}: time against workers", grid="y")
    return {"tune": figure}


def _values(results: Iterable[Result], quantity: str, scale: float = 1.0) -> tuple[NDArray[np.float64], ...]:
    """Return the means of a quantity, and its standard deviations."""
    pairs = [(result.mean(quantity) or 0.0, result.deviation(quantity)) for result in results]
    means, deviations = np.array(pairs, np.float64).reshape(-1, 2).T / scale
    return means, deviations


def _throughput_figure(title: str, results: Sequence[Result], *, has_step: bool = False) -> Figure:
    """Plot throughput, and time per batch or step, against the varied argument."""
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    times = [mean for result in results if (mean := result.mean("seconds_per_batch"))]
    unit, size = time_unit(min(times, default=1.0))
    _draw_against(left, results, "samples_per_second")
    _draw_against(right, results, "seconds_per_batch", scale=size)
    left.set_ylabel("samples per second", color=INK)
    what = "step, including the wait for its batch" if has_step else "batch"
    right.set_ylabel(f"time per {what} ({unit})", color=INK)
    add_legend(left)
    finish(figure, title, grid="y")
    return figure


def _memory_figure(title: str, results: Sequence[Result]) -> Figure:
    """Plot the memory of all processes, stacked; and per worker against num_workers, if that varies."""
    known = [result for result in results if result.mean("memory_bytes") is not None]
    working = [result for result in known if result.mean("worker_bytes") is not None]
    has_growth = len({result.config.get("num_workers") for result in working} - {None}) > 1
    width = max(6.0, 1.6 + 0.9 * len(known))
    figure = new_figure(width + (4.6 if has_growth else 0.0), 4.6)
    panels = figure.subplots(1, 1 + has_growth, squeeze=False, width_ratios=(width, 4.6)[: 1 + has_growth])[0]
    _draw_processes(panels[0], known)
    growth = bytes_per_worker(results)
    if growth is not None:
        text = f"grows by {format_bytes(max(0.0, growth))} per worker, not counting file pages"
        add_title(panels[0], text)
    if has_growth:
        _draw_worker(panels[1], working)
    finish(figure, title, grid="y")
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
    _, spread = _values(results, "memory_bytes", 1e6)
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
        _draw_against(axes, results, quantity, scale=1e6, over="num_workers", is_dashed=is_dashed)
    axes.plot([], [], color=FAINT, marker="o", label="mean of all workers")
    axes.plot([], [], color=FAINT, marker="o", mfc="white", ls="--", label="largest")
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.set_ylabel("one worker (MB, PSS)", color=INK)
    add_legend(axes)


def _startup_figure(title: str, well: Sequence[Result]) -> Figure:
    """Plot the parts of the start-up time before the first batch."""
    figure = new_figure(9.5, 1.9 + 0.42 * len(well))
    axes = figure.subplots()
    at = np.arange(len(well))
    left = np.zeros(len(well))
    for name, (quantity, color) in PARTS.items():
        part, _ = _values(well, quantity)
        axes.barh(at, part, left=left, height=0.6, color=color, label=name)
        left = left + part
    _, spread = _values(well, "startup_seconds")
    axes.errorbar(left, at, xerr=spread, fmt="none", ecolor=INK, capsize=3, lw=1.1)
    axes.set_yticks(at, [result.label for result in well])
    axes.invert_yaxis()
    axes.set_xlabel("seconds from the start of the program to the first batch", color=INK)
    axes.set_xlim(0, 1.05 * float((left + spread).max()))
    add_legend(axes, above=True)
    finish(figure, title, grid="x")
    return figure


def _quantiles_figure(title: str, well: Sequence[Result]) -> Figure:
    """Plot the p50, p90 and p99 of the time per batch."""
    figure = new_figure(9.5, 1.9 + 0.5 * len(well))
    axes = figure.subplots()
    lowest = min(result.mean("p50_seconds") or 1.0 for result in well)
    is_log = max(result.mean("p99_seconds") or 0.0 for result in well) > 20 * lowest
    unit, size = time_unit(lowest)
    at = np.arange(len(well))
    for name, color, shift in (("p50", SERIES[0], -0.2), ("p90", SERIES[1], 0.0), ("p99", BAD, 0.2)):
        values, spread = _values(well, f"{name}_seconds", size)
        # times are positive, and a log scale has no zero
        below = np.minimum(spread, (0.7 if is_log else 1.0) * values)
        style: dict[str, Any] = {"color": color, "ecolor": color, "capsize": 3, "ms": 6, "lw": 1.4, "clip_on": False}
        axes.errorbar(values, at + shift, xerr=[below, spread], fmt="o", label=name, **style)
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


def _draw_against(
    axes: Axes,
    results: Sequence[Result],
    quantity: str,
    *,
    scale: float = 1.0,
    over: str | None = None,
    is_dashed: bool = False,
) -> dict[str, float]:
    """Plot a quantity against an argument, with error bars: one line per setting of the others.

    By default the argument is the first that was varied. Failed trials are crosses at the bottom. Dashed lines have no
    label: they belong to solid lines of the same color. Return the x position of each result, by its label.
    """
    spots: dict[str, float] = {}
    over = over or next((name for name in _varied_arguments(results) if name in AXES), None)
    if over is None:
        _draw_bars(axes, results, quantity, scale)
        return spots
    groups = _groups(results, [name for name in _varied_arguments(results) if name != over])
    places = sorted({result.config[over] for result in results if over in result.config})
    for number, (label, group) in enumerate(groups.items()):
        well = sorted((one for one in group if one.num_ok), key=lambda one: one.config[over])
        color = SERIES[number % len(SERIES)]
        dodge = 0.04 * (number - (len(groups) - 1) / 2) / max(1, len(groups) / 4)  # or error bars overlap
        spots |= {one.label: places.index(one.config[over]) + dodge for one in well}
        style = {"ls": "--", "mfc": "white"} if is_dashed else {"label": label or None}
        draw_line(axes, [spots[one.label] for one in well], *_values(well, quantity, scale), color=color, **style)
        for one in group:
            if not one.num_ok:
                axes.plot([places.index(one.config[over])], [0], marker="x", color=BAD, ms=9, mew=2.2, clip_on=False)
    axes.set_xticks(range(len(places)), [str(place) for place in places])
    axes.set_xlabel(AXES.get(over, over), color=INK)
    axes.set_xlim(-0.3, len(places) - 0.7)
    axes.set_ylim(bottom=0)
    return spots


def _groups(results: Sequence[Result], others: Sequence[str]) -> dict[str, list[Result]]:
    """Return the results of each line, by the settings that distinguish the lines.

    A result without such an argument (no workers, so no prefetching) belongs to every line that agrees otherwise.
    """
    full = [result for result in results if all(name in result.config for name in others)]
    groups: dict[str, list[Result]] = {}
    for result in full:
        groups.setdefault(label_of(result.config, others) if others else "", []).append(result)
    for result in results:
        if result not in full:
            known = {name: result.config[name] for name in others if name in result.config}
            fitting = [
                group for group in groups.values() if all(group[0].config[name] == known[name] for name in known)
            ]
            for group in fitting or [groups.setdefault(result.label, [])]:
                group.append(result)
    return groups


def _varied_arguments(results: Sequence[Result]) -> list[str]:
    """Return the arguments with several values, workers first. A missing argument counts as another value."""
    names = [name for name in SWEPT if len({str(result.config.get(name)) for result in results}) > 1]
    return [name for name in names if all(name in result.config for result in results)] + [
        name for name in names if not all(name in result.config for result in results)
    ]


def _draw_bars(axes: Axes, results: Sequence[Result], quantity: str, scale: float) -> None:
    at = range(len(results))
    values, spread = _values(results, quantity, scale)
    axes.bar(at, values, width=0.5, color=SERIES[0], yerr=spread, ecolor=INK, capsize=5)
    axes.set_xticks(at, [result.label for result in results])
    axes.set_xlim(-1, len(results))


def _draw_contenders(axes: Axes, sweep: Sweep, results: Sequence[Result], quantity: str, scale: float) -> None:
    """Draw bars grouped by num_workers; label throughput with its ratio to torch's."""
    there = {result.config["contender"] for result in results}
    names = [name for name in dict.fromkeys(one["contender"] for one in sweep.configs) if name in there]
    names.sort(key=_rank)
    numbers = list(dict.fromkeys(result.config["num_workers"] for result in results))
    width = 0.84 / len(names)
    for place, name in enumerate(names):
        own = [result for result in results if result.config["contender"] == name]
        at = [numbers.index(result.config["num_workers"]) + (place - (len(names) - 1) / 2) * width for result in own]
        values, spread = _values(own, quantity, scale)
        color = LOADERS.get(name) or (STOKER_WITH_THREADS if name.startswith("stoker") else SERIES[place])
        axes.bar(at, values, width=0.9 * width, color=color, yerr=spread, ecolor=INK, capsize=3, label=name)
        for x, value, deviation, result in zip(at, values, spread, own):
            times = ratio(sweep, result.config) if quantity == "samples_per_second" else None
            if times is not None:
                add_label(axes, format_ratio(times.mean), (x, value + deviation), dy=3, fontsize=8)
    axes.set_xticks(range(len(numbers)), [format_count(number, "worker") for number in numbers])
    axes.set_xlim(-0.55, len(numbers) - 0.45)
    axes.margins(y=0.12)


def _rank(contender: str) -> tuple[int, str]:
    """Return the sort key of a loader."""
    known = list(LOADERS)
    name = contender if contender in LOADERS else contender.partition(",")[0]
    return known.index(name) if name in known else len(known), contender
