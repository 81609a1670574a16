"""Charts of memory, CPU usage and each core over a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from stoker.foundation.text import (
    format_bytes,
    format_cores,
    format_duration,
    format_number,
    format_percent,
    trim_zeros,
)
from stoker.lab.key_figures import name_trainers
from stoker.lab.page.scales import AxisScale, area_path, byte_ticks, line_path, reaching
from stoker.lab.page.templating import missing_figure, render, short
from stoker.lab.watch.run import Moment, Run

HEIGHT = 170

NamedRun = tuple[str, Run]
"""A run and its name; the name is empty if there is only one run."""

NUM_ROWS = 24
"""Maximum rows of the tables of the charts."""

NUM_HEATS = 6
"""Steps of darkness of a core's strip; `page.css` has a color for each."""

MAX_CELLS = 12_000
"""Cells of all strips: more would be indistinguishable and make the file large."""


class _Layer(NamedTuple):
    """An area, or a line across them; values over time."""

    kind: str
    label: str
    values: NDArray[np.float64]


def memory_chart(runs: Sequence[NamedRun]) -> Markup:
    """Return charts of the memory of trainer and workers over time, all runs on one scale."""
    # a trainer may exit before its last sample
    seen = [
        (name, run, [one for one in run.moments if one.trainer_pss_bytes is not None or one.workers_pss_bytes])
        for name, run in runs
    ]
    if not any(len(moments) > 1 for *_, moments in seen):
        return missing_figure("Memory", "Memory was sampled less than twice, so there is no curve.")
    every = [one for *_, moments in seen for one in moments]
    scale = reaching(1.08 * max(*map(_memory_bytes, every), *(_known(one.private_bytes) for one in every), 0.0))
    trainers = _trainers(runs)
    kinds = [("load", "all workers"), ("step", trainers)]
    if any(one.private_bytes is not None for one in every):
        kinds.append(("lined", "total without file pages: grows if something leaks"))
    panels = []
    for name, run, moments in seen:
        layers = [
            _Layer("step", "trainer", np.array([_known(one.trainer_pss_bytes) for one in moments])),
            _Layer("load", "workers", np.array([_known(one.workers_pss_bytes) for one in moments])),
        ]
        private = np.array([np.nan if one.private_bytes is None else one.private_bytes for one in moments], np.float64)
        line = _Layer("line", "total without file pages", private)
        title = f"Memory over time{_of(name)}"
        panels.append(_panel(name, title, run.seconds, moments, scale, layers, format_bytes, line=line))
    return render(
        "machine.html",
        title="Memory",
        lead=[_describe_memory(name, run, moments) for name, run, moments in seen],
        kinds=kinds,
        panels=panels,
        ys=[(scale(at), format_bytes(at) if at else "0") for at in byte_ticks(scale.high)],
        caption="Memory over time",
        head=["at", trainers, "all workers", "total, without file pages"],
        rows=[
            (_at(name, one), *map(format_bytes, (one.trainer_pss_bytes, one.workers_pss_bytes, one.private_bytes)))
            for name, _, moments in seen
            for one in _thin_out(moments)
        ],
    )


def cpu_chart(runs: Sequence[NamedRun]) -> Markup:
    """Return charts of the cores used by trainer, workers and other programs over time, all runs on one scale."""
    if not any(len(run.moments) > 1 for _, run in runs):
        return missing_figure("CPU usage", "The machine was sampled less than twice, so there is no curve.")
    most = max(_used_cores(one) for _, run in runs for one in run.moments)
    limits = [_available_cores(run) for _, run in runs]
    highest = max((limit for limit in limits if limit is not None), default=np.inf)
    # a limit far above is given as text: drawn, it would flatten everything else
    is_near = highest <= 4 * most
    scale = reaching(1.08 * max(most, highest if is_near else 0.0))
    trainers = _trainers(runs)
    panels = []
    for (name, run), limit in zip(runs, limits):
        layers = [
            _Layer("step", "trainer", np.array([one.trainer_cores for one in run.moments])),
            _Layer("load", "workers", np.array([one.workers_cores for one in run.moments])),
            _Layer("other", "other programs", np.array([one.others_cores for one in run.moments])),
        ]
        lines = [scale(limit)] if limit is not None and is_near else []
        title = f"CPU usage{_of(name)}"
        panels.append(_panel(name, title, run.seconds, run.moments, scale, layers, format_cores, limits=lines))
    return render(
        "machine.html",
        title="CPU usage",
        lead=[_describe_cores(name, run, limit) for (name, run), limit in zip(runs, limits)],
        kinds=[("other", "other programs"), ("load", "all workers"), ("step", trainers)],
        panels=panels,
        ys=[(scale(at), trim_zeros(format_number(at))) for at in scale.ticks(5)],
        caption="CPU usage",
        head=["at", trainers, "workers", "other programs", "trainer waited for a CPU"],
        rows=[
            (
                _at(name, one),
                *map(format_number, (one.trainer_cores, one.workers_cores, one.others_cores)),
                format_percent(one.trainer_delay_share),
            )
            for name, run in runs
            for one in _thin_out(run.moments)
        ],
    )


def core_strips(runs: Sequence[NamedRun]) -> Markup:
    """Return one strip per core, darker when busier."""
    known = [(name, run) for name, run in runs if len(run.moments) > 1 and any(one.cores for one in run.moments)]
    if not known:
        return missing_figure("Each core", "Core usage was sampled less than twice, so there are no strips.")
    steps = [f"{format_percent(at / NUM_HEATS)} to {format_percent((at + 1) / NUM_HEATS)}" for at in range(NUM_HEATS)]
    return render(
        "machine.html",
        title="Each core",
        lead="One strip per core of the machine, core 0 at the top; darker means busier (brighter on a dark page). "
        "Includes all programs.",
        kinds=[(f"heat{at}", step) for at, step in enumerate(steps)],
        panels=[_strips(name, run) for name, run in known],
        ys=[],
        caption="Each core over the whole run",
        head=["core", "mean usage", "max"],
        rows=[
            (f"{name} {core}".strip(), format_percent(float(values.mean())), format_percent(float(values.max())))
            for name, run in known
            for core, values in enumerate(_core_shares(run.moments)[:512])
        ],
    )


def _panel(
    name: str,
    title: str,
    seconds: float,
    moments: Sequence[Moment],
    scale: AxisScale,
    layers: Sequence[_Layer],
    format_value: Callable[[float], str],
    *,
    limits: Sequence[float] = (),
    line: _Layer | None = None,
) -> dict[str, Any]:
    """Return stacked layers over time, and a line across them."""
    panel = {"name": name, "title": title, "height": HEIGHT, "limits": limits, "paths": [], "rows": [], "note": ""}
    if len(moments) < 2:
        return panel | {"note": "Sampled less than twice."}
    at = [one.at for one in moments]
    time = AxisScale(0.0, max(seconds, at[-1]))
    xs = [time(one) for one in at]
    tops = np.cumsum([np.zeros(len(at)), *(np.nan_to_num(layer.values) for layer in layers)], axis=0)
    edges = [[scale(value) for value in top] for top in tops.tolist()]
    paths = [
        {"kind": f"{layer.kind} layer", "d": area_path(xs, top, bottom, height=HEIGHT)}
        for layer, (bottom, top) in zip(layers, pairwise(edges))
    ]
    shown = [*layers]
    if line is not None and not np.isnan(line.values).all():
        places = [(x, scale(value)) for x, value in zip(xs, line.values.tolist()) if isfinite(value)]
        paths.append({"kind": line.kind, "d": f"M{line_path(*zip(*places), height=HEIGHT)}"})
        shown.append(line)
    texts = [
        f"{format_duration(one)}: "
        + ", ".join(f"{layer.label} {format_value(float(layer.values[number]))}" for layer in shown)
        for number, one in enumerate(at)
    ]
    return panel | {"paths": paths, "xs": time.time_axis(), "points": _points(xs, texts)}


def _core_shares(moments: Sequence[Moment]) -> NDArray[np.float64]:
    """Return the usage of each core at each moment, as [cores, moments]."""
    shares = np.zeros((max(len(one.cores) for one in moments), len(moments)))
    for at, one in enumerate(moments):
        shares[: len(one.cores), at] = np.nan_to_num(np.array(one.cores, dtype=np.float64))
    return np.clip(shares, 0, 1)


def _strips(name: str, run: Run) -> dict[str, Any]:
    """Return strips [rows, spans] of the mean usage of the cores that share a row, over spans of moments."""
    moments = run.moments
    shares = _core_shares(moments)
    num_cores = len(shares)
    together = -(-num_cores // 128)  # cores per strip
    if together > 1:
        shares = np.stack([shares[at : at + together].mean(axis=0) for at in range(0, num_cores, together)])
    num_rows, num_moments = shares.shape
    edges = np.linspace(0, num_moments, max(1, min(num_moments, MAX_CELLS // num_rows)) + 1).astype(int)
    shares = np.stack([shares[:, a:b].mean(axis=1) for a, b in pairwise(edges)], axis=1)
    levels = np.minimum((shares * NUM_HEATS).astype(int), NUM_HEATS - 1)
    height = 14 if num_rows <= 16 else 8 if num_rows <= 48 else 4
    time = AxisScale(0.0, max(run.seconds, moments[-1].at))
    times = [0.0, *(one.at for one in moments)]
    places = [time(times[edge]) for edge in edges.tolist()]
    paths = [""] * NUM_HEATS
    for row, line in enumerate(levels):
        # merge neighbors of one level into a rectangle
        borders = [0, *(np.flatnonzero(np.diff(line)) + 1).tolist(), len(line)]
        for begin, end in pairwise(borders):
            left, right = short(1000 * places[begin]), short(1000 * places[end])
            paths[line[begin]] += f"M{left} {row * height}H{right}v{height - 1}H{left}z"
    texts = [
        f"{format_duration(times[end])}: {format_percent(float(shares[:, at].mean()))} on average, the busiest "
        f"{format_percent(float(shares[:, at].max()))}"
        for at, end in enumerate(edges[1:].tolist())
    ]
    every = max(1, -(-num_rows // (16 if height == 14 else 8)))
    return {
        "name": name,
        "title": f"Usage of {num_cores} cores over time{_of(name)}",
        "height": height * num_rows,
        "paths": [{"kind": f"heat{level}", "d": d} for level, d in enumerate(paths) if d],
        "xs": time.time_axis(),
        "points": _points([(a + b) / 2 for a, b in pairwise(places)], texts),
        "rows": [((row + 0.5) / num_rows, f"{row * together}") for row in range(0, num_rows, every)],
        "limits": [],
        "note": f"{together} cores share a strip." if together > 1 else "",
    }


def _points(xs: Sequence[float], texts: Sequence[str]) -> dict[str, object]:
    return {"x": [round(at, 5) for at in xs], "texts": texts}


def _describe_memory(name: str, run: Run, moments: Sequence[Moment]) -> str:
    if not moments:
        return f"{name or 'This run'}: memory was not sampled."
    peak = max(moments, key=_memory_bytes)
    size = _memory_bytes(peak)
    whose = name_trainers(run)
    own = f"the {whose} {'has' if whose == 'trainer' else 'have'} {format_bytes(_known(peak.trainer_pss_bytes))}"
    text = f"peak {format_bytes(size)}, of which {own}"
    total = _known(run.machine.get("memory_bytes"))
    if total > 0:
        text += f"; {format_percent(size / total)} of the machine's {format_bytes(total)}"
    return f"{f'{name}: ' if name else ''}{text}."


def _describe_cores(name: str, run: Run, limit: float | None) -> str:
    if not run.moments:
        return f"{name or 'This run'}: the machine was not sampled."
    mean = sum(map(_used_cores, run.moments)) / len(run.moments)
    text = f"{format_cores(mean)} on average"
    text += f", of {trim_zeros(format_number(limit))} (dashed)" if limit is not None else ""
    delays = [_known(one.trainer_delay_share) for one in run.moments if one.trainer_delay_share is not None]
    if delays:
        text += f"; the trainer waited for a CPU {format_percent(sum(delays) / len(delays))} of the time"
    return f"{f'{name}: ' if name else ''}{text}."


def _trainers(runs: Sequence[NamedRun]) -> str:
    names = {name_trainers(run) for _, run in runs}
    return names.pop() if len(names) == 1 else "trainers of all ranks"


def _available_cores(run: Run) -> float | None:
    known = [_known(run.machine.get(name)) for name in ("quota_cores", "cores")]
    return next((cores for cores in known if cores > 0), None)


def _used_cores(moment: Moment) -> float:
    return sum(map(_known, (moment.trainer_cores, moment.workers_cores, moment.others_cores)))


def _memory_bytes(moment: Moment) -> float:
    return _known(moment.trainer_pss_bytes) + _known(moment.workers_pss_bytes)


def _known(value: Any) -> float:
    """Return a recorded number; 0 for anything else."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else 0.0


def _thin_out(moments: Sequence[Moment]) -> list[Moment]:
    """Return at most `NUM_ROWS` moments, evenly spaced, including the last."""
    step = -(-len(moments) // NUM_ROWS) or 1
    return list(moments[::-1][::step][::-1])


def _at(name: str, moment: Moment) -> str:
    return f"{name} {format_duration(moment.at)}".strip()


def _of(name: str) -> str:
    return f" of {name}" if name else ""
