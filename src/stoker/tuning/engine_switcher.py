"""Engines that take turns: one runs dry, and the next goes on with the recipe after it.

Nothing is lost, doubled or reordered, because all of them draw from the same recipes, and none begins before the one
before it has handed over all that it had drawn.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from stoker.engine.inline import Inline
from stoker.engine.processes.engine import Run
from stoker.engine.threads import Threads
from stoker.errors import StokerError
from stoker.tuning.parallelism import Parallelism

T = TypeVar("T")

Runner = Inline[Any, T] | Threads[T] | Run[T]

log = logging.getLogger("stoker")


class EngineSegment:
    """The recipes of one engine: those of all, from where it begins until it is closed."""

    def __init__(self, recipes: _Recipes) -> None:
        self._recipes = recipes
        self.is_closed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.is_closed:
            raise StopIteration
        return next(self._recipes)


class _Recipes:
    """Recipes, of which the next one can be looked at."""

    def __init__(self, recipes: Iterator[Any]) -> None:
        self._recipes = recipes
        self._seen: list[Any] = []

    def __next__(self) -> Any:
        if self._seen:
            return self._seen.pop()
        return next(self._recipes)

    def has_more(self) -> bool:
        """Return whether there is another one."""
        if not self._seen:
            try:
                self._seen.append(next(self))
            except StopIteration:
                return False
        return True


class EngineSwitcher(Generic[T]):
    """An engine whose setting can change while it runs.

    `start` returns the engine for a setting and a leg. With `choose`, what that returns is the setting to begin with;
    it is asked for, and may take its time, when the first result is.
    """

    def __init__(
        self,
        recipes: Iterator[Any],
        start: Callable[[Parallelism, EngineSegment], Runner[T]],
        setting: Parallelism,
        *,
        choose: Callable[[], Parallelism] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._recipes = _Recipes(recipes)
        self._start, self._choose, self._on_close = start, choose, on_close
        self.setting = setting
        """What there is now, or will be as soon as the engine before has run dry."""
        self.refusal: Exception | None = None
        """Why the engine of another setting could not be started; the one before was gone on with."""
        self._before = setting
        self._left: list[T] = []
        """What an interrupt has kept from being handed over."""
        self._lock = threading.RLock()
        """Held by whoever waits for a result, so that several threads may share an iterator."""
        self._leg = EngineSegment(self._recipes)
        self._engine: Runner[T] | None = None if choose is not None else start(setting, self._leg)
        self._is_closed = False

    def __next__(self) -> T:
        taken: list[T] = []
        try:
            with self._lock:
                self._take(taken)
            return taken[0]
        except BaseException:
            self._left += taken  # Ctrl-C on the way out: it is for the next call
            raise

    def _take(self, taken: list[T]) -> None:
        """Put the next result into `taken`."""
        if self._left:
            taken.append(self._left.pop())
            return
        while not self._is_closed:
            engine = self._begun() if self._engine is None else self._engine
            try:
                taken.append(next(engine))
                return
            except StopIteration:
                # otherwise it is the end: of the recipes, of the interpreter, or because another thread closed this
                if not self._leg.is_closed or self._is_closed or not self._recipes.has_more():
                    raise
            self._go_over(engine)
        raise StopIteration

    def _begun(self) -> Runner[T]:
        if self._choose is not None:
            self.setting = self._choose()
            self._choose = None
        if not self._is_closed:
            self._engine = self._start(self.setting, self._leg)
        return self._still_wanted(self._engine)

    def _still_wanted(self, engine: Runner[T] | None) -> Runner[T]:
        """Return an engine that was just started, unless another thread has closed this meanwhile."""
        if engine is None or self._is_closed:
            if engine is not None:
                engine.close()
            raise StopIteration
        return engine

    def _go_over(self, before: Runner[T]) -> None:
        """Let the next engine go on. An interrupt on the way costs nothing: it is gone over then, anew."""
        leg = EngineSegment(self._recipes)
        try:
            engine = self._start(self.setting, leg)
        except (StokerError, OSError) as error:
            self.refusal = error
            log.warning("auto: %s could not be started: %s", self.setting, str(error))
            self.setting = self._before
            engine = self._start(self.setting, leg)
        self._engine, self._leg = engine, leg
        before.close()
        if self._is_closed:  # meanwhile, by another thread
            engine.close()

    def change(self, setting: Parallelism) -> None:
        """Go on with another setting: at once, or when what is begun is handed over, where another engine is needed."""
        with self._lock:
            self._change(setting)

    def _change(self, setting: Parallelism) -> None:
        engine, before, self.setting = self._engine, self.setting, setting
        if engine is None or self._leg.is_closed:
            return  # the next engine is made for what there should be then
        if isinstance(engine, Run) and setting.num_workers:
            engine.resize(setting.num_workers, setting.num_threads, setting.prefetch_factor)
        elif isinstance(engine, Threads) and setting.num_threads and not setting.num_workers:
            engine.resize(setting.num_threads, setting.prefetch_factor)
        elif not (isinstance(engine, Inline) and setting.is_inline):
            self._before, self._leg.is_closed = before, True

    @property
    def is_settled(self) -> bool:
        """Whether everything is as the setting says."""
        if self._engine is None or self._leg.is_closed:
            return False
        return self._engine.is_settled if isinstance(self._engine, Run) else True

    @property
    def most_workers(self) -> int | None:
        """How many worker processes there can be, as far as that has shown."""
        return self._engine.most_workers if isinstance(self._engine, Run) else None

    @property
    def is_ready(self) -> bool:
        """Whether the next result, an error or the end can be had without waiting."""
        if self._is_closed or self._left:
            return True
        if self._engine is None or (self._leg.is_closed and self._engine.is_dry):
            return False
        return self._engine.is_ready

    def close(self) -> None:
        """End threads and processes before control returns."""
        self._is_closed = True
        self._left.clear()
        if self._engine is not None:
            self._engine.close()
        if self._on_close is not None:
            self._on_close()
