"""The engine of an iteration with "auto": measures samples first if that is due, and is resized while it runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.batch.result import BatchResult, EndOfStream
from stoker.engine.inline import Inline
from stoker.engine.processes.engine import WorkerRun
from stoker.engine.threads import Threads
from stoker.errors import StokerError, WorkerStuck
from stoker.loader.auto import Auto
from stoker.loader.sample_costs import CostRequests, PeekedRecipes
from stoker.tuning.parallelism import Parallelism
from stoker.tuning.sample_cost import SampleCost

if TYPE_CHECKING:
    from stoker.loader.build_iteration import EngineBuilder

log = logging.getLogger("stoker")

Result = BatchResult | EndOfStream


class TunedEngine:
    """Loads inline, by threads or by workers, as the tuner says, and changes while it runs.

    Threads and workers are resized. Loading inline, which has nothing in flight, is handed over to workers or threads
    between two batches. The other way is for the next iteration. So no batch is lost, repeated or reordered.
    """

    def __init__(self, builder: EngineBuilder, auto: Auto, recipes: Iterator[Any]) -> None:
        self._builder, self._auto, self._recipes = builder, auto, recipes
        self._engine: Inline[Any, Result] | Threads[Result] | WorkerRun[Result] | None = None
        self._measuring: WorkerRun[Any] | None = None
        """The worker that measures samples; it starts now, and measures when the first batch is asked for."""
        self._left: list[Result] = []
        """A result that an interrupt has kept from being returned."""
        self._lock = threading.RLock()
        """Held while waiting for a result, so that several threads may share an iterator."""
        self._is_closed = self._is_refused = False
        if auto.setting.num_workers and auto.space.can_be_inline and not self._can_fork():
            auto.stay()
        self._is_to_measure = auto.is_to_measure
        if self._is_to_measure:
            self._recipes = peeked = PeekedRecipes(recipes)
            source: Any = CostRequests(peeked, chosen_epoch=builder.loader._chosen_epoch, hint=builder.peeked_hint)
            self._measuring = builder.workers(auto.setting).run(source)
        else:
            auto.begin()
            self._engine = self._started(auto.setting)
        self.setting = auto.setting
        """The current setting, or the one to hand over to before the next batch."""

    def __next__(self) -> Result:
        taken: list[Result] = []
        try:
            with self._lock:
                taken.append(self._left.pop() if self._left else self._next())
            return taken[0]
        except BaseException:
            self._left += taken  # Ctrl-C while returning: keep it for the next call
            raise

    def _next(self) -> Result:
        if not self._is_closed and (self._engine is None or self._is_to_hand_over):
            self._start()
        if self._is_closed or self._engine is None:  # closed by another thread, perhaps meanwhile
            raise StopIteration
        return next(self._engine)

    def _start(self) -> None:
        """Start the first engine, after measuring samples if that is due, or the one after inline loading."""
        if self._is_to_measure:
            self.setting = self._auto.choose(self._measured())
            self._is_to_measure = False
        if self._engine is None:
            self._engine = self._started(self.setting)
        else:
            self._hand_over()
        if self._is_closed:  # meanwhile, by another thread
            self._engine.close()

    def _measured(self) -> SampleCost | None:
        """Return what samples cost, measured by a worker; None if that failed.

        An error of the data is dropped, because its batch raises it in its turn. But if the iteration is over, there is
        nothing to choose: raise `StopIteration`, or the error that says who has taken over.
        """
        run = self._measuring
        if run is None:
            return None
        try:
            cost: SampleCost = next(run)
            return cost
        except WorkerStuck as error:
            # slow, or really stuck: then the first batch will show it, in a worker with nothing else to do
            run.abandon()
            self._measuring = None
            log.info("auto: the first samples took longer than the timeout (%s)", str(error).splitlines()[0])
        except Exception as error:
            if self._is_closed:
                raise StopIteration from None
            if run.is_over:
                raise
            if not isinstance(error, StopIteration):
                reason = f"{type(error).__name__}: {error}"  # a log that kept the error would keep all of this
                log.info("auto: the first samples could not be measured (%s)", reason)
        return None

    def _started(self, setting: Parallelism) -> Inline[Any, Result] | Threads[Result] | WorkerRun[Result]:
        """Return an engine; the worker that has measured is kept, if workers are needed."""
        builder, run = self._builder, self._measuring
        self._measuring = None
        if not setting.num_workers:
            if run is not None:
                run.close()
            return builder.in_process(setting, self._recipes)
        source = builder.requests(self._recipes)
        if run is None:
            return builder.workers(setting).run(source)
        workers: WorkerRun[Result] = run.followed_by(source)
        workers.resize(setting.num_workers, setting.num_threads, setting.prefetch_factor)
        return workers

    @property
    def _is_to_hand_over(self) -> bool:
        return isinstance(self._engine, Inline) and not self.setting.is_inline

    def _hand_over(self) -> None:
        """Replace inline loading. If workers cannot be started, go on inline."""
        try:
            self._engine = self._started(self.setting)
        except (StokerError, OSError) as error:
            log.warning("auto: %s could not be started: %s", self.setting, str(error))
            self._is_refused = True
            self.setting = replace(self.setting, num_workers=0, num_threads=0)

    def change(self, setting: Parallelism) -> None:
        """Resize threads or workers now; hand over from inline loading before the next batch."""
        with self._lock:
            engine = self._engine
            if isinstance(engine, WorkerRun):
                assert setting.num_workers
                engine.resize(setting.num_workers, setting.num_threads, setting.prefetch_factor)
            elif isinstance(engine, Threads):
                assert setting.num_threads
                assert not setting.num_workers
                engine.resize(setting.num_threads, setting.prefetch_factor)
            self.setting = setting

    @property
    def is_settled(self) -> bool:
        """Whether there are as many workers and threads as the setting says."""
        if self._engine is None or self._is_to_hand_over:
            return False
        return self._engine.is_settled if isinstance(self._engine, WorkerRun) else True

    @property
    def most_workers(self) -> int | None:
        """The maximum number of worker processes, if it is known; 0 if none could be started."""
        if isinstance(self._engine, WorkerRun):
            return self._engine.most_workers
        return 0 if self._is_refused else None

    @property
    def can_have_workers(self) -> bool:
        """Whether there are workers, or they can be started although data was read in this process."""
        return not self.setting.is_inline or self._can_fork()

    def _can_fork(self) -> bool:
        return self._builder.context().get_start_method() != "fork" or self._auto.footprint.is_clean()

    @property
    def batch_bytes(self) -> int:
        """Size of the largest recent batch in shared memory; 0 if there is none."""
        ring = self._builder.loader._ring
        return 0 if ring is None else ring.sizes.largest_bytes

    @property
    def is_ready(self) -> bool:
        """Whether the next result, an error or the end is available without waiting."""
        if self._is_closed or self._left:
            return True
        return self._engine is not None and self._engine.is_ready

    def close(self) -> None:
        """End threads and processes, and wait for them."""
        self._is_closed = True
        self._left.clear()
        for engine in (self._engine, self._measuring):
            if engine is not None:
                engine.close()
