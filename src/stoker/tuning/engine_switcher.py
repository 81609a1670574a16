"""Switch engines within an iteration: one finishes its batches, and the next continues with the following recipe.

No batch is lost, repeated or reordered: all engines draw from the same recipes, and an engine starts only when the one
before has delivered everything it had drawn.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from stoker.engine.inline import Inline
from stoker.engine.processes.engine import WorkerRun
from stoker.engine.threads import Threads
from stoker.errors import StokerError
from stoker.tuning.parallelism import Parallelism

T = TypeVar("T")

Runner = Inline[Any, T] | Threads[T] | WorkerRun[T]

log = logging.getLogger("stoker")


class EngineSegment:
    """The recipes of one engine, from its start until the segment is closed."""

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
    """An iterator of recipes that can look ahead by one."""

    def __init__(self, recipes: Iterator[Any]) -> None:
        self._recipes = recipes
        self._seen: list[Any] = []

    def __next__(self) -> Any:
        if self._seen:
            return self._seen.pop()
        return next(self._recipes)

    def has_more(self) -> bool:
        """Return whether there is another recipe."""
        if not self._seen:
            try:
                self._seen.append(next(self))
            except StopIteration:
                return False
        return True


class EngineSwitcher(Generic[T]):
    """An engine whose parallelism can change while it runs.

    `start` returns the engine for a setting and a segment. With `choose`, that function returns the first setting; it
    is called when the first result is requested, and may take some time.
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
        """The current setting, or the next one if the previous engine has not finished."""
        self.refusal: Exception | None = None
        """Why the engine of the last setting could not be started; the previous setting is used again."""
        self._before = setting
        self._left: list[T] = []
        """A result that an interrupt has kept from being returned."""
        self._lock = threading.RLock()
        """Held while waiting for a result, so that several threads may share an iterator."""
        self._segment = EngineSegment(self._recipes)
        self._engine: Runner[T] | None = None if choose is not None else start(setting, self._segment)
        self._is_closed = False

    def __next__(self) -> T:
        taken: list[T] = []
        try:
            with self._lock:
                self._take(taken)
            return taken[0]
        except BaseException:
            self._left += taken  # Ctrl-C while returning: keep it for the next call
            raise

    def _take(self, taken: list[T]) -> None:
        """Put the next result into `taken`."""
        if self._left:
            taken.append(self._left.pop())
            return
        while not self._is_closed:
            engine = self._first_engine() if self._engine is None else self._engine
            try:
                taken.append(next(engine))
                return
            except StopIteration:
                # otherwise this is the end: no recipes left, interpreter exit, or closed by another thread
                if not self._segment.is_closed or self._is_closed or not self._recipes.has_more():
                    raise
            self._switch(engine)
        raise StopIteration

    def _first_engine(self) -> Runner[T]:
        if self._choose is not None:
            self.setting = self._choose()
            self._choose = None
        if not self._is_closed:
            self._engine = self._start(self.setting, self._segment)
        return self._still_wanted(self._engine)

    def _still_wanted(self, engine: Runner[T] | None) -> Runner[T]:
        """Return an engine that was just started, unless another thread has closed the switcher meanwhile."""
        if engine is None or self._is_closed:
            if engine is not None:
                engine.close()
            raise StopIteration
        return engine

    def _switch(self, before: Runner[T]) -> None:
        """Start the next engine. After an interrupt, the next call tries again."""
        segment = EngineSegment(self._recipes)
        try:
            engine = self._start(self.setting, segment)
        except (StokerError, OSError) as error:
            self.refusal = error
            log.warning("auto: %s could not be started: %s", self.setting, str(error))
            self.setting = self._before
            engine = self._start(self.setting, segment)
        self._engine, self._segment = engine, segment
        before.close()
        if self._is_closed:  # meanwhile, by another thread
            engine.close()

    def change(self, setting: Parallelism) -> None:
        """Change the setting: at once, or when the engine has finished its batches if another engine is needed."""
        with self._lock:
            self._change(setting)

    def _change(self, setting: Parallelism) -> None:
        engine, before, self.setting = self._engine, self.setting, setting
        if engine is None or self._segment.is_closed:
            return  # the next engine starts with this setting
        if isinstance(engine, WorkerRun) and setting.num_workers:
            engine.resize(setting.num_workers, setting.num_threads, setting.prefetch_factor)
        elif isinstance(engine, Threads) and setting.num_threads and not setting.num_workers:
            engine.resize(setting.num_threads, setting.prefetch_factor)
        elif not (isinstance(engine, Inline) and setting.is_inline):
            self._before, self._segment.is_closed = before, True

    @property
    def is_settled(self) -> bool:
        """Whether the engine has the numbers of workers and threads of the setting."""
        if self._engine is None or self._segment.is_closed:
            return False
        return self._engine.is_settled if isinstance(self._engine, WorkerRun) else True

    @property
    def most_workers(self) -> int | None:
        """The maximum number of worker processes, if it is known."""
        return self._engine.most_workers if isinstance(self._engine, WorkerRun) else None

    @property
    def is_ready(self) -> bool:
        """Whether the next result, an error or the end is available without waiting."""
        if self._is_closed or self._left:
            return True
        if self._engine is None or (self._segment.is_closed and self._engine.is_dry):
            return False
        return self._engine.is_ready

    def close(self) -> None:
        """End threads and processes, and wait for them."""
        self._is_closed = True
        self._left.clear()
        if self._engine is not None:
            self._engine.close()
        if self._on_close is not None:
            self._on_close()
