"""Running the trials: contenders take turns, and one that fails or hangs is left out, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.tokens.corpus import Corpus
from benchmarks.tokens.loaders import CONTENDERS, OURS, OURS_SHARED, Order
from benchmarks.tokens.trials import Start, Use, serving, start, state_at, use
from benchmarks.turns import Failures, Turn, run_alone, take_turns
from stoker.lab.trial.child import Child
from stoker.lab.trial.rounds import in_turn

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


def failures_of_peers() -> Failures:
    """Return an empty record of failures. We ourselves, and the limits, may not fail."""
    ours = [name for name, contender in CONTENDERS.items() if contender.is_limit or name in (OURS, OURS_SHARED)]
    return Failures(ours=ours, num_tries=NUM_TRIES)


def turns(
    names: Sequence[str], corpus: Corpus, order: Order, pace: Pace, failures: Failures
) -> tuple[dict[str, list[Turn]], set[str]]:
    """Return the turns of each contender, all in the same rounds; and those who gave tokens that are not there."""
    wrong = set()

    def check(name: str, _: Child, ask: Callable[[], Turn]) -> Turn:
        turn = ask()
        if not is_in(corpus, turn.sample):
            wrong.add(name)
        return turn

    taken = take_turns(
        {name: (serving, name, corpus, order) for name in names},
        num_rounds=pace.num_rounds,
        seconds=pace.seconds,
        warm_up_seconds=pace.warm_up_seconds,
        what=f"{'shuffled' if order.is_shuffled else 'sequential'}, {order.num_workers} workers",
        failures=failures,
        watch_warm_up=check,
        limit_seconds=LIMIT_SECONDS,
    )
    return taken, wrong


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
            ask = partial(run_alone, state_at, name, corpus, inline, pace.resume_step, limit_seconds=LIMIT_SECONDS)
            state = failures.try_(name, "resume", ask)
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
            if f"{name}, {what}" in failures.reasons:
                continue
            begun = failures.try_(
                name, what, partial(run_alone, jobs[name, kind, workers], limit_seconds=LIMIT_SECONDS)
            )
            if begun is None:
                found.get((kind, workers), {}).pop(name, None)
            elif kind == "resume" and begun.digest != states[name][1]:
                failures.reasons[f"{name}, {what}"] = "goes on with another batch than the one it should"
            else:
                found.setdefault((kind, workers), {}).setdefault(name, []).append(begun)
    return found


def uses(names: Sequence[str], corpus: Corpus, pace: Pace, failures: Failures) -> dict[str, Use]:
    """Return what memory workers have."""
    found = {}
    for name in names:
        if CONTENDERS[name].has_workers:
            ask = partial(run_alone, use, name, corpus, Order(True, 2), pace.num_batches, limit_seconds=LIMIT_SECONDS)
            used = failures.try_(name, "memory", ask)
            if used is not None:
                found[name] = used
    return found
