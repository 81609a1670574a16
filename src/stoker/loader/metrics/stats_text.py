"""Print a loader's counters, and those of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed

from stoker.engine.stats import STAGES, Quantiles, Stats, labeled_counters
from stoker.errors import ArgumentError
from stoker.foundation.text import format_bytes, format_count, format_duration, format_number, format_percent


def format_stats(stats: Stats) -> str:
    """Return the counters as a few lines of text."""
    if not stats.num_batches:
        return "nothing was counted yet: the loader has not yielded a batch"
    stalls = format_count(stats.num_stalls, "stall")
    stall = format_duration(stats.stall_seconds / max(1, stats.num_stalls))
    lines = [
        f"{format_count(stats.num_batches, 'batch', 'batches')}, {format_count(stats.num_samples, 'sample')}, "
        f"{format_bytes(stats.num_bytes)} in {format_duration(stats.seconds)}: "
        f"{stats.samples_per_second:,.0f} samples/s ({_format_workers(stats)})",
        f"waiting for data: {format_percent(stats.wait_share)} of the time, {stalls} of {stall} "
        f"on average; first batch after "
        + ", ".join(format_duration(seconds) for seconds in stats.first_batch_seconds[-3:]),
        "",
        f"{'':14}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}",
        *(_format_row(label, getattr(stats, name)) for name, label in labeled_counters()),
        "",
        f"{'stage':14}{'busy':>10}{'waiting':>10}",
    ]
    for name in STAGES:
        stage = stats.stages[name]
        busy, waiting = format_duration(stage.busy_seconds), format_duration(stage.waiting_seconds)
        lines.append(f"{name:14}{busy:>10}{waiting:>10}")
    if stats.engine != "inline" and stats.queue_depth is not None and stats.queue_empty_share is not None:
        lines += [
            "",
            f"queue: {format_number(stats.queue_depth, 2)} batches ready on average, empty at "
            f"{format_percent(stats.queue_empty_share)} of requests",
        ]
    lines += _format_processes(stats)
    if stats.decisions:
        lines += ["", *(f"auto: {decision}" for decision in stats.decisions[-5:])]
    return "\n".join(lines)


def _format_workers(stats: Stats) -> str:
    num_workers, num_threads = stats.config.get("num_workers"), stats.config.get("num_threads")
    workers = {
        "inline": "inline",
        "threads": format_count(num_threads, "thread"),
        "processes": format_count(num_workers, "worker")
        + (f" of {format_count(num_threads, 'thread')}" if num_threads else ""),
    }[stats.engine]
    return f"{workers}, rank {stats.rank} of {stats.num_ranks}" if stats.num_ranks > 1 else workers


def _format_processes(stats: Stats) -> list[str]:
    processes = [process for process in (stats.trainer, *stats.workers) if process is not None]
    if not processes or not stats.seconds:
        return []

    def share(seconds: float | None) -> str:
        return "" if seconds is None else format_percent(seconds / stats.seconds)

    lines = ["", f"{'process':14}{'batches':>10}{'busy':>12}{'CPU':>12}{'no core':>12}{'memory':>10}"]
    for process in processes:
        batches = "" if process.num_batches is None else process.num_batches
        memory = "" if process.pss_bytes is None else format_bytes(process.pss_bytes)
        shares = (process.busy_seconds, process.cpu_seconds, process.delay_seconds)
        lines.append(
            f"{process.role:14}{batches:>10}" + "".join(f"{share(one):>12}" for one in shares) + f"{memory:>10}"
        )
    return lines


def _format_row(name: str, quantiles: Quantiles) -> str:
    values = (quantiles.p50, quantiles.p90, quantiles.p99, quantiles.most)
    return f"{name:14}" + "".join(f"{format_duration(seconds):>10}" for seconds in values)


# -------------------------------------------------------------------- ranks


def gather_stats(stats: Stats) -> list[Stats]:
    """Return the stats of all ranks, in order. All ranks must call it."""
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        raise ArgumentError(
            "there are no other ranks: torch.distributed is not initialized",
            hint="call init_process_group first; or let every rank write log_stats() to one file",
        )
    answers: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(answers, stats.as_dict())
    return [Stats.from_dict(answer) for answer in answers]


def slowest_rank(ranks: Sequence[Stats]) -> Stats:
    """Return the rank that waits longest for its data. All others wait for it in their steps."""
    return max(ranks, key=lambda stats: stats.wait_seconds.mean)


def format_rank_stats(ranks: Sequence[Stats]) -> str:
    """Return the counters of all ranks, a line each, and name the slowest."""
    lines = [
        f"{'rank':6}{'samples/s':>12}{'batch p50':>12}{'wait p50':>12}{'wait p99':>12}{'waiting':>12}{'step p50':>12}"
    ]
    for stats in ranks:
        batch, wait, step = stats.batch_seconds, stats.wait_seconds, stats.step_seconds
        first, last = (format_duration(seconds) for seconds in (batch.p50, step.p50))
        waits = "".join(f"{format_duration(seconds):>12}" for seconds in (wait.p50, wait.p99))
        share = format_percent(stats.wait_share)
        lines.append(f"{stats.rank:<6}{stats.samples_per_second:>12,.0f}{first:>12}{waits}{share:>12}{last:>12}")
    slowest = slowest_rank(ranks)
    others = [stats.wait_seconds.mean for stats in ranks if stats is not slowest]
    if others:
        lines.append(
            f"slowest: rank {slowest.rank}, which waits {format_duration(slowest.wait_seconds.mean)} for a batch, "
            f"the others {format_duration(sum(others) / len(others))}"
        )
    return "\n".join(lines)
