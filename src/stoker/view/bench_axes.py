"""What plots of measurements have in common: figures, legends, and lines with whiskers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.bench.override import SWEPT
from stoker.bench.sweep import Result, label_of
from stoker.view.plotting import INK, heading, new_figure, plain

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
    """Return a figure of so many inches, with room between what is in it."""
    figure = new_figure(width, height)
    engine: Any = figure.get_layout_engine()
    engine.set(h_pad=0.11, w_pad=0.09, wspace=0.06)
    return figure


def add_legend(axes: Axes, *, above: bool = False, columns: int = 1) -> None:
    """Say what the lines are, if there is anything to say."""
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
    """Give a figure its title, and all its axes the same look."""
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
    """Draw a quantity against an argument, with whiskers: a line for each setting of the others.

    By default it is the first that was varied. What went wrong is a cross at the foot. Dashed lines have no names: they
    go with others of the same colours. Return where each result stands along the axis, by its label.
    """
    spots: dict[str, float] = {}
    over = over or axis_of(results)
    if over is None:
        _draw_bars(axes, results, quantity, scale)
        return spots
    groups = _groups(results, [name for name in varied(results) if name != over])
    places = sorted({result.config[over] for result in results if over in result.config})
    for number, (label, group) in enumerate(groups.items()):
        well = sorted((one for one in group if one.num_ok), key=lambda one: one.config[over])
        colour = SERIES[number % len(SERIES)]
        dodge = 0.04 * (number - (len(groups) - 1) / 2) / max(1, len(groups) / 4)  # or whiskers hide each other
        spots |= {one.label: places.index(one.config[over]) + dodge for one in well}
        axes.errorbar(
            [spots[one.label] for one in well],
            [(one.mean(quantity) or 0.0) / scale for one in well],
            yerr=[one.deviation(quantity) / scale for one in well],
            color=colour,
            marker="o",
            ms=5.5,
            lw=1.8,
            ls="--" if is_dashed else "-",
            mfc="white" if is_dashed else colour,
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
    """Return the results that make a line each, by what sets the lines apart.

    One that has no such argument, as there is nothing to prefetch without workers, belongs to all that agree otherwise.
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
    """Return the argument to draw against; None if there is but one setting of each."""
    return next((name for name in varied(results) if name in AXES), None)


def varied(results: Sequence[Result]) -> list[str]:
    """Return the arguments that have several values, workers first. One that is missing somewhere has another there."""
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
