"""Worker processes for long, independent jobs.

The loader's engine writes batches into shared slots, in order, for a training loop. Jobs here take seconds and leave
their results on disk, so one pipe per worker is enough; torch is not loaded; and progress is visible while a job runs.
"""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from stoker.engine.processes.failure import WorkerFailure
from stoker.errors import WorkerDied
from stoker.foundation.processes import describe_exit, die_with_parent, hold_interrupts

J = TypeVar("J")
R = TypeVar("R")

Cell = NDArray[np.int64]
"""Progress of one job, in shared memory: [documents, tokens, bytes read]."""

NUM_COUNTS = 3

MAX_DEATHS = 3
"""Workers that may die during a job, or during start-up, before that is an error."""

REPORT_SECONDS = 0.1
"""Interval of progress reports."""

EXIT_SECONDS = 1.0
"""How long a worker may take to exit before it is killed. It cannot exit during a call of a tokenizer."""

log = logging.getLogger("stoker")


class WorkerPool(Generic[J, R]):
    """Runs jobs in worker processes, each in the next free one, and yields results as they are completed.

    A worker that dies is replaced and its job repeated; a job during which three workers died is an error that names
    it. An error in a job is raised here. Leaving the block ends all workers before control returns. Workers end with
    this process, however it ends. With `num_workers=0` jobs run in this process, one after the other.
    """

    def __init__(
        self,
        work: Callable[[J, Cell], R],
        *,
        num_workers: int,
        describe: Callable[[J], str],
        watch: Callable[[list[int]], None] | None = None,
        begin: Callable[[], None] | None = None,
    ) -> None:
        self._work, self._describe, self._watch, self._begin = work, describe, watch, begin
        self._num_workers = num_workers
        # Anonymous memory, so that nothing is left behind. One row per worker: the number of its job, then its counts.
        memory = mmap.mmap(-1, 8 * (NUM_COUNTS + 1) * max(1, num_workers))
        self._progress: NDArray[np.int64] = np.frombuffer(memory, np.int64).reshape(-1, NUM_COUNTS + 1)
        self._context = multiprocessing.get_context("fork")
        self._workers: dict[int, _WorkerHandle] = {}
        self._failed_starts: list[str] = []

    def __enter__(self) -> WorkerPool[J, R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def results(self, jobs: Sequence[J]) -> Iterator[tuple[int, R]]:
        """Yield the number of each job with its result, in the order of completion.

        While waiting, `watch` is called with the summed progress of the running jobs.
        """
        if not self._num_workers:
            for number, job in enumerate(jobs):
                self._progress[0] = (number, 0, 0, 0)
                yield number, self._work(job, self._progress[0, 1:])
            return
        waiting = deque(range(len(jobs)))
        deaths: dict[int, list[str]] = {}
        for number in range(min(self._num_workers, len(jobs))):
            self._start(number)
        while waiting or any(worker.job is not None for worker in self._workers.values()):
            for worker in self._workers.values():
                if worker.job is None and worker.is_ready and waiting:
                    self._give(worker, waiting.popleft(), jobs)
            by_handle: dict[Any, _WorkerHandle] = {}
            for worker in self._workers.values():
                by_handle[worker.pipe] = by_handle[worker.process.sentinel] = worker
            ready = connection.wait(list(by_handle), REPORT_SECONDS)
            if self._watch is not None:
                self._watch(self._counts())
            for worker in {id(by_handle[handle]): by_handle[handle] for handle in ready}.values():
                for number, result in worker.answers():
                    yield number, result
                if worker.process.exitcode is None and worker.process.sentinel not in ready:
                    continue
                end = self._remove_exited(worker)
                if worker.job is not None:
                    deaths.setdefault(worker.job, []).append(end)
                    if len(deaths[worker.job]) >= MAX_DEATHS:
                        raise WorkerDied(self._describe(jobs[worker.job]), ends=deaths[worker.job])
                    waiting.appendleft(worker.job)
                elif not worker.is_ready:
                    self._note_failed_start(end)
                log.warning("worker %d died (%s) and is replaced; its job is repeated", worker.number, end)
                self._start(worker.number)

    def _counts(self) -> list[int]:
        """Return the summed progress of the running jobs."""
        busy = [worker for worker in self._workers.values() if worker.job is not None]
        rows = [self._progress[worker.number] for worker in busy if self._progress[worker.number, 0] == worker.job]
        return [int(sum(row[1 + at] for row in rows)) for at in range(NUM_COUNTS)]

    def _give(self, worker: _WorkerHandle, number: int, jobs: Sequence[J]) -> None:
        worker.job = number
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: `results` notices, and repeats the job
            worker.pipe.send((number, jobs[number]))

    def _start(self, number: int) -> None:
        with hold_interrupts():
            ours, theirs = self._context.Pipe()
            inherited = [ours, *(worker.pipe for worker in self._workers.values())]
            arguments = (self._work, theirs, inherited, self._progress[number], os.getpid(), self._begin)
            process = self._context.Process(target=_serve, args=arguments, daemon=True, name=f"stoker-prepare-{number}")
            try:
                process.start()
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._workers[number] = _WorkerHandle(number, process, ours)

    def _remove_exited(self, worker: _WorkerHandle) -> str:
        """Release the resources of an exited worker; return how it ended."""
        worker.process.join()
        code = worker.process.exitcode or 0
        worker.process.close()
        worker.pipe.close()
        del self._workers[worker.number]
        return describe_exit(code)

    def _note_failed_start(self, end: str) -> None:
        self._failed_starts.append(end)
        if len(self._failed_starts) >= MAX_DEATHS:
            raise WorkerDied("start-up", ends=self._failed_starts)

    def close(self) -> None:
        """End all workers, first with SIGTERM, so that they remove unfinished files, then with SIGKILL."""
        workers = list(self._workers.values())
        try:
            for worker in workers:
                worker.process.terminate()
            deadline = time.monotonic() + EXIT_SECONDS
            for worker in workers:
                worker.process.join(max(0.0, deadline - time.monotonic()))
        finally:  # also when Ctrl-C comes a second time
            for worker in workers:
                worker.process.kill()
            for worker in workers:
                self._remove_exited(worker)


class _WorkerHandle:
    """A worker process and its pipe, in the parent."""

    def __init__(self, number: int, process: Any, pipe: Any) -> None:
        self.number, self.process, self.pipe = number, process, pipe
        self.job: int | None = None
        self.is_ready = False

    def answers(self) -> Iterator[tuple[int, Any]]:
        """Yield its results, including those sent before it died. An error is raised."""
        with suppress(EOFError, ConnectionResetError):
            while self.pipe.poll():
                number, result = self.pipe.recv()
                if number is None:
                    self.is_ready = True
                    continue
                self.job = None
                if isinstance(result, WorkerFailure):
                    raise result.error()
                yield number, result


def _serve(
    work: Callable[[Any, Cell], Any],
    pipe: Any,
    inherited: list[Any],
    row: Cell,
    parent: int,
    begin: Callable[[], None] | None,
) -> None:
    """Run jobs until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, _exit)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    die_with_parent(parent)
    for end in inherited:
        end.close()
    if begin is not None:
        begin()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send((None, None))
        while True:
            number, job = pipe.recv()
            row[:] = (number, 0, 0, 0)
            try:
                result = work(job, row[1:])
            except Exception as error:
                result = WorkerFailure(error)
            pipe.send((number, result))


def _exit(*_: object) -> None:
    raise SystemExit(0)
