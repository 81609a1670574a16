"""The engines of one iteration, where it is left to us which: found out, started, and changed on the way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stoker.batch.result import BatchResult, EndOfStream
from stoker.engine.processes.engine import WorkerRun
from stoker.errors import WorkerStuck
from stoker.loader.auto import Auto, TuningDriver
from stoker.loader.sample_costs import CostRequests, PeekedRecipes
from stoker.tuning.engine_switcher import EngineSegment, EngineSwitcher, Runner
from stoker.tuning.parallelism import Parallelism

if TYPE_CHECKING:
    from stoker.loader.build_iteration import EngineBuilder

log = logging.getLogger("stoker")


class EngineFactory:
    """Starts engines for a loader. Held by the switcher that it starts them for, and holds nothing of it."""

    def __init__(self, builder: EngineBuilder, auto: Auto, recipes: Iterator[Any]) -> None:
        self._builder, self._auto = builder, auto
        self._probe_run: WorkerRun[Any] | None = None
        self._is_closed = False
        self.recipes: Iterator[Any] = recipes
        if auto.setting.num_workers and auto.space.can_be_inline and not self.can_leave():
            auto.stay()
        if auto.is_to_measure:
            # the worker starts now, and measures when the first batch is asked for
            self.recipes = ahead = PeekedRecipes(recipes)
            source: Any = CostRequests(ahead, chosen_epoch=builder.loader._chosen_epoch, hint=builder.peeked_hint)
            self._probe_run = builder.workers(auto.setting).run(source)
        else:
            auto.begin()

    def choose(self) -> Parallelism:
        """Find out what samples cost, in a worker, and choose by it.

        An error is not ours to raise: if it was the data, the batch will raise it in its turn. But if it is all over,
        there is nothing to choose: `StopIteration`, or the error that says who has taken over.
        """
        found, probe_run = None, self._probe_run
        if probe_run is not None:
            try:
                found = next(probe_run)
            except WorkerStuck as error:
                # slow, or really stuck: then the first batch will show it, in a worker with nothing else to do
                probe_run.abandon()
                self._probe_run = None
                log.info("auto: the first samples took longer than the timeout (%s)", str(error).splitlines()[0])
            except Exception as error:
                if self._is_closed:
                    raise StopIteration from None
                if probe_run.is_over:
                    raise
                if not isinstance(error, StopIteration):
                    reason = f"{type(error).__name__}: {error}"  # a log that kept the error would keep all of this
                    log.info("auto: the first samples could not be looked at (%s)", reason)
        return self._auto.choose(found)

    def start(self, setting: Parallelism, segment: EngineSegment) -> Runner[BatchResult | EndOfStream]:
        """Return the engine for a setting; the worker that has measured is kept, if workers are needed."""
        builder, probe_run = self._builder, self._probe_run
        self._probe_run = None
        if not setting.num_workers:
            if probe_run is not None:
                probe_run.close()
            return builder.in_process(setting, segment)
        source = builder.requests(segment)
        if probe_run is None:
            return builder.workers(setting).run(source)
        run = probe_run.followed_by(source)
        run.resize(setting.num_workers, setting.num_threads, setting.prefetch_factor)
        return run

    def batch_bytes(self) -> int:
        """Return how big a batch is that lies in a slot; 0 if there is none."""
        ring = self._builder.loader._ring
        return 0 if ring is None else ring.sizes.largest_bytes

    def can_leave(self) -> bool:
        """Return whether workers can be started though data was read here."""
        context = self._builder.context()
        return context.get_start_method() != "fork" or self._auto.footprint.is_clean()

    def close(self) -> None:
        """End the worker that measures, if it still does."""
        self._is_closed = True
        if self._probe_run is not None:
            self._probe_run.close()


def start_tuned_engine(
    works: EngineFactory, auto: Auto
) -> tuple[EngineSwitcher[BatchResult | EndOfStream], TuningDriver]:
    """Return the engine of an iteration, and who steers it."""
    choose = works.choose if auto.is_to_measure else None
    switcher: EngineSwitcher[BatchResult | EndOfStream] = EngineSwitcher(
        works.recipes, works.start, auto.setting, choose=choose, on_close=works.close
    )
    return switcher, TuningDriver(auto, switcher, batch_bytes=works.batch_bytes, can_leave=works.can_leave)
