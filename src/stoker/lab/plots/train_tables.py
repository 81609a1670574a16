"""Format a training step timed three ways as tables for the terminal."""

from __future__ import annotations

from rich.table import Table

from stoker.foundation.text import format_duration, format_number, format_spread
from stoker.lab.plots.columns import table_of_rows
from stoker.lab.trial.train_record import (
    CACHED,
    COMPUTE,
    COPY,
    DATA,
    FETCH,
    PREPARATION,
    REAL,
    RESIDENT,
    TrainBench,
    Way,
)

WAYS = {RESIDENT: "batches on the device", CACHED: "cached batches, loader", REAL: "real loader"}
PARTS = {
    COMPUTE: "compute",
    COPY: "copy stall: handover, copy",
    PREPARATION: "preparation stall: CPU",
    FETCH: "fetch stall: storage",
    DATA: "data stall: fetch, prepare",
}


NOISY_SHARE = 0.15
"""Warn about rounds whose standard deviation exceeds this fraction of their mean."""


def ways_table(bench: TrainBench, *, width: int = 200) -> Table:
    """Return a table with a row per way: mean and quantiles of the step time, in milliseconds."""
    rows = []
    for way in bench.ways:
        times = way.quantiles
        quantiles = {"p50": times.p50, "p90": times.p90, "p99": times.p99, "max": times.most}
        rows.append(
            {
                "ms from step to step": WAYS[way.name],
                "mean": format_spread(way.mean, way.deviation, scale=1e-3),
                **{name: format_number(1e3 * value) for name, value in quantiles.items()},
                "steps": f"{way.num_steps:,}",
            }
        )
    return table_of_rows(rows, texts="ms from step to step", spare=("steps", "max", "p90"), width=width)


def parts_table(bench: TrainBench, *, width: int = 200) -> Table:
    """Return a table with a row per part of the step time: its duration, and its cost per day."""
    rows = [
        {
            "where a step's time goes": PARTS[part.name],
            "ms": format_spread(part.seconds, part.deviation, scale=1e-3),
            "share": f"{part.share:.0%}",
            "GPU-hours per day": f"{part.gpu_hours_per_day:.1f}",
        }
        for part in bench.parts()
    ]
    return table_of_rows(rows, texts="where a step's time goes", spare=("GPU-hours per day",), width=width)


def train_remarks(bench: TrainBench) -> list[str]:
    """Return conclusions and notes on the tables, one sentence each."""
    resident, real = bench.way(RESIDENT), bench.way(REAL)
    if resident is None or real is None:
        return bench.notes
    gpus = "a GPU" if bench.num_gpus == 1 else f"{bench.num_gpus:,} GPUs"
    found = [
        f"stalls take {bench.stall_share:.0%} of a step: {bench.lost_gpu_hours_per_day:.1f} hours per day of {gpus}; "
        f"without them a step takes {format_duration(bench.compute_seconds)} instead of {format_duration(real.mean)}"
    ]
    if bench.num_samples:
        speeds = [f"{bench.num_samples / seconds:,.0f}" for seconds in (real.mean, bench.compute_seconds)]
        found.append(f"that is {speeds[0]} samples per second, and {speeds[1]} without stalls")
    found += _describe_noise(bench)
    if bench.blocked_share is not None:
        found.append(f"fetch and preparation are separated {bench.split_by}")
    elif bench.split_by:
        found.append(bench.split_by)
    if bench.slowing_seconds > 0.02 * real.mean:
        found.append(_describe_slowdown(bench))
    noisy = [way for way in bench.ways if way.deviation > NOISY_SHARE * way.mean]
    if noisy or resident.mean > (1 + NOISY_SHARE) * real.mean:
        found.append(
            "the machine is noisy: rounds differ too much to show small stalls; use more rounds (--repeat), longer "
            "ones (--seconds) or a quieter machine"
        )
    return found + bench.notes


def _describe_noise(bench: TrainBench) -> list[str]:
    """Return a sentence for each way that was faster than one that does less, which can only be noise."""
    found = []
    ways = sorted(bench.ways, key=lambda way: list(WAYS).index(way.name))
    quickest: Way | None = None
    for way in reversed(ways):
        if quickest is not None and way.mean > quickest.mean:
            found.append(
                f"{WAYS[way.name]}: {format_duration(way.mean)}, longer than {WAYS[quickest.name]} "
                f"({format_duration(quickest.mean)}), which can only be noise: both count as "
                f"{format_duration(quickest.mean)}"
            )
        else:
            quickest = way
    return found


def _describe_slowdown(bench: TrainBench) -> str:
    """Return how much loading slows down the step itself, and why."""
    longer = f"the step itself takes {format_duration(bench.slowing_seconds)} longer"
    for name, noun in (("num_workers", "workers"), ("num_threads", "threads")):
        if bench.config.get(name):
            return f"while {noun} are busy, {longer}: they compete for its cores"
    if bench.kind == "iterable":
        return f"with the real loader, {longer}: loading competes for its cores"
    return f"after loading a batch in the same thread, {longer}: perhaps loading evicts the CPU caches"
