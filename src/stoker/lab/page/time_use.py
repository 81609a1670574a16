"""Charts of where the time goes: training loop, workers, and stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from stoker.foundation.text import UNKNOWN, format_duration, format_number, format_percent
from stoker.lab.diagnose.loader_profile import profile_loader
from stoker.lab.page.templating import Bar, escape, missing_figure, render
from stoker.lab.watch.run import STAGES, Run, Stats

NamedStats = tuple[str, Stats, Run | None]
"""Name (empty if there is only one), stats, and the run, if it was watched."""

_MEANINGS = {
    "read": "reading samples; waiting: workers are idle",
    "transform": "transforming samples, if the dataset separates it from reading",
    "collate": "collating samples into a batch",
    "hand-over": "passing batches between processes; waiting: ready batches in the queue",
    "copy": "copying batches to the device, in the training loop",
    "wait": "the training loop waits for a batch",
}

_WORK = (("read", "load"), ("transform", "turn"), ("collate", "send"), ("hand-over", "other"))
"""Stages of loading, and their colors."""


def time_use(loaders: Sequence[NamedStats]) -> Markup:
    """Return the time shares of training loop, workers and run, and a table of the stages."""
    title = "Where the time goes"
    groups = [_bars(name, stats, run) for name, stats, run in loaders]
    if not any(groups):
        return missing_figure(title, "No stage was timed, so there are no time shares.")
    lead = (
        "The time in the loop runs from requesting the first batch of an iteration to receiving its last one. "
        "The training loop should spend it in steps; idle workers are fine. "
    )
    if any(run is not None for *_, run in loaders):
        lead += "Start-up, other loops, and time between iterations appear only in the bar of the whole run."
    else:
        lead += "Time outside the loop (before it, after it, between iterations) is not shown here."
    return render(
        "time_use.html",
        title=title,
        lead=lead,
        bars=[bar for group in groups for bar in group],
        tables=[(name, _stage_rows(stats)) for name, stats, _ in loaders if stats.stages],
    )


def _bars(name: str, stats: Stats, run: Run | None) -> list[dict[str, Any]]:
    """Return the stacked bars of one loader; none if nothing was timed."""
    steps, waits = (one.mean * one.num for one in (stats.step_seconds, stats.wait_seconds))
    stages = stats.stages
    loop = [
        ("step", "step", steps),
        ("wait", "wait", waits),
        ("first batches", "other", sum(stats.first_batch_seconds)),
    ]
    work = [(stage, kind, stages[stage].busy_seconds) for stage, kind in _WORK if stage in stages]
    work.append(("idle", "rail", stages["read"].waiting_seconds if "read" in stages else 0.0))
    who = "workers" if stats.workers else "threads" if stats.engine == "threads" else "loading"
    of = name and f", {name}"
    in_loop = format_duration(stats.seconds)
    together = f", {len(stats.workers):,} together" if len(stats.workers) > 1 else ""
    bars = [
        _bar(f"trainer{of}: {in_loop} in the loop", loop, note=_wait_note(stats)),
        _bar(f"{who}{of}: the same {in_loop}{together}", work, note=_work_note(stats)),
    ]
    if run is not None and any(bars):
        others = sum(one.seconds for one in run.loaders if one.rank == stats.rank) - stats.seconds
        others = min(others, max(0.0, run.seconds - stats.seconds))  # count nested loops once
        whole = [
            ("in this loop", "other", stats.seconds),
            ("in other loops", "turn", others),
            ("outside loops", "rail", max(0.0, run.seconds - stats.seconds - others)),
        ]
        bars.append(_bar(f"the whole run{of}: {format_duration(run.seconds)}", whole))
    return [bar for bar in bars if bar is not None]


def _bar(name: str, parts: Sequence[tuple[str, str, float]], *, note: str = "") -> dict[str, Any] | None:
    """Return a stacked bar from the name, the color and the seconds of each part; None if all are 0."""
    whole = sum(seconds for *_, seconds in parts)
    if not whole > 0:
        return None
    shown, legend = [], []
    at = 0.0
    for what, kind, seconds in parts:
        if seconds > 0:
            share = format_percent(seconds / whole)
            tip = f"{what}: {share}, {format_duration(seconds)}"
            shown.append({"kind": kind, "x": at, "width": seconds / whole, "tip": tip})
            legend.append((kind, f"{what} {share}"))
            at += seconds / whole
    return {"name": name, "parts": shown, "legend": legend, "note": note}


def _wait_note(stats: Stats) -> str:
    """Return a note on the share of waiting shown elsewhere, which has another denominator than the bar."""
    if not stats.first_batch_seconds or not stats.batch_seconds.num:
        return ""
    return (
        f"Without first batches, {format_percent(stats.wait_share)} of the time from batch to batch is waiting: "
        "the share in the figures and in the verdict's reasons."
    )


def _work_note(stats: Stats) -> str:
    share = profile_loader(stats).occupancy if stats.workers and stats.batch_seconds.num else 0.0
    if not share:
        return ""
    return (
        f"Without first batches, they are busy {format_percent(share)} of the time from batch to batch: "
        "the share in the verdict's reasons."
    )


def _stage_name(name: str) -> Markup:
    return Markup("{}<small>{}</small>").format(escape(name), escape(_MEANINGS.get(name)))


def _stage_rows(stats: Stats) -> list[tuple[str | Bar, ...]]:
    names = [*(one for one in STAGES if one in stats.stages), *(one for one in stats.stages if one not in STAGES)]
    most = max((max(one.busy_seconds, one.waiting_seconds) for one in stats.stages.values()), default=0.0) or 1.0

    def cells(seconds: float, kind: str) -> tuple[str | Bar, str]:
        if not seconds:
            return UNKNOWN, UNKNOWN
        per_batch = format_duration(seconds / max(1, stats.num_batches))
        return Bar(seconds / most, kind, per_batch), format_number(seconds / stats.seconds if stats.seconds else None)

    return [
        (
            _stage_name(name),
            *cells(stats.stages[name].busy_seconds, "load"),
            *cells(stats.stages[name].waiting_seconds, "wait"),
        )
        for name in names
    ]
