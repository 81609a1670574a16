"""Usage of each core over the run: one strip per core, darker when busier."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stoker.foundation.text import format_duration, format_percent
from stoker.lab.page.colors import NUM_HEATS
from stoker.lab.page.frame import figure, legend, missing, plot, stretch, table, time_axis
from stoker.lab.page.markup import Markup, short, tag
from stoker.lab.page.scales import Scale
from stoker.lab.watch.run import Moment, Run

MOST_CELLS = 12_000
"""Cells per strip: more would be indistinguishable and make the file large."""


def each_core(runs: Sequence[tuple[str, Run]]) -> Markup:
    """Return one strip per core, darker when busier."""
    title = "Each core"
    known = [(name, run) for name, run in runs if len(run.moments) > 1 and any(one.cores for one in run.moments)]
    if not known:
        return figure(title, missing("Core usage was sampled less than twice, so there are no strips."))
    steps = [f"{format_percent(at / NUM_HEATS)} to {format_percent((at + 1) / NUM_HEATS)}" for at in range(NUM_HEATS)]
    return figure(
        title,
        legend(*((f"heat{at}", step) for at, step in enumerate(steps))),
        tag("div", [_strips(name, run) for name, run in known], class_="panels"),
        lead="One strip per core of the machine, core 0 at the top; darker means busier (brighter on a dark page). "
        "Includes all programs.",
        table=table(
            ("core", "mean usage", "max"),
            [
                (f"{name} {core}".strip(), format_percent(float(values.mean())), format_percent(float(values.max())))
                for name, run in known
                for core, values in enumerate(_heat(run.moments)[:512])
            ],
            caption="Each core over the whole run",
        ),
    )


def _heat(moments: Sequence[Moment]) -> NDArray[np.float64]:
    """Return the usage of each core at each moment, as [cores, moments]."""
    num = max(len(one.cores) for one in moments)
    heat = np.zeros((num, len(moments)))
    for at, one in enumerate(moments):
        heat[: len(one.cores), at] = np.nan_to_num(np.array(one.cores, dtype=np.float64))
    return np.clip(heat, 0, 1)


def _strips(name: str, run: Run) -> Markup:
    moments = run.moments
    heat = _heat(moments)
    num_cores = len(heat)
    together = -(-num_cores // 128)  # cores per strip
    if together > 1:
        heat = np.stack([heat[at : at + together].mean(axis=0) for at in range(0, num_cores, together)])
    num_spans = max(1, min(heat.shape[1], MOST_CELLS // len(heat)))
    edges = np.linspace(0, heat.shape[1], num_spans + 1).astype(int)
    heat = np.stack([heat[:, a:b].mean(axis=1) for a, b in pairwise(edges)], axis=1)
    levels = np.minimum((heat * NUM_HEATS).astype(int), NUM_HEATS - 1)
    each = 14 if len(heat) <= 16 else 8 if len(heat) <= 48 else 4
    height = each * len(heat)
    time = Scale(0.0, max(run.seconds, moments[-1].at))
    begins = [0.0, *(one.at for one in moments)]
    places = [time(begins[edge]) for edge in edges.tolist()]
    paths = ["" for _ in range(NUM_HEATS)]
    for row, line in enumerate(levels.tolist()):
        at = 0
        while at < len(line):  # merge neighbors of one level into a rectangle
            until = at
            while until < len(line) and line[until] == line[at]:
                until += 1
            left, right = 1000 * places[at], 1000 * places[until]
            paths[line[at]] += f"M{short(left)} {row * each}H{short(right)}v{each - 1}H{short(left)}z"
            at = until
    drawn = [tag("path", d=d, class_=f"heat{level}") for level, d in enumerate(paths) if d]
    labels = [
        f"{format_duration(begins[b])}: {format_percent(float(heat[:, at].mean()))} on average, the busiest "
        f"{format_percent(float(heat[:, at].max()))}"
        for at, b in enumerate(edges[1:].tolist())
    ]
    every = max(1, -(-len(heat) // (16 if each == 14 else 8)))
    return tag(
        "div",
        tag("h4", name) if name else None,
        plot(
            stretch(*drawn, height=height),
            title=f"Usage of {num_cores} cores over time{f' of {name}' if name else ''}",
            height=height,
            xs=time_axis(time),
            points=([(a + b) / 2 for a, b in pairwise(places)], labels),
            rows=[((row + 0.5) / len(heat), f"{row * together}") for row in range(0, len(heat), every)],
        ),
        tag("p", f"{together} cores share a strip.", class_="missing") if together > 1 else None,
        class_="panel",
    )
