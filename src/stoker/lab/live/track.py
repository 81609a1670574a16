"""Differences between successive records of a loader: records are cumulative, and `stoker top` shows the present."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stoker.lab.key_figures import find_slow_rank, name_loader
from stoker.lab.watch.run import ProcessStats, Quantiles, Stats

NUM_SPANS = 120
"""Number of latest spans kept for sparklines."""


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """The difference between two records."""

    seconds: float
    samples_per_second: float
    wait_share: float
    workers_cores: float | None
    trainer_cores: float | None


class Track:
    """One loader of one rank."""

    def __init__(self, stats: Stats, source: str) -> None:
        self.source = source
        """Source of the records."""
        self.latest = stats
        self.spans: deque[RecordSpan] = deque(maxlen=NUM_SPANS)
        whole = _span(Stats(), stats)
        if whole is not None:
            self.spans.append(whole)

    def add(self, stats: Stats) -> None:
        """Add the next record. If its counts are lower than the previous ones, the loader was reset: start over."""
        if stats.num_batches < self.latest.num_batches or stats.seconds < self.latest.seconds:
            self.spans.clear()
            before = Stats()
        else:
            before = self.latest
        span = _span(before, stats)
        if span is not None:
            self.spans.append(span)
        self.latest = stats

    @property
    def now(self) -> RecordSpan | None:
        """The latest span; None if there is none yet."""
        return self.spans[-1] if self.spans else None

    @property
    def present(self) -> RecordSpan | Stats:
        """Throughput and waiting in the latest span, or overall if there is none yet."""
        return self.now or self.latest

    @property
    def name(self) -> str:
        """Display name."""
        return name_loader(self.latest)


class Tracks:
    """All loaders with records, in the order of their first record."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Track] = {}

    def add(self, records: Iterable[Stats], *, source: str = "") -> None:
        """Add new records from one source."""
        for stats in records:
            # two loaders may share a file: constant differences identify them
            key = (source, stats.kind, stats.name, stats.rank, stats.config.get("batch_size"))
            known = self._known.get(key)
            if known is None:
                self._known[key] = Track(stats, source)
            else:
                known.add(stats)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def all(self) -> list[Track]:
        """All loaders, by name and rank."""
        return sorted(self._known.values(), key=lambda track: (track.name, track.latest.rank))

    @property
    def slowest(self) -> Track | None:
        """The rank that waits longest for data, among several with the same loader; None if none stands out."""
        ranks = [track for track in self._known.values() if track.latest.num_ranks > 1]
        if not ranks or len({track.name for track in self._known.values()}) > 1:
            return None
        slowest, _ = find_slow_rank([track.latest for track in ranks])
        return next((track for track in ranks if track.latest is slowest), None)


def _span(before: Stats, after: Stats) -> RecordSpan | None:
    seconds = after.seconds - before.seconds
    if seconds <= 0:
        return None
    whole = _total(after.batch_seconds) - _total(before.batch_seconds)
    waited = _total(after.wait_seconds) - _total(before.wait_seconds)

    def cores(processes: Callable[[Stats], list[ProcessStats]]) -> float | None:
        """Return the mean number of cores that processes used; None if they were not sampled."""
        later, earlier = (sum(one.cpu_seconds for one in processes(stats)) for stats in (after, before))
        return max(0.0, later - earlier) / seconds if processes(after) else None

    return RecordSpan(
        seconds=seconds,
        samples_per_second=max(0, after.num_samples - before.num_samples) / seconds,
        wait_share=min(1.0, max(0.0, waited / whole)) if whole > 0 else 0.0,
        workers_cores=cores(lambda stats: stats.workers),
        trainer_cores=cores(lambda stats: [stats.trainer] if stats.trainer is not None else []),
    )


def _total(quantiles: Quantiles) -> float:
    return quantiles.mean * quantiles.num
