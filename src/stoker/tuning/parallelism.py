"""Parallelism (workers, threads, prefetching), and the values from which `"auto"` may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["inline", "threads", "processes"]

AUTO: Literal["auto"] = "auto"

Choice = int | Literal["auto"]
"""A number, or "auto" to have it chosen."""

INLINE_SECONDS = 1e-3
"""Batches that take longer are never loaded inline, however long the step: some may take far longer still."""

USUAL_AHEAD, MOST_AHEAD = 2, 16
"""Default and maximum number of batches in flight per worker."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Numbers of workers, threads and batches in flight. As text, the arguments to paste."""

    num_workers: int
    num_threads: int
    prefetch_factor: int

    @property
    def is_inline(self) -> bool:
        """Whether batches are loaded by the calling thread, on request."""
        return not self.num_workers and not self.num_threads

    @property
    def concurrency(self) -> int:
        """Number of samples loaded in parallel; 0 if none are loaded during the training step."""
        return 0 if self.is_inline else max(1, self.num_workers) * max(1, self.num_threads)

    @property
    def num_in_flight(self) -> int:
        """Maximum number of batches requested but not yet returned."""
        return 0 if self.is_inline else max(1, self.num_workers) * self.prefetch_factor

    def __str__(self) -> str:
        arguments = f"num_workers={self.num_workers}, num_threads={self.num_threads}"
        return arguments if self.is_inline else f"{arguments}, prefetch_factor={self.prefetch_factor}"


Candidate = tuple[int, int]
"""Number of workers, and of threads in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The allowed values: candidate lists of (workers, threads in each), in order of concurrency."""

    processes: tuple[Candidate, ...] = ()
    threads: tuple[Candidate, ...] = ()
    can_be_inline: bool = False
    ahead: tuple[int, int] = (USUAL_AHEAD, USUAL_AHEAD)
    """Minimum and maximum number of batches in flight per worker; equal if prefetch_factor is not "auto"."""

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to choose."""
        candidates = {*self.processes, *self.threads} | ({(0, 0)} if self.can_be_inline else set())
        return len(candidates) < 2 and (self.ahead[0] == self.ahead[1] or candidates == {(0, 0)})

    def candidates(self, kind: Kind) -> tuple[Candidate, ...]:
        """Return the candidates of a kind."""
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
    """Return the values allowed for these arguments. What is "auto" never exceeds the number of cores.

    Without processes (on systems other than Linux), workers become threads of the training process. `most_threads` is
    the maximum number of threads that a batch has work for, if known.
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
    """Return the ladder of threads in this many workers. A single thread in a worker is its main thread."""
    share = max(1, num_cores // max(1, num_workers))
    counts = range(1, max(1, min(share, most or share)) + 1)
    return [(num_workers, 0 if num_workers and count == 1 else count) for count in counts]
