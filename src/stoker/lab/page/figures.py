"""Compute the key figures of a run, for tiles and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stoker.foundation.text import UNKNOWN, format_bytes, format_duration, format_number, format_percent
from stoker.lab.page.frame import bar
from stoker.lab.page.markup import Child, Markup, tag
from stoker.lab.page.subject import Subject, trainers_of
from stoker.lab.watch.run import Quantiles, Run, Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure: name, value and format."""

    name: str
    value: float | None
    unit: Callable[[float | None], str]
    is_more_better: bool = False
    tail: str = ""
    """More text on its tile."""
    share: float | None = None
    """The fraction to draw as a bar."""

    @property
    def text(self) -> str:
        """The formatted figure."""
        return self.unit(self.value)


PEAK = "peak memory"
WAITING = "waiting for data, without first batches"


def measures(subject: Subject) -> list[Measure]:
    """Return the figures of a run's main loader, the most important first."""
    if subject.lead is None:
        return []
    stats = subject.lead.stats
    ranks = subject.groups[0].loaders
    speed = sum(one.stats.samples_per_second for one in ranks)
    peak, whose = peak_memory(subject)
    several = f"{len(ranks)} ranks together" if len(ranks) > 1 else ""
    own, of_workers = _cpu_each(stats)
    batch, step, wait = stats.batch_seconds, stats.step_seconds, stats.wait_seconds
    firsts = stats.first_batch_seconds
    return [
        Measure(
            name="throughput",
            value=speed or None,
            unit=lambda value: f"{format_number(value)} samples/s" if value else UNKNOWN,
            is_more_better=True,
            tail=several or _format_batch_rate(stats),
        ),
        # the mean matches the throughput; p50 does not if some batches take far longer than most
        Measure(
            name="from batch to batch, mean",
            value=batch.mean if batch.num else None,
            unit=format_duration,
            tail=_tail(batch),
        ),
        Measure(name="step, mean", value=step.mean if step.num else None, unit=format_duration, tail=_tail(step)),
        Measure(
            name=WAITING,
            value=stats.wait_share if batch.num else None,
            unit=format_percent,
            tail=f"{format_duration(wait.mean)} of {format_duration(batch.mean)} from batch to batch"
            if wait.num
            else "",
            share=stats.wait_share if batch.num else None,
        ),
        Measure(
            name="stalled batches",
            value=stats.num_stalls / batch.num if batch.num else None,
            unit=format_percent,
            tail=f"{stats.num_stalls:,}, {format_duration(stats.stall_seconds)} in total" if stats.num_stalls else "",
        ),
        Measure(
            name="first batch",
            value=firsts[0] if firsts else None,
            unit=format_duration,
            tail=f"{len(firsts):,} iterations: {format_duration(min(firsts))} to {format_duration(max(firsts))}"
            if len(firsts) > 1
            else "",
        ),
        Measure(name=PEAK, value=peak, unit=format_bytes, tail=whose),
        Measure(
            name="CPU time per sample",
            value=own if of_workers is None else of_workers,
            unit=format_duration,
            tail="of the training process, which also loads batches"
            if of_workers is None
            else f"of workers; and {format_duration(own)} of the trainer",
        ),
    ]


def more_measures(subject: Subject) -> list[Measure]:
    """Return more figures, for comparisons but not for tiles."""
    if subject.lead is None:
        return []
    stats = subject.lead.stats
    found = []
    for name, quantiles in (
        ("from batch to batch, p50", stats.batch_seconds),
        ("from batch to batch, p99", stats.batch_seconds),
        ("step, p50", stats.step_seconds),
        ("step, p99", stats.step_seconds),
        ("wait, p99", stats.wait_seconds),
        ("loading a batch, p50", stats.making_seconds),
    ):
        value = quantiles.p50 if name.endswith("p50") else quantiles.p99
        found.append(Measure(name=name, value=value if quantiles.num else None, unit=format_duration))
    return found


def tiles(subject: Subject) -> Markup | None:
    """Return the figures as tiles; None if there is no loader."""
    found = measures(subject)
    if not found:
        return None
    return tag("dl", [_tile(one) for one in found], class_="tiles")


def _tile(one: Measure) -> Markup:
    drawn: Child = bar(one.share, "wait") if one.share is not None else None
    return tag(
        "div",
        tag("dt", one.name),
        tag("dd", one.text, class_="figure"),
        tag("dd", drawn) if drawn is not None else None,
        tag("dd", one.tail, class_="tail") if one.tail else None,
    )


def _tail(quantiles: Quantiles) -> str:
    if not quantiles.num:
        return ""
    named = {"p50": quantiles.p50, "p90": quantiles.p90, "p99": quantiles.p99}
    return ", ".join(f"{name} {format_duration(value)}" for name, value in named.items())


def _format_batch_rate(stats: Stats) -> str:
    if not stats.seconds or not stats.num_batches:
        return ""
    return f"{format_number(stats.num_batches / stats.seconds)} batches/s, including first batches"


def peak_memory(subject: Subject) -> tuple[float | None, str]:
    """Return the peak memory of a run, and a note on it."""
    parts = subject.parts or [subject.run]
    known = [(peak, part) for part in parts if (peak := _peak(part)) is not None]
    if known:
        (own, workers), part = max(known, key=lambda one: sum(one[0]))
        where = ", in the part with the highest peak" if len(parts) > 1 else ""
        return own + workers, f"{trainers_of(part)} {format_bytes(own)}, workers {format_bytes(workers)}{where}"
    processes = [
        (one.trainer.pss_bytes if one.trainer is not None else None, [worker.pss_bytes for worker in one.workers])
        for one in subject.run.loaders
    ]
    sizes = [sum(size for size in (own, *others) if size) for own, others in processes]
    whose = (
        "of the rank with the most, at the last sample" if len({one.rank for one in subject.run.loaders}) > 1 else ""
    )
    return (float(max(sizes)), whose or "at the last sample") if any(sizes) else (None, "")


def _peak(run: Run) -> tuple[float, float] | None:
    pairs = [
        (float(one.trainer_pss_bytes or 0), float(one.workers_pss_bytes or 0))
        for one in run.moments
        if one.trainer_pss_bytes is not None or one.workers_pss_bytes is not None
    ]
    return max(pairs, key=sum, default=None)


def _cpu_each(stats: Stats) -> tuple[float | None, float | None]:
    """Return CPU time per sample, of the trainer and of the workers; None if not measured."""
    if not stats.num_samples:
        return None, None
    own = stats.trainer.cpu_seconds / stats.num_samples if stats.trainer is not None else None
    workers = sum(one.cpu_seconds for one in stats.workers) / stats.num_samples if stats.workers else None
    return own, workers
