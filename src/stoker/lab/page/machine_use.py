"""Charts of memory and CPU usage over a run."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.foundation.text import (
    format_bytes,
    format_cores,
    format_duration,
    format_number,
    format_percent,
    trim_zeros,
)
from stoker.lab.page.frame import Tick, area, figure, legend, missing, plot, stretch, table, time_axis
from stoker.lab.page.markup import Child, Markup, join, short, tag
from stoker.lab.page.scales import Scale, byte_ticks, reaching
from stoker.lab.page.subject import trainers_of
from stoker.lab.watch.run import Moment, Run

HEIGHT = 170

Named = tuple[str, Run]
"""A run and its name; the name is empty if there is only one run."""

Layer = tuple[str, str, NDArray[np.float64]]
"""Class of the mark, label, and values."""

NUM_ROWS = 24
"""Maximum rows of the tables of the charts."""


def memory(runs: Sequence[Named]) -> Markup:
    """Return charts of the memory of trainer and workers over time, all runs on one scale."""
    title = "Memory"
    # a trainer may exit before its last sample
    seen = [
        (name, run, [one for one in run.moments if one.trainer_pss_bytes is not None or one.workers_pss_bytes])
        for name, run in runs
    ]
    if not any(len(moments) > 1 for *_, moments in seen):
        return figure(title, missing("Memory was sampled less than twice, so there is no curve."))
    most = max(_bytes(one.trainer_pss_bytes) + _bytes(one.workers_pss_bytes) for *_, all_ in seen for one in all_)
    has_private = any(one.private_bytes is not None for *_, all_ in seen for one in all_)
    scale = reaching(1.08 * max(most, *(_bytes(one.private_bytes) for *_, all_ in seen for one in all_)))
    ys = [(scale(at), format_bytes(at) if at else "0") for at in byte_ticks(scale.high)]
    whose = _trainers(runs)
    panels = []
    for name, run, moments in seen:
        layers: list[Layer] = [
            ("step", "trainer", np.array([_bytes(one.trainer_pss_bytes) for one in moments])),
            ("load", "workers", np.array([_bytes(one.workers_pss_bytes) for one in moments])),
        ]
        private = np.array([np.nan if one.private_bytes is None else one.private_bytes for one in moments], np.float64)
        over = ("line", "total without file pages", private)
        panels.append(
            _panel(
                name, moments, layers, scale, ys, format_bytes, f"Memory over time{_of(name)}", run.seconds, over=over
            )
        )
    return figure(
        title,
        legend(
            ("load", "all workers"),
            ("step", whose),
            *([("lined", "total without file pages: grows if something leaks")] if has_private else ()),
        ),
        tag("div", panels, class_="panels"),
        lead=join(*(tag("span", _describe_memory(name, run, moments)) for name, run, moments in seen)),
        table=table(
            ("at", whose, "all workers", "total, without file pages"),
            [
                (
                    f"{name} {format_duration(one.at)}".strip(),
                    format_bytes(one.trainer_pss_bytes),
                    format_bytes(one.workers_pss_bytes),
                    format_bytes(one.private_bytes),
                )
                for name, _, moments in seen
                for one in _thin_out(moments)
            ],
            caption="Memory over time",
        ),
    )


def cores_time(runs: Sequence[Named]) -> Markup:
    """Return charts of the cores used by trainer, workers and other programs over time, all runs on one scale."""
    title = "CPU usage"
    if not any(len(run.moments) > 1 for _, run in runs):
        return figure(title, missing("The machine was sampled less than twice, so there is no curve."))
    most = max(_used_cores(one) for _, run in runs for one in run.moments)
    limits = [_cores_of(run) for _, run in runs]
    limit = max((one for one in limits if one is not None), default=None)
    # a limit far above is given as text: drawn, it would flatten everything else
    is_near = limit is not None and limit <= 4 * most
    scale = reaching(1.08 * max(most, limit if is_near and limit is not None else 0.0))
    ys = [(scale(at), trim_zeros(format_number(at))) for at in scale.ticks(5)]
    panels = []
    for (name, run), its in zip(runs, limits):
        layers: list[Layer] = [
            ("step", "trainer", np.array([one.trainer_cores for one in run.moments])),
            ("load", "workers", np.array([one.workers_cores for one in run.moments])),
            ("other", "other programs", np.array([one.others_cores for one in run.moments])),
        ]
        lines = [scale(its)] if its is not None and is_near else []
        panels.append(
            _panel(
                name, run.moments, layers, scale, ys, format_cores, f"CPU usage{_of(name)}", run.seconds, lines=lines
            )
        )
    return figure(
        title,
        legend(("other", "other programs"), ("load", "all workers"), ("step", _trainers(runs))),
        tag("div", panels, class_="panels"),
        lead=join(*(tag("span", _describe_cores(name, run, its)) for (name, run), its in zip(runs, limits))),
        table=table(
            ("at", _trainers(runs), "workers", "other programs", "trainer waited for a CPU"),
            [
                (
                    f"{name} {format_duration(one.at)}".strip(),
                    *(format_number(value) for value in (one.trainer_cores, one.workers_cores, one.others_cores)),
                    format_percent(one.trainer_delay_share),
                )
                for name, run in runs
                for one in _thin_out(run.moments)
            ],
            caption="CPU usage",
        ),
    )


def _panel(
    name: str,
    moments: Sequence[Moment],
    layers: Sequence[Layer],
    scale: Scale,
    ys: Sequence[Tick],
    unit: Any,
    title: str,
    seconds: float,
    *,
    lines: Sequence[float] = (),
    over: Layer | None = None,
) -> Child:
    """Return stacked layers over time; `over` is drawn as a line across them."""
    if len(moments) < 2:
        return tag("div", tag("h4", name), missing("Sampled less than twice."), class_="panel")
    at = [one.at for one in moments]
    time = Scale(0.0, max(seconds, at[-1]))
    xs = [time(one) for one in at]
    base = np.zeros(len(at))
    paths: list[Child] = []
    for kind, _, values in layers:
        top = base + np.nan_to_num(values)
        tops, bottoms = ([scale(value) for value in edge.tolist()] for edge in (top, base))
        paths.append(tag("path", d=area(xs, tops, bottoms, height=HEIGHT), class_=f"{kind} layer"))
        base = top
    every = [*layers]
    if over is not None and not np.isnan(over[2]).all():
        kind, _, values = over
        places = [(x, scale(value)) for x, value in zip(xs, values.tolist()) if isfinite(value)]
        line = "L".join(f"{short(1000 * x)} {short(HEIGHT * (1 - y))}" for x, y in places)
        paths.append(tag("path", d=f"M{line}", class_=kind))
        every.append(over)
    labels = [
        f"{format_duration(one)}: " + ", ".join(f"{what} {unit(float(values[number]))}" for _, what, values in every)
        for number, one in enumerate(at)
    ]
    return tag(
        "div",
        tag("h4", name) if name else None,
        plot(
            stretch(*paths, height=HEIGHT),
            title=title,
            height=HEIGHT,
            ys=ys,
            xs=time_axis(time),
            lines=lines,
            points=(xs, labels),
        ),
        class_="panel",
    )


def _describe_memory(name: str, run: Run, moments: Sequence[Moment]) -> str:
    if not moments:
        return f"{name or 'This run'}: memory was not sampled. "
    sums = [_bytes(one.trainer_pss_bytes) + _bytes(one.workers_pss_bytes) for one in moments]
    peak = max(range(len(sums)), key=lambda at: sums[at])
    own = format_bytes(_bytes(moments[peak].trainer_pss_bytes))
    whose = trainers_of(run)
    has = "has" if whose == "trainer" else "have"
    text = f"peak {format_bytes(sums[peak])}, of which the {whose} {has} {own}"
    total = run.machine.get("memory_bytes")
    if total is not None and _is_number(total) and total > 0:
        text += f"; {format_percent(sums[peak] / total)} of the machine's {format_bytes(total)}"
    return f"{f'{name}: ' if name else ''}{text}.  "


def _trainers(runs: Sequence[Named]) -> str:
    called = {trainers_of(run) for _, run in runs}
    return called.pop() if len(called) == 1 else "trainers of all ranks"


def _describe_cores(name: str, run: Run, limit: float | None) -> str:
    if not run.moments:
        return f"{name or 'This run'}: the machine was not sampled. "
    mean = sum(map(_used_cores, run.moments)) / len(run.moments)
    text = f"{format_cores(mean)} on average" + (
        f", of {trim_zeros(format_number(limit))} (dashed)" if limit is not None else ""
    )
    delays = [one.trainer_delay_share for one in run.moments if _is_number(one.trainer_delay_share)]
    if delays:
        delay = sum(float(one) for one in delays if one is not None) / len(delays)
        text += f"; the trainer waited for a CPU {format_percent(delay)} of the time"
    return f"{f'{name}: ' if name else ''}{text}.  "


def _cores_of(run: Run) -> float | None:
    known = [run.machine.get(name) for name in ("quota_cores", "cores")]
    return next((float(one) for one in known if _is_number(one) and one is not None and one > 0), None)


def _used_cores(one: Moment) -> float:
    return sum(value for value in (one.trainer_cores, one.workers_cores, one.others_cores) if _is_number(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value)


def _bytes(value: float | None) -> float:
    return float(value) if value is not None and isfinite(value) else 0.0


def _thin_out(moments: Sequence[Moment]) -> list[Moment]:
    """Return at most `MOST_ROWS` moments, evenly spaced, including the last."""
    step = -(-len(moments) // NUM_ROWS) or 1
    return list(moments[::-1][::step][::-1])


def _of(name: str) -> str:
    return f" of {name}" if name else ""
