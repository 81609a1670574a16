"""Recipes on their way to whoever makes them."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from stoker.engine.lap import Trip
from stoker.errors import WorkerError
from stoker.loader.stream import Turn, turn_worker
from stoker.loader.stream_progress import StreamProgress
from stoker.loader.work import Ended, Made, Posted, Sent, listed, sent
from stoker.plan import Recipe


class Unfailing:
    """Recipes from a source that may fail. An error travels in the place of a recipe and is raised by whoever makes it:
    in its turn, after the batches before it, and again whenever the next is asked for. It is never taken for an end.
    """

    def __init__(self, recipes: Iterator[Any]) -> None:
        self._recipes = recipes
        self._poison: Poison | None = None

    def __iter__(self) -> Unfailing:
        return self

    def __next__(self) -> Any:
        if self._poison is not None:
            return self._poison
        try:
            return next(self._recipes)
        except StopIteration:
            raise
        except Exception as error:
            self._poison = Poison(error)
            return self._poison
        except BaseException:
            self._poison = Poison(
                WorkerError(
                    "the iteration was interrupted while positions were drawn\n"
                    "hint: loader.load_state_dict(loader.state_dict()) and iterate anew: nothing is lost"
                )
            )
            raise


class Poison:
    """Stands for a recipe that could not be drawn: whoever looks at its positions gets the error."""

    step = epoch = rank = -1

    def __init__(self, error: Exception) -> None:
        # As text, because the frames of a traceback would keep alive whoever asked, and with it threads.
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


def _poisoned(error: Exception, notes: list[str]) -> Poison:
    poison = Poison.__new__(Poison)
    poison.error = error
    error.__notes__ = list(notes)
    return poison


class MapErrand:
    """Recipes for whichever worker process is free."""

    def __init__(
        self, recipes: Iterator[Any], *, chosen_epoch: int | None, tell: Callable[[], Any] = lambda: None
    ) -> None:
        self._recipes, self._chosen_epoch, self._tell = recipes, chosen_epoch, tell

    def __next__(self) -> Any:
        return next(self._recipes)

    def content(self, recipe: Any) -> tuple[int | None, Sent]:
        """Return what a worker needs to know."""
        return self._chosen_epoch, sent(recipe, self._tell())

    def result(self, recipe: Recipe, answer: Posted, trip: Trip) -> Made:
        """Return the batch with its recipe, which has stayed here."""
        batch, skipped, times = answer
        return Made(recipe, batch, pickle.loads(skipped) if skipped else (), None, times, trip)

    def described(self, recipe: Recipe) -> str:
        """Return what is in a recipe."""
        return f"the batch with {listed(recipe, most=512)}"

    def worker_of(self, _: Recipe) -> int:
        """Anyone will do."""
        return 0

    def restarted(self, lost: list[Any], _: list[Any]) -> list[Any]:
        """Anyone can make them as they are."""
        return lost


class StreamErrand:
    """Turns for the worker process that holds the reader of their part."""

    def __init__(self, progress: StreamProgress, turns: Iterator[Any], *, chosen_epoch: int | None) -> None:
        self._progress, self._turns, self._chosen_epoch = progress, turns, chosen_epoch
        self._num_workers = progress.setting.num_workers
        self._told: dict[int, Made | Ended] = {}
        """The last result of each part that has left the engine; it may not be yielded yet, but on its way."""

    def __next__(self) -> Any:
        return next(self._turns)

    def content(self, turn: Turn | Poison) -> tuple[int | None, Turn]:
        """Return what a worker needs to know: all of it."""
        if isinstance(turn, Poison):
            raise turn.error
        return self._chosen_epoch, turn

    def result(self, _: Turn, answer: Posted, trip: Trip) -> Made | Ended:
        """Return the batch, or the end, as the worker tells it."""
        batch, note, _times = answer
        made: Made | Ended = pickle.loads(note)
        if isinstance(made, Made) and made.stream is not None:
            self._told[made.stream["part"]] = made
        return made._replace(batch=batch, trip=trip) if isinstance(made, Made) else made

    def described(self, turn: Turn) -> str:
        """Return what is known of a turn."""
        return f"batch {turn.turn} of epoch {turn.epoch} of the stream (step {turn.step})"

    def worker_of(self, turn: Turn | Poison) -> int:
        """Return the worker that holds the reader."""
        return 0 if isinstance(turn, Poison) else turn_worker(turn, self._num_workers)

    def restarted(self, lost: list[Turn], received: list[Made | Ended]) -> list[Turn]:
        """Return the turns for a worker that begins where another one ended."""
        return self._progress.restarted(lost, [*self._told.values(), *received])
