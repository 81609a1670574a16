"""memory-growth: memory grows steadily, and not only until everything is in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.engine.stats import Stats
from stoker.foundation.text import format_bytes, format_duration, format_percent
from stoker.lab.diagnose.advice import MANY_OBJECTS
from stoker.lab.diagnose.diagnosis import Diagnosis, VerdictKind
from stoker.lab.diagnose.loader_profile import concurrency_of, setting
from stoker.lab.watch.run import Moment, Run

VERDICT = VerdictKind(
    name="memory-growth",
    meaning="memory grows with every batch",
    sign="memory, cached files not counted, keeps growing and does not level off",
    remedy="find what holds on to memory; the evidence says whether it is the workers or the trainer",
)

WARM_UP = 0.25
"""Share of a run at its beginning in which growth does not count."""
MIN_MOMENTS = 8
MIN_BYTES, MIN_SHARE = 24 << 20, 0.03
"""Growth of less, in bytes and as a share of the memory used, may be anything."""
STEADY_SHARE = 0.4
"""Each third of the time must see this part of the mean growth: what levels off is not a leak."""
MIN_BATCHES, TIMES_IN_FLIGHT = 32, 4
"""Until so many batches have come, and so many times the batches in flight, queues, slots and caches fill."""
SOON_SECONDS = 3 * 24 * 3600.0
"""Memory that lasts longer than this will not end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowth:
    """How memory grows."""

    bytes_per_second: float
    grown_bytes: int
    """Within `seconds`."""
    seconds: float
    of_workers_share: float
    """How much of it is the workers'."""
    seconds_left: float | None
    """Until the machine's memory is used up; None if it is unknown how much there is."""


def diagnose(run: Run, loaders: list[Stats]) -> Diagnosis | None:
    """Return the diagnosis if memory grows steadily; None if it does not."""
    if not any(has_filled(stats) for stats in loaders):
        return None
    growth = find_growth(moments_of_training(run), memory_bytes=run.machine.get("memory_bytes"))
    if growth is None:
        return None
    stats = max(loaders, key=lambda stats: stats.seconds)
    period = stats.batch_seconds.mean
    who = "workers" if growth.of_workers_share >= 0.5 else "trainer's process"
    evidence = [
        f"memory grew steadily by {format_bytes(growth.grown_bytes)} in {format_duration(growth.seconds)}, "
        "cached files not counted",
        f"{format_percent(growth.of_workers_share)} of it in workers, the rest in the trainer",
    ]
    if period > 0:
        evidence.append(f"that is {format_bytes(growth.bytes_per_second * period)} for each batch")
    if growth.seconds_left is not None:
        left = format_duration(growth.seconds_left, digits=2)
        evidence.append(f"at this rate the machine's memory lasts for another {left}")
    return Diagnosis(
        verdict=VERDICT.name,
        says=f"memory of the {who} grows by {format_bytes(growth.bytes_per_second * 60)} a minute, batch after batch",
        evidence=evidence,
        gain="the run does not run out of memory",
        advice=_advice(stats, growth),
    )


def _advice(stats: Stats, growth: MemoryGrowth) -> list[str]:
    advice = []
    reads_here, of_workers = stats.engine != "processes", growth.of_workers_share >= 0.5
    if of_workers or reads_here:
        num_objects = stats.facts.get("num_objects") or 0
        if num_objects >= MANY_OBJECTS and not reads_here:
            advice.append(
                f"the dataset holds {num_objects:,} Python objects in `{stats.facts.get('objects_in')}`: forked "
                "workers gradually copy them, because reading an object changes its reference count; keep them in "
                "NumPy arrays, or in a store"
            )
        advice.append(
            "look in the dataset for what it keeps of each sample: a list or dict that grows, "
            "`functools.lru_cache` without a size, files that are opened but not closed"
        )
    if of_workers:
        return [*advice, "until it is found, `persistent_workers=False` restarts the workers in each epoch"]
    return [
        *advice,
        "look in the training loop for tensors that are kept: `losses.append(loss)` keeps the whole graph, "
        "`losses.append(loss.item())` a number",
        "a batch that is kept keeps its memory: clone the part that you need",
    ]


def has_filled(stats: Stats) -> bool:
    """Whether a loader delivered enough batches for growth of memory to be more than its queues being filled."""
    in_flight = concurrency_of(stats) * max(2, setting(stats, "prefetch_factor", 2))
    return stats.num_batches >= max(MIN_BATCHES, TIMES_IN_FLIGHT * in_flight)


def moments_of_training(run: Run) -> list[Moment]:
    """Return the moments from the first batch to the last. Before, memory grows by building models, and by importing,
    which spawned workers do too.
    """
    laps = [stats.laps for stats in run.loaders if stats.laps and stats.laps.get("asked") and stats.laps.get("handed")]
    if run.began is None or not laps:
        return run.moments
    first, last = min(lap["handed"][0] for lap in laps), max(lap["handed"][-1] for lap in laps)
    return [moment for moment in run.moments if first <= run.began + moment.at <= last]


def find_growth(moments: Sequence[Moment], *, memory_bytes: int | None) -> MemoryGrowth | None:
    """Return how memory grows; None if it does not, or if that cannot be said yet."""
    # memory is measured less often than moments are taken: the same number to the byte is an old one
    known = [
        moment
        for moment, before in zip(moments, (None, *moments))
        if moment.private_bytes is not None and (before is None or moment.private_bytes != before.private_bytes)
    ]
    last = next((moment for moment in reversed(moments) if moment.private_bytes is not None), None)
    if last is not None and last is not known[-1]:
        known.append(last)  # or growth that has ended would look as if it went on
    if known:
        start = known[0].at + WARM_UP * (known[-1].at - known[0].at)
        known = [moment for moment in known if moment.at >= start]
    if len(known) < MIN_MOMENTS:
        return None
    at = np.array([moment.at for moment in known])
    used = np.array([moment.private_bytes for moment in known], np.float64)
    seconds = float(at[-1] - at[0])
    if seconds <= 0:
        return None
    slope = _slope(at, used)
    grown = slope * seconds
    if grown < max(MIN_BYTES, MIN_SHARE * float(np.median(used))):
        return None
    levels = np.interp(at[0] + seconds * np.arange(4) / 3, at, used)
    if (np.diff(levels) < STEADY_SHARE * grown / 3).any():
        return None
    left = None if memory_bytes is None else max(0.0, memory_bytes - float(used[-1])) / slope
    if left is not None and left > SOON_SECONDS:
        return None
    workers = np.array([moment.workers_pss_bytes or 0 for moment in known], np.float64)
    return MemoryGrowth(
        bytes_per_second=slope,
        grown_bytes=int(grown),
        seconds=seconds,
        of_workers_share=float(np.clip(_slope(at, workers) / slope, 0, 1)),
        seconds_left=left,
    )


def _slope(at: np.ndarray[Any, np.dtype[np.float64]], used: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return the median of the slopes between any two points, which a few odd points do not change."""
    step = -(-len(at) // 100)
    at, used = at[::step], used[::step]
    first, second = np.triu_indices(len(at), 1)
    return float(np.median((used[second] - used[first]) / np.maximum(at[second] - at[first], 1e-9)))
