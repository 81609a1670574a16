"""Reading datasets that cannot be addressed: iterables.

A stream is cut into *turns*, each one global batch long. How workers and ranks share it depends on the `Sharing`:

- `whole`: everyone who reads goes through the whole stream and keeps what is theirs: worker w of W the turns w, w +
  W, ...,
  of each turn every R-th sample for one of R ranks. Each sample is delivered once, in the same order for any number
  of workers.
- `split`: the stream has a `split(index, count)` of its own and nobody reads what is not theirs.
- `own`: as in torch, each worker reads a copy of the dataset, which is trusted to look at its worker's number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, repeat
from types import GeneratorType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch.utils.data._utils.worker as torch_worker

from stoker.engine.ledger import Policy, Skipped
from stoker.engine.process_wide import Loan
from stoker.engine.processes import act_as, has_looked
from stoker.engine.randomness import SampleContext, entered
from stoker.errors import EarlyStop
from stoker.loader.work import Ended, Finisher, Made, batch_key
from stoker.plan import Recipe, Tail, derived_key

Sharing = Literal["whole", "split", "own"]

MAX_IN_A_ROW = 100
"""Errors of a stream, one after the other, that are skipped; it will not mend after so many."""


class Turn(NamedTuple):
    """The making of the next batch of a stream."""

    iteration: int
    """Which iteration of the loader: with another one the stream starts anew."""
    epoch: int
    step: int
    turn: int
    """Turns since the beginning of this iteration's start."""
    start: dict[str, Any] | None
    """Where the reader begins, for the first turn it gets; None for the beginning of the stream."""


class StreamSetting(NamedTuple):
    """How a stream is shared and cut."""

    sharing: Sharing
    batch_size: int
    rank: int
    num_ranks: int
    num_workers: int
    """Readers on this rank; 1 for inline and threads."""
    tail: Tail
    hides_worker: bool
    """The dataset must not share itself out by `get_worker_info`, because it is done here."""
    stays: bool
    """Workers keep their copy of the dataset from epoch to epoch, so its state lives on in them."""


class StreamMaker:
    """Makes batches from an iterable dataset; holds the iterator, so it belongs to one process at a time."""

    def __init__(
        self, dataset: Any, finish: Finisher, setting: StreamSetting, *, seed: int, policy: Policy, loan: Loan
    ) -> None:
        self.dataset, self.finish, self.setting, self.seed, self.policy = dataset, finish, setting, seed, policy
        self._loan = loan
        self.iteration: int | None = None
        self.reader: _Reader | None = None
        self._first: Turn | None = None
        """The first turn of the iteration that is to begin: it says where."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "iteration": None, "reader": None, "_first": None}

    def make(self, turn: Turn) -> Made | Ended:
        """Return the next batch, or the end, with the process-wide generators seeded from the step."""
        key = batch_key(self.seed, turn.epoch, turn.step, self.setting.rank)
        return self._loan.run(self._make, turn, key)

    make_away = make
    """In a worker process there is nothing to leave behind: the worker alone knows what came."""

    def _make(self, turn: Turn) -> Made | Ended:
        return self.task(turn).finish()

    def task(self, turn: Turn) -> StreamTask | EndTask:
        """Draw the samples of the next batch. Only `finish` is left to do, by any thread."""
        try:
            if self.iteration != turn.iteration:
                self._begin(turn)
            assert self.reader is not None
            drawn = self.reader.draw(turn)
        except StopIteration as error:  # not from the iterator, whose end is no error
            raise EarlyStop("the iterable dataset") from error
        if drawn is None:
            keeps = self.setting.stays and hasattr(self.dataset, "state_dict")
            return EndTask(Ended(self.reader.worker, self.dataset.state_dict() if keeps else None))
        return StreamTask(self.finish, *drawn)

    def _begin(self, turn: Turn) -> None:
        """Start reading. If that fails, the next turn tries again, from where the first one said."""
        if self._first is None or self._first.iteration != turn.iteration:
            self._first = turn
        first = self._first
        # With its first turn a reader learns who it is: turn k is worker k % W's, counted on from an earlier run where
        # each worker has a place of its own to go on from.
        start = first.start or {}
        before = 0 if self.setting.sharing == "whole" else start.get("turn", 0)
        worker = (before + first.turn) % self.setting.num_workers
        act_as(worker)
        self.reader = _Reader(self, first, worker, start)
        self.iteration = turn.iteration


class StreamTask:
    """A batch whose samples are drawn already."""

    size = 0

    def __init__(
        self, finish: Finisher, recipe: Recipe, samples: list[Any], skipped: list[Skipped], stream: dict[str, Any]
    ):
        self._finish, self._recipe, self._samples, self._skipped, self._stream = (
            finish,
            recipe,
            samples,
            skipped,
            stream,
        )

    def do(self, start: int, stop: int) -> None:
        """Nothing is left to do in parts."""

    def finish(self) -> Made:
        """Return the batch."""
        return Made(self._recipe, self._finish(self._recipe, self._samples), self._skipped, self._stream)


class EndTask:
    """Nothing more to be made."""

    size = 0

    def __init__(self, ended: Ended) -> None:
        self._ended = ended

    def do(self, start: int, stop: int) -> None:
        """Nothing is left to do in parts."""

    def finish(self) -> Ended:
        """Return the end."""
        return self._ended


class _Reader:
    """One pass over a stream, by one worker."""

    def __init__(self, maker: StreamMaker, turn: Turn, worker: int, start: dict[str, Any]) -> None:
        setting = maker.setting
        self.policy, self.hides_worker = maker.policy, setting.hides_worker
        self.rank, self.epoch = setting.rank, turn.epoch
        self.sharing, self.worker, self.batch_size, self.tail = (
            setting.sharing,
            worker,
            setting.batch_size,
            setting.tail,
        )
        dataset = maker.dataset
        self.seed, self.part = maker.seed, 0
        if setting.sharing == "whole":
            self.num_ranks, self.num_workers = setting.num_ranks, setting.num_workers
            begin = start
        else:
            self.num_ranks, self.num_workers = 1, 1
            begin = start.get("workers", {}).get(str(worker), {})
            self.part = setting.rank * setting.num_workers + worker
            self.seed = derived_key(maker.seed, self.part)  # each part counts its samples from 0
            if setting.sharing == "split":
                dataset = dataset.split(self.part, setting.num_ranks * setting.num_workers)
        self.num_slots = self.batch_size * self.num_ranks
        self.index = 0
        self.turns = 0
        self.is_ended = bool(begin.get("is_ended"))
        # A stream that can tell where it is is asked; when several go through it, each is elsewhere, and only the
        # count is common.
        is_alone = self.num_workers == 1 and self.num_ranks == 1
        with self._hidden():
            own = begin.get("state") if is_alone else None
            loaded = begin.get("begin_state") if own is None else own
            if loaded is not None and hasattr(dataset, "load_state_dict"):
                dataset.load_state_dict(loaded)
            self.iterator: Any = iter(dataset)
            self.teller: Any = (
                next((it for it in (self.iterator, dataset) if hasattr(it, "state_dict")), None) if is_alone else None
            )
            if own is not None and hasattr(self.iterator, "load_state_dict"):
                self.iterator.load_state_dict(own)
            if own is not None:
                self.index = begin["samples"]
            elif begin.get("samples"):
                self._fast_forward(maker, begin, turn)

    def _fast_forward(self, maker: StreamMaker, begin: dict[str, Any], turn: Turn) -> None:
        """Draw what was delivered before and drop it, with the random numbers with which it was drawn."""
        num_samples, num_steps = begin["samples"], begin.get("steps", 0)
        first_step = turn.step - turn.turn - num_steps
        per_step = num_samples // num_steps if num_steps and num_samples % num_steps == 0 else num_samples
        loan = Loan(is_repeatable=False)  # inside one already, and given back before that one
        for number in range(num_samples // per_step):
            step = turn._replace(step=first_step + number)
            key = batch_key(maker.seed, step.epoch, step.step, self.rank)
            loan.run(lambda step: self._read(per_step, [], step), step, key)

    def draw(self, turn: Turn) -> tuple[Recipe, list[Any], list[Skipped], dict[str, Any]] | None:
        """Return the next batch of this worker, or None at the end."""
        skipped: list[Skipped] = []
        with self._hidden():
            while not self.is_ended and self.turns % self.num_workers != self.worker % self.num_workers:
                self._read(self.num_slots, skipped, turn)
                self.turns += 1
            skipped.clear()  # others note what is theirs
            first = self.index
            whole = [] if self.is_ended else self._read(self.num_slots, skipped, turn)
            self.turns += 1
        samples = whole[self.rank :: self.num_ranks] if self.num_ranks > 1 else whole
        is_short = len(whole) < self.num_slots
        if not whole or (is_short and self.tail == "drop"):
            self.is_ended = True
            return None
        slots = np.arange(first, first + len(whole), dtype=np.int64)[self.rank :: self.num_ranks]
        padding = None
        if is_short and len(samples) < (self.batch_size if self.tail == "pad" else 1):
            # the same number of steps on every rank: repeat from this turn what is missing, and mark it
            missing = (self.batch_size if self.tail == "pad" else 1) - len(samples)
            padding = np.arange(len(samples) + missing) >= len(samples)
            samples = samples + list(islice(_around(whole), missing))
            slots = np.concatenate([slots, np.arange(missing, dtype=np.int64) % len(whole) + first])
        recipe = Recipe(turn.step, turn.epoch, self.rank, slots, slots, padding, 0)
        where: dict[str, Any] = {
            "worker": self.worker,
            "part": self.part,
            "samples": self.index,
            "is_ended": self.is_ended,
        }
        if self.sharing == "own":
            where["has_looked"] = has_looked()
        if self.teller is not None:
            where["state"] = self.teller.state_dict()
        return recipe, samples, skipped, where

    def _read(self, count: int, skipped: list[Skipped], turn: Turn) -> list[Any]:
        """Return the next `count` samples, fewer at the end of the stream."""
        samples: list[Any] = []
        in_a_row = 0
        previous = entered(None)
        try:
            while len(samples) < count:
                wanted = count - len(samples)
                # `repeat` tells how much of it is left, which tells `rng()` at which sample we are
                walk = repeat(self.iterator, wanted)
                entered(SampleContext(self.seed, turn.epoch, range(self.index, self.index + wanted), walk))
                before = len(samples)
                try:
                    samples.extend(map(next, walk))
                    self.index += len(samples) - before
                    if len(samples) < count:
                        self.is_ended = True
                    break
                except Exception as error:
                    self.index += len(samples) - before
                    in_a_row = in_a_row + 1 if len(samples) == before else 1
                    error.add_note(
                        f"raised by the stream after {self.index} samples, step {turn.step}, epoch {turn.epoch}"
                    )
                    if self.policy.action == "raise" or in_a_row > MAX_IN_A_ROW:
                        raise
                    if isinstance(self.iterator, GeneratorType):
                        error.add_note(
                            "on_error='skip' cannot help: a generator ends with its first error; write a __next__"
                        )
                        raise
                    reason = f"{type(error).__name__}: {error}".splitlines()[0]
                    skipped.append(Skipped(turn.epoch, turn.step, self.index, reason))
        finally:
            entered(previous)
        return samples

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        """Let the dataset believe that it is alone, where it is shared out here: sharing twice would lose samples."""
        if not self.hides_worker:
            yield
            return
        info = torch_worker._worker_info
        torch_worker._worker_info = None
        try:
            yield
        finally:
            torch_worker._worker_info = info


def _around(samples: list[Any]) -> Iterator[Any]:
    while True:
        yield from samples
