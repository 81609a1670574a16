"""Where the time goes: the trainer's, the workers', and what each stage does of it."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.bench.reckoning import reckoned
from stoker.bench.run import STAGES, Run, Stats
from stoker.foundation.text import UNKNOWN, format_duration, format_number, format_percent
from stoker.view.page.frame import barred, figure, legend, missing, table
from stoker.view.page.markup import Child, Markup, joined, short, tag

Named = tuple[str, Stats, Run | None]
"""Stats, what they are called beside others, or nothing if there are no others; and the run, if it was watched."""

MEANINGS = {
    "read": "samples are read; waiting is whoever reads and has nothing to do",
    "transform": "samples are transformed, as far as the dataset tells it apart from reading",
    "collate": "samples are put together into a batch",
    "hand-over": "batches are packed and unpacked between processes; waiting is ready batches, in the queue",
    "copy": "batches are copied to the device, by the trainer",
    "wait": "the trainer waits for a batch",
}

_PARTS = (("read", "load"), ("transform", "turn"), ("collate", "send"), ("hand-over", "other"))


def occupancy(subjects: Sequence[Named]) -> Markup:
    """Return the shares of the trainer's and of the workers' time, of the run's, and a table of the stages."""
    drawn = [_shares(name, stats, run) for name, stats, run in subjects]
    if not any(drawn):
        return figure("Where the time goes", missing("No stage was timed, so there are no shares to show."))
    return figure(
        "Where the time goes",
        *drawn,
        *(_stages(name, stats) for name, stats, _ in subjects if stats.stages),
        lead=_lead(subjects),
    )


def _lead(subjects: Sequence[Named]) -> str:
    told = (
        "The time in the loop is that from asking for the first batch of an iteration to having its last one. "
        "A trainer should be in its step; workers may well be idle. "
    )
    if any(run is not None for *_, run in subjects):
        return told + "Starting, other loops, and what comes between iterations are in the bar of the whole run alone."
    return told + "What the trainer did outside the loop, before it, after it or between iterations, is not told here."


def _shares(name: str, stats: Stats, run: Run | None) -> Child:
    steps, waits = (one.mean * one.num for one in (stats.step_seconds, stats.wait_seconds))
    firsts = sum(stats.first_batch_seconds)
    trainer = [("step", "step", steps), ("wait", "wait", waits), ("first batches", "other", firsts)]
    stages = stats.stages
    at_work = [(stage, kind, stages[stage].busy_seconds) for stage, kind in _PARTS if stage in stages]
    idle = stages["read"].waiting_seconds if "read" in stages else 0.0
    makers = [*at_work, ("nothing to do", "rail", idle)]
    who = "workers" if stats.workers else "threads" if stats.engine == "threads" else "making batches"
    of = name and f", {name}"
    in_loop = format_duration(stats.seconds)
    several = f", of {len(stats.workers):,} together" if len(stats.workers) > 1 else ""
    bars = [
        _stacked(f"trainer{of}: {in_loop} in the loop", trainer, note=_without_firsts(stats)),
        _stacked(f"{who}{of}: the same {in_loop}{several}", makers, note=_at_work_without_firsts(stats)),
    ]
    if not any(bars):
        return None
    if run is not None:
        bars.append(_stacked(f"the whole run{of}: {format_duration(run.seconds)}", _whole_run(stats, run)))
    return joined(*bars)


def _without_firsts(stats: Stats) -> str:
    """Return the share of waiting that is told elsewhere, which is of another whole than the bar's."""
    if not stats.first_batch_seconds or not stats.batch_seconds.num:
        return ""
    return (
        f"Of the time from batch to batch alone, without first batches, {format_percent(stats.wait_share)} is waiting: "
        "figures and the verdict's reasons tell that share."
    )


def _at_work_without_firsts(stats: Stats) -> str:
    share = reckoned(stats).occupancy if stats.workers and stats.batch_seconds.num else 0.0
    if not share:
        return ""
    return (
        f"Of the time from batch to batch alone, without first batches, their work fills {format_percent(share)}: the "
        "verdict's reasons tell that share."
    )


def _whole_run(stats: Stats, run: Run) -> list[tuple[str, str, float]]:
    others = sum(one.seconds for one in run.loaders if one.rank == stats.rank) - stats.seconds
    others = min(others, max(0.0, run.seconds - stats.seconds))  # loops within loops are counted once
    return [
        ("in this loop", "other", stats.seconds),
        ("in other loops", "turn", others),
        ("outside of loops", "rail", max(0.0, run.seconds - stats.seconds - others)),
    ]


def _stacked(name: str, parts: Sequence[tuple[str, str, float]], *, note: str = "") -> Child:
    """Return one bar of several parts, with a legend that tells each part's share of the bar."""
    whole = sum(value for _, _, value in parts)
    if not whole > 0:
        return None
    at = 0.0
    rects: list[Child] = []
    told = []
    for what, kind, value in parts:
        if value <= 0:
            continue
        share = value / whole
        told.append((kind, f"{what} {format_percent(share)}"))
        rects.append(
            tag(
                "rect",
                tag("title", f"{what}: {format_percent(share)}, {format_duration(value)}"),
                x=f"{short(100 * at)}%",
                width=f"{short(100 * share)}%",
                height="100%",
                class_=kind,
            )
        )
        at += share
    label = f"{name}: {', '.join(text for _, text in told)}"
    return tag(
        "div",
        tag("h4", name),
        tag("svg", tag("title", label), *rects, role="img", class_="shares"),
        legend(*told),
        tag("p", note, class_="note") if note else None,
        class_="stacked",
    )


def _stages(name: str, stats: Stats) -> Markup:
    names = [*(one for one in STAGES if one in stats.stages), *(one for one in stats.stages if one not in STAGES)]
    most = max((max(one.busy_seconds, one.waiting_seconds) for one in stats.stages.values()), default=0.0) or 1.0
    rows = []
    for stage in names:
        busy, waiting = stats.stages[stage].busy_seconds, stats.stages[stage].waiting_seconds
        rows.append(
            (
                joined(stage, tag("small", MEANINGS.get(stage))),
                barred(busy / most, "load", format_duration(_each(busy, stats))) if busy else UNKNOWN,
                format_number(busy / stats.seconds) if stats.seconds and busy else UNKNOWN,
                barred(waiting / most, "wait", format_duration(_each(waiting, stats))) if waiting else UNKNOWN,
                format_number(waiting / stats.seconds) if stats.seconds and waiting else UNKNOWN,
            )
        )
    head = ("stage", "busy, per batch", "at work at a time", "waiting, per batch", "waiting at a time")
    caption = f"Stages{name and f', {name}'}: time of all threads and workers together"
    return table(head, rows, caption=caption, class_="stages folds")


def _each(seconds: float, stats: Stats) -> float:
    return seconds / max(1, stats.num_batches)
