"""Worker processes for long, independent jobs.

The loader's engine makes batches into shared slots, in order, for a trainer. Jobs here take seconds and leave their
results on disk, so one pipe to each worker is all it takes; nothing of torch is loaded; and what is done so far can be
seen while a job runs.
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

from stoker.engine.processes.failure import Failure
from stoker.errors import WorkerDied
from stoker.foundation.processes import describe_exit, die_with_parent, hold_interrupts

J = TypeVar("J")
R = TypeVar("R")

Cell = NDArray[np.int64]
"""Numbers of one job, for those who watch: [documents, tokens, bytes read]."""

NUM_COUNTS = 3

MAX_ENDS = 3
"""Workers that a job, or the start, may end before it is to blame."""

LOOK_SECONDS = 0.1
"""How often whoever watches is told."""

PATIENCE_SECONDS = 1.0
"""How long a worker may take to end by itself before it is killed. It cannot while it is in a tokenizer's call."""

log = logging.getLogger("stoker")


class WorkerPool(Generic[J, R]):
    """Does jobs in worker processes, whoever is free the next one, and gives out results as they come.

    A worker that dies is replaced and its job done again; a job over which three have died is an error that names it.
    An error in a job is raised here. Leaving the block ends all workers before control returns. Workers end with this
    process, however it ends. With `num_workers=0` jobs are done here, one after the other.
    """

    def __init__(
        self,
        work: Callable[[J, Cell], R],
        *,
        num_workers: int,
        described: Callable[[J], str],
        watch: Callable[[list[int]], None] | None = None,
        begin: Callable[[], None] | None = None,
    ) -> None:
        self._work, self._described, self._watch, self._begin = work, described, watch, begin
        self._num_workers = num_workers
        # Anonymous: nothing of it is left, whatever happens. A row for each worker: its job's number, then its counts.
        memory = mmap.mmap(-1, 8 * (NUM_COUNTS + 1) * max(1, num_workers))
        self._board: NDArray[np.int64] = np.frombuffer(memory, np.int64).reshape(-1, NUM_COUNTS + 1)
        self._context = multiprocessing.get_context("fork")
        self._members: dict[int, _Member] = {}
        self._failed_starts: list[str] = []

    def __enter__(self) -> WorkerPool[J, R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def results(self, jobs: Sequence[J]) -> Iterator[tuple[int, R]]:
        """Yield the number of each job with its result, in the order in which they are done.

        While waiting, `watch` is told what the jobs in work have counted so far.
        """
        if not self._num_workers:
            for number, job in enumerate(jobs):
                self._board[0] = (number, 0, 0, 0)
                yield number, self._work(job, self._board[0, 1:])
            return
        waiting = deque(range(len(jobs)))
        ends: dict[int, list[str]] = {}
        for worker in range(min(self._num_workers, len(jobs))):
            self._start(worker)
        while waiting or any(member.job is not None for member in self._members.values()):
            for member in self._members.values():
                if member.job is None and member.is_ready and waiting:
                    self._give(member, waiting.popleft(), jobs)
            by_handle: dict[Any, _Member] = {}
            for member in self._members.values():
                by_handle[member.pipe] = by_handle[member.process.sentinel] = member
            ready = connection.wait(list(by_handle), LOOK_SECONDS)
            if self._watch is not None:
                self._watch(self._counts())
            for member in {id(by_handle[handle]): by_handle[handle] for handle in ready}.values():
                for number, result in member.answers():
                    yield number, result
                if member.process.exitcode is None and member.process.sentinel not in ready:
                    continue
                end = self._buried(member)
                if member.job is not None:
                    ends.setdefault(member.job, []).append(end)
                    if len(ends[member.job]) >= MAX_ENDS:
                        raise WorkerDied(self._described(jobs[member.job]), ends=ends[member.job])
                    waiting.appendleft(member.job)
                elif not member.is_ready:
                    self._note_failed_start(end)
                log.warning(
                    "worker %d has ended (%s) and is replaced; what it was at is made again", member.number, end
                )
                self._start(member.number)

    def _counts(self) -> list[int]:
        """Return the sums of what the jobs in work have counted."""
        busy = [member for member in self._members.values() if member.job is not None]
        rows = [self._board[member.number] for member in busy if self._board[member.number, 0] == member.job]
        return [int(sum(row[1 + at] for row in rows)) for at in range(NUM_COUNTS)]

    def _give(self, member: _Member, number: int, jobs: Sequence[J]) -> None:
        member.job = number
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died: its end is noticed, and this job's lack
            member.pipe.send((number, jobs[number]))

    def _start(self, worker: int) -> None:
        with hold_interrupts():
            ours, theirs = self._context.Pipe()
            inherited = [ours, *(member.pipe for member in self._members.values())]
            arguments = (self._work, theirs, inherited, self._board[worker], os.getpid(), self._begin)
            process = self._context.Process(target=_serve, args=arguments, daemon=True, name=f"stoker-prepare-{worker}")
            try:
                process.start()
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._members[worker] = _Member(worker, process, ours)

    def _buried(self, member: _Member) -> str:
        """Clear up after a worker that has ended; return how it ended."""
        member.process.join()
        code = member.process.exitcode or 0
        member.process.close()
        member.pipe.close()
        del self._members[member.number]
        return describe_exit(code)

    def _note_failed_start(self, end: str) -> None:
        self._failed_starts.append(end)
        if len(self._failed_starts) >= MAX_ENDS:
            raise WorkerDied("start-up", ends=self._failed_starts)

    def close(self) -> None:
        """End all workers, first by asking, so that they clear up what they are at, then by force."""
        members = list(self._members.values())
        try:
            for member in members:
                member.process.terminate()
            deadline = time.monotonic() + PATIENCE_SECONDS
            for member in members:
                member.process.join(max(0.0, deadline - time.monotonic()))
        finally:  # also when Ctrl-C comes a second time
            for member in members:
                member.process.kill()
            for member in members:
                self._buried(member)


class _Member:
    """A worker, seen from here."""

    def __init__(self, number: int, process: Any, pipe: Any) -> None:
        self.number, self.process, self.pipe = number, process, pipe
        self.job: int | None = None
        self.is_ready = False

    def answers(self) -> Iterator[tuple[int, Any]]:
        """Yield what it has said, which counts even if it has died since. An error is raised."""
        with suppress(EOFError, ConnectionResetError):
            while self.pipe.poll():
                number, result = self.pipe.recv()
                if number is None:
                    self.is_ready = True
                    continue
                self.job = None
                if isinstance(result, Failure):
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
    """Be a worker until there is nobody to work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    signal.signal(signal.SIGTERM, _leave)
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
                result = Failure(error)
            pipe.send((number, result))


def _leave(*_: object) -> None:
    raise SystemExit(0)
