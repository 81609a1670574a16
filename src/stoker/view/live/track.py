"""What a loader did from one record to the next: records count from the beginning, and people ask about now."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from stoker.bench.run import Quantiles, Stats

NUM_SPANS = 120
"""The latest spans between two records, which are drawn."""


@dataclass(frozen=True, slots=True)
class Span:
    """What happened between two records."""

    seconds: float
    samples_per_second: float
    wait_share: float
    workers_cores: float | None
    trainer_cores: float | None


class Track:
    """One loader of one rank."""

    def __init__(self, stats: Stats, source: str) -> None:
        self.source = source
        """Where its records come from."""
        self.latest = stats
        self.spans: deque[Span] = deque(maxlen=NUM_SPANS)
        whole = _span(Stats(), stats)
        if whole is not None:
            self.spans.append(whole)

    def add(self, stats: Stats) -> None:
        """Take the next record. One that counts less than the one before begins anew: a loader that was reset."""
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
    def now(self) -> Span | None:
        """The latest span; None if nothing has happened yet."""
        return self.spans[-1] if self.spans else None

    @property
    def name(self) -> str:
        """What it is called."""
        kinds = {"stoker": "loader", "torch": "torch DataLoader"}
        return self.latest.name or kinds.get(self.latest.kind, self.latest.kind or "loader")


class Tracks:
    """All loaders that have told of themselves, in the order in which they first did."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Track] = {}

    def add(self, records: Iterable[Stats], *, source: str = "") -> None:
        """Take new records from one place."""
        for stats in records:
            # two loaders may share a file: what differs between them, and stays, is all that tells them apart
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
        """All of them, by name and rank."""
        return sorted(self._known.values(), key=lambda track: (track.name, track.latest.rank))

    @property
    def slowest(self) -> Track | None:
        """The rank that waits longest for data, of several that load the same; None if that is none or all."""
        names = {track.name for track in self._known.values()}
        ranks = [track for track in self._known.values() if track.latest.num_ranks > 1]
        if len(names) != 1 or len(ranks) < 2:
            return None
        waits = sorted((track.latest.wait_seconds.mean, number) for number, track in enumerate(ranks))
        (second, _), (most, number) = waits[-2:]
        period = ranks[number].latest.batch_seconds.mean
        return ranks[number] if most > 1.1 * second and most - second > 0.01 * period else None


def _span(before: Stats, after: Stats) -> Span | None:
    seconds = after.seconds - before.seconds
    if seconds <= 0:
        return None
    whole = _total(after.batch_seconds) - _total(before.batch_seconds)
    waited = _total(after.wait_seconds) - _total(before.wait_seconds)
    own = (
        None
        if after.trainer is None
        else after.trainer.cpu_seconds - (before.trainer.cpu_seconds if before.trainer else 0)
    )
    workers = sum(one.cpu_seconds for one in after.workers) - sum(one.cpu_seconds for one in before.workers)
    return Span(
        seconds=seconds,
        samples_per_second=max(0, after.num_samples - before.num_samples) / seconds,
        wait_share=min(1.0, max(0.0, waited / whole)) if whole > 0 else 0.0,
        workers_cores=max(0.0, workers) / seconds if after.workers else None,
        trainer_cores=None if own is None else max(0.0, own) / seconds,
    )


def _total(told: Quantiles) -> float:
    return told.mean * told.num
