"""What each process was used for: the trainer, its workers, and the places where workers were seen."""

from __future__ import annotations

from stoker.bench.run import ProcessStats, Stats
from stoker.foundation.text import UNKNOWN, format_bytes, format_cores, format_count, format_duration, format_percent
from stoker.view.page.frame import barred, figure, missing, table
from stoker.view.page.markup import Child, Markup, tag

MOST_WORKERS = 256


def processes(stats: Stats, *, of: str = "") -> Markup:
    """Return a table of the trainer and its workers: batches, time, memory."""
    title = f"Use of workers{of}"
    if stats.trainer is None and not stats.workers:
        return figure(title, missing("No process was looked at, so their use is not known."))
    shown = stats.workers[:MOST_WORKERS]
    everybody = [*([stats.trainer] if stats.trainer is not None else []), *shown]
    most = max((one.pss_bytes or 0 for one in everybody), default=0)
    # one core is a whole bar, unless somebody has threads and uses more
    cores = max([1.0, *(one.cpu_seconds / stats.seconds for one in everybody if stats.seconds)])
    rows = [_row(one, stats, cores, most) for one in everybody]
    head = ("process", "batches", "making batches", "CPU", "had no core", "read from disk", "memory, last seen")
    left_out = len(stats.workers) - len(shown)
    return figure(
        title,
        table(head, rows, caption="Processes, over the time in the loop", class_="bars folds"),
        missing(f"{format_count(left_out, 'more worker')} not listed.") if left_out else None,
        _memory_note(stats) if most else None,
        lead=_lead(stats),
    )


def places(stats: Stats, *, of: str = "") -> Markup | None:
    """Return where workers were, when they were looked at; None if nobody looked."""
    sampled = stats.sampled
    if sampled is None or not sampled.places:
        return None
    rows = [
        (place, barred(share, "load", format_percent(share)))
        for place, share in sorted(sampled.places.items(), key=lambda one: -one[1])[:20]
    ]
    lead = f"Seen at {format_count(sampled.num, 'look')}, now and then."
    if sampled.gil_share is not None:
        lead += (
            f" At {format_percent(sampled.gil_share)} of them the interpreter's lock was held, which means Python "
            "rather "
            "than native code."
        )
    return figure(
        f"Where workers are{of}",
        table(("place", "share of looks"), rows, caption="Places in the code", class_="bars places"),
        lead=lead,
    )


def _row(one: ProcessStats, stats: Stats, cores: float, most: int) -> tuple[Child, ...]:
    seconds = stats.seconds
    return (
        one.role,
        format_count(one.num_batches),
        _barred(one.busy_seconds / seconds if one.busy_seconds is not None and seconds else None, "load"),
        barred(one.cpu_seconds / seconds / cores, "step", format_cores(one.cpu_seconds / seconds))
        if seconds
        else format_duration(one.cpu_seconds),
        format_percent(one.delay_seconds / seconds) if one.delay_seconds is not None and seconds else UNKNOWN,
        format_bytes(one.read_bytes),
        barred(one.pss_bytes / most, "send", format_bytes(one.pss_bytes)) if one.pss_bytes and most > 0 else UNKNOWN,
    )


def _barred(share: float | None, kind: str) -> Child:
    return UNKNOWN if share is None else barred(share, kind, format_percent(share))


def _lead(stats: Stats) -> str | None:
    made = [one.num_batches for one in stats.workers if one.num_batches is not None]
    busy = [one.busy_seconds / stats.seconds for one in stats.workers if one.busy_seconds is not None and stats.seconds]
    if not made or not busy:
        return None
    each = f"{min(made):,} to {max(made):,}" if min(made) != max(made) else f"{min(made):,}"
    told = f"{format_count(len(made), 'worker')} made {each} batches each"
    told = f"One worker made {format_count(made[0], 'batch', 'batches')}" if len(made) == 1 else told
    return (
        f"{told}, and {'was' if len(made) == 1 else 'were'} at it for {format_percent(sum(busy) / len(busy))} of the "
        "time "
        "in the loop, first batches among it."
    )


def _memory_note(stats: Stats) -> Markup:
    told = "Memory is that of one process when it was last looked at"
    if stats.workers:
        told += (
            ". Pages that several processes share are divided among them: a trainer whose workers have ended has more "
            "than beside them, and the chart of memory shows both"
        )
    return tag("p", f"{told}.", class_="note")
