"""Running the trials: contenders take turns, and a peer that fails or hangs is left out, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.images import limit, trials
from benchmarks.images.contenders import CONTENDERS
from benchmarks.images.jobs import Job
from benchmarks.images.photographs import reason
from benchmarks.images.trials import Turn
from benchmarks.measure import in_turn
from benchmarks.stand import Stand, StandFailed, alone

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


@dataclass(slots=True)
class Failures:
    """What peers could not do."""

    told: dict[str, str] = field(default_factory=dict)

    def tried(self, name: str, what: str, ask: Callable[[], Any]) -> Any:
        """Return the answer, or None from one that failed, which then is told among the findings."""
        if f"{name}, {what}" in self.told:
            return None
        try:
            return ask()
        except StandFailed as error:
            self.told[f"{name}, {what}"] = reason(str(error))
            return None


def turns(
    names: Sequence[str], job: Job, pace: Pace, failures: Failures
) -> tuple[dict[str, list[Turn]], dict[str, int]]:
    """Return the turns of each contender, all in the same rounds, and the most memory of each."""
    stands = {}
    for name in names:
        serving = trials.serving if name in CONTENDERS else limit.serving
        stands[name] = Stand(serving, name, job, limit_seconds=LIMIT_SECONDS)
        with suppress(StandFailed):  # told when it is first asked
            stands[name].wait_until_ready()  # one after the other: together they would be in each other's way
    taken: dict[str, list[Turn]] = {name: [] for name in names}
    peaks = {}
    try:
        for number in range(-1, pace.num_rounds):
            for name in in_turn(list(names), max(0, number)):
                seconds = pace.seconds if number >= 0 else pace.warm_up_seconds
                turn = failures.tried(name, job.name, partial(stands[name].ask, seconds, number < 0))
                if turn is None:
                    continue
                if number >= 0:
                    taken[name].append(turn)
                elif turn.peak_bytes:
                    peaks[name] = turn.peak_bytes
    finally:
        for stand in stands.values():
            stand.dismiss()
        for stand in stands.values():
            stand.close()
    return {name: found for name, found in taken.items() if len(found) == pace.num_rounds}, peaks


def starts(names: Sequence[str], job: Job, pace: Pace, failures: Failures) -> dict[str, list[float]]:
    """Return the times to the first batch, each in a fresh process, in common rounds."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(pace.num_starts):
        for name in in_turn(list(names), number):
            ask = partial(alone, partial(trials.start, name, job), limit_seconds=LIMIT_SECONDS)
            seconds = failures.tried(name, f"{job.name}, start", ask)
            if seconds is not None:
                found[name].append(seconds)
    return {name: times for name, times in found.items() if times}
