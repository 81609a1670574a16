"""Show the batch sizes that `stoker tune --batch-size` tried: plot, table and conclusions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from stoker.foundation.text import format_bytes, format_number, format_percent, format_spread
from stoker.lab.plots.plotting import BAD, FAINT, INK, add_title, draw_line, finish, new_figure, plain_numbers
from stoker.lab.plots.tables import shorten_target, table_of_rows
from stoker.lab.trial.batch_size import KNEE_SHARE, BatchTune

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAST, STEP, KNEE = "#3b6fa0", "#e8833a", "#2a9d6f"


def batch_table(tune: BatchTune, *, width: int = 200) -> Table:
    """Return a table with a row per size tried: samples per second, step time, memory."""
    rows = []
    for one in tune.sizes():
        if not one.fits:
            note = "[red]does not fit[/]"
        elif one.batch_size == tune.largest:
            note = "[green]largest that fits[/]"
        elif tune.is_slower_when_larger:
            note = "[cyan]fastest[/]" if one.batch_size == tune.fastest else ""
        else:
            note = "[cyan]larger gains little[/]" if one.batch_size == tune.knee else ""
        rows.append(
            {
                "batch size": f"{one.batch_size:,}",
                "samples/s": format_number(one.samples_per_second),
                "ms per step": format_spread(one.step_seconds, one.deviation, scale=1e-3),
                "memory": format_bytes(one.peak_bytes),
                "": note,
            }
        )
    return table_of_rows(rows, texts=("",), spare=("memory", "ms per step"), width=width)


def batch_remarks(tune: BatchTune) -> list[str]:
    """Return the conclusions, one sentence each."""
    where = f"{format_bytes(tune.memory_bytes)} of {tune.device}" if tune.memory_bytes is not None else tune.device
    if tune.largest is None and tune.is_interrupted:
        return [f"no batch size that fits into {where} was found before the interruption"]
    if tune.largest is None:
        return [f"not even a batch of one sample fits into {where}"]
    found = [
        f"batch_size={tune.largest} is the largest that fits into {where} with {format_percent(tune.margin)} to spare"
    ]
    if tune.num_verified:
        found[0] += f"; verified with {tune.num_verified} steps in a separate process"
    if tune.stopped:
        found[0] = found[0].replace("the largest that fits", "the largest found to fit")
        found.append(f"larger sizes may fit: {tune.stopped}")
    knee = tune.knee
    if tune.is_slower_when_larger:
        speeds = tune.speeds()
        best, last = format_number(max(speeds.values())), format_number(speeds[max(speeds)])
        found.append(
            f"batch_size={tune.fastest} is the fastest, with {best} samples per second: use that. Larger batches are "
            f"slower, and batch_size={max(speeds)} gives {last}"
        )
    elif knee is not None and knee < tune.largest:
        gain = format_percent(KNEE_SHARE)
        found.append(f"beyond batch_size={knee}, larger batches gain less than {gain} in samples per second")
    elif knee == tune.largest and not tune.stopped:
        found.append("throughput still grows at the largest size: more memory would allow more samples per second")
    if tune.num_repeated is not None:
        found.append(
            f"batches repeat the {tune.num_repeated:,} samples of the loader's first one: where others are larger, "
            "memory may not be enough"
        )
    said = [one.error for one in tune.sizes() if one.error]
    if said:
        found.append(f"error of a size that did not fit: {said[0]}")
    return found


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
    finish(figure, _title(tune), _below(tune))
    return figure


def _line(axes: Axes, xs: list[int], ys: list[float], errors: list[float] | None, color: str, name: str) -> None:
    draw_line(axes, xs, ys, errors, color=color)
    axes.set_ylim(0, 1.12 * max([*(y + e for y, e in zip(ys, errors or [0.0] * len(ys))), 1e-9]))
    add_title(axes, name)


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
    name = shorten_target(tune.target)
    if tune.largest is None:
        return f"{name}: no size tried so far fits" if tune.is_interrupted else f"{name}: no batch size fits"
    paying = f", {tune.knee:,} is as fast" if tune.knee is not None and tune.knee < tune.largest else ""
    if tune.is_slower_when_larger:
        paying = f", but {tune.fastest:,} is the fastest: larger batches are slower"
    return f"{name}: a batch of {tune.largest:,} fits{paying}"


def _below(tune: BatchTune) -> str:
    memory = "" if tune.memory_bytes is None else f"{format_bytes(tune.memory_bytes)} of "
    pays = f"beyond this, larger sizes gain less than {format_percent(KNEE_SHARE)}"
    return (
        f"In {memory}{tune.device}. Dotted: largest that fits. Green: "
        f"{'fastest' if tune.is_slower_when_larger else pays}. Red: does not fit. "
        "Error bars: standard deviation over steps."
    )
