"""Recipes on their way to whoever makes them."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from typing import Any

from stoker.engine.processes import Processes
from stoker.errors import WorkerError
from stoker.loader.work import Made
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


class Posted:
    """A run of worker processes to which recipes travel light, and from which they do not come back.

    Pickling a recipe's arrays takes longer than all else about a small batch; a worker needs the positions alone.
    """

    def __init__(self, workers: Processes[Any], recipes: Iterator[Any]) -> None:
        self._sent: dict[int, Recipe] = {}
        self._run = workers.run(_light(recipes, self._sent))

    def __next__(self) -> Made:
        step, batch, skipped = next(self._run)
        return Made(self._sent.pop(step), batch, skipped, None)

    def close(self) -> None:
        """End the workers, unless they are persistent."""
        self._run.close()


def _light(recipes: Iterator[Any], sent: dict[int, Recipe]) -> Iterator[Any]:
    """Yield recipes with what a worker needs, and keep the whole ones. No method: the workers hold on to this, and must
    not hold on to whoever ends them.
    """
    for recipe in recipes:
        if isinstance(recipe, Recipe):
            sent[recipe.step] = recipe
            positions: Any = recipe.positions
            listed = positions if isinstance(positions, list) else positions.tolist()
            yield recipe._replace(slots=(), positions=listed, padding=None)  # type: ignore[arg-type]
        else:
            yield recipe
