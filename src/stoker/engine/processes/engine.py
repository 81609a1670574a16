"""The engine of worker processes."""

from __future__ import annotations

import os
import time
from typing import Any, Generic, TypeVar

from stoker.engine.processes.team import Closed, Team, park_at_exit
from stoker.engine.processes.totals import WorkerTotals
from stoker.engine.processes.worker import WorkerJob
from stoker.engine.processes.worker_requests import Pending, Queue, RequestSource, WorkerOptions
from stoker.engine.slots.ring import Ring
from stoker.errors import ForeignProcess, WorkerError, WorkerStuck
from stoker.foundation.finalizer import Finalizer, run_interrupted

T = TypeVar("T")


class Processes(Generic[T]):
    """The worker processes of a loader. `run` starts them, or reuses them if they are persistent."""

    def __init__(
        self,
        job: WorkerJob,
        options: WorkerOptions,
        ring: Ring,
        *,
        is_persistent: bool,
        totals: WorkerTotals | None = None,
    ) -> None:
        self._job, self._options, self._ring = job, options, ring
        self._totals = WorkerTotals() if totals is None else totals
        self._team: Team | None = None
        self._is_persistent = is_persistent

    def run(self, source: RequestSource[T]) -> WorkerRun[T]:
        """Make what `source` says, from the first recipe to the last."""
        run_interrupted()
        queue: Queue[T] = Queue(source, in_order=self._options.in_order)
        if not self._is_persistent:
            team = Team(self._job, self._options, self._ring, self._totals)
            try:
                team.start()
                return WorkerRun(team, queue, is_owner=True)
            except BaseException:
                team.close()
                raise
        if self._team is None:
            self._team = Team(self._job, self._options, self._ring, self._totals)
            Finalizer(self, self._team.close)
        team = self._team
        if team.queue is not None:
            with team.lock:  # another thread may be waiting for a result of the last one
                team.end(team.queue)
            if not team.is_running:
                source.restarted([], [])  # the workers it knew are gone
        if not team.is_running:
            team.start()
        return WorkerRun(team, queue, is_owner=False)


class WorkerRun(Generic[T]):
    """One iteration's results, in the order of the recipes or as they come.

    Workers that are not persistent end with this object, or before. The team holds on to the queue, and never to this.
    """

    def __init__(self, team: Team, queue: Queue[T], *, is_owner: bool) -> None:
        self._team, self._queue = team, queue
        team.queue = queue
        self._end = Finalizer(self, _end, team, queue, is_owner)
        self._is_owner = is_owner
        self._depth = team.depth

    def __next__(self) -> T:
        if os.getpid() != self._team.process:
            raise ForeignProcess
        taken: Pending | None = None
        try:
            with self._team.lock:
                try:
                    taken = self._next()
                except Closed:
                    raise StopIteration from None  # as it would be if it had been closed before
            if Team.is_at_exit:
                park_at_exit()
            return taken.result  # type: ignore[no-any-return]
        except BaseException:
            if taken is not None:  # Ctrl-C on the way out: the batch is for the next call
                self._queue.entries.appendleft(taken)
            if Team.is_at_exit:
                park_at_exit()
            raise

    def _next(self) -> Pending:
        team, queue = self._team, self._queue
        if not self._end.alive or queue.is_closing or Team.is_at_exit:
            raise StopIteration
        if queue.is_over or team.is_closed:
            raise WorkerError(
                "a newer iterator has taken over the persistent workers, or the loader has let go of them\n"
                "hint: use one iterator at a time, or persistent_workers=False"
            )
        try:
            is_restarting = not team.is_running
            if is_restarting:
                team.restart()
            if is_restarting or not queue.entries:
                self._fill(self._depth)
            pending = self._awaited()
            self._fill(self._depth + 1)
            result = team.result_of(pending)
        except Exception:
            raise
        except BaseException:
            team.stop()  # Ctrl-C: leave no worker running; the next call starts them again
            raise
        if pending.error is not None:
            try:
                queue.entries.popleft()
                raise pending.error
            finally:
                pending.error = None  # or the error would hold this frame, and the frame the error
                del pending, result
        # Taken only now: whatever an interrupt has cut short, the batch is for the next call.
        return queue.entries.popleft()

    def _awaited(self) -> Pending:
        """Return the next request that is done; wait for it."""
        team, entries = self._team, self._queue.entries
        if not entries:
            raise StopIteration
        timeout = team.options.timeout
        deadline = time.monotonic() + timeout if timeout else None
        while not entries[0].is_done:
            if team.failure is not None:
                failure, team.failure = team.failure, None  # or the team would hold this frame, and with it its owner
                team.stop()
                try:
                    raise failure.with_traceback(None)
                finally:
                    del failure
            left = None if deadline is None else max(0.001, deadline - time.monotonic())
            if not team.receive(left) and deadline is not None and time.monotonic() >= deadline:
                what = self._queue.source.described(entries[0].recipe)
                raise WorkerStuck(seconds=timeout, stacks=team.stacks(entries[0]), what=what)
            if not entries:
                raise Closed
        return entries[0]

    def _fill(self, depth: int) -> None:
        """Send requests until `depth` are in flight. A request that Ctrl-C has cut short is completed first."""
        team, queue = self._team, self._queue
        entries = queue.entries
        while True:
            pending = entries[-1] if entries else None
            if pending is None or pending.ticket or pending.is_done:
                if queue.is_exhausted or len(entries) >= depth:
                    return
                pending = Pending(queue)
                entries.append(pending)
            if pending.recipe is None:
                try:
                    pending.recipe = next(queue.source)
                except StopIteration:
                    queue.is_exhausted = True
                    entries.pop()
                    return
            team.give(pending)

    def followed_by(self, source: RequestSource[T]) -> WorkerRun[T]:
        """Return the results of another source, made by the same workers from now on. This one is over."""
        team = self._team
        self._end.detach()
        with team.lock:
            team.end(self._queue)
        return WorkerRun(team, Queue(source, in_order=team.options.in_order), is_owner=self._is_owner)

    def resize(self, num_workers: int, num_threads: int, prefetch_factor: int) -> None:
        """Change the number of workers, of threads in each, and of batches in flight for each.

        New workers begin when they have started; surplus ones retire after their present batch. The order of
        the results, and what is in them, is as it would have been.
        """
        team = self._team
        with team.lock:
            if team.is_closed or self._queue.is_over:
                return
            try:
                team.resize(num_workers, num_threads, prefetch_factor)
                self._depth = team.depth
            except Exception:
                raise
            except BaseException:
                team.stop()  # Ctrl-C: the next call starts as many as there should be
                raise

    @property
    def most_workers(self) -> int:
        """How many workers there can be, as far as is known: one more may have failed to start."""
        return self._team.most_workers

    @property
    def is_settled(self) -> bool:
        """Whether there are as many workers as there should be, and all of them have begun."""
        team = self._team
        with team.lock:
            if not team.is_running or self._queue.is_over:
                return True
            try:
                team.take_in_arrived()
            except Closed:
                return True
            except BaseException:
                team.stop()  # Ctrl-C: the reply being taken in is requested again
                raise
            return team.is_settled

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or another iteration has taken the workers over."""
        return not self._end.alive or self._queue.is_over or self._team.is_closed

    @property
    def is_ready(self) -> bool:
        """Whether the next result, or the end, can be had without waiting."""
        team, queue = self._team, self._queue
        if (
            os.getpid() != team.process
            or queue.is_over
            or team.is_closed
            or not team.is_running
            or team.failure is not None
        ):
            return True
        try:
            with team.lock:
                if not queue.entries:
                    self._fill(self._depth)
                while queue.entries and not queue.entries[0].is_done:
                    if not team.receive(0):
                        return team.failure is not None
        except Exception:
            raise
        except BaseException:
            team.stop()  # Ctrl-C: the reply being taken in is requested again
            raise
        return True

    def close(self) -> None:
        """End the workers, unless they are persistent; what they are at then ends by itself.

        Another thread that waits for a batch meanwhile is sent away first: at once, or, where workers stay and none
        says anything, within `POLL_SECONDS`.
        """
        team = self._team
        if os.getpid() != team.process:
            self._end()
            return
        self._queue.is_closing = True
        if not team.lock.acquire(blocking=False):
            if self._is_owner:
                team.wake()
            team.lock.acquire()
        try:
            self._end()
        finally:
            team.lock.release()

    def abandon(self) -> None:
        """End the workers, also persistent ones, at whatever they are. The next iteration starts new ones."""
        with self._team.lock:
            self._team.stop()
        self._end()


def _end(team: Team, queue: Queue[Any], is_owner: bool) -> None:
    if os.getpid() != team.process:
        return
    team.end(queue)
    if is_owner:
        team.close()
