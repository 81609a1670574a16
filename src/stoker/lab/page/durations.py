"""Distributions of durations: batches, waits, steps, loading."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from stoker.foundation.text import format_count, format_duration, format_percent
from stoker.lab.page.reported_run import ReportedLoader
from stoker.lab.page.scales import AxisScale, column_path
from stoker.lab.page.templating import missing_figure, render
from stoker.lab.watch.run import Quantiles

HEIGHT = 54
PER_DECADE = 24
"""Histogram bins per decade: each is a tenth wider than the one before."""

SHORTEST = 1e-6

_KINDS = (
    ("from batch to batch", "other", "batch_seconds", "periods"),
    ("wait", "wait", "wait_seconds", "later_waits"),
    ("step", "step", "step_seconds", "steps"),
    ("loading a batch", "load", "making_seconds", "makings"),
)
"""Name, color, and where the quantiles and the durations of the latest batches are."""


class _Durations(NamedTuple):
    name: str
    kind: str
    quantiles: Quantiles
    latest: NDArray[np.float64]


def durations(loaders: Sequence[tuple[str, ReportedLoader]]) -> Markup:
    """Return a row per kind of duration and loader, all on one axis."""
    title = "Durations"
    rows = []
    for what, kind, attribute, column in _KINDS:
        for name, loader in loaders:
            quantiles: Quantiles = getattr(loader.stats, attribute)
            latest = np.empty(0) if loader.batches is None else getattr(loader.batches, column)
            if quantiles.num:
                rows.append(_Durations(f"{what}{name and f', {name}'}", kind, quantiles, latest[latest >= 0]))
    if not rows:
        return missing_figure(title, "Fewer than two batches were recorded, so there are no durations to compare.")
    scale = _axis(rows)
    lead = "Lines mark p50 (solid), p90 (dashed) and p99 (dotted) over all batches."
    if any(len(row.latest) for row in rows):
        lead = f"Histograms of the latest batches, with heights on a square-root scale. {lead}"
    return render(
        "durations.html",
        title=title,
        lead=f"{lead} The axis is logarithmic.",
        rows=[_histogram(row, scale) for row in rows],
        ticks=[(scale(at), format_duration(at)) for at in scale.ticks(6)],
        height=HEIGHT,
        numbers=[
            (
                row.name,
                format_count(row.quantiles.num),
                *(
                    format_duration(getattr(row.quantiles, name))
                    for name in ("mean", "deviation", "p50", "p90", "p99", "most")
                ),
            )
            for row in rows
        ],
    )


def _axis(rows: Sequence[_Durations]) -> AxisScale:
    """Return a logarithmic axis whose ends are half decades."""
    known = [value for row in rows for value in (row.quantiles.p50, row.quantiles.p99, row.quantiles.most)]
    known += [
        float(edge) for row in rows if len(row.latest) for edge in (np.quantile(row.latest, 0.005), row.latest.max())
    ]
    low = max(SHORTEST, min(known))
    high = max(low * 10, *known)
    return AxisScale(10 ** (floor(2 * log10(low)) / 2), 10 ** (ceil(2 * log10(high)) / 2), is_log=True)


def _histogram(row: _Durations, scale: AxisScale) -> dict[str, object]:
    marks = [
        {"name": name, "at": scale(value), "text": format_duration(value)}
        for name in ("p50", "p90", "p99")
        for value in [getattr(row.quantiles, name)]
    ]
    summary = ", ".join(
        [f"mean {format_duration(row.quantiles.mean)}", *(f"{mark['name']} {mark['text']}" for mark in marks)]
    )
    drawn: dict[str, object] = {
        "name": row.name,
        "marks": marks,
        "summary": summary,
        "most": format_duration(row.quantiles.most),
        "paths": [],
        "points": None,
    }
    if not len(row.latest):
        return drawn
    edges = np.geomspace(scale.low, scale.high, max(1, round(PER_DECADE * log10(scale.high / scale.low))) + 1)
    counts, _ = np.histogram(np.clip(row.latest, scale.low, scale.high), edges)
    heights = np.sqrt(counts / max(1, counts.max())).tolist()  # square root, so that rare long ones stay visible
    places = [scale(edge) for edge in edges.tolist()]
    texts = [
        f"{row.name}: {format_duration(left, 2)} to {format_duration(right, 2)}: {count:,} "
        f"({format_percent(count / len(row.latest))})"
        for (left, right), count in zip(pairwise(edges.tolist()), counts.tolist())
    ]
    drawn["paths"] = [{"kind": row.kind, "d": column_path(places, heights, height=HEIGHT)}]
    drawn["points"] = {"x": [round((left + right) / 2, 5) for left, right in pairwise(places)], "texts": texts}
    return drawn
