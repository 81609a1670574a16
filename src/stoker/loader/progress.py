"""How far an iteration is: what was *yielded*, saved and restored.

A progress belongs to one iteration. It is advanced when a batch is handed to the trainer, never when one is prefetched,
and turns into a small JSON-serialisable state and back.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch

from stoker.engine.randomness import key_of
from stoker.errors import StateError, StateMismatch, StateUnreadable
from stoker.loader.stream import Turn
from stoker.loader.work import Made
from stoker.plan import Origin, Plan, Recipe, added, digests

VERSION = 1


class Progress(Protocol):
    """One iteration's place in the stream of samples."""

    epoch: int
    last: Recipe | None
    """The recipe of the batch that was yielded last."""

    def go_on_from(self, previous: Any) -> None:
        """Count on from the iteration before this one."""
        ...

    def recipes(self) -> Iterator[Any]:
        """Yield what is to be made from here to the end of the epoch."""
        ...

    def advance(self, made: Made) -> None:
        """Note that a batch was handed over."""
        ...

    def finish(self) -> None:
        """Note that the epoch is over: the next one begins."""
        ...

    def state(self) -> dict[str, Any]:
        """Return where this is."""
        ...

    def resumed(self, state: dict[str, Any]) -> Progress:
        """Return the place that `state` tells of, for this loader. Fields that make no sense raise ValueError."""
        ...


class PlanProgress:
    """The place in a plan: a step, and a digest of what was served."""

    def __init__(self, plan: Plan, epoch: int, *, rank: int, num_ranks: int, in_order: bool = True) -> None:
        self.plan, self.epoch, self.rank, self.num_ranks, self.in_order = plan, epoch, rank, num_ranks, in_order
        self.step = plan.first_step(epoch)
        self.last: Recipe | None = None
        self.digest = 0
        self.since = (epoch, 0)
        self.ahead: set[int] = set()
        """Steps that were yielded before an earlier one, with in_order=False."""
        self.constant: dict[str, Any] | None = None

    def go_on_from(self, previous: PlanProgress) -> None:
        """Count on from the iteration before this one."""
        self.digest, self.since = previous.digest, previous.since

    def recipes(self) -> Iterator[Recipe]:
        """Yield what is to be made from here to the end of the epoch."""
        if self.step >= self.plan.first_step(self.epoch) + self.plan.steps_in(self.epoch):
            return iter(())
        recipes = self.plan.recipes(self.step, self.rank, self.num_ranks)
        if not self.ahead:
            return recipes
        done = frozenset(self.ahead)
        return (recipe for recipe in recipes if recipe.step not in done)

    def advance(self, made: Made) -> None:
        """Note that a batch was handed over."""
        recipe = made.recipe
        self.last = recipe
        self.digest = added(self.digest, recipe.digest)
        if self.in_order:
            self.step = recipe.step + 1
            return
        self.ahead.add(recipe.step)
        while self.step in self.ahead or self.plan.is_skipped(self.step):
            self.ahead.discard(self.step)
            self.step += 1

    def finish(self) -> None:
        """Note that the epoch is over: the next one begins."""
        self.epoch += 1
        self.step = self.plan.first_step(self.epoch)
        self.ahead.clear()

    @property
    def slot(self) -> int:
        """Slots of this epoch that are behind us, over all ranks."""
        begin = self.plan.origin.slot if self.epoch == self.plan.origin.epoch else 0
        steps = self.step - self.plan.first_step(self.epoch)
        return min(begin + steps * self.plan.batch_size, self.plan.num_samples)

    def state(self) -> dict[str, Any]:
        """Return where this is."""
        plan = self.plan
        if self.constant is None:
            self.constant = {
                "version": VERSION,
                "kind": "plan",
                "plan": plan.identity(),
                "fingerprint": plan.fingerprint,
                "batch_size": plan.batch_size,
                "origin": list(plan.origin),
                "skip": [list(steps) for steps in plan.skip],
                "rank": self.rank,
                "num_ranks": self.num_ranks,
            }
        return self.constant | {
            "epoch": self.epoch,
            "step": self.step,
            "position": self.slot,
            "digest": f"{self.digest:016x}",
            "digest_since": list(self.since),
            "ahead": sorted(self.ahead),
        }

    def resumed(self, state: dict[str, Any]) -> PlanProgress:
        """Return the place that `state` tells of, in a plan of this batch size for this rank."""
        differences = differing(state["plan"], self.plan.identity())
        if differences:
            raise StateMismatch(differences)
        origin = Origin(*state["origin"])
        old = _replaced(self.plan, batch_size=state["batch_size"], origin=origin, skip=_pairs(state["skip"]))
        epoch, step = int(state["epoch"]), int(state["step"])
        if not 0 <= step - old.first_step(epoch) <= old.steps_in(epoch):
            raise ValueError(f"step {step} is not in epoch {epoch}")
        plan = old
        same_ranks = (state["rank"], state["num_ranks"]) == (self.rank, self.num_ranks)
        if old.batch_size != self.plan.batch_size:
            plan = old.rebatched(self.plan.batch_size, Origin(epoch, int(state["position"]), step))
        if state["ahead"] and (plan is not old or not same_ranks):
            raise StateError(
                "the state was taken with in_order=False while later batches had overtaken earlier ones, "
                "so it only fits the same batch size and number of ranks\n"
                "hint: resume as before, or save states with in_order=True"
            )
        plan = _replaced(plan, skip=plan.skip + self.plan.skip)
        progress = PlanProgress(plan, epoch, rank=self.rank, num_ranks=self.num_ranks, in_order=self.in_order)
        progress.step = step
        if progress.slot != state["position"]:
            raise ValueError(f"step {step} is not at position {state['position']}")
        progress.ahead = set(state["ahead"])
        if same_ranks:  # a digest counts one rank's samples, so with other ranks it begins anew
            progress.digest, progress.since = int(state["digest"], 16), tuple(state["digest_since"])
        else:
            progress.since = (epoch, progress.slot)
        return progress


class SamplerProgress:
    """The place in what a user's sampler gives: its own state if it has one, a count otherwise."""

    def __init__(self, sampler: Any, epoch: int, *, batch_size: int | None, drop_last: bool, is_batched: bool) -> None:
        self.sampler, self.epoch, self.is_batched = sampler, epoch, is_batched
        self.batch_size, self.drop_last = batch_size, drop_last
        self.last: Recipe | None = None
        self.num_batches = self.num_samples = self.first_step = 0
        self.digest = 0
        self._unsummed: list[tuple[int, list[Any]]] = []
        self._told: dict[int, Any] = {}
        """The sampler's own state after each batch that was drawn and not yet yielded."""
        self._teller: Any = None
        """Who can tell where the sampler is: its iterator or itself, if any."""
        self._sampler_state: Any = None
        self._generator_state: str | None = None

    def go_on_from(self, previous: SamplerProgress) -> None:
        """Count on from the iteration before this one."""
        previous._sum_up()
        self.digest = previous.digest
        self.first_step = previous.first_step + previous.num_batches

    def recipes(self) -> Iterator[Recipe]:
        """Yield what is to be made from here to the end of the epoch."""
        before = (self.num_batches, self.num_samples)
        iterator, drawn_batches, drawn_samples = self._started()
        # a user's batch sampler counts in batches; where we cut the batches ourselves, the size may have changed
        forward = (
            before[0] - drawn_batches if self.batch_size is None and self.is_batched else before[1] - drawn_samples
        )
        first, self._generator_state = _first_of(self.sampler, iterator, self._generator_state)
        if first is _END:
            return
        items: Iterator[Any] = _chained(first, iterator)
        if forward > 0:
            next(islice(items, forward - 1, forward), None)
        num_batches, slot = before
        for positions in self._batches(items):
            slots = np.arange(slot, slot + len(positions), dtype=np.int64)
            slot += len(positions)
            if self._teller is not None:
                self._told[num_batches] = copy.deepcopy(self._teller.state_dict())
            step = self.first_step + num_batches
            recipe = Recipe(step, self.epoch, 0, slots, positions, None, len(positions), 0)  # type: ignore[arg-type]
            num_batches += 1
            yield recipe

    def _started(self) -> tuple[Iterator[Any], int, int]:
        """Return the sampler's iterator, and how many batches and samples it is on."""
        state = self._sampler_state
        if state is not None and hasattr(self.sampler, "load_state_dict"):
            self.sampler.load_state_dict(state)
        iterator: Any = iter(self.sampler)
        self._teller = next((it for it in (iterator, self.sampler) if hasattr(it, "state_dict")), None)
        if state is not None and self._teller is iterator:
            iterator.load_state_dict(state)
        if state is not None and self._teller is not None:
            return iterator, self.num_batches, self.num_samples
        return iterator, 0, 0

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

    def advance(self, made: Made) -> None:
        """Note that a batch was handed over."""
        recipe = made.recipe
        self.last = recipe
        number = recipe.step - self.first_step
        self.num_batches = number + 1
        self.num_samples = int(recipe.slots[-1]) + 1 if len(recipe.slots) else self.num_samples
        if self._told:
            self._sampler_state = self._told.pop(number, self._sampler_state)
        self._unsummed.append((recipe.epoch, [recipe.slots, recipe.positions]))
        if len(self._unsummed) >= 64:
            self._sum_up()

    def _sum_up(self) -> None:
        for epoch, (slots, positions) in self._unsummed:
            keys = np.fromiter((key_of(position) for position in positions), dtype=np.uint64, count=len(positions))
            terms = digests(epoch, slots, keys.view(np.int64))
            self.digest = added(self.digest, int(terms.sum(dtype=np.uint64)))
        self._unsummed.clear()

    def finish(self) -> None:
        """Note that the epoch is over: the next one begins."""
        self.epoch += 1
        self.first_step += self.num_batches
        self.num_batches = self.num_samples = 0
        self._sampler_state = self._generator_state = None
        self._told.clear()

    def state(self) -> dict[str, Any]:
        """Return where this is."""
        self._sum_up()
        return {
            "version": VERSION,
            "kind": "sampler",
            "epoch": self.epoch,
            "step": self.first_step + self.num_batches,
            "num_batches": self.num_batches,
            "num_samples": self.num_samples,
            "batch_size": self.batch_size,
            "sampler": type(self.sampler).__name__,
            "sampler_state": self._sampler_state,
            "sampler_epoch": getattr(self.sampler, "epoch", None),
            "generator": self._generator_state,
            "digest": f"{self.digest:016x}",
        }

    def resumed(self, state: dict[str, Any]) -> SamplerProgress:
        """Return the place that `state` tells of, in this sampler."""
        if state["sampler"] != type(self.sampler).__name__:
            raise StateMismatch({"sampler": (state["sampler"], type(self.sampler).__name__)})
        progress = SamplerProgress(
            self.sampler,
            int(state["epoch"]),
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            is_batched=self.is_batched,
        )
        progress.num_batches, progress.num_samples = int(state["num_batches"]), int(state["num_samples"])
        progress.first_step = int(state["step"]) - progress.num_batches
        progress._sampler_state, progress._generator_state = state["sampler_state"], state["generator"]
        progress.digest = int(state["digest"], 16)
        if isinstance(state["sampler_epoch"], int) and hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(state["sampler_epoch"])
        return progress


class StreamProgress:
    """The place in a stream: its own state if it has one, a count otherwise."""

    def __init__(
        self, epoch: int, *, sharing: str, num_workers: int, num_ranks: int, rank: int, in_order: bool = True
    ) -> None:
        self.epoch, self.sharing, self.num_workers = epoch, sharing, num_workers
        self.num_ranks, self.rank, self.in_order = num_ranks, rank, in_order
        self.last: Recipe | None = None
        self.step = 0
        self.begin: dict[str, Any] = {}
        """Where the stream was when this iteration began."""
        self.place: dict[str, Any] = {"turn": 0, "steps": 0, "samples": 0, "workers": {}}
        self.iteration = 0

    def go_on_from(self, previous: StreamProgress) -> None:
        """Count on from the iteration before this one."""
        self.step = previous.step

    def recipes(self) -> Iterator[Turn]:
        """Yield turns for ever: only the stream knows its end."""
        turn = 0
        start = copy.deepcopy(self.place) if self.place["turn"] else None
        first_step = self.step
        while True:
            yield Turn(self.iteration, self.epoch, first_step + turn, turn, start if turn < self.num_workers else None)
            turn += 1

    def advance(self, made: Made) -> None:
        """Note that a batch was handed over."""
        self.last = made.recipe
        assert made.stream is not None
        self.step += 1
        self._count(made.stream, num_steps=1)

    def end_of(self, worker: int) -> None:
        """Note that a worker has nothing more."""
        self._count({"worker": worker, "is_ended": True}, num_steps=0)

    def _count(self, stream: dict[str, Any], *, num_steps: int) -> None:
        self.place["turn"] += 1
        # where everyone goes through the whole stream there is one place, otherwise one for each worker
        place = self.place
        if self.sharing != "whole":
            place = self.place["workers"].setdefault(str(stream["worker"]), {"steps": 0, "samples": 0})
        place["steps"] += num_steps
        place |= {name: stream[name] for name in ("samples", "state", "is_ended") if name in stream}

    def finish(self) -> None:
        """Note that the epoch is over: the next one begins."""
        self.epoch += 1
        self.place = {"turn": 0, "steps": 0, "samples": 0, "workers": {}}

    def state(self) -> dict[str, Any]:
        """Return where this is."""
        if not self.in_order and self.num_workers > 1:
            raise StateError(
                "the state of an iterable dataset cannot be told with in_order=False and several workers: "
                "which batches were yielded depends on who was quickest\nhint: use in_order=True"
            )
        return {
            "version": VERSION,
            "kind": "stream",
            "epoch": self.epoch,
            "step": self.step,
            "sharing": self.sharing,
            "num_workers": self.num_workers,
            "num_ranks": self.num_ranks,
            "rank": self.rank,
            "place": copy.deepcopy(self.place),
        }

    def resumed(self, state: dict[str, Any]) -> StreamProgress:
        """Return the place that `state` tells of, for these workers."""
        fixed = ("sharing",) if self.sharing == "whole" else ("sharing", "num_workers", "num_ranks", "rank")
        differences = differing({name: state[name] for name in fixed}, {name: getattr(self, name) for name in fixed})
        if differences:
            raise StateMismatch(differences)
        progress = StreamProgress(
            int(state["epoch"]),
            sharing=self.sharing,
            num_workers=self.num_workers,
            num_ranks=self.num_ranks,
            rank=self.rank,
            in_order=self.in_order,
        )
        progress.step = int(state["step"])
        progress.place = copy.deepcopy(state["place"])
        return progress


def readable(state: Any) -> dict[str, Any]:
    """Return `state` if it is one of ours, with every field it should have."""
    if not isinstance(state, dict):
        raise StateUnreadable(f"it is a {type(state).__name__}, not a dict")
    if "version" not in state or "kind" not in state:
        raise StateUnreadable(
            f"it has no version and kind; its keys are {', '.join(map(str, sorted(state, key=str))) or 'none'}"
        )
    if state["version"] != VERSION:
        raise StateUnreadable(f"it has version {state['version']!r}, and this Stoker reads version {VERSION}")
    missing = _FIELDS.get(state["kind"], set()) - set(state)
    if state["kind"] not in _FIELDS or missing:
        raise StateUnreadable(
            f"its kind is {state['kind']!r}" + (f" and it lacks {', '.join(sorted(missing))}" if missing else "")
        )
    return state


_FIELDS = {
    kind: set(fields.split())
    for kind, fields in {
        "plan": "plan batch_size origin skip rank num_ranks epoch step position digest digest_since ahead",
        "sampler": "epoch step num_batches num_samples sampler sampler_state sampler_epoch generator digest",
        "stream": "epoch step sharing num_workers num_ranks rank place",
    }.items()
}


def differing(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the entries that are not the same, as (theirs, ours)."""
    return {
        name: (theirs.get(name), ours.get(name))
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name) != ours.get(name)
    }


def _first_of(sampler: Any, iterator: Iterator[Any], state: str | None) -> tuple[Any, str | None]:
    """Return the first of a sampler's positions, and the state of the generator from which it drew its numbers, if any.

    torch's samplers draw from their `generator`, or from the global one, when the first position is asked for. With a
    `state` they draw what they drew then; the trainer's own numbers go on as if nothing had been.
    """
    inner = getattr(sampler, "sampler", sampler)  # a batch sampler has its sampler inside
    generator: torch.Generator = getattr(inner, "generator", None) or torch.default_generator
    before = generator.get_state()
    if state is not None:
        generator.set_state(torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8))
        try:
            return next(iterator, _END), state
        finally:
            if generator is torch.default_generator:
                generator.set_state(before)
    first = next(iterator, _END)
    if torch.equal(generator.get_state(), before):
        return first, None
    return first, base64.b64encode(before.numpy().tobytes()).decode()


_END = object()


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _pairs(ranges: Iterable[Iterable[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(first), int(stop)) for first, stop in ranges)


def _replaced(plan: Plan, **changes: Any) -> Plan:
    from dataclasses import replace

    return replace(plan, **changes)
