"""How many work, and how far ahead: what `"auto"` chooses, and from what it may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["inline", "threads", "processes"]

AUTO: Literal["auto"] = "auto"

Choice = int | Literal["auto"]
"""A number that somebody has chosen, or leave to choose one."""

INLINE_SECONDS = 1e-3
"""A batch that takes longer is not made by the trainer, however long its step: now and then one may take far longer."""

USUAL_AHEAD, MOST_AHEAD = 2, 16
"""Batches in flight for each worker, to begin with and at the most."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """One choice. As text it is the arguments to paste."""

    num_workers: int
    num_threads: int
    prefetch_factor: int

    @property
    def is_inline(self) -> bool:
        """Whether batches are made when they are asked for, by whoever asks."""
        return not self.num_workers and not self.num_threads

    @property
    def num_hands(self) -> int:
        """How many samples are worked on at once; 0 if none is while the trainer is at its step."""
        return 0 if self.is_inline else max(1, self.num_workers) * max(1, self.num_threads)

    @property
    def num_in_flight(self) -> int:
        """How many batches there may be between being asked for and being handed over."""
        return 0 if self.is_inline else max(1, self.num_workers) * self.prefetch_factor

    def __str__(self) -> str:
        told = f"num_workers={self.num_workers}, num_threads={self.num_threads}"
        return told if self.is_inline else f"{told}, prefetch_factor={self.prefetch_factor}"


Candidate = tuple[int, int]
"""Workers, and threads in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What may be chosen: ladders of (workers, threads in each), from few hands to many."""

    processes: tuple[Candidate, ...] = ()
    threads: tuple[Candidate, ...] = ()
    can_be_inline: bool = False
    ahead: tuple[int, int] = (USUAL_AHEAD, USUAL_AHEAD)
    """The least and the most batches in flight for each worker; the same if that was not left to us."""

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to choose."""
        rungs = {*self.processes, *self.threads} | ({(0, 0)} if self.can_be_inline else set())
        return len(rungs) < 2 and (self.ahead[0] == self.ahead[1] or rungs == {(0, 0)})

    def ladder(self, kind: Kind) -> tuple[Candidate, ...]:
        """Return the rungs of a kind."""
        return self.processes if kind == "processes" else self.threads if kind == "threads" else ((0, 0),)


def search_space_for(
    *,
    num_workers: Choice,
    num_threads: Choice,
    prefetch_factor: Choice | None,
    num_cores: int,
    has_processes: bool = True,
    most_threads: int | None = None,
) -> SearchSpace:
    """Return what may be chosen where the arguments are these. Whatever is left to us is never more than the cores.

    Without processes, as on systems that have none for us, workers become threads of the trainer's own.
    `most_threads` is how many a batch has work for, where that is known.
    """
    least, most = (USUAL_AHEAD, MOST_AHEAD) if prefetch_factor == AUTO else (prefetch_factor or USUAL_AHEAD,) * 2
    if num_workers == AUTO and not has_processes:
        num_workers = 0
    processes: list[Candidate] = []
    threads: list[Candidate] = []
    if num_workers == AUTO:
        inside = 0 if num_threads == AUTO else num_threads
        processes = [(count, inside) for count in range(1, max(1, num_cores // max(1, inside)) + 1)]
        if num_threads == AUTO:
            threads = _threads_in(1, num_cores, most_threads)
    elif num_threads == AUTO:
        threads = _threads_in(num_workers, num_cores, most_threads)
    elif num_workers or num_threads:
        (processes if num_workers else threads).append((num_workers, num_threads))
    can_be_inline = num_workers in (AUTO, 0) and num_threads in (AUTO, 0)
    return SearchSpace(
        processes=tuple(processes), threads=tuple(threads), can_be_inline=can_be_inline, ahead=(least, most)
    )


def _threads_in(num_workers: int, num_cores: int, most: int | None) -> list[Candidate]:
    """Return the ladder of threads in so many workers. In a worker, one thread is the one it has anyway."""
    share = max(1, num_cores // max(1, num_workers))
    counts = range(1, max(1, min(share, most or share)) + 1)
    return [(num_workers, 0 if num_workers and count == 1 else count) for count in counts]
