"""What a worker process does: take a request, build the batch into its slot, reply.

A worker holds no lock that anyone else waits for, keeps nothing that is not in a slot, and ends when its trainer does.
"""

from __future__ import annotations

import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from stoker.engine.engine_protocols import BatchBuilder, BuilderFactory
from stoker.engine.processes import worker_info as identity
from stoker.engine.processes.failure import WorkerFailure
from stoker.engine.processes.in_flight import LANES
from stoker.engine.processes.messages import (
    APART,
    FAILURE,
    INLINE_BYTES,
    PACKET_BYTES,
    READY,
    RETIRED,
    VIEWS,
    WHOLE,
    Reply,
    WorkerRequest,
    request_in,
    send_file,
)
from stoker.engine.processes.shared_pickle import SharedPickle
from stoker.engine.processes.stacks import Stacks
from stoker.engine.slots.arena import Arena, Extent
from stoker.engine.slots.batch_pickle import BatchPickler
from stoker.engine.slots.slot_writer import SlotWriter
from stoker.engine.threads import Threads
from stoker.errors import NotPicklable, OutOfSharedMemory, WorkerError
from stoker.foundation.processes import die_with_process

Factory = BuilderFactory[SlotWriter]


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """What every worker gets."""

    builders: Factory
    dataset: Any
    worker_init_fn: Callable[[int], Any] | None


@dataclass(slots=True)
class WorkerSettings:
    """Which worker this is, and its ends of the channels."""

    worker: int
    num_workers: int
    num_threads: int
    seed: int
    small_bytes: int
    arena: Arena
    in_flight: Extent
    """Where the table of requests in flight is."""
    threads_cell: int | None
    """The cell of that table with the present number of threads; None if it never changes."""
    requests: socket.socket
    replies: socket.socket
    files: socket.socket
    """For batches that are too big for the addresses of their slots."""
    stacks: Stacks
    trainer: int
    is_from_main_thread: bool
    trainers_ends: tuple[socket.socket, ...]
    """What a fork inherits and must close; empty otherwise."""


def work(settings: WorkerSettings, job: WorkerJob | SharedPickle) -> None:
    """Be a worker until the requests end."""
    for end in settings.trainers_ends:
        end.close()
    _leave_signals()
    die_with_process(settings.trainer, is_started_by_its_main_thread=settings.is_from_main_thread)
    settings.stacks.answer()
    torch.set_num_threads(1)
    with suppress(BrokenPipeError, ConnectionResetError):  # the trainer has closed the channel: nothing more is wanted
        _serve(settings, job)


def _leave_signals() -> None:
    """Leave Ctrl-C to the trainer, and drop the signal handlers that a fork has inherited from it."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            # an ignored SIGCHLD would take the exit codes of the user's own children away
            is_usual = number in (signal.SIGTERM, signal.SIGCHLD)
            signal.signal(number, signal.SIG_DFL if is_usual else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _serve(settings: WorkerSettings, job: WorkerJob | SharedPickle) -> None:
    """Set up, say that this worker is ready, and answer requests."""
    empty = Reply(settings.worker, READY, 0, Extent(0, 0), 0, 0, 0, b"")
    try:
        if isinstance(job, SharedPickle):
            job = job.unpacked()
        assert isinstance(job, WorkerJob)
        identity.become(settings.worker, settings.num_workers, seed=settings.seed, dataset=job.dataset)
        if job.worker_init_fn is not None:
            job.worker_init_fn(settings.worker)
    except BaseException as error:
        content = _pickled_failure(error)
        if len(content) > PACKET_BYTES // 2:  # there is no slot yet to put it in
            content = _pickled_failure(WorkerError(f"{type(error).__qualname__}: {error}"[:1000]))
        settings.replies.send(empty._replace(kind=FAILURE, content=content).packet())
        return
    settings.replies.send(empty.packet())
    cells = settings.arena.numbers(settings.in_flight)
    lanes = [_Lane(settings, cells, number) for number in range(LANES)]
    threads, inbox = _ThreadCount(settings, cells), _Inbox(settings.requests, job.builders)
    try:
        while not inbox.is_over:
            serve = _serve_with_threads if threads.wanted > 1 else _serve_alone
            serve(settings.replies, lanes, job.builders, inbox, threads)
    finally:
        job.builders.close(at_exit=True)
    if inbox.is_to_retire:
        settings.replies.send(empty._replace(kind=RETIRED).packet())


class _ThreadCount:
    """How many threads there should be: as many as at the start, or as the trainer has written since."""

    def __init__(self, settings: WorkerSettings, cells: memoryview) -> None:
        self._at_start, self._cells, self._cell = settings.num_threads, cells, settings.threads_cell

    @property
    def is_fixed(self) -> bool:
        """Whether that never changes."""
        return self._cell is None

    @property
    def wanted(self) -> int:
        """How many there should be now."""
        return self._at_start if self._cell is None else self._cells[self._cell]


class _Inbox:
    """Requests, one after the other, until there are no more or this worker is to retire."""

    def __init__(self, requests: socket.socket, builders: Factory) -> None:
        self._requests, self._builders = requests, builders
        self._buffer = memoryview(bytearray(PACKET_BYTES))
        self.is_over = self.is_to_retire = False

    def __iter__(self) -> Iterator[WorkerRequest]:
        while not self.is_over and (size := self._requests.recv_into(self._buffer)):
            request = request_in(self._buffer[:size])
            if request.ticket:
                yield request
            elif request.slot:  # END_OF_ITERATION
                self._builders.close()
            else:  # RETIRE
                self.is_to_retire = True
                break
        self.is_over = True


def _serve_alone(
    replies: socket.socket, lanes: list[_Lane], builders: Factory, inbox: _Inbox, threads: _ThreadCount
) -> None:
    """Build batches one after the other, in the main thread, until there should be threads."""
    lane, is_fixed = lanes[0], threads.is_fixed
    for request in inbox:
        replies.send(lane.built(request, builders))
        if not is_fixed and threads.wanted > 1:
            return


def _serve_with_threads(
    replies: socket.socket, lanes: list[_Lane], builders: Factory, inbox: _Inbox, threads: _ThreadCount
) -> None:
    """Build batches with several threads, two at a time, until there should be none."""
    num_threads = threads.wanted
    in_lanes = _InLanes(lanes, builders, inbox, threads)
    engine = Threads(in_lanes.builders(), num_threads=num_threads, depth=len(lanes), draws=True)
    try:
        while True:
            try:
                packet = next(engine)
            except StopIteration:
                return
            replies.send(packet)
            in_lanes.note_answered()
            if not threads.is_fixed and threads.wanted not in (0, 1, num_threads):
                num_threads = threads.wanted
                engine.resize(num_threads, len(lanes))
    finally:
        engine.close()


class _Lane:
    """Where one batch at a time is built: its cell in the table of requests in flight, and the writer of its slot."""

    def __init__(self, settings: WorkerSettings, cells: memoryview, number: int) -> None:
        self._worker, self._cells, self._files = settings.worker, cells, settings.files
        self._cell = settings.worker * LANES + number
        self._in_slot = 0
        self.slot = SlotWriter(settings.arena)
        self._pickler = BatchPickler(self.slot, small_bytes=settings.small_bytes)

    def opened(self, request: WorkerRequest) -> Any:
        """Begin a request, and return its content. From here on, the table shows that this worker has it."""
        self._cells[self._cell] = request.ticket
        self.slot.open(request.slot, request.extent, request.end, request.wanted)
        self._in_slot = request.in_slot
        return pickle.loads(self.slot.read(request.in_slot) if request.in_slot else request.content)

    def built(self, request: WorkerRequest, builders: Factory) -> bytes:
        """Build what a request asks for in this thread; return the packet that answers it."""
        try:
            result = builders.build(self.opened(request), self.slot)
            return self.packed(request.ticket, builders.encode(result))
        except BaseException as error:
            return self.failed(request.ticket, error)

    def packed(self, ticket: int, result: Any) -> bytes:
        """Return the packet for a result, whose large parts lie in the slot."""
        try:
            content = self._pickler.packed(result)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise NotPicklable("the batch", reason=reason, start_method="any") from error
        return self._packet(ticket, VIEWS if self.slot.num_bytes else WHOLE, content)

    def failed(self, ticket: int, error: BaseException) -> bytes:
        """Return the packet for an error."""
        self.slot.leave()
        self.slot.clear()
        try:
            return self._packet(ticket, FAILURE, _pickled_failure(error))
        except (OutOfSharedMemory, OSError) as lack:
            self.slot.leave()
            return self._reply(ticket, FAILURE, 0, 0, _pickled_failure(lack))

    def _packet(self, ticket: int, kind: int, content: bytes) -> bytes:
        start = size = 0
        if len(content) > INLINE_BYTES:
            size = len(content)
            memory, start = self.slot.take(size)
            memory[start : start + size] = content
            content = b""
        return self._reply(ticket, kind, start, size, content)

    def _reply(self, ticket: int, kind: int, start: int, size: int, content: bytes) -> bytes:
        slot = self.slot
        slot.fit()
        extent, file = slot.extent, slot.file
        if file is not None:
            extent = Extent(APART, extent.num_bytes)
            send_file(self._files, ticket, file)
            slot.leave()
        used = max(slot.num_bytes, self._in_slot)
        return Reply(self._worker, kind, ticket, extent, used, start, size, content).packet()


class _InLanes:
    """Requests given to the lanes in turn. One that is to be built alone waits for the others, and they for it."""

    def __init__(self, lanes: list[_Lane], builders: Factory, inbox: _Inbox, threads: _ThreadCount) -> None:
        self._lanes, self._builders, self._inbox, self._threads = lanes, builders, inbox, threads
        self._num_open = 0
        self._changed = threading.Condition()

    def builders(self) -> Iterator[_RequestBuilder]:
        """Yield the builder of each request, as long as there should be threads for it."""
        was_alone = False
        for number, request in enumerate(self._inbox):
            with self._changed:
                if was_alone or request.is_alone:
                    self._changed.wait_for(lambda: not self._num_open)
                self._num_open += 1
            was_alone = request.is_alone
            yield _RequestBuilder(self._lanes[number % len(self._lanes)], request, self._builders)
            if self._threads.wanted < 2:
                return

    def note_answered(self) -> None:
        """Note that a request was answered."""
        with self._changed:
            self._num_open -= 1
            self._changed.notify()


class _RequestBuilder:
    """Builds the packet that answers a request. Errors are answers, too, and do not end the threads."""

    def __init__(self, lane: _Lane, request: WorkerRequest, builders: Factory) -> None:
        self._lane, self._ticket, self._encode = lane, request.ticket, builders.encode
        self._error: BaseException | None = None
        self._builder: BatchBuilder[Any] | None = None
        self.size = 0
        try:
            self._builder = builders.builder(lane.opened(request), lane.slot)
            self.size = self._builder.size
        except BaseException as error:
            self._error = error

    def do(self, start: int, stop: int) -> None:
        """Do some parts, unless another one has failed already."""
        if self._error is None:
            assert self._builder is not None
            try:
                self._builder.do(start, stop)
            except BaseException as error:
                self._error = error

    def finish(self) -> bytes:
        """Return the packet that answers the request."""
        try:
            if self._error is not None:
                return self._lane.failed(self._ticket, self._error)
            assert self._builder is not None
            return self._lane.packed(self._ticket, self._encode(self._builder.finish()))
        except BaseException as error:
            return self._lane.failed(self._ticket, error)
        finally:
            self._error = None


def _pickled_failure(error: BaseException) -> bytes:
    return pickle.dumps(WorkerFailure(error), 5)
