"""Plot samples per second, step time and memory against the batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.foundation.text import format_bytes
from stoker.lab.plots.plotting import FAINT, INK, heading, new_figure, plain, plain_numbers
from stoker.lab.trial.batch_size import KNEE_SHARE, BatchTune

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAST, STEP, BAD, KNEE = "#3b6fa0", "#e8833a", "#c8391b", "#2a9d6f"


def batch_figure(tune: BatchTune) -> Figure:
    """Plot throughput, step time and memory against the batch size."""
    sizes = tune.sizes()
    fitting = [one for one in sizes if one.fits and one.step_seconds is not None]
    with_memory = [one for one in fitting if one.peak_bytes is not None]
    figure = new_figure(11 if with_memory else 8, 4.3)
    panels = figure.subplots(1, 3 if with_memory else 2)
    xs = [one.batch_size for one in fitting]
    speeds = [one.samples_per_second or 0.0 for one in fitting]
    shares = [(one.deviation or 0.0) / (one.step_seconds or 1.0) for one in fitting]
    _line(panels[0], xs, speeds, [speed * share for speed, share in zip(speeds, shares)], FAST, "samples per second")
    steps = [1e3 * (one.step_seconds or 0.0) for one in fitting]
    _line(panels[1], xs, steps, [step * share for step, share in zip(steps, shares)], STEP, "ms per step")
    if steps:
        panels[1].set_yscale("log")
        panels[1].set_ylim(min(steps) / 1.6, max(steps) * 1.6)
        plain_numbers(panels[1].yaxis)
    if with_memory:
        memory = [(one.peak_bytes or 0) / 1e9 for one in with_memory]
        _line(panels[2], [one.batch_size for one in with_memory], memory, None, INK, "peak memory, GB")
        if tune.memory_bytes is not None:
            panels[2].axhline(tune.memory_bytes / 1e9, color=BAD, linewidth=1, linestyle=(0, (4, 3)))
            panels[2].set_ylim(0, 1.1 * max(tune.memory_bytes / 1e9, *memory))
    if speeds:
        panels[0].axhspan((1 - KNEE_SHARE) * max(speeds), max(speeds), color=KNEE, alpha=0.15, linewidth=0)
    ticks = _ticks([one.batch_size for one in sizes], tune)
    for panel in panels:
        panel.set_xscale("log", base=2)
        _mark(panel, tune)
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.minorticks_off()
        panel.set_xlabel("batch size", fontsize=9, color=FAINT)
        panel.tick_params(axis="x", rotation=35 if len(ticks) > 7 else 0)
    heading(figure, _title(tune), _below(tune))
    return figure


def _line(axes: Axes, xs: list[int], ys: list[float], errors: list[float] | None, color: str, name: str) -> None:
    axes.errorbar(xs, ys, yerr=errors, color=color, marker="o", markersize=5, linewidth=1.8, capsize=3)
    axes.set_ylim(0, 1.12 * max([*(y + e for y, e in zip(ys, errors or [0.0] * len(ys))), 1e-9]))
    if axes.get_ylim()[1] >= 1e4:
        axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(name, loc="left", fontsize=10, color=INK)
    plain(axes)


def _mark(axes: Axes, tune: BatchTune) -> None:
    too_large = [one.batch_size for one in tune.sizes() if not one.fits]
    if too_large:
        _, right = axes.get_xlim()
        right = max(right, 1.15 * max(too_large))
        axes.axvspan(min(too_large), right, color=BAD, alpha=0.13, linewidth=0)
        axes.set_xlim(right=right)
    if tune.largest is not None:
        axes.axvline(tune.largest, color=INK, linewidth=1, linestyle=(0, (1, 2)))
    pays = tune.fastest if tune.is_slower_when_larger else tune.knee
    if pays is not None:
        axes.axvline(pays, color=KNEE, linewidth=1.4, linestyle=(0, (4, 3)))


def _ticks(sizes: list[int], tune: BatchTune) -> list[int]:
    """Return the sizes to label: those about twice the previous one, and the largest."""
    kept: list[int] = []
    for size in sizes:
        is_apart = all(size >= 1.8 * other or other >= 1.8 * size for other in (*kept, tune.largest or size / 4))
        if size == tune.largest or is_apart:
            kept.append(size)
    return kept


def _title(tune: BatchTune) -> str:
    name = tune.target.rpartition("/")[2]
    if tune.largest is None:
        return f"{name}: no size tried so far fits" if tune.is_interrupted else f"{name}: no batch size fits"
    paying = f", {tune.knee:,} is as fast" if tune.knee is not None and tune.knee < tune.largest else ""
    if tune.is_slower_when_larger:
        paying = f", but {tune.fastest:,} is the fastest: larger batches are slower"
    return f"{name}: a batch of {tune.largest:,} fits{paying}"


def _below(tune: BatchTune) -> str:
    memory = "" if tune.memory_bytes is None else f"{format_bytes(tune.memory_bytes)} of "
    pays = f"beyond this, larger sizes gain less than {KNEE_SHARE:.0%}"
    return (
        f"In {memory}{tune.device}. Dotted: largest that fits. Green: "
        f"{'fastest' if tune.is_slower_when_larger else pays}. Red: does not fit. "
        "Error bars: standard deviation over steps."
    )
