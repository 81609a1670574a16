"""Distributions of durations: batches, waits, steps, loading."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, floor, log10

import numpy as np
from numpy.typing import NDArray

from stoker.foundation.text import format_count, format_duration, format_percent
from stoker.lab.page.frame import columns, data, figure, missing, stretch, table, x_labels
from stoker.lab.page.markup import Child, Markup, short, tag
from stoker.lab.page.scales import Scale
from stoker.lab.page.subject import Loader
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

_MARKS = (("p50", "p50"), ("p90", "p90"), ("p99", "p99"))


def durations(loaders: Sequence[tuple[str, Loader]]) -> Markup:
    """Return a row per kind of duration and loader, all on one axis."""
    title = "Durations"
    rows = []
    for what, kind, attribute, column in _KINDS:
        for name, loader in loaders:
            quantiles: Quantiles = getattr(loader.stats, attribute)
            batches = loader.batches
            values = np.empty(0) if batches is None else getattr(batches, column)
            if quantiles.num:
                rows.append((f"{what}{name and f', {name}'}", kind, quantiles, values[values >= 0]))
    if not rows:
        return figure(title, missing("Fewer than two batches were recorded, so there are no durations to compare."))
    scale = _scale(rows)
    is_counted = any(len(values) for *_, values in rows)
    lead = "Lines mark p50 (solid), p90 (dashed) and p99 (dotted) over all batches."
    if is_counted:
        lead = f"Histograms of the latest batches, with heights on a square-root scale. {lead}"
    lead += " The axis is logarithmic."
    drawn = [_row(*row, scale=scale) for row in rows]
    ticks = [(scale(at), format_duration(at)) for at in scale.ticks(6)]
    grid = tag(
        "div",
        tag("div", class_="none"),
        x_labels(ticks),
        class_="axis",
    )
    head = ("", "number", "mean", "std", "p50", "p90", "p99", "max")
    lines = [
        (
            what,
            format_count(one.num),
            *(format_duration(value) for value in (one.mean, one.deviation, one.p50, one.p90, one.p99, one.most)),
        )
        for what, _, one, _ in rows
    ]
    return figure(
        title,
        *drawn,
        grid,
        lead=lead,
        table=table(head, lines, caption="Durations, without the first batch of each iteration"),
        class_="durations",
    )


def _scale(rows: Sequence[tuple[str, str, Quantiles, NDArray[np.float64]]]) -> Scale:
    known = [value for *_, one, _ in rows for value in (one.p50, one.p99, one.most)]
    known += [float(edge) for *_, values in rows if len(values) for edge in (np.quantile(values, 0.005), values.max())]
    low = max(SHORTEST, min(known))
    high = max(low * 10, *known)
    # round the ends of the axis to half decades
    return Scale(10 ** (floor(2 * log10(low)) / 2), 10 ** (ceil(2 * log10(high)) / 2), is_log=True)


def _row(what: str, kind: str, quantiles: Quantiles, values: NDArray[np.float64], *, scale: Scale) -> Markup:
    num_bins = max(1, round(PER_DECADE * log10(scale.high / scale.low)))
    edges = np.geomspace(scale.low, scale.high, num_bins + 1)
    counts, _ = np.histogram(np.clip(values, scale.low, scale.high), edges)
    marks = [
        tag(
            "line",
            tag("title", f"{name}: {format_duration(getattr(quantiles, at))}"),
            x1=place,
            x2=place,
            y1=0,
            y2=HEIGHT,
            class_=f"mark {name}",
        )
        for name, at in _MARKS
        for place in [f"{short(100 * scale(getattr(quantiles, at)))}%"]
    ]
    numbers = ", ".join(f"{name} {format_duration(getattr(quantiles, at))}" for name, at in (("mean", "mean"), *_MARKS))
    drawn: Child = None
    points: Child = None
    if len(values):
        heights = np.sqrt(counts / max(1, counts.max())).tolist()  # square root, so that rare long ones stay visible
        places = [scale(edge) for edge in edges.tolist()]
        drawn = stretch(tag("path", d=columns(places, heights, height=HEIGHT), class_=kind), height=HEIGHT)
        middles = [(left + right) / 2 for left, right in pairwise(places)]
        texts = [
            f"{what}: {format_duration(left, 2)} to {format_duration(right, 2)}: {count:,} "
            f"({format_percent(count / len(values))})"
            for left, right, count in zip(edges.tolist(), edges[1:].tolist(), counts.tolist())
        ]
        points = data("points", {"x": [round(at, 5) for at in middles], "texts": texts})
    return tag(
        "div",
        tag("div", tag("strong", what), tag("span", numbers), class_="about"),
        tag(
            "svg",
            tag("title", f"{what}: {numbers}, max {format_duration(quantiles.most)}"),
            drawn,
            tag("line", x1=0, x2="100%", y1=HEIGHT, y2=HEIGHT, class_="grid"),
            *marks,
            role="img",
            height=HEIGHT,
            width="100%",
            tabindex=0 if points else None,
            class_="drawing",
        ),
        points,
        class_="plot duration",
    )
