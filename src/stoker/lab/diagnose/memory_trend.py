"""Whether memory grows: steadily, and not only until everything is in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.engine.stats import Stats
from stoker.lab.diagnose.reckoning import num_lanes, setting
from stoker.lab.watch.run import Moment, Run

WARM_UP = 0.25
"""The part of a run at its beginning in which memory may grow as it likes."""
FEWEST_MOMENTS = 8
SMALLEST_BYTES = 24 << 20
SMALLEST_SHARE = 0.03
"""Growth below this, of what there is, may be anything."""
STEADY_SHARE = 0.4
"""Every third of the time has to see this part of the mean growth: what levels off is no leak."""
FEWEST_BATCHES, TIMES_IN_FLIGHT = 32, 4
"""Until so many batches have come, and so many times as many as are in flight, queues, slots and caches fill."""
SOON_SECONDS = 3 * 24 * 3600.0
"""Memory that lasts longer than this is not what ends a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Memory that grows."""

    bytes_per_second: float
    grown_bytes: int
    """Over the time that was looked at."""
    seconds: float
    of_workers_share: float
    """How much of it is the workers'."""
    seconds_left: float | None
    """Until the machine's memory is used up; None if it is not known how much there is."""


def has_filled(stats: Stats) -> bool:
    """Whether a loader has given enough batches for growth of memory to be more than its queues being filled."""
    in_flight = num_lanes(stats) * max(2, setting(stats, "prefetch_factor", 2))
    return stats.num_batches >= max(FEWEST_BATCHES, TIMES_IN_FLIGHT * in_flight)


def moments_of_training(run: Run) -> list[Moment]:
    """Return the moments from the first batch to the last: before, memory grows by building models, and by importing,
    which workers that are spawned do too.
    """
    laps = [one.laps for one in run.loaders if one.laps and one.laps.get("asked") and one.laps.get("handed")]
    if run.began is None or not laps:
        return run.moments
    first, last = min(one["handed"][0] for one in laps), max(one["handed"][-1] for one in laps)
    return [moment for moment in run.moments if first <= run.began + moment.at <= last]


def growth_of(moments: Sequence[Moment], *, memory_bytes: int | None) -> Growth | None:
    """Return how memory grows; None if it does not, or if that cannot be told yet."""
    # memory that is the same to the byte was not asked for again: that is done less often than looking
    known = [
        moment
        for moment, before in zip(moments, (None, *moments))
        if moment.private_bytes is not None and (before is None or moment.private_bytes != before.private_bytes)
    ]
    last = next((moment for moment in reversed(moments) if moment.private_bytes is not None), None)
    if last is not None and last is not known[-1]:
        known.append(last)  # or growth that has come to its end would look as if it went on
    if known:
        start = known[0].at + WARM_UP * (known[-1].at - known[0].at)
        known = [moment for moment in known if moment.at >= start]
    if len(known) < FEWEST_MOMENTS:
        return None
    at = np.array([moment.at for moment in known])
    used = np.array([moment.private_bytes for moment in known], np.float64)
    seconds = float(at[-1] - at[0])
    if seconds <= 0:
        return None
    slope = _slope(at, used)
    grown = slope * seconds
    if grown < max(SMALLEST_BYTES, SMALLEST_SHARE * float(np.median(used))):
        return None
    edges = at[0] + seconds * np.arange(4) / 3
    levels = np.interp(edges, at, used)
    if (np.diff(levels) < STEADY_SHARE * grown / 3).any():
        return None
    left = None if memory_bytes is None else max(0.0, memory_bytes - used[-1]) / slope
    if left is not None and left > SOON_SECONDS:
        return None
    workers = np.array([moment.workers_pss_bytes or 0 for moment in known], np.float64)
    return Growth(
        bytes_per_second=slope,
        grown_bytes=int(grown),
        seconds=seconds,
        of_workers_share=float(np.clip(_slope(at, workers) / slope, 0, 1)),
        seconds_left=None if left is None else float(left),
    )


def _slope(
    at: np.ndarray[tuple[int], np.dtype[np.float64]], used: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> float:
    """Return the median of the slopes between any two points: a few odd ones among them change nothing."""
    if len(at) > 100:
        step = -(-len(at) // 100)
        at, used = at[::step], used[::step]
    first, second = np.triu_indices(len(at), 1)
    return float(np.median((used[second] - used[first]) / np.maximum(at[second] - at[first], 1e-9)))
