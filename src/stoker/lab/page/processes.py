"""Tables of processes: use of trainer and workers, and sampled code locations of workers."""

from __future__ import annotations

from stoker.foundation.text import UNKNOWN, format_bytes, format_cores, format_count, format_duration, format_percent
from stoker.lab.page.frame import figure, labeled_bar, missing, table
from stoker.lab.page.markup import Child, Markup, tag
from stoker.lab.watch.run import ProcessStats, Stats

MOST_WORKERS = 256


def processes(stats: Stats, *, of: str = "") -> Markup:
    """Return a table of trainer and workers: batches, time, memory."""
    title = f"Processes{of}"
    if stats.trainer is None and not stats.workers:
        return figure(title, missing("No process was sampled, so their use is unknown."))
    shown = stats.workers[:MOST_WORKERS]
    everybody = [*([stats.trainer] if stats.trainer is not None else []), *shown]
    most = max((one.pss_bytes or 0 for one in everybody), default=0)
    # a full bar is one core, or more if a process with threads uses more
    cores = max([1.0, *(one.cpu_seconds / stats.seconds for one in everybody if stats.seconds)])
    rows = [_row(one, stats, cores, most) for one in everybody]
    head = ("process", "batches", "busy", "CPU", "waiting for a CPU", "disk reads", "memory at the end")
    left_out = len(stats.workers) - len(shown)
    return figure(
        title,
        table(head, rows, caption="Processes, during the time in the loop", class_="bars folds"),
        missing(f"{format_count(left_out, 'more worker')} not listed.") if left_out else None,
        _memory_note(stats) if most else None,
        lead=_lead(stats),
    )


def places(stats: Stats, *, of: str = "") -> Markup | None:
    """Return the sampled code locations of workers; None if there are no samples."""
    sampled = stats.sampled
    if sampled is None or not sampled.places:
        return None
    rows = [
        (place, labeled_bar(share, "load", format_percent(share)))
        for place, share in sorted(sampled.places.items(), key=lambda one: -one[1])[:20]
    ]
    lead = f"From {format_count(sampled.num, 'stack sample')}."
    if sampled.gil_share is not None:
        lead += (
            f" The GIL was held in {format_percent(sampled.gil_share)} of them, which means Python "
            "rather than native code."
        )
    return figure(
        f"Where workers spend their time{of}",
        table(("location", "share of samples"), rows, caption="Code locations", class_="bars places"),
        lead=lead,
    )


def _row(one: ProcessStats, stats: Stats, cores: float, most: int) -> tuple[Child, ...]:
    seconds = stats.seconds
    return (
        one.role,
        format_count(one.num_batches),
        _format_share(one.busy_seconds / seconds if one.busy_seconds is not None and seconds else None, "load"),
        labeled_bar(one.cpu_seconds / seconds / cores, "step", format_cores(one.cpu_seconds / seconds))
        if seconds
        else format_duration(one.cpu_seconds),
        format_percent(one.delay_seconds / seconds) if one.delay_seconds is not None and seconds else UNKNOWN,
        format_bytes(one.read_bytes),
        labeled_bar(one.pss_bytes / most, "send", format_bytes(one.pss_bytes))
        if one.pss_bytes and most > 0
        else UNKNOWN,
    )


def _format_share(share: float | None, kind: str) -> Child:
    return UNKNOWN if share is None else labeled_bar(share, kind, format_percent(share))


def _lead(stats: Stats) -> str | None:
    made = [one.num_batches for one in stats.workers if one.num_batches is not None]
    busy = [one.busy_seconds / stats.seconds for one in stats.workers if one.busy_seconds is not None and stats.seconds]
    if not made or not busy:
        return None
    each = f"{min(made):,} to {max(made):,}" if min(made) != max(made) else f"{min(made):,}"
    text = f"{format_count(len(made), 'worker')} loaded {each} batches each"
    text = f"One worker loaded {format_count(made[0], 'batch', 'batches')}" if len(made) == 1 else text
    return (
        f"{text}, and {'was' if len(made) == 1 else 'were'} busy {format_percent(sum(busy) / len(busy))} of the "
        "time in the loop, including first batches."
    )


def _memory_note(stats: Stats) -> Markup:
    text = "Memory is per process, at its last sample"
    if stats.workers:
        text += (
            ". Pages shared by several processes are divided among them (PSS), so the trainer's memory grows when "
            "its workers exit; the memory chart shows both"
        )
    return tag("p", f"{text}.", class_="note")
