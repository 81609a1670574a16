"""Format how costs grow as a table for the terminal."""

from __future__ import annotations

from collections.abc import Collection

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.scale.record import (
    FIRST,
    MEMORY,
    RANKS,
    RESOLUTION,
    SAMPLES,
    STATE,
    STEP,
    STEPS,
    WORKERS,
    Curve,
    Point,
    Scale,
)
from stoker.foundation.text import format_bytes, format_duration
from stoker.lab.plots.tables import fit_to_width

AXIS_TITLES = {SAMPLES: "samples", WORKERS: "workers", RANKS: "ranks", STEPS: "steps done"}
COSTS = {FIRST: "first batch", STEP: "per batch", STATE: "state_dict", MEMORY: "memory"}

FLAT = 0.15
"""Slopes within ± this are noise: growth of less than half over a factor of a thousand."""


def scale_table(scale: Scale, *, width: int = 200) -> Table:
    """Return a table with a row per curve: the cost at the first and last point, and the slope."""
    return fit_to_width(lambda left_out: _table(scale, left_out), spare=("times", "range", "from"), width=width)


def _table(scale: Scale, left_out: Collection[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("cost", "loader", "range", "from", "to", "times", "slope"):
        if name not in left_out:
            table.add_column(name, justify="left" if name in ("cost", "loader") else "right", no_wrap=True)
    axis = measure = ""
    for curve in scale.curves:
        points = [point for point in curve.points if point.values]
        if not points:
            continue
        if curve.axis != axis:
            if axis:
                table.add_section()
            axis, measure = curve.axis, ""
            table.add_row(f"[bold]{AXIS_TITLES[axis]}[/]")
        first, last, factor, slope = points[0], points[-1], curve.factor, curve.exponent
        is_flat = slope is not None and abs(slope) < FLAT
        cells = {
            "cost": "" if curve.measure == measure else f"  {COSTS[curve.measure]}",
            "loader": curve.loader,
            "range": f"{format_place(first.x)}-{format_place(last.x)}",
            "from": _format_cost(curve, first),
            "to": _format_cost(curve, last),
            "times": "-" if factor is None else f"{factor:,.2f}" if factor < 100 else f"{factor:,.0f}",
            "slope": "-"
            if slope is None
            else f"[{'green' if is_flat else 'yellow'}]{slope:.2f}[/]".replace("-0.00", "0.00"),
        }
        table.add_row(*(cell for name, cell in cells.items() if name not in left_out))
        measure = curve.measure
    return table


def format_place(x: int) -> str:
    """Format a value of an axis: `256`, `10^6`."""
    power = len(str(x)) - 1
    return f"10^{power}" if x == 10**power and power >= 3 else f"{x:,}"


def scale_remarks(scale: Scale) -> list[str]:
    """Return the notes on the table, one sentence each."""
    found = ["slope: 0 is flat, 1 is proportional; fitted to the upper half of each curve"]
    mentioned: set[tuple[str, str]] = set()
    for curve in scale.curves:
        left_out = [point for point in curve.points if point.skipped]
        if left_out and (curve.axis, curve.loader) not in mentioned:
            mentioned.add((curve.axis, curve.loader))
            places = " and ".join(format_place(point.x) for point in left_out)
            found.append(f"skipped: {curve.loader} with {places} {curve.axis}, which {left_out[0].skipped}")
    if scale.shares:
        most = max(scale.shares, key=lambda shares: shares.num_ranks)
        if all(shares.are_equal for shares in scale.shares):
            found.append(
                f"every one of up to {most.num_ranks:,} ranks gets {most.num_samples} samples at every step, and "
                "the same number of steps; no sample goes to two ranks"
            )
        else:
            odd = ", ".join(str(shares.num_ranks) for shares in scale.shares if not shares.are_equal)
            found.append(f"ranks get unequal shares with {odd} ranks")
    return found


def _format_cost(curve: Curve, point: Point) -> str:
    if curve.measure != MEMORY:
        return format_duration(point.median)
    return format_bytes(point.median) if point.median >= RESOLUTION[MEMORY] else "< 1 MB"
