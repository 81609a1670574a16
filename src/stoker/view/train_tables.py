"""A training step timed three ways, as tables for the terminal."""

from __future__ import annotations

from rich.table import Table

from stoker.bench.train_record import (
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
from stoker.foundation.text import format_duration, format_number, format_spread
from stoker.view.columns import table_of_rows

WAYS = {RESIDENT: "batches on the device", CACHED: "cached batches, loader", REAL: "the real loader"}
PARTS = {
    COMPUTE: "compute",
    COPY: "copy stall: hand-over, copy",
    PREPARATION: "preparation stall: CPU",
    FETCH: "fetch stall: storage",
    DATA: "data stall: fetch, prepare",
}


NOISY_SHARE = 0.15
"""Rounds whose standard deviation is more than this part of their mean are worth a warning."""


def ways_table(bench: TrainBench, *, width: int = 200) -> Table:
    """Return a line for each way: how long a step takes, and how steadily. Times are in milliseconds."""
    rows = []
    for way in bench.ways:
        told = way.quantiles
        quantiles = {"p50": told.p50, "p90": told.p90, "p99": told.p99, "most": told.most}
        rows.append(
            {
                "ms from step to step": WAYS[way.name],
                "mean": format_spread(way.mean, way.deviation, scale=1e-3),
                **{name: format_number(1e3 * value) for name, value in quantiles.items()},
                "steps": f"{way.num_steps:,}",
            }
        )
    return table_of_rows(rows, texts="ms from step to step", spare=("steps", "most", "p90"), width=width)


def parts_table(bench: TrainBench, *, width: int = 200) -> Table:
    """Return a line for each part of a step's time: what it takes, and what it costs in a day."""
    rows = [
        {
            "where a step's time goes": PARTS[part.name],
            "ms": format_spread(part.seconds, part.deviation, scale=1e-3),
            "share": f"{part.share:.0%}",
            "GPU-hours a day": f"{part.gpu_hours_per_day:.1f}",
        }
        for part in bench.parts()
    ]
    return table_of_rows(rows, texts="where a step's time goes", spare=("GPU-hours a day",), width=width)


def train_remarks(bench: TrainBench) -> list[str]:
    """Return what follows, and what has to be said beside the tables, a sentence each."""
    resident, real = bench.way(RESIDENT), bench.way(REAL)
    if resident is None or real is None:
        return bench.notes
    gpus = "a GPU" if bench.num_gpus == 1 else f"{bench.num_gpus:,} GPUs"
    found = [
        f"stalls take {bench.stall_share:.0%} of a step: {bench.lost_gpu_hours_per_day:.1f} hours a day of {gpus}; "
        f"without them a step takes {format_duration(bench.compute_seconds)} instead of {format_duration(real.mean)}"
    ]
    if bench.num_samples:
        speeds = [f"{bench.num_samples / seconds:,.0f}" for seconds in (real.mean, bench.compute_seconds)]
        found.append(f"that is {speeds[0]} samples per second, and {speeds[1]} without stalls")
    found += _told_noise(bench)
    if bench.blocked_share is not None:
        found.append(f"fetch and preparation are told apart {bench.split_by}")
    elif bench.split_by:
        found.append(bench.split_by)
    if bench.slowing_seconds > 0.02 * real.mean:
        found.append(_told_slowing(bench))
    noisy = [way for way in bench.ways if way.deviation > NOISY_SHARE * way.mean]
    if noisy or resident.mean > (1 + NOISY_SHARE) * real.mean:
        found.append(
            "the machine is noisy: rounds differ too much for small stalls to be seen; more rounds (--repeat), longer "
            "ones (--seconds) or a quieter machine tell more"
        )
    return found + bench.notes


def _told_noise(bench: TrainBench) -> list[str]:
    """Return a sentence on each way that was quicker than one that does less, which only noise can make it."""
    found = []
    ways = sorted(bench.ways, key=lambda way: list(WAYS).index(way.name))
    quickest: Way | None = None
    for way in reversed(ways):
        if quickest is not None and way.mean > quickest.mean:
            found.append(
                f"{WAYS[way.name]}: {format_duration(way.mean)}, which is longer than {WAYS[quickest.name]} "
                f"({format_duration(quickest.mean)}) and can only be noise: both are taken to be as quick as the latter"
            )
        else:
            quickest = way
    return found


def _told_slowing(bench: TrainBench) -> str:
    """Return by how much the making of batches slows the step itself down, and who does so."""
    longer = f"the step itself takes {format_duration(bench.slowing_seconds)} longer"
    for name, noun in (("num_workers", "workers"), ("num_threads", "threads")):
        if bench.config.get(name):
            return f"beside working {noun} {longer}: they share its cores"
    if bench.kind == "iterable":
        return f"with the real loader {longer}: whoever makes batches shares its cores"
    return f"after the making of a batch in the same thread {longer}: perhaps what it works with has left the caches"
