"""Threads that build batches ahead of the training loop.

The samples of one batch are spread over all threads, so that the first batch does not wait for one core to do it all.
Batches are delivered in order; at most `depth` are begun or ready at any time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from stoker.engine.engine_protocols import BatchBuilder
from stoker.errors import ForeignProcess, WorkerStuck
from stoker.foundation.finalizer import Finalizer, run_interrupted
from stoker.foundation.machine import current_frames

log = logging.getLogger("stoker")

T = TypeVar("T")

PIECE_SECONDS = 200e-6
"""The least work worth handing to another thread: below it, waking one up costs more than it takes off."""

EXIT_SECONDS = 5.0
"""How long closing waits for a sample that is being read. A read that hangs must not hang the exit, too."""


class _Entry(Generic[T]):
    """One batch, and how far it is built."""

    __slots__ = ("builder", "claimed", "done", "error", "is_ready", "result", "size")

    def __init__(self, builder: BatchBuilder[T] | None, error: BaseException | None = None) -> None:
        self.builder = builder
        self.size = builder.size if builder is not None else 0
        self.claimed = self.done = 0
        self.result: T | None = None
        self.error = error
        self.is_ready = error is not None


class _SharedState(Generic[T]):
    """What the threads share. They hold no reference to the `Threads` object, so that its end can stop them."""

    def __init__(self, builders: Iterator[BatchBuilder[T]], *, num_threads: int, depth: int, draws: bool) -> None:
        self.builders = builders
        self.num_threads, self.depth, self.draws = num_threads, depth, draws
        self.entries: deque[_Entry[T]] = deque()
        self.is_drawing = self.is_exhausted = False
        self.unit_seconds = float("inf")  # how long a unit takes, as far as seen: at first, long enough to spread out
        self.process = os.getpid()
        # Reentrant, because garbage collection may run a finalizer, and with it `stop`, in a thread that holds it.
        lock = threading.RLock()
        self.work = threading.Condition(lock)  # there may be something to do
        self.ready = threading.Condition(lock)  # the first entry may be ready
        self.threads: dict[int, threading.Thread] = {}
        """By number. One whose number is not wanted any more leaves when it has done what it is at."""
        self.generation = 0
        """Which start the threads belong to. One that comes back late, after a stop, finds its generation over."""
        self.is_running = False

    def start(self) -> None:
        self.is_running = True
        # Daemons: a non-daemon thread would be waited for before anything of ours runs at the interpreter's exit. Their
        # ordinary end is `stop`, which waits for them.
        for number in range(self.num_threads):
            if number in self.threads:
                continue
            thread = threading.Thread(
                target=self.run, args=(self.generation, number), name=f"stoker-{number}", daemon=True
            )
            self.threads[number] = thread
            try:
                thread.start()
            except RuntimeError as error:  # there can be no more of them
                del self.threads[number]
                if not self.threads:
                    raise
                self.num_threads = number
                log.warning("thread %d could not be started (%s); there are %d", number, str(error), len(self.threads))
                return

    def resize(self, num_threads: int, depth: int) -> None:
        """Change the number of threads and of batches ahead. Batches that are begun are completed."""
        with self.work:
            self.num_threads, self.depth = num_threads, depth
            if self.is_running:
                self.start()
            self.work.notify_all()

    def run(self, generation: int, number: int) -> None:
        with self.work:
            while self.generation == generation and number < self.num_threads:
                if claim := self.claimed():
                    self.do(*claim)
                elif self.draws and not self.is_drawing and self.has_room:
                    self.is_drawing = True
                    self.draw()
                else:
                    self.work.wait()
            if self.generation == generation:
                del self.threads[number]
                self.work.notify()  # it may have been woken up for work that is now another one's

    @property
    def has_room(self) -> bool:
        return not self.is_exhausted and len(self.entries) < self.depth

    def claimed(self) -> tuple[_Entry[T], int, int] | None:
        """Take the next parts of the earliest batch that has any left."""
        for entry in self.entries:
            if entry.claimed < entry.size:
                # A share of what is left: large pieces first for little overhead, small ones last so that all threads
                # end together; but none so small that it is not worth it.
                start, left = entry.claimed, entry.size - entry.claimed
                worth_it = int(PIECE_SECONDS / self.unit_seconds) if self.num_threads > 1 else left
                entry.claimed += min(left, max(1, left // (2 * self.num_threads), worth_it))
                return entry, start, entry.claimed
        return None

    def draw(self) -> None:
        """Open the next builder, one thread at a time, so that order is kept. The lock is released meanwhile."""
        self.work.release()
        entry: _Entry[T] | None = None
        try:
            entry = _Entry(next(self.builders))
        except StopIteration:
            pass
        except Exception as error:
            # A traceback that leads to the caller would keep the `Threads` alive, and the threads with it.
            entry = _Entry(None, error if self.draws else error.with_traceback(None))
        finally:
            self.work.acquire()
            self.is_drawing = False
        if entry is None:
            self.is_exhausted = True
            self.ready.notify_all()
            return
        self.entries.append(entry)
        if entry.is_ready:
            self.ready.notify_all()
        elif entry.size == 0:
            self.work.notify()  # another may draw while this one finishes
            self.finish(entry)
        elif entry.size * self.unit_seconds > PIECE_SECONDS:
            self.work.notify_all()
        else:
            self.work.notify()

    def do(self, entry: _Entry[T], start: int, stop: int) -> None:
        assert entry.builder is not None
        self.work.release()
        error: BaseException | None = None
        began = time.perf_counter()
        try:
            entry.builder.do(start, stop)
        except BaseException as caught:
            error = caught
        finally:
            seconds = max(1e-9, (time.perf_counter() - began) / (stop - start))
            self.work.acquire()
        self.unit_seconds = seconds if self.unit_seconds == float("inf") else (self.unit_seconds + seconds) / 2
        entry.done += stop - start
        if error is not None and entry.error is None:
            entry.error = error
            entry.done += entry.size - entry.claimed  # the rest of it is not needed
            entry.claimed = entry.size
        error = None  # its traceback holds this frame; holding it in turn would leave both to the garbage collector
        if entry.done == entry.size:
            self.finish(entry)

    def finish(self, entry: _Entry[T]) -> None:
        if entry.error is None:
            assert entry.builder is not None
            self.work.release()
            try:
                entry.result = entry.builder.finish()
            except BaseException as caught:
                entry.error = caught
            finally:
                self.work.acquire()
        entry.is_ready = True
        entry.builder = None
        self.ready.notify_all()

    def stop(self) -> None:
        """End the threads. What they have begun stays, for `start` to go on with."""
        if os.getpid() != self.process:
            return  # the threads are the parent's, and so is the lock
        with self.work:
            self.generation += 1
            self.is_running = False
            threads, self.threads = list(self.threads.values()), {}
            self.work.notify_all()
            self.ready.notify_all()
        if threading.current_thread() in threads:
            return  # it will see to its own end
        deadline = time.monotonic() + EXIT_SECONDS
        for thread in threads:
            if thread.ident is not None:  # an interrupt may have come before it was started
                thread.join(max(0.0, deadline - time.monotonic()))

    def stacks(self) -> str:
        frames = current_frames()
        return "\n".join(
            f"thread {thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
            for thread in list(self.threads.values())
            if thread.ident in frames
        )


class Threads(Generic[T]):
    """Builds batches on `num_threads` threads, at most `depth` batches ahead.

    The caller draws from `builders`, where that is quick and may use the caller's random numbers; with `draws`, the
    threads do, one at a time. The threads end with the last batch, an error, Ctrl-C or `close`, when this object is
    freed, and with the interpreter. After an error the next call starts them again.
    """

    def __init__(
        self,
        builders: Iterator[BatchBuilder[T]],
        *,
        num_threads: int,
        depth: int,
        timeout: float = 0,
        draws: bool = False,
    ) -> None:
        self._state = _SharedState(builders, num_threads=num_threads, depth=depth, draws=draws)
        self._timeout = timeout
        run_interrupted()
        Finalizer(self, self._state.stop)

    def __next__(self) -> T:
        state = self._state
        if os.getpid() != state.process:
            raise ForeignProcess
        try:
            if not state.is_running:
                state.start()
            with state.ready:
                self._fill()
                while not (state.entries and state.entries[0].is_ready):
                    if state.is_exhausted and not state.entries:
                        raise StopIteration
                    if not state.ready.wait(self._timeout or None):
                        raise WorkerStuck(seconds=self._timeout, stacks=state.stacks())
                entry = state.entries.popleft()
                if entry.error is None:
                    try:
                        self._fill()
                    except BaseException:
                        state.entries.appendleft(entry)  # an interrupt: the batch is for the next call
                        raise
            error, entry.error = entry.error, None
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # or the error would hold this frame, and the frame the error
        except WorkerStuck:
            raise  # perhaps only slow: the next call waits on
        except BaseException:
            state.stop()  # the end, an error or Ctrl-C: leave no thread running
            raise
        return entry.result  # type: ignore[return-value]

    @property
    def is_ready(self) -> bool:
        """Whether the next result, an error or the end can be had without waiting."""
        state = self._state
        with state.ready:
            return state.entries[0].is_ready if state.entries else state.is_exhausted

    def resize(self, num_threads: int, depth: int) -> None:
        """Change the number of threads, and of batches ahead. Order and batches stay what they would have been."""
        self._state.resize(num_threads, depth)

    def _fill(self) -> None:
        """See to it that as much is begun as may be."""
        state = self._state
        if state.draws:
            state.work.notify()
        else:
            while state.has_room:
                state.draw()

    def close(self) -> None:
        """End the threads before control returns."""
        self._state.stop()
