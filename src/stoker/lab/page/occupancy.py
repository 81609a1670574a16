"""Charts of where the time goes: training loop, workers, and stages."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.foundation.text import UNKNOWN, format_duration, format_number, format_percent
from stoker.lab.diagnose.loader_profile import profile_loader
from stoker.lab.page.frame import figure, labeled_bar, legend, missing, table
from stoker.lab.page.markup import Child, Markup, join, short, tag
from stoker.lab.watch.run import STAGES, Run, Stats

Named = tuple[str, Stats, Run | None]
"""Name (empty if there is only one), stats, and the run, if it was watched."""

MEANINGS = {
    "read": "reading samples; waiting: workers are idle",
    "transform": "transforming samples, if the dataset separates it from reading",
    "collate": "collating samples into a batch",
    "hand-over": "passing batches between processes; waiting: ready batches in the queue",
    "copy": "copying batches to the device, in the training loop",
    "wait": "the training loop waits for a batch",
}

_PARTS = (("read", "load"), ("transform", "turn"), ("collate", "send"), ("hand-over", "other"))


def occupancy(subjects: Sequence[Named]) -> Markup:
    """Return the time shares of training loop, workers and run, and a table of the stages."""
    drawn = [_shares(name, stats, run) for name, stats, run in subjects]
    if not any(drawn):
        return figure("Where the time goes", missing("No stage was timed, so there are no time shares."))
    return figure(
        "Where the time goes",
        *drawn,
        *(_stages(name, stats) for name, stats, _ in subjects if stats.stages),
        lead=_lead(subjects),
    )


def _lead(subjects: Sequence[Named]) -> str:
    text = (
        "The time in the loop runs from requesting the first batch of an iteration to receiving its last one. "
        "The training loop should spend it in steps; idle workers are fine. "
    )
    if any(run is not None for *_, run in subjects):
        return text + "Start-up, other loops, and time between iterations appear only in the bar of the whole run."
    return text + "Time outside the loop (before it, after it, between iterations) is not shown here."


def _shares(name: str, stats: Stats, run: Run | None) -> Child:
    steps, waits = (one.mean * one.num for one in (stats.step_seconds, stats.wait_seconds))
    firsts = sum(stats.first_batch_seconds)
    trainer = [("step", "step", steps), ("wait", "wait", waits), ("first batches", "other", firsts)]
    stages = stats.stages
    at_work = [(stage, kind, stages[stage].busy_seconds) for stage, kind in _PARTS if stage in stages]
    idle = stages["read"].waiting_seconds if "read" in stages else 0.0
    makers = [*at_work, ("idle", "rail", idle)]
    who = "workers" if stats.workers else "threads" if stats.engine == "threads" else "loading"
    of = name and f", {name}"
    in_loop = format_duration(stats.seconds)
    several = f", {len(stats.workers):,} together" if len(stats.workers) > 1 else ""
    bars = [
        _draw_stack(f"trainer{of}: {in_loop} in the loop", trainer, note=_wait_share_note(stats)),
        _draw_stack(f"{who}{of}: the same {in_loop}{several}", makers, note=_work_share_note(stats)),
    ]
    if not any(bars):
        return None
    if run is not None:
        bars.append(_draw_stack(f"the whole run{of}: {format_duration(run.seconds)}", _whole_run(stats, run)))
    return join(*bars)


def _wait_share_note(stats: Stats) -> str:
    """Return a note on the share of waiting shown elsewhere, which has another denominator than the bar."""
    if not stats.first_batch_seconds or not stats.batch_seconds.num:
        return ""
    return (
        f"Without first batches, {format_percent(stats.wait_share)} of the time from batch to batch is waiting: "
        "the share in the figures and in the verdict's reasons."
    )


def _work_share_note(stats: Stats) -> str:
    share = profile_loader(stats).occupancy if stats.workers and stats.batch_seconds.num else 0.0
    if not share:
        return ""
    return (
        f"Without first batches, they are busy {format_percent(share)} of the time from batch to batch: "
        "the share in the verdict's reasons."
    )


def _whole_run(stats: Stats, run: Run) -> list[tuple[str, str, float]]:
    others = sum(one.seconds for one in run.loaders if one.rank == stats.rank) - stats.seconds
    others = min(others, max(0.0, run.seconds - stats.seconds))  # count nested loops once
    return [
        ("in this loop", "other", stats.seconds),
        ("in other loops", "turn", others),
        ("outside loops", "rail", max(0.0, run.seconds - stats.seconds - others)),
    ]


def _draw_stack(name: str, parts: Sequence[tuple[str, str, float]], *, note: str = "") -> Child:
    """Return a stacked bar, with a legend of the share of each part."""
    whole = sum(value for _, _, value in parts)
    if not whole > 0:
        return None
    at = 0.0
    rects: list[Child] = []
    entries = []
    for what, kind, value in parts:
        if value <= 0:
            continue
        share = value / whole
        entries.append((kind, f"{what} {format_percent(share)}"))
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
    label = f"{name}: {', '.join(text for _, text in entries)}"
    return tag(
        "div",
        tag("h4", name),
        tag("svg", tag("title", label), *rects, role="img", class_="shares"),
        legend(*entries),
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
                join(stage, tag("small", MEANINGS.get(stage))),
                labeled_bar(busy / most, "load", format_duration(_each(busy, stats))) if busy else UNKNOWN,
                format_number(busy / stats.seconds) if stats.seconds and busy else UNKNOWN,
                labeled_bar(waiting / most, "wait", format_duration(_each(waiting, stats))) if waiting else UNKNOWN,
                format_number(waiting / stats.seconds) if stats.seconds and waiting else UNKNOWN,
            )
        )
    head = ("stage", "busy per batch", "mean busy", "waiting per batch", "mean waiting")
    caption = f"Stages{name and f', {name}'}: time summed over all threads and workers"
    return table(head, rows, caption=caption, class_="stages folds")


def _each(seconds: float, stats: Stats) -> float:
    return seconds / max(1, stats.num_batches)
