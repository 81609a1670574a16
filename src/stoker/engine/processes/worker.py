"""The life of a worker process: take a request, make the batch into its slot, say so.

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
from typing import Any, Protocol

import torch

from stoker.engine.processes import worker_info as identity
from stoker.engine.processes.failure import Failure
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
    Request,
    request_in,
    send_file,
)
from stoker.engine.processes.shared_pickle import SharedPickle
from stoker.engine.processes.stacks import Stacks
from stoker.engine.slots.arena import Arena, Extent
from stoker.engine.slots.batch_pickle import BatchPickler
from stoker.engine.slots.slot_writer import SlotWriter
from stoker.engine.task import Task
from stoker.engine.threads import Threads
from stoker.errors import NotPicklable, OutOfSharedMemory, WorkerError
from stoker.foundation.processes import die_with_process


class Maker(Protocol):
    """Makes a batch from what a request says, on a desk."""

    def make_away(self, content: Any, desk: SlotWriter) -> Any:
        """Return the batch, made in the main thread."""
        ...

    def task_away(self, content: Any, desk: SlotWriter) -> Task[Any]:
        """Return the making of the batch, for several threads."""
        ...

    def rest(self, *, is_last: bool = False) -> None:
        """Let go of what is being read: the iteration is over. `is_last` if this process is about to end."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """What every worker gets."""

    maker: Maker
    dataset: Any
    worker_init_fn: Callable[[int], Any] | None


@dataclass(slots=True)
class WorkerSettings:
    """A worker's place: who it is, and its ends of the channels."""

    worker: int
    num_workers: int
    num_threads: int
    seed: int
    small_bytes: int
    arena: Arena
    board: Extent
    threads_cell: int | None
    """The cell of the board that tells how many threads there should be now; None if that never changes."""
    requests: socket.socket
    replies: socket.socket
    files: socket.socket
    """For batches that are too big for the addresses of their slots."""
    stacks: Stacks
    trainer: int
    is_from_main_thread: bool
    trainers_ends: tuple[socket.socket, ...]
    """What a fork inherits and must let go of; empty otherwise."""


def work(seat: WorkerSettings, job: WorkerJob | SharedPickle) -> None:
    """Be a worker until the requests end."""
    for end in seat.trainers_ends:
        end.close()
    _leave_signals()
    die_with_process(seat.trainer, is_started_by_its_main_thread=seat.is_from_main_thread)
    seat.stacks.answer()
    torch.set_num_threads(1)
    with suppress(BrokenPipeError, ConnectionResetError):  # the trainer has closed the channel: nobody wants more
        _serve(seat, job)


def _leave_signals() -> None:
    """Leave to the trainer what is the trainer's: Ctrl-C, and the handlers that a fork has inherited from it."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            # an ignored SIGCHLD would take the exit codes of the user's own children away
            is_usual = number in (signal.SIGTERM, signal.SIGCHLD)
            signal.signal(number, signal.SIG_DFL if is_usual else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _serve(seat: WorkerSettings, job: WorkerJob | SharedPickle) -> None:
    nowhere = Reply(seat.worker, READY, 0, Extent(0, 0), 0, 0, 0, b"")
    try:
        if isinstance(job, SharedPickle):
            job = job.unpacked()
        assert isinstance(job, WorkerJob)
        identity.become(seat.worker, seat.num_workers, seed=seat.seed, dataset=job.dataset)
        if job.worker_init_fn is not None:
            job.worker_init_fn(seat.worker)
    except BaseException as error:
        content = _told(error)
        if len(content) > PACKET_BYTES // 2:  # there is no slot yet to put it in
            content = _told(WorkerError(f"{type(error).__qualname__}: {error}"[:1000]))
        seat.replies.send(nowhere._replace(kind=FAILURE, content=content).packet())
        return
    seat.replies.send(nowhere.packet())
    board = seat.arena.numbers(seat.board)
    lanes = [_Lane(seat, board, number) for number in range(LANES)]
    hands, inbox = _Hands(seat, board), _Inbox(seat.requests, job.maker)
    try:
        while not inbox.is_over:
            serve = _serve_with_threads if hands.num_threads > 1 else _serve_alone
            serve(seat.replies, lanes, job.maker, inbox, hands)
    finally:
        job.maker.rest(is_last=True)
    if inbox.is_to_retire:
        seat.replies.send(nowhere._replace(kind=RETIRED).packet())


class _Hands:
    """How many threads there should be: as many as at the start, or as the trainer says on the board by now."""

    def __init__(self, seat: WorkerSettings, board: memoryview) -> None:
        self._num_threads, self._board, self._cell = seat.num_threads, board, seat.threads_cell

    @property
    def is_fixed(self) -> bool:
        """Whether that never changes."""
        return self._cell is None

    @property
    def num_threads(self) -> int:
        """How many there should be now."""
        return self._num_threads if self._cell is None else self._board[self._cell]


class _Inbox:
    """Requests, one after the other, until there are no more or this worker is to go."""

    def __init__(self, requests: socket.socket, maker: Maker) -> None:
        self._requests, self._maker = requests, maker
        self._buffer = memoryview(bytearray(PACKET_BYTES))
        self.is_over = self.is_to_retire = False

    def __iter__(self) -> Iterator[Request]:
        while not self.is_over and (size := self._requests.recv_into(self._buffer)):
            request = request_in(self._buffer[:size])
            if request.ticket:
                yield request
            elif request.slot:  # REST
                self._maker.rest()
            else:
                self.is_to_retire = True
                break
        self.is_over = True


def _serve_alone(replies: socket.socket, lanes: list[_Lane], maker: Maker, inbox: _Inbox, hands: _Hands) -> None:
    """Make batches one after the other, in the main thread, until there should be threads."""
    lane, make, is_fixed = lanes[0], maker.make_away, hands.is_fixed
    for request in inbox:
        replies.send(lane.made(request, make))
        if not is_fixed and hands.num_threads > 1:
            return


def _serve_with_threads(replies: socket.socket, lanes: list[_Lane], maker: Maker, inbox: _Inbox, hands: _Hands) -> None:
    """Make batches with several threads, two at a time, until there should be none."""
    num_threads = hands.num_threads
    side_by_side = _SideBySide(lanes, maker, inbox, hands)
    crew = Threads(side_by_side.tasks(), num_threads=num_threads, depth=len(lanes), draws=True)
    try:
        while True:
            try:
                packet = next(crew)
            except StopIteration:
                return
            replies.send(packet)
            side_by_side.note_answered()
            if not hands.is_fixed and hands.num_threads not in (0, 1, num_threads):
                num_threads = hands.num_threads
                crew.resize(num_threads, len(lanes))
    finally:
        crew.close()


class _Lane:
    """One batch in the making: its cell on the board, its desk."""

    def __init__(self, seat: WorkerSettings, board: memoryview, number: int) -> None:
        self._worker, self._board, self._files = seat.worker, board, seat.files
        self._cell = seat.worker * LANES + number
        self._in_slot = 0
        self.desk = SlotWriter(seat.arena)
        self._packer = BatchPickler(self.desk, small_bytes=seat.small_bytes)

    def opened(self, request: Request) -> Any:
        """Begin a request: from here on, the board tells who has it. Returns its content."""
        self._board[self._cell] = request.ticket
        self.desk.open(request.slot, request.extent, request.end, request.wanted)
        self._in_slot = request.in_slot
        return pickle.loads(self.desk.read(request.in_slot) if request.in_slot else request.content)

    def made(self, request: Request, make: Callable[[Any, SlotWriter], Any]) -> bytes:
        """Return the packet that answers a request."""
        try:
            return self.packed(request.ticket, make(self.opened(request), self.desk))
        except BaseException as error:
            return self.failed(request.ticket, error)

    def task(self, request: Request, maker: Maker) -> _AwayTask:
        """Return the making of a request, in parts."""
        return _AwayTask(self, request, maker)

    def packed(self, ticket: int, result: Any) -> bytes:
        """Return the packet for a result, whose large parts lie in the slot."""
        try:
            content = self._packer.packed(result)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise NotPicklable("the batch", reason=reason, start_method="any") from error
        return self._packet(ticket, VIEWS if self.desk.num_bytes else WHOLE, content)

    def failed(self, ticket: int, error: BaseException) -> bytes:
        """Return the packet for an error."""
        self.desk.leave()
        self.desk.clear()
        try:
            return self._packet(ticket, FAILURE, _told(error))
        except (OutOfSharedMemory, OSError) as lack:
            self.desk.leave()
            return self._reply(ticket, FAILURE, 0, 0, _told(lack))

    def _packet(self, ticket: int, kind: int, content: bytes) -> bytes:
        start = size = 0
        if len(content) > INLINE_BYTES:
            size = len(content)
            memory, start = self.desk.take(size)
            memory[start : start + size] = content
            content = b""
        return self._reply(ticket, kind, start, size, content)

    def _reply(self, ticket: int, kind: int, start: int, size: int, content: bytes) -> bytes:
        desk = self.desk
        desk.fit()
        extent, file = desk.extent, desk.file
        if file is not None:
            extent = Extent(APART, extent.num_bytes)
            send_file(self._files, ticket, file)
            desk.leave()
        used = max(desk.num_bytes, self._in_slot)
        return Reply(self._worker, kind, ticket, extent, used, start, size, content).packet()


class _SideBySide:
    """Requests dealt out to the lanes in turn; one that is to be made alone waits for the others, and they for it."""

    def __init__(self, lanes: list[_Lane], maker: Maker, inbox: _Inbox, hands: _Hands) -> None:
        self._lanes, self._maker, self._inbox, self._hands = lanes, maker, inbox, hands
        self._num_open = 0
        self._changed = threading.Condition()

    def tasks(self) -> Iterator[_AwayTask]:
        """Yield the making of each request, as long as there should be threads for it."""
        was_alone = False
        for number, request in enumerate(self._inbox):
            with self._changed:
                if was_alone or request.is_alone:
                    self._changed.wait_for(lambda: not self._num_open)
                self._num_open += 1
            was_alone = request.is_alone
            yield self._lanes[number % len(self._lanes)].task(request, self._maker)
            if self._hands.num_threads < 2:
                return

    def note_answered(self) -> None:
        """Note that a request is done."""
        with self._changed:
            self._num_open -= 1
            self._changed.notify()


class _AwayTask:
    """A request made by several threads. Its errors become its answer."""

    def __init__(self, lane: _Lane, request: Request, maker: Maker) -> None:
        self._lane, self._ticket = lane, request.ticket
        self._error: BaseException | None = None
        self._task: Task[Any] | None = None
        self.size = 0
        try:
            self._task = maker.task_away(lane.opened(request), lane.desk)
            self.size = self._task.size
        except BaseException as error:
            self._error = error

    def do(self, start: int, stop: int) -> None:
        """Do a part, unless another one has failed already."""
        if self._error is None:
            assert self._task is not None
            try:
                self._task.do(start, stop)
            except BaseException as error:
                self._error = error

    def finish(self) -> bytes:
        """Return the packet that answers the request."""
        try:
            if self._error is not None:
                return self._lane.failed(self._ticket, self._error)
            assert self._task is not None
            return self._lane.packed(self._ticket, self._task.finish())
        except BaseException as error:
            return self._lane.failed(self._ticket, error)
        finally:
            self._error = None


def _told(error: BaseException) -> bytes:
    return pickle.dumps(Failure(error), 5)
