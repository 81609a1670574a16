"""The first recipes, read in a worker to see what samples cost. What comes of it is thrown away."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from stoker.engine.slots.slot_writer import SlotWriter
from stoker.engine.timing import HandoverTimes
from stoker.foundation import machine
from stoker.loader.work import EpochForwarder, MapMaker, WorkItem, decode_recipe, encode_recipe, positions_of
from stoker.plan import Recipe
from stoker.tuning.sample_cost import SampleCost, measure_samples

LEAST_RECIPES, LEAST_POSITIONS, MOST_RECIPES = 4, 24, 16
"""How many recipes are drawn to be scouted: a few, and as many as have a few positions, but not more than this."""


GONE_SECONDS = 0.02
"""How long a thread that has ended may be seen."""


class CostRequest(NamedTuple):
    """What is to be scouted."""

    recipes: list[WorkItem]


class PeekedRecipes:
    """Recipes of which the first ones can be looked at, before they are drawn in their turn."""

    def __init__(self, recipes: Iterator[Any]) -> None:
        self._recipes = recipes
        self._seen: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._seen.popleft() if self._seen else next(self._recipes)

    def look(self) -> list[Any]:
        """Return the recipes to be scouted; none, if one of them cannot be drawn."""
        seen = self._seen
        num_positions = 0
        for recipe in self._recipes:
            seen.append(recipe)
            try:
                num_positions += len(recipe.positions)
            except Exception:  # whoever makes it will say so
                return []
            if len(seen) >= MOST_RECIPES or (len(seen) >= LEAST_RECIPES and num_positions >= LEAST_POSITIONS):
                break
        return list(seen)


class CostRequests:
    """The scouting of the first recipes, in the place of making a batch."""

    def __init__(self, recipes: PeekedRecipes, *, chosen_epoch: int | None, told: Callable[[], Any]) -> None:
        self._recipes, self._chosen_epoch, self._told = recipes, chosen_epoch, told
        self._is_over = False

    def __next__(self) -> Any:
        recipes = [] if self._is_over else self._recipes.look()
        self._is_over = True
        if not recipes:
            raise StopIteration
        return recipes

    def content(self, recipes: list[Recipe]) -> tuple[int | None, CostRequest]:
        """Return what a worker needs to know."""
        told = self._told()
        return self._chosen_epoch, CostRequest([encode_recipe(recipe, told) for recipe in recipes])

    def result(self, _: Any, answer: SampleCost, __: HandoverTimes) -> SampleCost:
        """Return what was found."""
        return answer

    def described(self, _: Any) -> str:
        """Return what is done, for an error."""
        return "scouting the first samples"

    def worker_of(self, _: Any) -> int:
        """Anyone will do."""
        return 0

    def restarted(self, lost: list[Any], _: list[Any]) -> list[Any]:
        """Anyone can do it as it is."""
        return lost


class CostProbingForwarder(EpochForwarder):
    """A maker in a worker process that can be asked to scout, too."""

    def make_away(self, content: tuple[int | None, Any], desk: SlotWriter) -> Any:
        """Make a batch, or scout."""
        rest = self._heard(content)
        return self._scouted(rest) if isinstance(rest, CostRequest) else self._maker.make_away(rest, desk)

    def task_away(self, content: tuple[int | None, Any], desk: SlotWriter) -> Any:
        """Return the making of a batch, or the scouting."""
        rest = self._heard(content)
        return _ScoutTask(self, rest) if isinstance(rest, CostRequest) else self._maker.task_away(rest, desk)

    def _scouted(self, scouting: CostRequest) -> SampleCost:
        """Return what was found. Generators that all threads share are afterwards as they were."""
        maker: MapMaker = self._maker

        def scout(recipes: list[Recipe]) -> SampleCost:
            before, held = _generators(), machine.held()
            found = measure_samples(RecipeProbe(maker, recipes, scouting.recipes[0][-1]))
            return found._replace(draws=_generators() != before, leaves_traces=_holds_more_than(held))

        return maker.loan.run(scout, [decode_recipe(content) for content in scouting.recipes], key=0)


class _ScoutTask:
    """The scouting, where a worker has several threads."""

    size = 0

    def __init__(self, told: CostProbingForwarder, scouting: CostRequest) -> None:
        self._told, self._scouting = told, scouting

    def do(self, start: int, stop: int) -> None:
        """Nothing is done in parts."""

    def finish(self) -> SampleCost:
        """Return what was found."""
        return self._told._scouted(self._scouting)


class RecipeProbe:
    """Samples of recipes, read one by one; or whole batches, where the dataset reads many samples in one call."""

    def __init__(self, maker: MapMaker, recipes: list[Recipe], told: Any) -> None:
        self._maker, self._recipes, self._told = maker, recipes, told
        self._writers: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._read: dict[int, Any] = {}
        is_whole = not maker.fills and (maker.gathers or maker.reads_many)
        self._is_whole = is_whole
        self._places = [
            (number, row)
            for number, recipe in enumerate(recipes)
            for row in range(1 if is_whole else len(recipe.positions))
        ]
        self.num_units = len(self._places)
        self.units_of_batch = 1 if is_whole else len(recipes[0].positions)

    def do(self, unit: int) -> None:
        """Read a sample, or a batch."""
        maker, (number, row) = self._maker, self._places[unit]
        recipe = self._recipes[number]
        if self._is_whole:
            if not maker.gathers or maker.gathered(recipe) is None:
                self._read[unit] = maker.read(recipe, positions_of(recipe), [])
            return
        positions = positions_of(recipe)[row : row + 1]
        if maker.fills:
            with self._lock:
                if number not in self._writers:
                    self._writers[number] = maker.opened(recipe, self._told)
                writer = self._writers[number]
            if writer is not None:
                maker.fill(recipe, writer, positions, row, [])
                return
        self._read[unit] = maker.read(recipe, positions, [])

    def finish_seconds(self) -> float:
        """Return how long collating takes, judged from the samples that were read."""
        if not self._read:
            return 0.0  # they are where they belong
        unit = next(iter(self._read))
        units = [unit] if self._is_whole else list(self._read)[: self.units_of_batch]
        samples = [sample for unit in units for sample in self._read[unit]]
        positions = [self._position(unit) for unit in units]
        recipe = self._recipes[self._places[unit][0]]
        if not self._is_whole:
            recipe = recipe._replace(positions=positions)
        self._maker.finish(recipe, samples)
        began = perf_counter()
        self._maker.finish(recipe, samples)
        return (perf_counter() - began) * self.units_of_batch / len(units)

    def _position(self, unit: int) -> Any:
        number, row = self._places[unit]
        return positions_of(self._recipes[number])[row]


def _holds_more_than(before: frozenset[str]) -> bool:
    """Return whether this process holds more than it did. A thread that has ended is still seen for a moment."""
    over = perf_counter() + GONE_SECONDS
    while not machine.held() <= before:
        if perf_counter() > over:
            return True
        time.sleep(GONE_SECONDS / 10)
    return False


def _generators() -> tuple[Any, ...]:
    """Return how the generators are that all threads of a process share."""
    numpy: Any = np.random.get_state(legacy=False)
    words = numpy["state"]
    return (
        random.getstate(),
        {name: bytes(value) if isinstance(value, np.ndarray) else value for name, value in words.items()},
        torch.get_rng_state().numpy().tobytes(),
    )
