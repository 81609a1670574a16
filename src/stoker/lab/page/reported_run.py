"""A run prepared for the page: its loaders by name, grouped by rank, and the main one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.key_figures import Measured, name_loader
from stoker.lab.page.recorded_batches import RecordedBatches, batches_of
from stoker.lab.watch.run import Run, Stats

MAX_BATCHES = 16_384
"""Batches that a page holds individually, over all loaders: about a megabyte."""

MAX_OTHERS = 8
"""Loaders drawn besides the main one: hundreds of ranks would make a file of tens of megabytes."""


@dataclass(frozen=True)
class ReportedLoader:
    """One loader of one rank."""

    stats: Stats
    name: str
    """Display name, with its rank if there are several."""
    run_began: float | None
    most: int

    @cached_property
    def batches(self) -> RecordedBatches | None:
        """The latest batches; None if they were not recorded."""
        return batches_of(self.stats, run_began=self.run_began, most=self.most)

    @property
    def rank_name(self) -> str:
        """Display name of the rank."""
        return f"rank {self.stats.rank}"


@dataclass(frozen=True)
class RankGroup:
    """The same loader in all ranks."""

    name: str
    loaders: list[ReportedLoader]

    @cached_property
    def slowest(self) -> ReportedLoader:
        """The rank that waits longest for data; the others wait for it in their step."""
        return max(self.loaders, key=lambda one: (one.stats.wait_seconds.mean, one.stats.batch_seconds.mean))

    @property
    def seconds(self) -> float:
        """Time in use, in the rank that used it longest."""
        return max(one.stats.seconds for one in self.loaders)


@dataclass(frozen=True)
class ReportedRun:
    """A run, its diagnosis, and its display name."""

    run: Run
    diagnosis: Diagnosis
    name: str
    parts: list[Run] = field(default_factory=list)
    """The parts of the run, one per file, if it was recorded by several ranks or machines."""

    @cached_property
    def groups(self) -> list[RankGroup]:
        """The loaders, the one in use longest first."""
        by_key: dict[tuple[str, int], list[Stats]] = {}
        for stats in self.run.loaders:
            alike = [key for key, known in by_key.items() if key[0] == stats.name]
            free = [key for key in alike if all(one.rank != stats.rank for one in by_key[key])]
            key = free[0] if free else (stats.name, len(alike))
            by_key.setdefault(key, []).append(stats)
        num_unnamed = sum(not name for name, _ in by_key)
        most = MAX_BATCHES // max(1, min(len(self.run.loaders), 1 + MAX_OTHERS))
        groups = []
        for (name, number), found in by_key.items():
            label = name_loader(found[0])
            several = number or (num_unnamed > 1 and not name)
            label = f"{label} {number + 1}" if several else label
            found.sort(key=lambda one: one.rank)
            loaders = [
                ReportedLoader(
                    one,
                    f"{label}, rank {one.rank}" if len(found) > 1 else label,
                    self.run.began,
                    most,
                )
                for one in found
            ]
            groups.append(RankGroup(label, loaders))
        return sorted(groups, key=lambda group: -group.seconds)

    @cached_property
    def lead(self) -> ReportedLoader | None:
        """The main loader of the page: in use longest, in its slowest rank; None if there is none."""
        return self.groups[0].slowest if self.groups else None

    @property
    def others(self) -> list[ReportedLoader]:
        """All loaders except the main one: the slowest rank of each, then the others, longest wait first."""
        firsts = [group.slowest for group in self.groups]
        rest = [one for group in self.groups for one in group.loaders if one not in firsts]
        rest.sort(key=lambda one: -one.stats.wait_seconds.mean)
        return [one for one in (*firsts, *rest) if one is not self.lead]

    @property
    def is_watched(self) -> bool:
        """Whether the run was sampled from outside, not only counted by its loaders."""
        return bool(self.run.moments) or self.run.began is not None

    @property
    def measured(self) -> Measured | None:
        """What the figures of the page are computed from; None if there is no loader."""
        if self.lead is None:
            return None
        return Measured(
            stats=self.lead.stats,
            ranks=[one.stats for one in self.groups[0].loaders],
            parts=self.parts or [self.run],
        )
