"""Requests: recipes on their way to the builders, in this process or in workers."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stoker.batch.collation import describe_recipe
from stoker.batch.result import BatchResult, EncodedBatch, EndOfStream
from stoker.engine.timing import HandoverTimes
from stoker.errors import WorkerError
from stoker.loader.state.stream_progress import StreamProgress
from stoker.loader.stream import Turn, turn_worker
from stoker.plan import Recipe

WorkItem = tuple[int, int, int, range | None, bytes | list[Any], Any]
"""What a worker gets of a recipe: step, epoch, rank, draws, positions (the plan's as the bytes of 64-bit integers), and
the dataset's hint.

Pickling all of a recipe would take longer than all else about a small batch.
"""


def encode_recipe(recipe: Recipe, hint: Any = None) -> WorkItem:
    """Return what is sent of a recipe."""
    positions: Any = recipe.positions
    listed = positions if isinstance(positions, list) else positions.tobytes()
    return recipe.step, recipe.epoch, recipe.rank, recipe.draws, listed, hint


def decode_recipe(item: WorkItem) -> tuple[Recipe, Any]:
    """Return the recipe, as far as a worker needs it, and the hint."""
    step, epoch, rank, draws, positions, hint = item
    listed: Any = np.frombuffer(positions, np.int64) if isinstance(positions, bytes) else positions
    return Recipe(step, epoch, rank, (), listed, None, 0, draws), hint  # type: ignore[arg-type]


class ErrorCapturingIterator:
    """Recipes from a source that may fail. An error travels in the place of a recipe and is raised by its builder:
    in its turn, after the batches before it, and again whenever the next is asked for. It is never taken for an end.
    """

    def __init__(self, recipes: Iterator[Any]) -> None:
        self._recipes = recipes
        self._poison: DeferredError | None = None

    def __iter__(self) -> ErrorCapturingIterator:
        return self

    def __next__(self) -> Any:
        if self._poison is not None:
            return self._poison
        try:
            return next(self._recipes)
        except StopIteration:
            raise
        except Exception as error:
            self._poison = DeferredError(error)
            return self._poison
        except BaseException:
            self._poison = DeferredError(
                WorkerError(
                    "the iteration was interrupted while positions were drawn\n"
                    "hint: loader.load_state_dict(loader.state_dict()) and iterate again: nothing is lost"
                )
            )
            raise


class DeferredError:
    """Stands for a recipe that could not be drawn: reading its positions raises the error."""

    step = epoch = rank = -1

    def __init__(self, error: Exception) -> None:
        # As text, because the frames of a traceback would keep the iterator alive, and its threads with it.
        shown = "".join(traceback.format_exception(error))
        error.add_note(f"raised while positions were drawn:\n{shown}")
        self.error = error.with_traceback(None)

    @property
    def positions(self) -> Any:
        """Raise the error."""
        raise self.error.with_traceback(None)

    def __reduce__(self) -> Any:
        try:
            pickle.loads(pickle.dumps(self.error))
            error = self.error
        except Exception:
            error = WorkerError(f"{type(self.error).__qualname__}: {self.error}")
        return _poisoned, (error, getattr(self.error, "__notes__", []))


def _poisoned(error: Exception, notes: list[str]) -> DeferredError:
    poison = DeferredError.__new__(DeferredError)
    poison.error = error
    error.__notes__ = list(notes)
    return poison


class MapRequests:
    """Recipes for whichever worker process is free."""

    def __init__(
        self, recipes: Iterator[Any], *, chosen_epoch: int | None, next_hint: Callable[[], Any] = lambda: None
    ) -> None:
        self._recipes, self._chosen_epoch, self._next_hint = recipes, chosen_epoch, next_hint

    def __next__(self) -> Any:
        return next(self._recipes)

    def content(self, recipe: Any) -> tuple[int | None, WorkItem]:
        """Return what a worker needs to know."""
        return self._chosen_epoch, encode_recipe(recipe, self._next_hint())

    def result(self, recipe: Recipe, answer: EncodedBatch, handover: HandoverTimes) -> BatchResult:
        """Return the batch with its recipe, which has stayed here."""
        batch, skipped, times = answer
        return BatchResult(recipe, batch, pickle.loads(skipped) if skipped else (), None, times, handover)

    def described(self, recipe: Recipe) -> str:
        """Return what is in a recipe."""
        return f"the batch with {describe_recipe(recipe, most=512)}"

    def worker_of(self, _: Recipe) -> int:
        """Anyone will do."""
        return 0

    def restarted(self, lost: list[Any], _: list[Any]) -> list[Any]:
        """Anyone can make them as they are."""
        return lost


class StreamRequests:
    """Turns for the worker process that holds the reader of their part."""

    def __init__(self, progress: StreamProgress, turns: Iterator[Any], *, chosen_epoch: int | None) -> None:
        self._progress, self._turns, self._chosen_epoch = progress, turns, chosen_epoch
        self._num_workers = progress.setting.num_workers
        self._last_results: dict[int, BatchResult | EndOfStream] = {}
        """The last result of each part that has left the engine; it may not be yielded yet, but on its way."""

    def __next__(self) -> Any:
        return next(self._turns)

    def content(self, turn: Turn | DeferredError) -> tuple[int | None, Turn]:
        """Return what a worker needs to know: all of it."""
        if isinstance(turn, DeferredError):
            raise turn.error
        return self._chosen_epoch, turn

    def result(self, _: Turn, answer: EncodedBatch, handover: HandoverTimes) -> BatchResult | EndOfStream:
        """Return the batch, or the end, as the worker has sent it."""
        batch, note, _times = answer
        made: BatchResult | EndOfStream = pickle.loads(note)
        if isinstance(made, BatchResult) and made.stream is not None:
            self._last_results[made.stream["part"]] = made
        return made._replace(batch=batch, handover=handover) if isinstance(made, BatchResult) else made

    def described(self, turn: Turn) -> str:
        """Return what is known of a turn."""
        return f"batch {turn.turn} of epoch {turn.epoch} of the stream (step {turn.step})"

    def worker_of(self, turn: Turn | DeferredError) -> int:
        """Return the worker that holds the reader."""
        return 0 if isinstance(turn, DeferredError) else turn_worker(turn, self._num_workers)

    def restarted(self, lost: list[Turn], received: list[BatchResult | EndOfStream]) -> list[Turn]:
        """Return the turns for a worker that begins where another one ended."""
        return self._progress.restarted(lost, [*self._last_results.values(), *received])
