"""The engines of one iteration, where it is left to us which: found out, started, and changed on the way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stoker.engine.processes.engine import Run
from stoker.errors import WorkerStuck
from stoker.loader.auto import Auto, TuningDriver
from stoker.loader.sample_costs import CostRequests, PeekedRecipes
from stoker.loader.work import BatchResult, EndOfStream
from stoker.tuning.engine_switcher import EngineSegment, EngineSwitcher, Runner
from stoker.tuning.parallelism import Parallelism

if TYPE_CHECKING:
    from stoker.loader.build import EngineBuilder

log = logging.getLogger("stoker")


class EngineFactory:
    """Starts engines for a loader. Held by the relay that it starts them for, and holds nothing of it."""

    def __init__(self, builder: EngineBuilder, auto: Auto, recipes: Iterator[Any]) -> None:
        self._builder, self._auto = builder, auto
        self._scout: Run[Any] | None = None
        self._is_closed = False
        self.recipes: Iterator[Any] = recipes
        if auto.setting.num_workers and auto.room.can_be_inline and not self.can_leave():
            auto.stay()
        if auto.is_to_scout:
            # the worker starts now, and looks around when the first batch is asked for
            self.recipes = ahead = PeekedRecipes(recipes)
            errand: Any = CostRequests(ahead, chosen_epoch=builder.loader._chosen_epoch, told=builder.peeked_state)
            self._scout = builder.workers(auto.setting).run(errand)
        else:
            auto.begin()

    def choose(self) -> Parallelism:
        """Find out what samples cost, in a worker, and choose by it.

        An error is not ours to raise: if it was the data, the batch will raise it in its turn. But if it is all over,
        there is nothing to choose: `StopIteration`, or the error that says who has taken over.
        """
        found, scout = None, self._scout
        if scout is not None:
            try:
                found = next(scout)
            except WorkerStuck as error:
                # slow, or stuck in earnest, and then the first batch will tell: by a worker that has nothing else to do
                scout.abandon()
                self._scout = None
                log.info("auto: the first samples took longer than the timeout (%s)", str(error).splitlines()[0])
            except Exception as error:
                if self._is_closed:
                    raise StopIteration from None
                if scout.is_over:
                    raise
                if not isinstance(error, StopIteration):
                    told = f"{type(error).__name__}: {error}"  # a log that kept the error would keep all of this
                    log.info("auto: the first samples could not be looked at (%s)", told)
        return self._auto.choose(found)

    def start(self, setting: Parallelism, leg: EngineSegment) -> Runner[BatchResult | EndOfStream]:
        """Return the engine for a setting; the workers that have scouted go on to work, if any are needed."""
        builder, scout = self._builder, self._scout
        self._scout = None
        if not setting.num_workers:
            if scout is not None:
                scout.close()
            return builder.in_process(setting, leg)
        errand = builder.requests(leg)
        if scout is None:
            return builder.workers(setting).run(errand)
        run = scout.followed_by(errand)
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
        """End the worker that scouts, if it still does."""
        self._is_closed = True
        if self._scout is not None:
            self._scout.close()


def start_tuned_engine(
    works: EngineFactory, auto: Auto
) -> tuple[EngineSwitcher[BatchResult | EndOfStream], TuningDriver]:
    """Return the engine of an iteration, and who steers it."""
    choose = works.choose if auto.is_to_scout else None
    relay: EngineSwitcher[BatchResult | EndOfStream] = EngineSwitcher(
        works.recipes, works.start, auto.setting, choose=choose, on_close=works.close
    )
    return relay, TuningDriver(auto, relay, batch_bytes=works.batch_bytes, can_leave=works.can_leave)
