"""Shared style and parts of the plots: figures, axes, lines with error bars, labels, legends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, FAINT, LINE, BAD = "#22262b", "#666e77", "#dfe3e6", "#c8391b"

SERIES = ("#3b6fa0", "#e8833a", "#2a9d6f", "#9a6fb0", "#b8860b", "#4aa3b5", BAD, "#767676")
"""Colors of lines."""

LOADERS = {
    "torch": "#767676",
    "StatefulDataLoader": "#b8860b",
    "stoker": BAD,
    "SPDL, processes": "#8fbf7f",
    "SPDL, threads": "#2e7d4f",
    "Grain": "#7a4fa3",
}
"""Color of each loader, the same in all plots, in the order of the legend."""

STOKER_WITH_THREADS = "#e58a73"


def require_matplotlib() -> None:
    """Raise `MissingExtra` if Matplotlib is not installed; call it before measuring."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtra("matplotlib", extra="plot", need="a plot") from error


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, sized in inches, that is not registered with pyplot."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, facecolor="white", layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(h_pad=0.09, w_pad=0.07, wspace=0.04)
    return figure


def finish(figure: Figure, title: str, below: str = "", *, grid: str = "both") -> None:
    """Add a left-aligned title at the top and a line of small print at the bottom, and style all axes.

    Args:
        grid: the axis whose values have grid lines: `"x"`, `"y"` or `"both"`.
    """
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    if below:
        figure.supxlabel(below, x=0.01, ha="left", fontsize=8.5, color=FAINT)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(colors=FAINT, labelcolor=INK, labelsize=9)
        if grid != "none":
            axes.grid(color=LINE, linewidth=0.7, axis=grid)  # type: ignore[arg-type]
        axes.set_axisbelow(True)
        if axes.get_yscale() == "linear" and axes.get_ylim()[1] >= 1e4:
            axes.yaxis.set_major_formatter("{x:,.0f}")


def plain_numbers(axis: Axis, *, room: float = 1e3) -> None:
    """Label a log scale as 0.5, 20 and 1,000, not with powers of ten.

    Add ticks at 2 and 5 if the axis spans at most `room` times its lowest value. Set the limits of the axis before
    calling this.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if high < room * low else (1,), numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


def draw_line(axes: Axes, xs: Any, ys: Any, errors: Any, **style: Any) -> None:
    """Draw points on a line, with error bars; xs, ys and errors are as for `Axes.errorbar`."""
    axes.errorbar(xs, ys, yerr=errors, **{"marker": "o", "ms": 5.5, "lw": 1.8, "capsize": 3.5, **style})


def add_label(
    axes: Axes, text: str, at: tuple[float, float], *, dx: float = 0, dy: float = 0, color: str = INK, **style: Any
) -> None:
    """Write a text next to a point, at a distance in points: `dx` to the right of it, or `dy` above it."""
    axes.annotate(
        text,
        at,
        xytext=(dx, dy),
        textcoords="offset points",
        **{
            "ha": "left" if dx else "center",
            "va": "center" if dx else "baseline",
            "fontsize": 8.5,
            "color": color,
            **style,
        },
    )


def add_legend(axes: Axes, *, above: bool = False, columns: int = 1, **style: Any) -> None:
    """Add a legend if anything has a label: where there is room, above the axes, or beside them if it is long."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    place: dict[str, Any] = {"loc": "upper right" if columns > 1 else "best", "ncols": columns}
    if above:
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": len(labels)}
    elif len(labels) > 8:
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
    axes.legend(handles, labels, **{"frameon": False, "fontsize": 9, "labelcolor": INK, **place, **style})


def add_title(axes: Axes, text: str) -> None:
    """Write what a panel shows above its left edge."""
    axes.set_title(text, loc="left", fontsize=10, color=INK)
