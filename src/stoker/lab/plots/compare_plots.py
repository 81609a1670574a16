"""Plot loaders side by side. Error bars are standard deviations over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.foundation.text import time_unit
from stoker.lab.plots.bench_axes import SERIES, empty_figure, finish
from stoker.lab.plots.plotting import INK
from stoker.lab.trial.compare import ratio
from stoker.lab.trial.sweep import Result, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTENDERS = {
    "torch": "#767676",
    "StatefulDataLoader": "#b8860b",
    "stoker": "#c8391b",
    "SPDL, processes": "#8fbf7f",
    "SPDL, threads": "#2e7d4f",
    "Grain": "#7a4fa3",
}
OURS_WITH_THREADS = "#e58a73"
"""Color of each loader, the same in all plots."""


def compare_figures(sweep: Sweep) -> dict[str, Figure]:
    """Plot loaders side by side. Return the figure by file name."""
    results = [result for result in sweep.results() if result.num_ok]
    if not results:
        return {}
    figure = empty_figure(11.5, 7.4)
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
    name = sweep.target.rpartition("/")[2]
    finish(figure, f"{name}: loaders side by side, batches of {sweep.settings['batch_size']}")
    return {"compare": figure}


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
        values = [(result.mean(quantity) or 0.0) / scale for result in own]
        spread = [result.deviation(quantity) / scale for result in own]
        color = CONTENDERS.get(name) or (OURS_WITH_THREADS if name.startswith("stoker") else SERIES[place])
        axes.bar(at, values, width=0.9 * width, color=color, yerr=spread, ecolor=INK, capsize=3, label=name)
        for x, value, deviation, result in zip(at, values, spread, own):
            times = ratio(sweep, result.config) if quantity == "samples_per_second" else None
            if times is not None:
                text = f"{times.mean:.1f}x" if times.mean < 9.95 else f"{times.mean:.0f}x"
                axes.annotate(
                    text,
                    (x, value + deviation),
                    xytext=(0, 3),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                    color=INK,
                )
    axes.set_xticks(range(len(numbers)), [f"{number} worker{'' if number == 1 else 's'}" for number in numbers])
    axes.set_xlim(-0.55, len(numbers) - 0.45)
    axes.margins(y=0.12)


def _rank(contender: str) -> tuple[int, str]:
    """Return the sort key of a loader."""
    known = list(CONTENDERS)
    name = contender if contender in CONTENDERS else contender.partition(",")[0]
    return known.index(name) if name in known else len(known), contender
