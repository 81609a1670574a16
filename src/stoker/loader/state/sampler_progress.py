"""The place in what a user's sampler gives: its own state if it has one, a count otherwise."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from stoker.batch.result import BatchResult
from stoker.errors import StateError, StateMismatch
from stoker.loader.order.repeated_draws import Draws
from stoker.loader.state.dataset_state import load_own_state
from stoker.loader.state.progress import VERSION, differing
from stoker.loader.state.running_digest import RunningDigest
from stoker.plan import Recipe
from stoker.source.protocols import has_state

_END = object()


class SamplerProgress:
    """How far an iteration of a sampler, or of a batch sampler, is."""

    def __init__(
        self,
        sampler: Any,
        epoch: int,
        *,
        batch_size: int | None,
        drop_last: bool,
        is_batched: bool,
        in_order: bool = True,
    ) -> None:
        self.sampler, self.epoch, self.is_batched, self.in_order = sampler, epoch, is_batched, in_order
        self.batch_size, self.drop_last = batch_size, drop_last
        self.last: Recipe | None = None
        self.num_batches = self.num_samples = self.first_step = 0
        self.ahead: dict[int, int] = {}
        """Batches yielded before an earlier one, with in_order=False, and the ordinal behind each."""
        self._digest = RunningDigest()
        self._stateful_part: Any = None
        """What knows where the sampler is: its iterator or the sampler itself; None if neither does."""
        self._drawn_states: dict[int, tuple[Any, bool]] = {}
        """Its state after each batch that was drawn and not yet yielded, and whether that was the last batch."""
        self._is_ended = False
        self._num_to_skip = 0
        self._is_loaded = False
        """The place is that of a state, so what the sampler drew is to be drawn again."""
        self._see_start()

    def _see_start(self) -> None:
        """Note what makes the epoch that begins what it will be: the sampler's own state, generator and epoch."""
        stateful, generator = self._stateful, self._generator
        self._sampler_state = None if stateful is None else copy.deepcopy(stateful.state_dict())
        self._generator_state = None if generator is None else _written(generator.get_state())
        self._sampler_epoch = getattr(self._part_with("set_epoch"), "epoch", None)

    def _part_with(self, name: str) -> Any:
        """Return the sampler, or the one inside a batch sampler, that has an attribute; None if none does."""
        batches = getattr(self.sampler, "batch_sampler", None)  # trainers wrap batch samplers
        parts = (self.sampler, getattr(self.sampler, "sampler", None), batches, getattr(batches, "sampler", None))
        return next((part for part in parts if getattr(part, name, None) is not None), None)

    @property
    def _stateful(self) -> Any:
        return self._part_with("state_dict")

    @property
    def _generator(self) -> torch.Generator | None:
        return getattr(self._part_with("generator"), "generator", None)

    def go_on_from(self, previous: SamplerProgress) -> None:
        """Count on from the iteration before this one."""
        self._digest = RunningDigest(previous._digest.value)
        self.first_step = previous.first_step + previous.num_batches

    def recipes(self) -> Iterator[Recipe]:
        """Yield what is to be made from here to the end of the epoch. Going forward to here happens at once."""
        if self._is_ended and self._stateful is not None:
            load_own_state(self._stateful, self._sampler_state)
            return iter(())
        return self._recipes(self._items() if self._is_loaded or self._num_to_skip else None)

    def _items(self) -> Iterator[Any]:
        """Return what the sampler gives from here on."""
        iterator, is_there = self._started()
        items = _drawn(iterator)
        if not is_there:
            first, self._generator_state = self._first_of(iterator)
            items = iter(()) if first is _END else chain([first], items)
            self._forward(items, self.num_batches, self.num_samples)
        if self._num_to_skip:
            batches = list(map(len, islice(self._batches(items), self._num_to_skip)))
            self.num_batches, self.num_samples, self._num_to_skip = len(batches), sum(batches), 0
            if self._stateful_part is not None:
                self._sampler_state = copy.deepcopy(self._stateful_part.state_dict())
        return items

    @property
    def is_at_start(self) -> bool:
        """Whether nothing of the epoch is behind us."""
        return not self.num_batches and not self.ahead

    def skip_first(self, num_batches: int) -> int:
        """Pass over so many batches of the epoch, from its beginning; return how many are yet to be drawn for that."""
        self._num_to_skip = num_batches
        return 0

    def _recipes(self, items: Iterator[Any] | None) -> Iterator[Recipe]:
        num_batches, ordinal = self.num_batches, self.num_samples
        skipped = frozenset(self.ahead)
        size = self.batch_size or getattr(self.sampler, "batch_size", None) or 0
        draws = Draws.of(self.sampler, is_of_batches=self.is_batched and self.batch_size is None)
        for positions in self._batches(self._items() if items is None else items):
            begin, ordinal = ordinal, ordinal + len(positions)
            ordinals = np.arange(begin, ordinal, dtype=np.int64)
            if self._stateful_part is not None:
                # after a short batch the sampler has ended, and has the state of its next epoch
                self._drawn_states[num_batches] = copy.deepcopy(self._stateful_part.state_dict()), len(positions) < size
            step = self.first_step + num_batches
            num_batches += 1
            if num_batches - 1 not in skipped:
                numbers = None if draws is None else draws.between(begin, ordinal)
                yield Recipe(step, self.epoch, 0, ordinals, positions, None, 0, numbers)  # type: ignore[arg-type]

    def _started(self) -> tuple[Iterator[Any], bool]:
        """Return the sampler's iterator, and whether it is where we are already, by its own state."""
        is_there = self._sampler_state is not None and bool(self.num_batches)
        if is_there and self._stateful is not None:
            load_own_state(self._stateful, self._sampler_state)
        iterator: Any = iter(self.sampler)
        self._stateful_part = iterator if has_state(iterator) else self._stateful
        if is_there and self._stateful_part is iterator:
            load_own_state(iterator, self._sampler_state)
        return iterator, is_there

    def _first_of(self, iterator: Iterator[Any]) -> tuple[Any, str | None]:
        """Return the first of what the sampler gives, and the state of the generator that it drew from, if any.

        torch's samplers draw from their `generator`, or from the global one, when the first position is asked for. When
        we know how they drew, they draw so again, and the trainer's own numbers go on as if nothing had been.
        """
        own = self._generator
        generator = torch.default_generator if own is None else own
        before = generator.get_state()
        if self._is_loaded and self._generator_state is not None:
            generator.set_state(_read(self._generator_state))
            try:
                return next(iterator, _END), self._generator_state
            finally:
                if own is None:
                    generator.set_state(before)
        first = next(iterator, _END)
        return first, None if torch.equal(generator.get_state(), before) else _written(before)

    def _forward(self, items: Iterator[Any], num_batches: int, num_samples: int) -> None:
        """Draw what was yielded before and drop it."""
        if self.batch_size is not None or not self.is_batched:
            next(
                islice(items, num_samples, num_samples), None
            )  # we cut the batches ourselves: their size may be another
            return
        counted = sum(len(list(batch)) for batch in islice(items, num_batches))
        if counted != num_samples:
            raise StateMismatch({f"samples in the first {num_batches} batches": (num_samples, counted)})

    def _batches(self, items: Iterator[Any]) -> Iterator[list[Any]]:
        if not self.is_batched:
            yield from ([item] for item in items)
        elif self.batch_size is None:
            yield from (list(item) for item in items)
        else:
            while batch := list(islice(items, self.batch_size)):
                if len(batch) < self.batch_size and self.drop_last:
                    return
                yield batch

    def advance(self, made: BatchResult) -> None:
        """Note that a batch was handed over."""
        recipe = made.recipe
        self.last = recipe
        self._digest.add(recipe.epoch, recipe.ordinals, recipe.positions)
        number = recipe.step - self.first_step
        stop = int(recipe.ordinals[-1]) + 1 if len(recipe.ordinals) else self.num_samples
        if self.in_order:
            self._reach(number + 1, stop)
            return
        self.ahead[number] = stop
        while self.num_batches in self.ahead:
            self._reach(self.num_batches + 1, self.ahead.pop(self.num_batches))

    def _reach(self, num_batches: int, num_samples: int) -> None:
        if self._stateful_part is not None:
            for number in range(self.num_batches, num_batches):
                before = self._sampler_state, self._is_ended
                self._sampler_state, self._is_ended = self._drawn_states.pop(number, before)
        self.num_batches, self.num_samples = num_batches, num_samples

    def begin_digest(self) -> None:
        """Let the digest begin here."""
        self._digest = RunningDigest()

    def finish(self) -> None:
        """Note that the epoch is over: the next one begins."""
        self.epoch += 1
        self.first_step += self.num_batches
        self.num_batches = self.num_samples = 0
        self._drawn_states.clear()
        self.ahead.clear()
        self._is_ended = False
        self._see_start()

    def state(self) -> dict[str, Any]:
        """Return where this is."""
        return {
            "version": VERSION,
            "kind": "sampler",
            "epoch": self.epoch,
            "step": self.first_step + self.num_batches,
            "num_batches": self.num_batches,
            "num_samples": self.num_samples,
            "batch_size": self.batch_size,
            **self._identity(),
            "sampler_state": self._sampler_state,
            "sampler_epoch": self._sampler_epoch,
            "is_ended": self._is_ended,
            "generator": self._generator_state,
            "ahead": [list(item) for item in sorted(self.ahead.items())],
            "digest": f"{self._digest.value:016x}",
        }

    def _identity(self) -> dict[str, Any]:
        length = None
        if self.batch_size is not None or not self.is_batched:  # a batch sampler's length changes with its batch size
            try:
                length = len(self.sampler)
            except TypeError:
                length = None
        return {"sampler": type(self.sampler).__name__, "sampler_length": length}

    def resumed(self, state: dict[str, Any]) -> SamplerProgress:
        """Return the place in `state`, in this sampler."""
        ours = self._identity()
        if differences := differing({name: state[name] for name in ours}, ours):
            raise StateMismatch(differences)
        if state["ahead"] and state["batch_size"] != self.batch_size:
            raise StateError(
                "the state was taken with in_order=False while later batches had overtaken earlier ones, "
                "so it only fits the same batch size\nhint: resume as before, or save states with in_order=True"
            )
        if state["generator"] is not None:
            own = self._generator
            fresh = torch.Generator(torch.default_generator.device if own is None else own.device)
            fresh.set_state(_read(state["generator"]))  # refuses what is not the state of a generator
        progress = SamplerProgress(
            self.sampler,
            int(state["epoch"]),
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            is_batched=self.is_batched,
            in_order=self.in_order,
        )
        progress.num_batches, progress.num_samples = int(state["num_batches"]), int(state["num_samples"])
        progress.first_step = int(state["step"]) - progress.num_batches
        progress.ahead = {int(number): int(stop) for number, stop in state["ahead"]}
        progress._sampler_state, progress._generator_state = state["sampler_state"], state["generator"]
        progress._is_ended, progress._is_loaded = bool(state["is_ended"]), True
        progress._digest = RunningDigest(int(state["digest"], 16))
        if isinstance(state["sampler_epoch"], int) and self._part_with("set_epoch") is not None:
            progress._sampler_epoch = state["sampler_epoch"]
        return progress

    def take_up(self) -> None:
        """Bring the sampler to where this is."""
        if isinstance(self._sampler_epoch, int) and (part := self._part_with("set_epoch")) is not None:
            part.set_epoch(self._sampler_epoch)
        if not self.num_batches and self._sampler_state is not None and self._stateful is not None:
            load_own_state(self._stateful, self._sampler_state)  # the beginning of an epoch, as it was


def _drawn(iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield what `iterator` gives, by `next` alone: the `__iter__` of some samplers' iterators starts over."""
    while (item := next(iterator, _END)) is not _END:
        yield item


def _written(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _read(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
