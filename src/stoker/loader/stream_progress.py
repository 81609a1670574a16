"""The place in a stream: its own state if it has one, a count otherwise."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from stoker.errors import StateError
from stoker.loader.progress import VERSION, differing
from stoker.loader.running import RunningDigest
from stoker.loader.stream import StreamSetting, Turn
from stoker.loader.work import Ended, Made
from stoker.plan import Recipe


class StreamProgress:
    """How far an iteration of a stream is: one place where everyone goes through it, otherwise one for each worker."""

    def __init__(
        self, dataset: Any, epoch: int, setting: StreamSetting, *, is_here: bool, in_order: bool = True
    ) -> None:
        self.dataset, self.epoch, self.setting, self.in_order = dataset, epoch, setting, in_order
        self.is_here = is_here
        """The stream is read in this process, by this very object, and not by copies in workers."""
        self.last: Recipe | None = None
        self.step = 0
        self.iteration = 0
        self._digest = RunningDigest()
        self._ends: dict[int, Any] = {}
        self._is_loaded = False
        self.place = self._start()

    def _start(self) -> dict[str, Any]:
        """Return the place at which the epoch begins, with what the stream, or each worker's copy, tells of it."""
        place: dict[str, Any] = {"turn": 0, "steps": 0, "samples": 0, "workers": {}}
        if self.is_here and hasattr(self.dataset, "state_dict"):
            place["begin_state"] = copy.deepcopy(self.dataset.state_dict())
        for worker, state in self._ends.items():
            if state is None:
                continue
            if self.setting.sharing == "whole":
                place["begin_state"] = state
            else:
                place["workers"][str(worker)] = {"steps": 0, "samples": 0, "begin_state": state}
        return place

    def go_on_from(self, previous: StreamProgress) -> None:
        """Count on from the iteration before this one."""
        self.step, self._digest = previous.step, RunningDigest(previous._digest.value)
        if not previous.place["turn"] and not self.is_here:
            self.place = copy.deepcopy(previous.place)

    def recipes(self) -> Iterator[Turn]:
        """Yield turns for ever: only the stream knows its end."""
        turn, first_step = 0, self.step
        # what was not loaded from a state is where it is by itself
        start = copy.deepcopy(self.place) if self._is_loaded else None
        while True:
            is_first = turn < self.setting.num_workers
            yield Turn(self.iteration, self.epoch, first_step + turn, turn, start if is_first else None)
            turn += 1

    def advance(self, made: Made) -> None:
        """Note that a batch was handed over."""
        self.last = made.recipe
        assert made.stream is not None
        recipe = made.recipe
        slots = recipe.slots if recipe.padding is None else recipe.slots[~recipe.padding]
        # a stream has no positions: a sample is known by its number in its part
        self._digest.add(recipe.epoch, slots, slots ^ made.stream["part"])
        self.step += 1
        self._count(made.stream, num_steps=1)

    def end_of(self, ended: Ended) -> None:
        """Note that a worker has nothing more."""
        self._ends[ended.worker] = ended.state
        self._count({"worker": ended.worker, "is_ended": True}, num_steps=0)

    def _count(self, stream: dict[str, Any], *, num_steps: int) -> None:
        self.place["turn"] += 1
        place = self.place
        if self.setting.sharing != "whole":
            place = self.place["workers"].setdefault(str(stream["worker"]), {"steps": 0, "samples": 0})
        place["steps"] += num_steps
        place |= {name: stream[name] for name in ("samples", "state", "is_ended") if name in stream}

    def finish(self) -> None:
        """Note that the epoch is over: the next one begins."""
        self.epoch += 1
        self.place = self._start()
        self._ends.clear()

    def state(self) -> dict[str, Any]:
        """Return where this is."""
        if not self.in_order and self.setting.num_workers > 1:
            raise StateError(
                "the state of an iterable dataset cannot be told with in_order=False and several workers: "
                "which batches were yielded depends on who was quickest\nhint: use in_order=True"
            )
        return {
            "version": VERSION,
            "kind": "stream",
            "epoch": self.epoch,
            "step": self.step,
            **self._identity(),
            "place": copy.deepcopy(self.place),
            "digest": f"{self._digest.value:016x}",
        }

    def _identity(self) -> dict[str, Any]:
        setting = self.setting
        return {
            "sharing": setting.sharing,
            "num_workers": setting.num_workers,
            "rank": setting.rank,
            "num_ranks": setting.num_ranks,
        }

    def resumed(self, state: dict[str, Any]) -> StreamProgress:
        """Return the place that `state` tells of, for these workers."""
        ours = self._identity()
        theirs = {name: state[name] for name in ours}
        if differing(theirs, ours) and {theirs["sharing"], ours["sharing"]} != {"whole"}:
            told = "; ".join(f"{name} was {a}, is {b}" for name, (a, b) in differing(theirs, ours).items())
            raise StateError(
                f"each worker of this iterable dataset has a place of its own, which fits no other set-up ({told})\n"
                "hint: use as many workers and ranks as before, with the same shard=; a map-style dataset, or an "
                "iterable without split() and with shard='auto', may change them"
            )
        progress = StreamProgress(
            self.dataset, int(state["epoch"]), self.setting, is_here=self.is_here, in_order=self.in_order
        )
        progress.step, progress._digest = int(state["step"]), RunningDigest(int(state["digest"], 16))
        progress.place = copy.deepcopy(state["place"])
        progress._is_loaded = True
        return progress
