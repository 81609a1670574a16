"""The latest batches of a loader as columns of times; unknown times are NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.lab.watch.run import Stats

Times = NDArray[np.float64]

MOST_LANES = 64
"""Maximum number of lanes drawn: more would be unreadable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatches:
    """Batches in the order the training loop received them. Times are seconds since the run began; NaN if unknown."""

    first: int
    """Number of the first batch; earlier ones were not kept."""
    asked: Times
    handed: Times
    stepped: Times
    """End of the step on each batch; NaN for the last one, and at the end of an iteration."""
    began: Times
    made: Times
    sent: Times
    lane: NDArray[np.int64]
    """Lane in which loading is drawn; -1 if unknown."""
    lanes: list[str]
    """Worker name of each lane. Several lanes of one worker are adjacent; only the first is named."""
    num_left_out: int
    """Number of lanes beyond the maximum."""
    is_ahead: bool
    """Whether some batches were loaded before they were requested."""

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.asked)

    def maker(self, batch: int) -> str:
        """Return the worker that loaded a batch; empty if unknown."""
        named = [name for name in self.lanes[: int(self.lane[batch]) + 1] if name]
        return named[-1] if named else ""

    @property
    def begin(self) -> float:
        """Time of the first event."""
        return float(np.nanmin(np.append(self.began, self.asked[0])))

    @property
    def end(self) -> float:
        """Time of the last event."""
        return float(np.nanmax(np.concatenate((self.handed, self.stepped, self.sent))))

    @property
    def waits(self) -> Times:
        """Wait for each batch."""
        return self.handed - self.asked

    @property
    def later_waits(self) -> Times:
        """Waits, without the first batch of each iteration."""
        follows = ~np.isnan(self.stepped[:-1])
        return self.waits[1:][follows]

    @property
    def steps(self) -> Times:
        """Duration of the step on each batch, where known."""
        steps = self.stepped - self.handed
        return steps[~np.isnan(steps)]

    @property
    def periods(self) -> Times:
        """Time from one batch to the next, within an iteration."""
        follows = ~np.isnan(self.stepped[:-1])
        return np.diff(self.handed)[follows]

    @property
    def makings(self) -> Times:
        """Loading time of each batch, where known."""
        makings = self.made - self.began
        return makings[~np.isnan(makings)]


def batches_of(stats: Stats, *, run_began: float | None = None, most: int = 4096) -> RecordedBatches | None:
    """Return the latest `most` batches of a loader; None if none were recorded.

    If the start of the run is unknown, times count from the first of these batches.
    """
    laps = stats.laps or {}
    asked, handed = _column(laps.get("asked")), _column(laps.get("handed"))
    if not len(asked) or len(asked) != len(handed):
        return None
    others = [_column(laps.get(name), len(asked)) for name in ("worker", "began", "made", "sent")]
    is_whole = np.isfinite(asked) & np.isfinite(handed) & (handed >= asked)
    asked, handed, worker, began, made, sent = (one[is_whole][-most:] for one in (asked, handed, *others))
    if not len(asked):
        return None
    is_seen = (began > 0) & (made > began) & np.isfinite(worker)
    began, made = (np.where(is_seen, one, np.nan) for one in (began, made))
    sent = np.where(is_seen, np.fmax(sent, made), np.nan)
    stepped = np.append(asked[1:], np.nan)
    # time between iterations is not a step: it is longer than any step that was counted
    longest = stats.step_seconds.most
    is_step = (stepped >= handed) & ((stepped - handed <= longest * 1.001 + 1e-9) | (longest <= 0))
    stepped = np.where(is_step, stepped, np.nan)
    start = float(np.nanmin(np.append(began, asked[0])))
    if run_began is not None and run_began <= start:
        start = run_began
    lane, lanes, num_left_out = _lanes(worker, began, made, engine=stats.engine)
    return RecordedBatches(
        first=max(0, stats.num_batches - len(asked)),
        asked=asked - start,
        handed=handed - start,
        stepped=stepped - start,
        began=began - start,
        made=made - start,
        sent=sent - start,
        lane=lane,
        lanes=lanes,
        num_left_out=num_left_out,
        is_ahead=bool((sent < asked).any()),
    )


def _column(values: Any, length: int | None = None) -> Times:
    try:
        column = np.array([np.nan if value is None else value for value in values or ()], dtype=np.float64)
    except (TypeError, ValueError):
        column = np.empty(0)
    return np.full(length, np.nan) if length is not None and len(column) != length else column


def _lanes(worker: Times, began: Times, made: Times, *, engine: str) -> tuple[NDArray[np.int64], list[str], int]:
    """Assign a lane to each batch, so that loading does not overlap within a lane; return lanes and their names."""
    lane = np.full(len(worker), -1)
    names: list[str] = []
    is_seen = ~np.isnan(began)
    for one in np.unique(worker[is_seen]).tolist():
        [its] = np.nonzero((worker == one) & is_seen)
        ends: list[float] = []
        for batch in its[np.argsort(began[its], kind="stable")].tolist():
            free = next((at for at, end in enumerate(ends) if end <= began[batch] + 1e-7), len(ends))
            ends[free : free + 1] = [float(made[batch])]
            lane[batch] = len(names) + free
        name = f"worker {int(one)}" if one >= 0 else "threads" if engine == "threads" else "trainer"
        names += [name, *[""] * (len(ends) - 1)]
    num_left_out = max(0, len(names) - MOST_LANES)
    lane[lane >= MOST_LANES] = -1
    return lane, names[:MOST_LANES], num_left_out


def busy_share(begins: Times, ends: Times, edges: Times) -> Times:
    """Return the fraction of each bin covered by the intervals, which must not overlap."""
    is_known = ~(np.isnan(begins) | np.isnan(ends))
    begins, ends = begins[is_known], ends[is_known]
    if not len(begins):
        return np.zeros(len(edges) - 1)
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], ends[order]
    knots = np.maximum.accumulate(np.stack((begins, ends), axis=1).reshape(-1))
    covered = np.repeat(np.concatenate(([0.0], np.cumsum(ends - begins))), 2)[1:-1]
    shares: Times = np.diff(np.interp(edges, knots, covered)) / np.maximum(np.diff(edges), 1e-12)
    return np.clip(shares, 0, 1)


def num_ready(batches: RecordedBatches, at: Times) -> Times:
    """Return the number of batches that were ready and not yet handed over, at given times."""
    is_seen = ~np.isnan(batches.sent)
    came = np.sort(batches.sent[is_seen])
    went = np.sort(np.maximum(batches.handed, batches.sent)[is_seen])
    return (np.searchsorted(came, at, side="right") - np.searchsorted(went, at, side="right")).astype(np.float64)


def to_script_data(batches: RecordedBatches) -> dict[str, object]:
    """Return the batches for the page's script: integer microseconds, delta-encoded; -1 for unknown."""

    def micro(times: Times) -> list[int]:
        whole: list[int] = np.where(np.isnan(times), -1, np.round(np.maximum(times, 0) * 1e6)).astype(np.int64).tolist()
        return whole

    return {
        "first": batches.first,
        "lanes": batches.lanes,
        "asked": np.diff(np.round(batches.asked * 1e6), prepend=0.0).astype(np.int64).tolist(),
        "wait": micro(batches.handed - batches.asked),
        "step": micro(batches.stepped - batches.handed),
        "began": micro(batches.began),
        "make": micro(batches.made - batches.began),
        "send": micro(batches.sent - batches.made),
        "lane": batches.lane.tolist(),
        "begin": round(batches.begin * 1e6),
        "end": round(batches.end * 1e6),
    }
