"""Shared parts of benchmark plots: figures, legends, and lines with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.lab.plots.plotting import INK, heading, new_figure, plain
from stoker.lab.trial.override import SWEPT
from stoker.lab.trial.sweep import Result, label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAD = "#c8391b"
SERIES = ("#3b6fa0", "#e8833a", "#2a9d6f", "#9a6fb0", "#b8860b", "#4aa3b5", "#c8391b", "#767676")
AXES = {
    "num_workers": "workers",
    "num_threads": "threads",
    "batch_size": "batch size",
    "prefetch_factor": "prefetch factor",
}


def empty_figure(width: float, height: float) -> Figure:
    """Return an empty figure, sized in inches, with constrained layout."""
    figure = new_figure(width, height)
    engine: Any = figure.get_layout_engine()
    engine.set(h_pad=0.11, w_pad=0.09, wspace=0.06)
    return figure


def add_legend(axes: Axes, *, above: bool = False, columns: int = 1) -> None:
    """Add a legend if any line has a label."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    options: dict[str, Any] = {"frameon": False, "fontsize": 9, "labelcolor": INK}
    if above:
        axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(labels), **options)
    elif len(labels) > 8:
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1, 1), **options)
    else:
        axes.legend(handles, labels, loc="upper right" if columns > 1 else "best", ncols=columns, **options)


def finish(figure: Figure, title: str, *, grid: str = "y") -> None:
    """Set the title of a figure and style all its axes alike."""
    heading(figure, title)
    for axes in figure.axes:
        plain(axes)
        axes.grid(visible=False, axis="x" if grid == "y" else "y")
        if axes.get_ylim()[1] >= 1e4:
            axes.yaxis.set_major_formatter("{x:,.0f}")


def draw_against(
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
    over = over or axis_of(results)
    if over is None:
        _draw_bars(axes, results, quantity, scale)
        return spots
    groups = _groups(results, [name for name in varied_arguments(results) if name != over])
    places = sorted({result.config[over] for result in results if over in result.config})
    for number, (label, group) in enumerate(groups.items()):
        well = sorted((one for one in group if one.num_ok), key=lambda one: one.config[over])
        color = SERIES[number % len(SERIES)]
        dodge = 0.04 * (number - (len(groups) - 1) / 2) / max(1, len(groups) / 4)  # or error bars overlap
        spots |= {one.label: places.index(one.config[over]) + dodge for one in well}
        axes.errorbar(
            [spots[one.label] for one in well],
            [(one.mean(quantity) or 0.0) / scale for one in well],
            yerr=[one.deviation(quantity) / scale for one in well],
            color=color,
            marker="o",
            ms=5.5,
            lw=1.8,
            ls="--" if is_dashed else "-",
            mfc="white" if is_dashed else color,
            capsize=4,
            label=None if is_dashed else label or None,
        )
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


def axis_of(results: Sequence[Result]) -> str | None:
    """Return the argument for the x axis; None if no argument was varied."""
    return next((name for name in varied_arguments(results) if name in AXES), None)


def varied_arguments(results: Sequence[Result]) -> list[str]:
    """Return the arguments with several values, workers first. A missing argument counts as another value."""
    names = [name for name in SWEPT if len({str(result.config.get(name)) for result in results}) > 1]
    return [name for name in names if all(name in result.config for result in results)] + [
        name for name in names if not all(name in result.config for result in results)
    ]


def _draw_bars(axes: Axes, results: Sequence[Result], quantity: str, scale: float) -> None:
    at = range(len(results))
    values = [(result.mean(quantity) or 0.0) / scale for result in results]
    spread = [result.deviation(quantity) / scale for result in results]
    axes.bar(at, values, width=0.5, color=SERIES[0], yerr=spread, ecolor=INK, capsize=5)
    axes.set_xticks(at, [result.label for result in results])
    axes.set_xlim(-1, len(results))
