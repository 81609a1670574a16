"""The place in a stream: its own state if it has one, a count otherwise."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import count
from typing import Any

from stoker.batch.result import BatchResult, EndOfStream
from stoker.errors import StateError
from stoker.loader.state.dataset_state import state_between_epochs
from stoker.loader.state.progress import VERSION, differing
from stoker.loader.state.running_digest import RunningDigest
from stoker.loader.stream import StreamSetting, Turn
from stoker.plan import Recipe
from stoker.source.protocols import can_split

_REPORTED = ("steps", "samples", "cuts", "is_ended", "state")
"""What a reader reports of its place after each batch."""


class StreamProgress:
    """How far an iteration of a stream is: one place where everyone goes through it, otherwise one for each part."""

    def __init__(
        self, dataset: Any, epoch: int, setting: StreamSetting, *, is_here: bool, in_order: bool = True
    ) -> None:
        self.dataset, self.epoch, self.setting, self.in_order = dataset, epoch, setting, in_order
        self.is_here = is_here
        """The stream is read in this process, by this very object, and not by copies in workers."""
        self.sharing, self.num_parts = setting.sharing, setting.num_workers
        self.last: Recipe | None = None
        self.step = 0
        self.iteration = 0
        self._digest = RunningDigest()
        self._ends: dict[int, Any] = {}
        self._is_loaded = False
        self._has_lost_workers = False
        self.place = self._start()
        self._begun = self.place
        """The place at which this iteration began."""
        self._yielded: dict[int, dict[str, Any]] = {}
        """What the reader of each part reported with the batch that was yielded last."""
        self._starts: dict[int, dict[str, Any]] = {}
        """Where the next turn of a part begins, if its reader is a new one."""

    def _start(self) -> dict[str, Any]:
        """Return the place at which the epoch begins, with the state of the stream, or of each worker's copy."""
        place: dict[str, Any] = {"turn": 0, "steps": 0, "samples": 0, "parts": {}}
        state = state_between_epochs(self.dataset) if self.is_here else None
        if state is not None:
            place["begin_state"] = state
        for part, state in self._ends.items():
            if state is None:
                continue
            if self.sharing == "whole":
                place["begin_state"] = state
            else:
                place["parts"][str(part)] = {"steps": 0, "samples": 0, "begin_state": state}
        return place

    def go_on_from(self, previous: StreamProgress) -> None:
        """Count on from the iteration before this one."""
        self.step, self._digest = previous.step, RunningDigest(previous._digest.value)
        if not previous.place["turn"] and not self.is_here:
            self.place = copy.deepcopy(previous.place)
        self._has_lost_workers = previous._has_lost_workers  # new ones may not have received their place

    def recipes(self) -> Iterator[Turn]:
        """Return turns for ever: only the stream knows its end."""
        self._begun = copy.deepcopy(self.place)
        # otherwise a dataset is where it is by itself
        if self._is_loaded or self._has_lost_workers:
            self._starts = {part: self._place_of(part, self._begun) for part in range(self.num_parts)}
        return self._turns()

    def _turns(self) -> Iterator[Turn]:
        epoch, sharing, num_parts = self.epoch, self.sharing, self.num_parts  # they change at the end of the epoch
        for turn, step in zip(count(self.place["turn"]), count(self.step)):
            part = turn % num_parts
            yield Turn(self.iteration, epoch, step, turn, sharing, part, num_parts, self._starts.pop(part, None))

    def restarted(self, lost: list[Turn], received: list[BatchResult | EndOfStream]) -> list[Turn]:
        """Return the turns to send to a new worker process in the place of one that has died.

        `lost` are the turns meant for that worker that were drawn from `recipes` and not answered, `received` its
        results that are not yet yielded, both in order. The turns come back with a start from which the new readers
        make them as the old ones would have: after the last result of their part, or where the iteration began. Parts
        that have lost nothing get theirs with their next turn, so this is to be called even when both are empty.

        A dataset that changes from epoch to epoch in its persistent worker, and has no `state_dict`, cannot
        be restored: a fresh copy of it begins the epoch.
        """
        self._has_lost_workers = True
        reported = dict(self._yielded)
        for result in received:
            if isinstance(result, BatchResult) and result.stream is not None:
                reported[result.stream["part"]] = result.stream
        starts = {
            part: _moved(self._place_of(part, self._begun), reported.get(part, {})) for part in range(self.num_parts)
        }
        again = [turn._replace(start=starts.pop(turn.part, None)) for turn in lost]
        for part, start in starts.items():
            # more was known of a part when its own worker died: what had been received from it
            self._starts[part] = max(start, self._starts.get(part, {}), key=lambda place: place.get("steps", 0))
        return again

    @property
    def is_at_start(self) -> bool:
        """Whether nothing of the epoch is behind us."""
        return not self.place["turn"]

    def skip_first(self, num_batches: int) -> int:
        """Return how many batches are yet to be drawn to pass over so many: all, since a stream has no other way."""
        return num_batches

    def _place_of(self, part: int, place: dict[str, Any]) -> dict[str, Any]:
        return place if self.sharing == "whole" else place["parts"].get(str(part), {})

    def advance(self, made: BatchResult) -> None:
        """Note that a batch was handed over."""
        stream, recipe = made.stream, made.recipe
        assert stream is not None
        self.last = recipe._replace(step=self.step)  # turns that find a part at its end are no steps
        part = stream["part"]
        ordinals = recipe.ordinals if recipe.padding is None else recipe.ordinals[~recipe.padding]
        # a stream has no positions: a sample is known by its number in its part
        share = 0 if self.sharing == "whole" else self.setting.rank * self.num_parts + part
        self._digest.add(recipe.epoch, ordinals, ordinals ^ share)
        self.step += 1
        self._yielded[part] = stream
        if self.sharing == "whole":
            self.place = _moved(self.place, stream)
        else:
            self.place["parts"][str(part)] = _moved(self._place_of(part, self.place), stream)
        self.place["turn"] = stream["turn"]

    def end_of(self, ended: EndOfStream) -> None:
        """Note that a part has nothing more. Its place stays before the end, which a resume comes upon again."""
        self._ends[ended.part] = ended.state
        if self.sharing != "whole":
            self.place["turn"] += 1

    def begin_digest(self) -> None:
        """Let the digest begin here."""
        self._digest = RunningDigest()

    def finish(self) -> None:
        """Note that the epoch is over: the next one begins, shared out by the workers there are."""
        self.epoch += 1
        self.sharing, self.num_parts = self.setting.sharing, self.setting.num_workers
        self.place = self._start()
        self._ends.clear()

    def state(self) -> dict[str, Any]:
        """Return where this is."""
        if not self.in_order and min(self.setting.num_workers, self.num_parts) > 1:
            raise StateError(
                "the state of an iterable dataset is not defined with in_order=False and several workers: "
                "which batches were yielded depends on who was quickest\nhint: use in_order=True"
            )
        return {
            "version": VERSION,
            "kind": "stream",
            "epoch": self.epoch,
            "step": self.step,
            **self._identity(),
            "num_parts": self.num_parts,
            "place": copy.deepcopy(self.place),
            "digest": f"{self._digest.value:016x}",
        }

    def _identity(self) -> dict[str, Any]:
        setting = self.setting
        return {
            "sharing": self.sharing,
            "num_workers": setting.num_workers,
            "rank": setting.rank,
            "num_ranks": setting.num_ranks,
        }

    def take_up(self) -> None:
        """Do nothing: what is read follows from the place alone."""

    def resumed(self, state: dict[str, Any]) -> StreamProgress:
        """Return the place in `state`, for these workers. An epoch that has begun keeps its parts."""
        progress = StreamProgress(
            self.dataset, int(state["epoch"]), self.setting, is_here=self.is_here, in_order=self.in_order
        )
        progress.step, progress._digest = int(state["step"]), RunningDigest(int(state["digest"], 16))
        progress.place = copy.deepcopy(state["place"])
        progress.place.setdefault("parts", progress.place.pop("workers", {}))  # its older name
        progress._is_loaded = True
        if self._keeps_parts(state) and progress.place["turn"]:
            progress.sharing = state["sharing"]
            progress.num_parts = state.get("num_parts", state["num_workers"]) if state["sharing"] == "split" else 1
        return progress

    def _keeps_parts(self, state: dict[str, Any]) -> bool:
        """Return whether any workers can continue the parts of `state`. Refuse parts that these workers cannot read."""
        ours = self._identity()
        theirs = {name: state[name] for name in ours}
        if {theirs["sharing"], ours["sharing"]} == {"whole"}:
            return False  # there are none
        differences = differing(theirs, ours)
        is_splitting = self.setting.hides_worker and can_split(self.dataset)
        if is_splitting and theirs["sharing"] != "own" and not {"rank", "num_ranks"} & set(differences):
            return True
        if differences:
            shown = "; ".join(f"{name} was {a}, is {b}" for name, (a, b) in differences.items())
            raise StateError(
                f"each part of this iterable dataset has a place of its own, which does not fit another setup "
                f"({shown})\n"
                "hint: use as many workers and ranks as before, with the same shard=; with shard='auto' the workers "
                "may change, and the ranks too if the dataset has no split(), or is map-style"
            )
        return False


def _moved(place: dict[str, Any], stream: dict[str, Any]) -> dict[str, Any]:
    """Return `place`, moved on to where a reader was."""
    if not stream:
        return place
    kept = {name: value for name, value in place.items() if name not in _REPORTED}
    return kept | {name: stream[name] for name in _REPORTED if name in stream}
