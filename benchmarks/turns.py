"""Loaders in turns, each in a process of its own: batches per second, CPU time, and what failed.

Loaders with worker processes bring threads, start methods and queues of their own, which would get into each other's
way in one process. So each contender gets a child process (see `stoker.lab.trial.child`), which plays the training loop
and works only when it is asked to. While the others are measured, a loader fills its queues and its workers sleep.
What was prefetched meanwhile would flatter the loader that prefetches most, so each turn begins with batches that are
not timed.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stoker.foundation.machine import tree_cpu_seconds
from stoker.lab.trial.child import Answering, Child, ChildEnded, ChildSlow, run_in_child
from stoker.lab.trial.rounds import Measurement, Series, in_turn, wait_until_idle

T = TypeVar("T")

ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
"""Read when torch is imported: torch's own workers use one thread, so others should not use more."""

LIMIT_SECONDS = 300.0
"""A child that takes longer for an answer counts as hanging."""

IDLE_SECONDS = 3.0
"""How long loaders may take at most to fill their queues after a turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a contender did in one turn."""

    num_batches: float
    seconds: float
    cpu_seconds: float
    """CPU time of the training process and all its workers."""
    wait_seconds: Sequence[float] | NDArray[np.float64] = ()
    """How long each `next` took."""
    batch_seconds: Sequence[float] | NDArray[np.float64] = ()
    """From batch to batch."""
    sample: Any = None
    """The contender's evidence that its batches are right."""


class BatchTaker:
    """Plays the training loop that takes batches from a loader, epoch after epoch.

    The clock stops while an epoch begins, and for `num_untimed` batches after it: as many as any loader prefetches.
    With `epoch_length` it also stops as many batches before the end of an epoch, where workers run out of work.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        touch: Callable[[Any], object],
        *,
        num_untimed: int,
        epoch_length: float | None = None,
        finish: Callable[[], object] = lambda: None,
    ) -> None:
        """`touch` reads a number of each batch; `finish` waits for the device."""
        self._loader, self._touch, self._finish = loader, touch, finish
        self._num_untimed, self._length = num_untimed, epoch_length
        self._epoch: Iterator[Any] = iter(())
        self._num_left = 0.0
        if epoch_length is not None:
            assert epoch_length > 2 * num_untimed, "epochs are too short"

    def draw(self) -> Any:
        """Return the next batch; begin another epoch if this one is over."""
        for batch in self._epoch:
            self._num_left -= 1
            return batch
        self._epoch = iter(self._loader)
        self._num_left = math.inf if self._length is None else self._length - 1
        return next(self._epoch)

    def take(self, seconds: float) -> Turn:
        """Take batches for so many seconds of measured time."""
        asked: list[float] = []
        handed: list[float] = []
        periods: list[float] = []
        taken = cpu = 0.0
        while taken < seconds:
            first = len(asked)
            began, ended, used = self._take_once(seconds - taken, asked, handed)
            taken += ended - began
            cpu += used
            periods += np.diff([began, *handed[first:]]).tolist()
        wait_until_idle(IDLE_SECONDS)
        return Turn(len(handed), taken, cpu, np.subtract(handed, asked), np.array(periods))

    def _take_once(self, seconds: float, asked: list[float], handed: list[float]) -> tuple[float, float, float]:
        """Take batches for so long, or until the epoch is over; return beginning, end and CPU time."""
        if self._num_left <= 2 * self._num_untimed:
            while self._num_left > 0:
                self._touch(self.draw())
        for _ in range(self._num_untimed):
            self._touch(self.draw())
        self._finish()
        clock, pid, epoch, touch = time.perf_counter, os.getpid(), self._epoch, self._touch
        num_left = self._num_left - self._num_untimed if self._length is not None else math.inf
        cpu = tree_cpu_seconds(pid)
        began = now = clock()
        end = began + seconds
        while now < end and num_left > 0:
            before = clock()
            try:
                batch = next(epoch)
            except StopIteration:
                self._epoch, self._num_left = iter(()), 0
                return began, now, tree_cpu_seconds(pid) - cpu  # the end of an epoch is not timed
            now = clock()
            touch(batch)
            asked.append(before)
            handed.append(now)
            self._num_left -= 1
            num_left -= 1
        self._finish()
        return began, clock(), tree_cpu_seconds(pid) - cpu

    def close(self) -> None:
        """End the epoch, and with it the workers."""
        close = getattr(self._epoch, "close", None)
        if close is not None:
            close()


@contextmanager
def taking(taker: BatchTaker, answer: Callable[..., Turn] | None = None) -> Iterator[Callable[..., Turn]]:
    """Serve turns of a taker in a child; `answer` replaces `taker.take`."""
    gc.collect()
    gc.freeze()  # the collector stays on, but does not scan what was imported
    yield answer or taker.take
    taker.close()


def open_child(answering: Answering, *args: Any, limit_seconds: float = LIMIT_SECONDS) -> Child:
    """Start a child for benchmarks."""
    return Child(answering, *args, limit_seconds=limit_seconds, environment=ENVIRONMENT)


def run_alone(function: Callable[..., T], *args: Any, limit_seconds: float = LIMIT_SECONDS) -> T:
    """Return what `function(*args)` returns in a fresh process."""
    return run_in_child(function, *args, limit_seconds=limit_seconds, environment=ENVIRONMENT)


def failure_of(error: Exception) -> str:
    """Return in one line why a contender failed."""
    name = "" if isinstance(error, ChildSlow | ChildEnded) else f"{type(error).__name__}: "
    return f"{name}{str(error).strip().partition(chr(10))[0]}"[:200]


@dataclass(slots=True)
class Failures:
    """What contenders could not do. The rest of a benchmark goes on without them."""

    ours: Sequence[str] = ()
    """Contenders that may not fail."""
    num_tries: int = 1
    """How often a contender that hangs is tried."""
    reasons: dict[str, str] = field(default_factory=dict)
    num_hung: dict[str, int] = field(default_factory=dict)
    """How often a contender hung and was tried again."""

    def try_(self, name: str, what: str, ask: Callable[[], T]) -> T | None:
        """Return what `ask` returns; None, now and later, if it fails."""
        key = f"{name}, {what}"
        if key in self.reasons:
            return None
        for number in range(self.num_tries):
            try:
                return ask()
            except Exception as error:
                if isinstance(error, ChildSlow) and number < self.num_tries - 1:
                    self.num_hung[name] = self.num_hung.get(name, 0) + 1
                    continue
                if name in self.ours:
                    raise
                self.reasons[key] = failure_of(error)
        return None


def take_turns(
    contenders: Mapping[str, tuple[Answering, *tuple[Any, ...]]],
    *,
    num_rounds: int,
    seconds: float,
    warm_up_seconds: float,
    what: str = "batches",
    failures: Failures | None = None,
    watch_warm_up: Callable[[str, Child, Callable[[], Turn]], Turn] = lambda _name, _child, ask: ask(),
    limit_seconds: float = LIMIT_SECONDS,
) -> dict[str, list[Turn]]:
    """Return the turns of each contender, all in the same rounds; of those that failed, none.

    `contenders` has the function that serves each in its child, with its arguments. `watch_warm_up` runs the first
    turn, which does not count.
    """
    failures = failures or Failures(ours=list(contenders))
    turns: dict[str, list[Turn]] = {name: [] for name in contenders}
    with ExitStack() as stack:
        children: dict[str, Child] = {}

        def child_of(name: str) -> Child:
            if name not in children:
                child = stack.enter_context(open_child(*contenders[name], limit_seconds=limit_seconds))
                child.wait_until_ready()
                children[name] = child
            return children[name]

        def ask(name: str, seconds: float) -> Turn:
            child = child_of(name)
            try:
                turn: Turn = child.ask(seconds)
            except (ChildSlow, ChildEnded):
                del children[name]
                raise
            return turn

        for name in contenders:  # one by one, so that none disturbs the start of another
            failures.try_(name, what, partial(child_of, name))
        for name in list(children):
            warm_up = partial(ask, name, warm_up_seconds)
            failures.try_(name, what, partial(watch_warm_up, name, children[name], warm_up))
        for number in range(num_rounds):
            for name in in_turn(list(contenders), number):
                turn = failures.try_(name, what, partial(ask, name, seconds))
                if turn is not None:
                    turns[name].append(turn)
    return {name: taken for name, taken in turns.items() if len(taken) == num_rounds}


def series_of(turns: Sequence[Turn], units_per_batch: int = 1) -> Series:
    """Return the times of turns, in microseconds per batch, or per unit of which a batch has several."""
    return Series(
        [turn.seconds / turn.num_batches / units_per_batch * 1e6 for turn in turns],
        [turn.cpu_seconds / turn.num_batches / units_per_batch * 1e6 for turn in turns],
    )


def speedup(ours: Measurement, theirs: Measurement) -> float:
    """Return how many times as fast `ours` is: the median over common rounds."""
    return float(median(their / our for our, their in zip(ours.more["rounds"], theirs.more["rounds"])))
