"""Running the trials: contenders take turns, and one that fails or hangs is left out, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import in_turn
from benchmarks.stand import HANGS, Stand, StandFailed, alone
from benchmarks.tokens.corpus import Corpus
from benchmarks.tokens.loaders import CONTENDERS, OURS, OURS_SHARED, Order
from benchmarks.tokens.trials import Start, Turn, Use, serving, start, state_at, use

LIMIT_SECONDS = 60
"""For one answer; most come in a few seconds."""
NUM_TRIES = 3
"""For a peer that hangs. torchdata's nodes do at times: their workers are forked while threads hold locks."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much to measure."""

    num_rounds: int
    seconds: float
    """Of one turn."""
    warm_up_seconds: float
    """Of the first turn, which does not count: pages are mapped, and checked by those who check."""
    num_starts: int
    resume_step: int
    num_batches: int
    """Before memory is looked at."""


@dataclass(slots=True)
class Failures:
    """What peers could not do."""

    told: dict[str, str] = field(default_factory=dict)
    num_hung: dict[str, int] = field(default_factory=dict)
    """How often a peer hung and was tried again."""

    def tried(self, name: str, what: str, ask: Callable[[], Any]) -> Any:
        """Return the answer, or None from a peer that failed. We ourselves may not fail."""
        try:
            return self._asked(name, ask)
        except StandFailed as error:
            if name in (OURS, OURS_SHARED) or CONTENDERS[name].is_limit:
                raise
            lines = [line for line in str(error).splitlines() if line and not line.startswith(" ")]
            reasons = [line for line in lines if "Error" in line or HANGS in line] or lines
            self.told[f"{name}, {what}"] = reasons[0][:200] if reasons else "no reason given"
            return None

    def _asked(self, name: str, ask: Callable[[], Any]) -> Any:
        for _ in range(NUM_TRIES - 1):
            try:
                return ask()
            except StandFailed as error:
                if HANGS not in str(error):
                    raise
                self.num_hung[name] = self.num_hung.get(name, 0) + 1
        return ask()


def turns(
    names: Sequence[str], corpus: Corpus, order: Order, pace: Pace, failures: Failures
) -> tuple[dict[str, list[Turn]], set[str]]:
    """Return the turns of each contender, all in the same rounds; and those who gave tokens that are not there."""
    what = f"{'shuffled' if order.is_shuffled else 'sequential'}, {order.num_workers} workers"
    stands = {name: Stand(serving, name, corpus, order, limit_seconds=LIMIT_SECONDS) for name in names}
    taken: dict[str, list[Turn]] = {name: [] for name in names}
    wrong = set()

    def asked(name: str, seconds: float) -> Any:
        if not stands[name].is_well:
            stands[name].close()
            stands[name] = Stand(serving, name, corpus, order, limit_seconds=LIMIT_SECONDS)
        return stands[name].ask(seconds)

    try:
        for number in range(-1, pace.num_rounds):
            for name in in_turn(list(names), max(0, number)):
                if f"{name}, {what}" in failures.told:
                    continue
                seconds = pace.seconds if number >= 0 else pace.warm_up_seconds
                turn = failures.tried(name, what, partial(asked, name, seconds))
                if turn is None:
                    continue
                if number >= 0:
                    taken[name].append(turn)
                elif not is_in(corpus, turn.some_tokens):
                    wrong.add(name)
    finally:
        for stand in stands.values():
            stand.dismiss()
        for stand in stands.values():
            stand.close()
    return {name: found for name, found in taken.items() if len(found) == pace.num_rounds}, wrong


def is_in(corpus: Corpus, some_tokens: bytes) -> bool:
    """Whether these tokens come one after the other in the corpus."""
    wanted = np.frombuffer(some_tokens, np.uint16)
    tokens = corpus.tokens()
    step = 1 << 26
    for first in range(0, len(tokens), step):
        some = np.asarray(tokens[first : first + step + len(wanted)])
        places = np.flatnonzero(some[: len(some) - len(wanted) + 1] == wanted[0])
        places = places[some[places + 1] == wanted[1]]
        if any((some[place : place + len(wanted)] == wanted).all() for place in places.tolist()):
            return True
    return False


def starts(
    names: Sequence[str], corpus: Corpus, pace: Pace, failures: Failures
) -> dict[tuple[str, str], dict[str, list[Start]]]:
    """Return starts by ("start" or "resume", workers), in fresh processes and common rounds.

    Resuming is beside a start with as many workers, none.
    """
    states: dict[str, tuple[bytes, str]] = {}
    inline, forked = Order(True, 0), Order(True, 2)
    for name in names:
        if CONTENDERS[name].has_state:
            ask = partial(alone, state_at, name, corpus, inline, pace.resume_step, limit_seconds=LIMIT_SECONDS)
            state = failures.tried(name, "resume", ask)
            if state is not None:
                states[name] = state
    jobs: dict[tuple[str, str, str], partial[Any]] = {}
    for name in names:
        jobs[name, "start", "0"] = partial(start, name, corpus, inline)
        if CONTENDERS[name].has_workers:
            jobs[name, "start", "2"] = partial(start, name, corpus, forked)
        if name in states:
            jobs[name, "resume", "0"] = partial(start, name, corpus, inline, states[name][0])
    found: dict[tuple[str, str], dict[str, list[Start]]] = {}
    for number in range(pace.num_starts):
        for key in in_turn([" ".join((kind, workers, name)) for name, kind, workers in jobs], number):
            kind, workers, name = key.split(" ", 2)
            what = f"{kind}, {workers} workers"
            if f"{name}, {what}" in failures.told:
                continue
            begun = failures.tried(name, what, partial(alone, jobs[name, kind, workers], limit_seconds=LIMIT_SECONDS))
            if begun is None:
                found.get((kind, workers), {}).pop(name, None)
            elif kind == "resume" and begun.digest != states[name][1]:
                failures.told[f"{name}, {what}"] = "goes on with another batch than the one it should"
            else:
                found.setdefault((kind, workers), {}).setdefault(name, []).append(begun)
    return found


def uses(names: Sequence[str], corpus: Corpus, pace: Pace, failures: Failures) -> dict[str, Use]:
    """Return what memory workers have."""
    found = {}
    for name in names:
        if CONTENDERS[name].has_workers:
            ask = partial(alone, use, name, corpus, Order(True, 2), pace.num_batches, limit_seconds=LIMIT_SECONDS)
            used = failures.tried(name, "memory", ask)
            if used is not None:
                found[name] = used
    return found
