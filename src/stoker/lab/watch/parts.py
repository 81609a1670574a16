"""A run whose ranks, or machines, have each written a file: put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stoker.errors import ArgumentError
from stoker.lab.watch.run import Run


def joined(runs: Sequence[Run], *, names: Sequence[str] | None = None) -> Run:
    """Return the one run that several records are parts of, each of other ranks.

    Its moments are those of the part that was watched longest: parts may have been on machines of their own, whose
    cores and memory do not add up. `names` are what errors call the parts.
    """
    if not runs:
        raise ArgumentError("no run is given", hint="give at least one")
    called = list(names) if names is not None else [f"run {number}" for number in range(len(runs))]
    seen: dict[int, str] = {}
    for run, name in zip(runs, called):
        for rank in sorted({stats.rank for stats in run.loaders}):
            if rank in seen:
                raise ArgumentError(
                    f"{seen[rank]} and {name} both tell of rank {rank}, so they are two runs and not parts of one",
                    hint=f"`stoker report {seen[rank]} --against {name}` compares two runs",
                )
            seen[rank] = name
    if len(runs) == 1:
        return runs[0]
    longest = max(runs, key=lambda run: (bool(run.moments), run.seconds))
    loaders = sorted((stats for run in runs for stats in run.loaders), key=lambda stats: stats.rank)
    return replace(longest, title=runs[0].title, loaders=loaders)
