"""A loader's counters in words, and those of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed

from stoker.engine.stats import STAGES, Quantiles, Stats
from stoker.errors import ArgumentError
from stoker.foundation.text import format_bytes, format_count, format_duration, format_percent


def format_stats(stats: Stats) -> str:
    """Return what was counted, in a few lines."""
    if not stats.num_batches:
        return "nothing was counted yet: the loader has not yielded a batch"
    config = stats.config
    workers = {
        "inline": "inline",
        "threads": format_count(config.get("num_threads"), "thread"),
        "processes": format_count(config.get("num_workers"), "worker")
        + (f" of {format_count(config['num_threads'], 'thread')}" if config.get("num_threads") else ""),
    }[stats.engine]
    rank = f", rank {stats.rank} of {stats.num_ranks}" if stats.num_ranks > 1 else ""
    lines = [
        f"{stats.num_batches:,} batches, {stats.num_samples:,} samples, {format_bytes(stats.num_bytes)} in "
        f"{format_duration(stats.seconds)}: {stats.samples_per_second:,.0f} samples/s ({workers}{rank})",
        f"waiting for data: {format_percent(stats.wait_share)} of the time, {stats.num_stalls:,} stalls of "
        f"{format_duration(stats.stall_seconds / max(1, stats.num_stalls))} on average; first batch after "
        + ", ".join(format_duration(seconds) for seconds in stats.first_batch_seconds[-3:]),
        "",
        f"{'':14}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}",
        *(
            _row(name, quantiles)
            for name, quantiles in (
                ("batch", stats.batch_seconds),
                ("wait", stats.wait_seconds),
                ("step", stats.step_seconds),
                ("making", stats.making_seconds),
            )
        ),
        "",
        f"{'stage':14}{'busy':>10}{'waiting':>10}",
    ]
    for name in STAGES:
        stage = stats.stages[name]
        lines.append(f"{name:14}{format_duration(stage.busy_seconds):>10}{format_duration(stage.waiting_seconds):>10}")
    if stats.engine != "inline" and stats.queue_depth is not None and stats.queue_empty_share is not None:
        lines += [
            "",
            f"batches ready when one was requested: {stats.queue_depth:.1f} on average, none in "
            f"{format_percent(stats.queue_empty_share)} of requests",
        ]
    lines += _processes(stats)
    if stats.decisions:
        lines += ["", *(f"auto: {decision}" for decision in stats.decisions[-5:])]
    return "\n".join(lines)


def _processes(stats: Stats) -> list[str]:
    processes = [process for process in (stats.trainer, *stats.workers) if process is not None]
    if not processes or not stats.seconds:
        return []
    lines = ["", f"{'process':14}{'batches':>10}{'busy':>10}{'CPU':>10}{'no core':>10}{'memory':>10}"]
    for process in processes:
        busy = "" if process.busy_seconds is None else f"{process.busy_seconds / stats.seconds:.0%}"
        delay = "" if process.delay_seconds is None else f"{process.delay_seconds / stats.seconds:.1%}"
        lines.append(
            f"{process.role:14}{'' if process.num_batches is None else process.num_batches:>10}{busy:>10}"
            f"{process.cpu_seconds / stats.seconds:>10.0%}{delay:>10}"
            f"{'' if process.pss_bytes is None else format_bytes(process.pss_bytes):>10}"
        )
    return lines


def _row(name: str, quantiles: Quantiles) -> str:
    values = (quantiles.p50, quantiles.p90, quantiles.p99, quantiles.most)
    return f"{name:14}" + "".join(f"{format_duration(seconds):>10}" for seconds in values)


# -------------------------------------------------------------------- ranks


def gather_stats(stats: Stats) -> list[Stats]:
    """Return the stats of all ranks, in their order. All ranks have to call it."""
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        raise ArgumentError(
            "there are no other ranks to ask: torch.distributed is not initialized",
            hint="call init_process_group first; or let every rank write log_stats() to one file",
        )
    answers: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(answers, stats.as_dict())
    return [Stats.from_dict(answer) for answer in answers]


def slowest_rank(ranks: Sequence[Stats]) -> Stats:
    """Return the rank that waits longest for its data. All others wait for it, in their steps."""
    return max(ranks, key=lambda stats: stats.wait_seconds.mean)


def format_rank_stats(ranks: Sequence[Stats]) -> str:
    """Return what all ranks have counted, a line each, and who is the slowest."""
    lines = [
        f"{'rank':6}{'samples/s':>12}{'batch p50':>12}{'wait p50':>12}{'wait p99':>12}{'waiting':>10}{'step p50':>12}"
    ]
    lines += [
        f"{stats.rank:<6}{stats.samples_per_second:>12,.0f}{format_duration(stats.batch_seconds.p50):>12}"
        f"{format_duration(stats.wait_seconds.p50):>12}{format_duration(stats.wait_seconds.p99):>12}{stats.wait_share:>10.1%}"
        f"{format_duration(stats.step_seconds.p50):>12}"
        for stats in ranks
    ]
    slowest = slowest_rank(ranks)
    others = [stats.wait_seconds.mean for stats in ranks if stats is not slowest]
    if others:
        rest = sum(others) / len(others)
        lines.append(
            f"slowest: rank {slowest.rank}, which waits {format_duration(slowest.wait_seconds.mean)} for a batch, "
            f"the others {format_duration(rest)}"
        )
    return "\n".join(lines)
