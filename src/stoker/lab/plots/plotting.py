"""Shared style of the plots: background, ink, and a color per loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, FAINT, LINE = "#22262b", "#666e77", "#dfe3e6"

LOADERS = {"stoker": "#c8391b", "torch": "#767676", "StatefulDataLoader": "#b8860b"}


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

    return Figure(figsize=(width, height), dpi=110, facecolor="white", layout="constrained")


def plain(axes: Axes) -> None:
    """Remove non-data ink: the top and right spines, strong ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=FAINT, labelcolor=INK, labelsize=9)
    axes.grid(color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)


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


def heading(figure: Figure, title: str, below: str = "") -> None:
    """Add a left-aligned title at the top, and a line of small print at the bottom."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    if below:
        figure.supxlabel(below, x=0.01, ha="left", fontsize=8.5, color=FAINT)
