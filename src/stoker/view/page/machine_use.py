"""Memory, cores' time and single cores, over the time of a run."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.bench.run import Moment, Run
from stoker.foundation.text import (
    format_bytes,
    format_cores,
    format_duration,
    format_number,
    format_percent,
    trim_zeros,
)
from stoker.view.page.frame import Tick, area, figure, legend, missing, plot, stretched, table, time_axis
from stoker.view.page.markup import Child, Markup, joined, short, tag
from stoker.view.page.scales import Scale, byte_ticks, reaching
from stoker.view.page.subject import trainers_of

HEIGHT = 170

Named = tuple[str, Run]
"""A run, and what it is called beside others; nothing if there are no others."""

Layer = tuple[str, str, NDArray[np.float64]]
"""A mark's class, what it is, and its values."""

NUM_ROWS = 24
"""Rows of the tables behind the charts."""


def memory(runs: Sequence[Named]) -> Markup:
    """Return memory of the trainer and of its workers over time, all runs on one scale."""
    title = "Memory"
    # at its end a trainer is gone before it is looked at a last time
    seen = [
        (name, run, [one for one in run.moments if one.trainer_pss_bytes is not None or one.workers_pss_bytes])
        for name, run in runs
    ]
    if not any(len(moments) > 1 for *_, moments in seen):
        return figure(title, missing("Memory was not looked at more than once, so there is no curve."))
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
        over = ("line", "all without files", private)
        panels.append(
            _panel(
                name, moments, layers, scale, ys, format_bytes, f"Memory over time{_of(name)}", run.seconds, over=over
            )
        )
    return figure(
        title,
        legend(
            ("load", "workers, all together"),
            ("step", whose),
            *([("lined", "both, without pages of files: what grows when something leaks")] if has_private else ()),
        ),
        tag("div", panels, class_="panels"),
        lead=joined(*(tag("span", _memory_told(name, run, moments)) for name, run, moments in seen)),
        table=table(
            ("at", whose, "workers, all together", "all, without files"),
            [
                (
                    f"{name} {format_duration(one.at)}".strip(),
                    format_bytes(one.trainer_pss_bytes),
                    format_bytes(one.workers_pss_bytes),
                    format_bytes(one.private_bytes),
                )
                for name, _, moments in seen
                for one in _some(moments)
            ],
            caption="Memory over time",
        ),
    )


def cores_time(runs: Sequence[Named]) -> Markup:
    """Return cores' worth of time used by the trainer, its workers and others over time, all runs on one scale."""
    title = "Cores' time"
    if not any(len(run.moments) > 1 for _, run in runs):
        return figure(title, missing("The machine was not looked at more than once, so there is no curve."))
    most = max(_used(one) for _, run in runs for one in run.moments)
    limits = [_cores_of(run) for _, run in runs]
    limit = max((one for one in limits if one is not None), default=None)
    # a limit that is far above is told in words: drawn, it would press everything else flat
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
                name, run.moments, layers, scale, ys, format_cores, f"Cores' time{_of(name)}", run.seconds, lines=lines
            )
        )
    return figure(
        title,
        legend(("other", "other programs"), ("load", "workers, all together"), ("step", _trainers(runs))),
        tag("div", panels, class_="panels"),
        lead=joined(*(tag("span", _cores_told(name, run, its)) for (name, run), its in zip(runs, limits))),
        table=table(
            ("at", _trainers(runs), "workers", "other programs", "trainer had no core"),
            [
                (
                    f"{name} {format_duration(one.at)}".strip(),
                    *(format_number(value) for value in (one.trainer_cores, one.workers_cores, one.others_cores)),
                    format_percent(one.trainer_delay_share),
                )
                for name, run in runs
                for one in _some(run.moments)
            ],
            caption="Cores' time",
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
    """Return layers one above the other, over time; `over` is drawn as a line across them."""
    if len(moments) < 2:
        return tag("div", tag("h4", name), missing("Not looked at more than once."), class_="panel")
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
    told = [
        f"{format_duration(one)}: " + ", ".join(f"{what} {unit(float(values[number]))}" for _, what, values in every)
        for number, one in enumerate(at)
    ]
    return tag(
        "div",
        tag("h4", name) if name else None,
        plot(
            stretched(*paths, height=HEIGHT),
            title=title,
            height=HEIGHT,
            ys=ys,
            xs=time_axis(time),
            lines=lines,
            points=(xs, told),
        ),
        class_="panel",
    )


def _memory_told(name: str, run: Run, moments: Sequence[Moment]) -> str:
    if not moments:
        return f"{name or 'This run'}: memory was not looked at. "
    sums = [_bytes(one.trainer_pss_bytes) + _bytes(one.workers_pss_bytes) for one in moments]
    peak = max(range(len(sums)), key=lambda at: sums[at])
    own = format_bytes(_bytes(moments[peak].trainer_pss_bytes))
    whose = trainers_of(run)
    has = "has" if whose == "trainer" else "have"
    told = f"{format_bytes(sums[peak])} at the most, of which the {whose} {has} {own} then"
    total = run.machine.get("memory_bytes")
    if total is not None and _is_number(total) and total > 0:
        told += f"; {format_percent(sums[peak] / total)} of the {format_bytes(total)} there are"
    return f"{f'{name}: ' if name else ''}{told}. "


def _trainers(runs: Sequence[Named]) -> str:
    called = {trainers_of(run) for _, run in runs}
    return called.pop() if len(called) == 1 else "trainers of all ranks"


def _cores_told(name: str, run: Run, limit: float | None) -> str:
    if not run.moments:
        return f"{name or 'This run'}: the machine was not looked at. "
    mean = sum(map(_used, run.moments)) / len(run.moments)
    told = f"{format_cores(mean)} on average" + (
        f", of {trim_zeros(format_number(limit))} (dashed)" if limit is not None else ""
    )
    delays = [one.trainer_delay_share for one in run.moments if _is_number(one.trainer_delay_share)]
    if delays:
        delay = sum(float(one) for one in delays if one is not None) / len(delays)
        told += f"; the trainer, ready to run, had no core for {format_percent(delay)} of the time"
    return f"{f'{name}: ' if name else ''}{told}. "


def _cores_of(run: Run) -> float | None:
    known = [run.machine.get(name) for name in ("quota_cores", "cores")]
    return next((float(one) for one in known if _is_number(one) and one is not None and one > 0), None)


def _used(one: Moment) -> float:
    return sum(value for value in (one.trainer_cores, one.workers_cores, one.others_cores) if _is_number(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value)


def _bytes(value: float | None) -> float:
    return float(value) if value is not None and isfinite(value) else 0.0


def _some(moments: Sequence[Moment]) -> list[Moment]:
    """Return some of them, evenly spaced, the last among them."""
    step = -(-len(moments) // NUM_ROWS) or 1
    return list(moments[::-1][::step][::-1])


def _of(name: str) -> str:
    return f" of {name}" if name else ""
