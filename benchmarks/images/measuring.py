"""Running the trials: contenders take turns, and a peer that fails or hangs is left out, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.images import limit, trials
from benchmarks.images.contenders import CONTENDERS
from benchmarks.images.jobs import Job
from benchmarks.turns import Failures, Turn, run_alone, take_turns
from stoker.lab.trial.child import Child
from stoker.lab.trial.process_memory import ProcessMemoryWatch
from stoker.lab.trial.rounds import in_turn

LIMIT_SECONDS = 120
"""For one answer; FFCV compiles for fifteen seconds first."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much to measure."""

    num_rounds: int
    seconds: float
    """Of one turn."""
    warm_up_seconds: float
    """Of the first turn, which does not count, and in which memory is looked at."""
    num_starts: int


def turns(
    names: Sequence[str], job: Job, pace: Pace, failures: Failures
) -> tuple[dict[str, list[Turn]], dict[str, int]]:
    """Return the turns of each contender, all in the same rounds, and the most memory of each."""
    peaks = {}

    def watch_memory(name: str, child: Child, ask: Callable[[], Turn]) -> Turn:
        with ProcessMemoryWatch(child.pid) as memory:
            turn = ask()
            memory.measure()
        if name in CONTENDERS:
            peaks[name] = sum(one.held_bytes or 0 for one in memory.processes)
        return turn

    taken = take_turns(
        {name: (trials.serving if name in CONTENDERS else limit.serving, name, job) for name in names},
        num_rounds=pace.num_rounds,
        seconds=pace.seconds,
        warm_up_seconds=pace.warm_up_seconds,
        what=job.name,
        failures=failures,
        watch_warm_up=watch_memory,
        limit_seconds=LIMIT_SECONDS,
    )
    return taken, peaks


def starts(names: Sequence[str], job: Job, pace: Pace, failures: Failures) -> dict[str, list[float]]:
    """Return the times to the first batch, each in a fresh process, in common rounds."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(pace.num_starts):
        for name in in_turn(list(names), number):
            ask = partial(run_alone, partial(trials.start, name, job), limit_seconds=LIMIT_SECONDS)
            seconds = failures.try_(name, f"{job.name}, start", ask)
            if seconds is not None:
                found[name].append(seconds)
    return {name: times for name, times in found.items() if times}
