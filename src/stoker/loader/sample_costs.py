"""Measure what samples cost: a worker process reads the first recipes and drops the result."""

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

from stoker.batch.builder import MapBatchBuilder, MapBuilders
from stoker.batch.collation import positions_of
from stoker.engine.timing import HandoverTimes
from stoker.foundation import machine
from stoker.loader.requests import WorkItem, decode_recipe, encode_recipe
from stoker.plan import Recipe
from stoker.tuning.sample_cost import SampleCost, measure_samples

LEAST_RECIPES, LEAST_POSITIONS, MOST_RECIPES = 4, 24, 16
"""Number of recipes to measure: at least the first, with at least so many positions in all, at most the last."""

GONE_SECONDS = 0.02
"""Time for which a thread that has ended may still be listed."""


class CostRequest(NamedTuple):
    """The recipes to be measured."""

    recipes: list[WorkItem]


class PeekedRecipes:
    """An iterator of recipes whose first ones can be read ahead of their turn."""

    def __init__(self, recipes: Iterator[Any]) -> None:
        self._recipes = recipes
        self._seen: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._seen.popleft() if self._seen else next(self._recipes)

    def peek(self) -> list[Any]:
        """Return the recipes to be measured; none, if one of them cannot be drawn."""
        seen = self._seen
        num_positions = 0
        for recipe in self._recipes:
            seen.append(recipe)
            try:
                num_positions += len(recipe.positions)
            except Exception:  # its builder will raise the error in its turn
                return []
            if len(seen) >= MOST_RECIPES or (len(seen) >= LEAST_RECIPES and num_positions >= LEAST_POSITIONS):
                break
        return list(seen)


class CostRequests:
    """Requests to measure the first recipes: only one."""

    def __init__(self, recipes: PeekedRecipes, *, chosen_epoch: int | None, hint: Callable[[], Any]) -> None:
        self._recipes, self._chosen_epoch, self._hint = recipes, chosen_epoch, hint
        self._is_over = False

    def __next__(self) -> Any:
        recipes = [] if self._is_over else self._recipes.peek()
        self._is_over = True
        if not recipes:
            raise StopIteration
        return recipes

    def content(self, recipes: list[Recipe]) -> tuple[int | None, CostRequest]:
        """Return what a worker needs to know."""
        hint = self._hint()
        return self._chosen_epoch, CostRequest([encode_recipe(recipe, hint) for recipe in recipes])

    def result(self, _: Any, answer: SampleCost, __: HandoverTimes) -> SampleCost:
        """Return the measured cost."""
        return answer

    def described(self, _: Any) -> str:
        """Return what is being done, for an error."""
        return "measuring the first samples"

    def worker_of(self, _: Any) -> int:
        """Return 0: any worker can do it."""
        return 0

    def restarted(self, lost: list[Any], _: list[Any]) -> list[Any]:
        """Return the requests unchanged: any worker can do them."""
        return lost


class SampleCostBuilder:
    """Measures what samples cost instead of building a batch, and drops what was read."""

    size = 0

    def __init__(self, builders: MapBuilders, request: CostRequest) -> None:
        self._builders, self._request = builders, request

    def do(self, start: int, stop: int) -> None:
        """Do nothing: there are no parts."""

    def finish(self) -> SampleCost:
        """Return what samples cost. Random generators shared by all threads are left unchanged."""
        items = self._request.recipes
        return self._builders.borrowed.run(self._measured, [decode_recipe(item) for item in items], key=0)

    def _measured(self, items: list[tuple[Recipe, Any]]) -> SampleCost:
        before, held = _generators(), machine.held()
        cost = measure_samples(RecipeProbe(self._builders, items))
        return cost._replace(draws=_generators() != before, leaves_traces=_holds_more_than(held))


class RecipeProbe:
    """Samples of recipes, read one by one; or whole batches, where the dataset reads many samples in one call."""

    def __init__(self, builders: MapBuilders, items: list[tuple[Recipe, Any]]) -> None:
        self._builders, self._items = builders, items
        self._opened: dict[int, MapBatchBuilder] = {}
        self._lock = threading.Lock()
        is_whole = not builders.writes_rows and (builders.makes_batches or builders.reads_many)
        self._is_whole = is_whole
        self._places = [
            (number, row)
            for number, (recipe, _) in enumerate(items)
            for row in range(1 if is_whole else len(recipe.positions))
        ]
        self.num_units = len(self._places)
        self.units_of_batch = 1 if is_whole else len(items[0][0].positions)

    def do(self, unit: int) -> None:
        """Read a sample, or a batch."""
        number, row = self._places[unit]
        with self._lock:
            builder = self._opened.get(number)
            if builder is None:
                recipe, hint = self._items[number]
                builder = self._opened[number] = self._builders.builder(recipe, hint=hint)
        builder.do(row, row + 1)

    def finish_seconds(self) -> float:
        """Return how long collating takes, measured with the samples that were read."""
        samples: list[Any] = []
        positions: list[Any] = []
        for number, builder in self._opened.items():
            recipe = self._items[number][0]
            for row, *_, read, _ in builder.parts:
                if len(read) and len(samples) < self.units_of_batch:
                    samples += read
                    positions += positions_of(recipe)[row : row + len(read)]
        if not samples:
            return 0.0  # they are already in their rows
        recipe = recipe._replace(positions=positions)  # type: ignore[arg-type]
        collate = self._builders.collation.collate
        collate(recipe, samples)
        began = perf_counter()
        collate(recipe, samples)
        num_units = 1 if self._is_whole else len(samples)
        return (perf_counter() - began) * self.units_of_batch / num_units


def _holds_more_than(before: frozenset[str]) -> bool:
    """Return whether more files or threads are open than before. A thread that has ended is listed for a moment."""
    over = perf_counter() + GONE_SECONDS
    while not machine.held() <= before:
        if perf_counter() > over:
            return True
        time.sleep(GONE_SECONDS / 10)
    return False


def _generators() -> tuple[Any, ...]:
    """Return the states of the random generators that all threads of a process share."""
    numpy: Any = np.random.get_state(legacy=False)
    words = numpy["state"]
    return (
        random.getstate(),
        {name: bytes(value) if isinstance(value, np.ndarray) else value for name, value in words.items()},
        torch.get_rng_state().numpy().tobytes(),
    )
