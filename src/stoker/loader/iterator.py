"""The iterator a trainer holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, Self

from torch.autograd.profiler import record_function

from stoker.batch.ledger import Ledger
from stoker.batch.result import BatchResult, EndOfStream
from stoker.engine.engine_protocols import Engine
from stoker.errors import NestedNext, TooManySkipped
from stoker.foundation.torch_private import is_profiling
from stoker.loader.metrics.counters import Counters
from stoker.loader.state.plan_progress import PlanProgress
from stoker.loader.state.progress import Progress
from stoker.loader.state.stream_progress import StreamProgress
from stoker.plan import Recipe

if TYPE_CHECKING:
    from stoker.loader.auto import TuningDriver

PROFILED_AS = "enumerate(DataLoader)#LoaderIterator.__next__"
"""What torch's profiler shows. Its tools know a loader by this form, which torch's own loader has."""


class LoaderIterator:
    """One iteration over a loader: takes results from the engine, records them, returns the batches."""

    def __init__(
        self,
        engine: Engine[BatchResult | EndOfStream],
        progress: Progress,
        ledger: Ledger,
        *,
        length: Callable[[], int],
        promised: int | None = None,
        doubts: Callable[[], list[str]] | None = None,
        warns_of_copies: bool = False,
        counters: Counters,
        tuner: TuningDriver | None = None,
    ) -> None:
        self._engine, self._progress, self._ledger = engine, progress, ledger
        self._length, self._promised, self._warns_of_copies = length, promised, warns_of_copies
        self._doubts, self._counters = doubts, counters
        self._tuner = tuner
        counters.begin()
        self._is_over = False
        self._kept: dict[int, BatchResult] = {}
        """What each thread took from the engine and has not returned yet, perhaps because of Ctrl-C. By thread, because
        another one that shares this iterator must not return it a second time.
        """
        self._ended: set[int] = set()
        self._num_yielded = 0
        self._inside: set[int] = set()
        """Threads that are in `next` now."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        thread = get_ident()
        if thread in self._inside:
            raise NestedNext
        try:
            self._inside.add(thread)
            if is_profiling():  # 40 ns; entering a range takes microseconds, whether anyone profiles or not
                with record_function(PROFILED_AS):
                    return self._next(thread)
            return self._next(thread)
        finally:
            self._inside.discard(thread)

    def _next(self, thread: int) -> Any:
        asked = perf_counter()
        if self._is_over:
            raise StopIteration
        # before a batch is taken: an interrupt costs none
        if self._counters.is_due:
            self._counters.attend()
        if self._tuner is not None:
            self._tuner.steer()
        try:
            kept = self._kept
            made = (kept.get(thread) if kept else None) or self._engine.__next__()
            if isinstance(made, EndOfStream):
                made = self._after_an_end(made)
        except StopIteration:
            if self._is_over:
                raise  # closed by another thread, which is not the end of the epoch
            self._is_over = True
            self._progress.finish()
            self._engine.close()
            self._counters.end()
            raise
        self._kept[thread] = made  # an interrupt on the way: it is for the next call
        num_samples = len(made.recipe.positions)
        if made.stream is not None:
            self._watch(made)
        if self._doubts is not None:
            self._warn_of(self._doubts())
        handed = perf_counter()
        self._counters.note(made, num_samples, asked, handed)
        if self._tuner is not None:
            self._tuner.note(made, asked, handed)
        self._ledger.num_served += num_samples
        if made.skipped:
            self._note_skipped(made)
        self._progress.advance(made)
        self._kept.pop(thread, None)
        return made.batch

    def __len__(self) -> int:
        return self._length()

    @property
    def recipe(self) -> Recipe | None:
        """What is in the batch that was yielded last: step, positions, padding."""
        return self._progress.last

    @property
    def is_at_end(self) -> bool:
        """Whether the batch that was yielded last is known to be the last of its epoch; where a plan has the order."""
        return isinstance(self._progress, PlanProgress) and self._progress.is_at_end

    def close(self) -> None:
        """End the iteration now: threads and processes are gone when this returns."""
        self._is_over = True
        self._kept.clear()
        self._engine.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError("an iterator cannot be pickled; send loader.state_dict() and call iter on the other side")

    def _after_an_end(self, made: BatchResult | EndOfStream) -> BatchResult:
        """Return the next batch when a reader says that its stream has no more: another one may have."""
        progress = self._progress
        assert isinstance(progress, StreamProgress)
        while isinstance(made, EndOfStream):
            self._ended.add(made.part)
            progress.end_of(made)
            if len(self._ended) == progress.num_parts:
                raise StopIteration
            made = next(self._engine)
        return made

    def _warn_of(self, doubts: list[str]) -> None:
        self._doubts = None
        for doubt in doubts:
            warnings.warn(doubt, stacklevel=4)

    def _note_skipped(self, made: BatchResult) -> None:
        try:
            self._ledger.record(made.skipped)
        except TooManySkipped:
            self.close()
            raise

    def _watch(self, made: BatchResult) -> None:
        """Give the warnings that only show while a stream is read."""
        assert made.stream is not None
        if self._warns_of_copies:
            self._warns_of_copies = False
            if not made.stream.get("has_looked", True):
                warnings.warn(
                    "every worker reads the whole of this iterable dataset, so each sample will come once per worker: "
                    "the dataset never looks at torch.utils.data.get_worker_info()\n"
                    "hint: pass shard='auto' to stoker.DataLoader, and every sample comes exactly once",
                    stacklevel=4,
                )
        self._num_yielded += 1
        if self._promised is not None and self._num_yielded > self._promised:
            warnings.warn(
                f"the iterable dataset said that it has {self._promised} samples, but {self._num_yielded} batches "
                "have come; with several workers each may be reading all of it (shard='auto' shares it out)",
                stacklevel=4,
            )
            self._promised = None
