"""The counters of a loader that is made anew again and again, for each epoch perhaps: those of all, added up."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from stoker.engine.stats import ProcessStats, Quantiles, Stage, Stats

MOST_KEPT = 1024
"""Batches, and first batches, that are told one by one."""


def added_up(before: Stats, after: Stats) -> Stats:
    """Return the counters of two loaders that were made in the same way, one after the other, as those of one."""
    num_before, num_after = before.num_batches, after.num_batches
    return replace(
        after,
        seconds=before.seconds + after.seconds,
        num_iterations=before.num_iterations + after.num_iterations,
        num_batches=num_before + num_after,
        num_samples=before.num_samples + after.num_samples,
        num_bytes=before.num_bytes + after.num_bytes,
        first_batch_seconds=[*before.first_batch_seconds, *after.first_batch_seconds][-MOST_KEPT:],
        batch_seconds=_pooled(before.batch_seconds, after.batch_seconds),
        wait_seconds=_pooled(before.wait_seconds, after.wait_seconds),
        step_seconds=_pooled(before.step_seconds, after.step_seconds),
        making_seconds=_pooled(before.making_seconds, after.making_seconds),
        stages={name: _joined(before.stages.get(name, Stage()), stage) for name, stage in after.stages.items()},
        wait_cpu_seconds=_sum(before.wait_cpu_seconds, after.wait_cpu_seconds),
        wait_delay_seconds=_sum(before.wait_delay_seconds, after.wait_delay_seconds),
        num_stalls=before.num_stalls + after.num_stalls,
        stall_seconds=before.stall_seconds + after.stall_seconds,
        queue_depth=_mean(before.queue_depth, num_before, after.queue_depth, num_after),
        queue_empty_share=_mean(before.queue_empty_share, num_before, after.queue_empty_share, num_after),
        trainer=after.trainer if before.trainer is None else _grown(before.trainer, after.trainer),
        workers=_staff(before.workers, after.workers),
        decisions=[*before.decisions, *after.decisions],
        laps={name: [*(before.laps or {}).get(name, []), *column][-MOST_KEPT:] for name, column in after.laps.items()}
        if after.laps is not None
        else before.laps,
    )


def _pooled(one: Quantiles, other: Quantiles) -> Quantiles:
    """Return those of two sets of durations together. The quantiles are means of theirs: these are of one kind."""
    if not one.num or not other.num:
        return one if one.num else other
    num = one.num + other.num

    def mean(first: float, second: float) -> float:
        return (first * one.num + second * other.num) / num

    middle = mean(one.mean, other.mean)
    squares = mean(one.deviation**2 + one.mean**2, other.deviation**2 + other.mean**2)
    return Quantiles(
        num=num,
        mean=middle,
        deviation=sqrt(max(0.0, squares - middle**2)),
        p50=mean(one.p50, other.p50),
        p90=mean(one.p90, other.p90),
        p99=mean(one.p99, other.p99),
        most=max(one.most, other.most),
    )


def _joined(one: Stage, other: Stage) -> Stage:
    return Stage(
        busy_seconds=one.busy_seconds + other.busy_seconds,
        waiting_seconds=one.waiting_seconds + other.waiting_seconds,
        cpu_seconds=_sum(one.cpu_seconds, other.cpu_seconds),
    )


def _grown(one: ProcessStats, other: ProcessStats | None) -> ProcessStats:
    """Return what who had one part has used, whichever process that was; the latest is named."""
    if other is None:
        return one
    read, num, busy = (_sum(getattr(one, name), getattr(other, name)) for name in ("read_bytes", *_COUNTED))
    return replace(
        other,
        cpu_seconds=one.cpu_seconds + other.cpu_seconds,
        delay_seconds=_sum(one.delay_seconds, other.delay_seconds),
        read_bytes=None if read is None else int(read),
        num_batches=None if num is None else int(num),
        busy_seconds=busy,
    )


_COUNTED = ("num_batches", "busy_seconds")


def _staff(before: list[ProcessStats], after: list[ProcessStats]) -> list[ProcessStats]:
    roles = {worker.role: worker for worker in before}
    for worker in after:
        roles[worker.role] = _grown(roles[worker.role], worker) if worker.role in roles else worker
    return list(roles.values())


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _mean(one: float | None, num_one: int, other: float | None, num_other: int) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return (one * num_one + other * num_other) / max(1, num_one + num_other)
