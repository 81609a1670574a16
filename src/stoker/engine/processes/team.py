"""The worker processes of a loader, seen from the trainer: start, requests, replies, deaths, end.

The life of a request: `give` takes a free slot, numbers the request with a *ticket*, and sends it through a socket at
which all workers wait, so that any free worker takes it (where each request belongs to one worker, every worker has a
socket of its own). The worker writes the ticket into the table of requests in flight, builds the batch into the slot
and replies. `receive` takes the reply in; `result_of` turns it into the batch.

A worker that dies costs time and nothing else. Its tickets in the table say what it was building: that is requested
again, and the worker is replaced. Between taking a request from the socket and writing its ticket lies a moment in
which nothing shows who has it: such requests are built again in another slot, and the old slot is quarantined until no
worker can still write to it (`_lost_with_one_of_many`). New tickets make late replies to old requests recognizable.

Ctrl-C may come between any two lines. Each step is therefore ordered so that what was cut short is done again by the
next call: a request is noted before it is sent, and forgotten only when its reply is taken in.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, TypeVar
from weakref import WeakSet

from stoker.engine.processes.forks import forking_a_worker
from stoker.engine.processes.in_flight import InFlightTable
from stoker.engine.processes.launch import (
    close_pipes_of_launch,
    launch_error,
    make_sure_of_descriptors,
)
from stoker.engine.processes.messages import (
    END_OF_ITERATION,
    FAILURE,
    INLINE_BYTES,
    PACKET_BYTES,
    READY,
    RETIRE,
    RETIRED,
    VIEWS,
    Reply,
    WorkerRequest,
    channel,
    file_of,
    reply_in,
    request_in,
)
from stoker.engine.processes.quarantine import SlotQuarantine
from stoker.engine.processes.shared_pickle import SharedPickle
from stoker.engine.processes.stacks import Stacks
from stoker.engine.processes.totals import WorkerTotals
from stoker.engine.processes.worker import WorkerJob, WorkerSettings, work
from stoker.engine.processes.worker_requests import Pending, Queue, WorkerOptions
from stoker.engine.slots.arena import Arena, Extent
from stoker.engine.slots.batch_pickle import unpickle_batch
from stoker.engine.slots.ring import Ring
from stoker.errors import OutOfDescriptors, OutOfSharedMemory, WorkerDied, WorkerError
from stoker.foundation import machine
from stoker.foundation.processes import describe_exit, end_processes, hold_interrupts

T = TypeVar("T")

log = logging.getLogger("stoker")

MAX_ENDS = 3
"""Workers that may die over one batch, or during start-up, before it is blamed."""

POLL_SECONDS = 2.0
"""Poll interval for dead workers whose sentinel pipe is held open by a child process of theirs."""

PARK_SECONDS = 5.0
"""How long a daemon thread that asks for a batch during interpreter shutdown is blocked; shutdown takes less."""


class Closed(Exception):
    """Raised in a waiting thread when another thread has ended the workers."""


_teams: WeakSet[Team] = WeakSet()


@atexit.register
def _end_all() -> None:
    """End all workers before `multiprocessing` does, which a waiting thread would take for a crash."""
    Team.is_at_exit = True
    for team in list(_teams):
        team.close()


def park_at_exit() -> None:
    """Block a daemon thread while the interpreter shuts down.

    Up to Python 3.13, a thread that asks for the GIL during shutdown is ended on the spot. If it is in C++ code then,
    the process aborts, and freeing a batch is enough for that: torch releases the GIL, and takes it again to free what
    NumPy allocated. `time.sleep` is in C, where ending is safe. It returns, because an exit handler may wait for this
    thread.
    """
    if threading.get_ident() != threading.main_thread().ident:
        time.sleep(PARK_SECONDS)


class Team:
    """The workers, the channels and the requests. Holds no reference to its owner, so that the owner can be freed."""

    is_at_exit = False
    """The interpreter is shutting down. Daemon threads that still iterate get no more batches."""

    def __init__(self, job: WorkerJob, options: WorkerOptions, ring: Ring, totals: WorkerTotals) -> None:
        self.job, self.options, self.ring, self.totals = job, options, ring, totals
        self.num_workers, self.num_threads = options.num_workers, options.num_threads
        """How many there should be now."""
        self.prefetch_factor = options.prefetch_factor
        self.most_workers = max(options.num_workers, options.most_workers)
        """How many can be started, as far as is known."""
        self.process = os.getpid()
        _teams.add(self)
        self.lock = threading.RLock()
        """Held while waiting for a result, so that several threads may share an iterator."""
        self.is_running = self.is_closed = False
        self.failure: BaseException | None = None
        """Why workers cannot be started."""
        self.queue: Queue[Any] | None = None
        """The queue of the running iteration."""
        self.shared_job: SharedPickle | None = None
        self.pending: dict[int, Pending] = {}
        self._last_ticket = 0
        self._backlog: deque[Pending] = deque()
        """Requests for which the channel had no room."""
        self._quarantine = SlotQuarantine(ring)
        self._ready: set[int] = set()
        self._leaving: set[int] = set()
        """Workers that have announced their exit."""
        self._extra: set[int] = set()
        """Workers added to running ones, not ready yet. If one fails to start, the others go on without it."""
        self._num_asked_to_go = 0
        """Requests to retire that are not answered yet."""
        self._retire_is_due = False
        """The channel had no room for such a request."""
        self._processes: dict[int, Any] = {}
        self._sentinels: dict[int, int] = {}
        self._to_start: deque[int] = deque()
        self._failed_starts: list[str] = []
        self._requests: list[tuple[socket.socket, socket.socket]] = []
        """For each channel the trainer's end and the workers'. The trainer keeps both: new workers need theirs."""
        self._in_flight = InFlightTable(ring, num_workers=self.most_workers)
        self._in_flight.set_num_threads(options.num_threads)
        self._files_received: dict[int, Arena] = {}
        """Files of batches, by the tickets of the requests, whose replies were not read yet."""
        self._buffer = memoryview(bytearray(PACKET_BYTES))

    # ------------------------------------------------------------ start and end

    def start(self) -> None:
        """Start the workers; those beyond the number of cores start when others are ready."""
        if Team.is_at_exit:
            return
        self.stop()  # as far as that was cut short
        options = self.options
        if options.start_method != "fork" and self.shared_job is None:
            job = self.job
            parts = {
                "the dataset": job.dataset,
                "worker_init_fn": job.worker_init_fn,
                "the collate function": job.builders,
            }
            try:
                self.shared_job = SharedPickle(job, parts=parts, start_method=options.start_method)
            except OSError as error:
                raise OutOfSharedMemory(0, what="the dataset", reason=str(error)) from error
        self.failure = None
        self._failed_starts.clear()
        try:
            with hold_interrupts():
                self._open_channels()
            at_once = self.num_workers
            if options.start_method != "fork":  # they import and unpack, and would only keep each other from it
                at_once = max(2, machine.num_cores())
            self._to_start = deque(range(self.num_workers))
            for _ in range(min(at_once, self.num_workers)):
                self._start_next()
        except BaseException:
            self.stop()
            raise

    def _open_channels(self) -> None:
        self._poll = select.poll()
        self._stacks = Stacks()
        self._ends: list[Callable[[], Any]] = [self._stacks.close]
        self._trainers_ends: list[socket.socket] = []
        self._replies, self._workers_replies = self._channel()
        self.is_running = True
        self._poll.register(self._replies, select.POLLIN)
        self._files, self._workers_files = self._channel()
        for _ in range(self.options.num_workers if self.options.is_assigned else 1):
            self._requests.append(self._channel())

    def _channel(self) -> tuple[socket.socket, socket.socket]:
        ends = channel()
        self._ends += [end.close for end in ends]
        self._trainers_ends.append(ends[0])
        return ends

    def _start_next(self) -> None:
        if self._to_start:
            self._start_one(self._to_start.popleft())

    def _start_one(self, worker: int) -> None:
        options, ring = self.options, self.ring
        self._in_flight.clear(worker)
        is_fork = options.start_method == "fork"
        settings = WorkerSettings(
            worker=worker,
            num_workers=self.num_workers,
            num_threads=self.num_threads,
            seed=options.seed,
            small_bytes=options.small_bytes,
            arena=ring.arena,
            in_flight=self._in_flight.extent,
            threads_cell=self._in_flight.threads_cell if options.most_workers else None,
            requests=self._requests[worker if options.is_assigned else 0][1],
            replies=self._workers_replies,
            files=self._workers_files,
            stacks=self._stacks,
            trainer=os.getpid(),
            is_from_main_thread=threading.current_thread() is threading.main_thread(),
            trainers_ends=tuple(self._trainers_ends) if is_fork else (),
        )
        process = options.context.Process(
            target=work, args=(settings, self.job if is_fork else self.shared_job), daemon=True, name=f"stoker-{worker}"
        )
        try:
            with hold_interrupts(), forking_a_worker() if is_fork else nullcontext():
                make_sure_of_descriptors(self._replies.fileno())
                process.start()
                self._processes[worker] = process
                self.totals.started(worker, process.pid)
                self._sentinels[process.sentinel] = worker
                self._poll.register(process.sentinel, select.POLLIN)
        except BaseException as error:
            if is_fork and process.pid is None:
                close_pipes_of_launch(error)
            if process.pid is not None:  # interrupts come to other threads too: it may be running, and not be noted yet
                self._processes[worker] = process
            if worker in self._extra and isinstance(error, OSError):
                self._processes.pop(worker, None)
                if process.pid is not None:
                    process.kill()
                    process.join()
            else:
                self.stop()  # with fewer workers, lost requests would be waited for in vain
            launch = launch_error(error, worker=worker, start_method=options.start_method)
            if launch is error:
                raise
            raise launch from error

    def stop(self) -> None:
        """End the workers before control returns. Unanswered requests are kept; `restart` sends them again.

        If Ctrl-C interrupts this, the next call completes it.
        """
        if os.getpid() != self.process or not (self.is_running or self._requests):
            return
        self.is_running = False
        try:
            for number in range(len(self._requests)):
                self._drained(number)
            for worker in self._processes:  # while they are there to be looked at
                self.totals.ending(worker)
        finally:
            try:
                for ours in self._trainers_ends:
                    with suppress(OSError):
                        ours.shutdown(socket.SHUT_RDWR)  # also for copies of this end that a fork has
            finally:
                end_processes(self._processes, patience_seconds=self.options.patience_seconds)
        self._sentinels.clear()
        self._ready.clear()
        for pending in self.pending.values():  # replies that nobody has read, batches cut short
            if pending.slot is not None:
                self.ring.empty_behind(pending.slot)
        self._files_received.clear()
        for end in self._ends:
            end()
        self._requests.clear()
        self._quarantine.end()
        self._backlog.clear()
        self._to_start.clear()
        self._leaving.clear()
        self._extra.clear()
        self._num_asked_to_go = 0

    def close(self) -> None:
        """End the workers and forget all requests, for good."""
        if os.getpid() != self.process:
            return
        self.is_closed = True
        self.stop()
        for pending in self.pending.values():
            self._free_slot(pending)
        self.pending.clear()
        self._in_flight.close()
        if self.shared_job is not None:
            self.shared_job.close()
            self.shared_job = None

    # ------------------------------------------------------------ more and fewer

    @property
    def depth(self) -> int:
        """How many batches there may be between being requested and being handed over."""
        return self.num_workers * self.prefetch_factor

    @property
    def is_settled(self) -> bool:
        """Whether there are as many workers as there should be, and all of them have begun."""
        is_changing = bool(self._num_asked_to_go or self._extra or self._retire_is_due)
        return not is_changing and len(self._ready - self._leaving) == self.num_workers

    def resize(self, num_workers: int, num_threads: int, prefetch_factor: int) -> None:
        """Change the number of workers, of threads in each, and of requests in flight for each.

        New workers begin when they have started; surplus ones retire after their present batch. Nothing is lost.
        """
        if os.getpid() != self.process:
            return
        self.num_workers, self.num_threads = min(num_workers, self.most_workers), num_threads
        self.prefetch_factor = prefetch_factor
        self._in_flight.set_num_threads(num_threads)
        self._adjust()

    @property
    def _num_lacking(self) -> int:
        """How many workers are missing; negative: surplus. Those asked to retire count as gone."""
        there = len(self._processes) - len(self._leaving & set(self._processes)) + len(self._to_start)
        return self.num_workers - there + self._num_asked_to_go

    def _adjust(self) -> None:
        """Start missing workers, and ask surplus ones to retire."""
        if not self.options.most_workers or not self.is_running or Team.is_at_exit:
            return
        for _ in range(self._num_lacking):
            free = (number for number in range(self.most_workers) if number not in self._processes)
            worker = next((number for number in free if number not in self._to_start), None)
            if worker is None:
                return  # retiring workers still have their numbers; this is called again when they are gone
            if set(self._processes) - self._leaving:
                self._extra.add(worker)
            try:
                self._start_one(worker)
            except (WorkerError, OutOfDescriptors) as error:
                if not self.is_running:
                    raise
                self._continue_without(worker, error.__cause__ or error)
                return
        for _ in range(-self._num_lacking):
            if self._to_start:
                self._to_start.pop()
                continue
            try:
                self._requests[0][0].send(RETIRE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._retire_is_due = True  # after the next answer, there is room
                return
            except (OSError, IndexError) as error:
                raise Closed from error
            self._num_asked_to_go += 1

    def _continue_without(self, worker: int, error: BaseException) -> None:
        """Continue with the running workers: another one cannot be started."""
        self._extra.discard(worker)
        there = len(set(self._processes) - self._leaving - {worker})
        if not there:  # they have exited meanwhile
            self.failure = error
        self.num_workers = self.most_workers = max(1, min(self.num_workers, there))
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        log.warning("worker %d could not be started (%s); there will be no more than %d", worker, first, there)

    def take_in_arrived(self) -> None:
        """Take in all replies that have arrived, without waiting."""
        while self.is_running and self.receive(0):
            pass

    # ------------------------------------------------------------ requests

    def give(self, pending: Pending) -> None:
        """Send a request for a batch."""
        if pending.slot is None:
            pending.slot = self.ring.take()
        pending.worker = pending.queue.source.worker_of(pending.recipe) if self.options.is_assigned else 0
        self._number(pending)
        self._send(pending)

    def _number(self, pending: Pending) -> None:
        self._last_ticket += 1
        self.pending[self._last_ticket] = pending  # first: after an interrupt, what is here is requested again
        pending.ticket = self._last_ticket

    def _send(self, pending: Pending) -> None:
        slot, in_slot = pending.slot, 0
        assert slot is not None
        try:
            content = pickle.dumps(pending.queue.source.content(pending.recipe), 5)
            if len(content) > INLINE_BYTES:
                self.ring.make_room(slot, len(content))
                assert slot.memory is not None
                in_slot = len(content)
                slot.memory[:in_slot] = content
                content = b""
        except Exception as error:
            self._fail(pending, error)
            return
        if self._backlog and any(other.worker == pending.worker for other in self._backlog):
            self._backlog.append(pending)  # no request may overtake another
            return
        where = slot.extent, slot.window.stop, self.ring.sizes.usual_bytes
        request = WorkerRequest(pending.ticket, slot.number, in_slot, pending.is_suspected, *where, content)
        try:
            self._requests[pending.worker][0].send(request.packet(), socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._backlog.append(pending)
        except (OSError, IndexError) as error:
            raise Closed from error

    def _fail(self, pending: Pending, error: BaseException) -> None:
        """End a request with an error."""
        pending.error = error.with_traceback(None)
        self._forget(pending)
        pending.queue.note(pending)

    def _forget(self, pending: Pending) -> None:
        """Drop a request and free its slot."""
        self.pending.pop(pending.ticket, None)
        self._free_slot(pending)

    def _free_slot(self, pending: Pending) -> None:
        """Give back the slot of a request, if it has one.

        The request lets go of it first. After Ctrl-C between the two lines the slot is lost until the ring closes; the
        other way round it would be given back a second time, when another request may be using it.
        """
        slot, pending.slot = pending.slot, None
        if slot is not None:
            self.ring.give_back(slot)

    def _drained(self, number: int) -> list[int]:
        """Take requests that no worker has taken yet back out of a channel; return their tickets."""
        tickets = []
        with suppress(BlockingIOError):
            while packet := self._requests[number][1].recv(PACKET_BYTES, socket.MSG_DONTWAIT):
                if packet == RETIRE:
                    self._num_asked_to_go -= 1
                tickets.append(request_in(memoryview(packet)).ticket)
        return tickets

    def end(self, queue: Queue[Any]) -> None:
        """End an iteration: drop its queue, and the requests that no worker has taken yet."""
        if queue.is_over or os.getpid() != self.process:
            return
        queue.is_over = True
        for pending in queue.entries:
            if pending.reply is not None:
                self._free_slot(pending)
        queue.entries.clear()
        self.ring.rest(self.depth)
        if not self.is_running:  # no worker is building anything
            for pending in [pending for pending in self.pending.values() if pending.queue is queue]:
                self._forget(pending)
            return
        for pending in self._backlog:
            self._forget(pending)
        for number in range(len(self._requests)):
            for ticket in self._drained(number):
                if ticket in self.pending:
                    self._forget(self.pending[ticket])
        self._backlog.clear()
        if self._num_lacking < 0:
            self._adjust()  # requests to retire were taken back with the others: send them again
        if self.options.is_assigned:
            for ours, _ in self._requests:
                with suppress(OSError):
                    ours.send(END_OF_ITERATION, socket.MSG_DONTWAIT)

    # ------------------------------------------------------------ replies

    def receive(self, seconds: float | None) -> bool:
        """Take in one message, or the death of a worker; return whether one came within `seconds`."""
        while True:
            if self._take_in_one():
                return True
            if seconds == 0:
                return False
            if self._backlog:
                backlog, self._backlog = self._backlog, deque()
                for pending in backlog:
                    self._send(pending)
            if self._retire_is_due:
                self._retire_is_due = False
                self._adjust()
            patience = POLL_SECONDS if seconds is None else min(seconds, POLL_SECONDS)
            events = self._poll.poll(max(1, int(patience * 1000)))
            if not self.is_running or (self.queue is not None and self.queue.is_closing):
                raise Closed
            # A child process of a worker may hold its sentinel pipe open after its death: poll exit codes now and then.
            ended = {self._sentinels[number] for number, _ in events if number in self._sentinels}
            if not events:
                ended = {worker for worker, process in self._processes.items() if process.exitcode is not None}
            if ended:
                while self._take_in_one():  # replies sent before the death count
                    pass
                for worker in ended:
                    if worker in self._processes:
                        self._handle_worker_exit(worker)
                return True
            if not events and seconds is not None:
                return False

    def wake(self) -> None:
        """Make a thread that waits in `receive` raise `Closed`. Called without the lock, before closing."""
        with suppress(OSError):
            self._replies.shutdown(socket.SHUT_RDWR)

    def _take_in_one(self) -> bool:
        """Take in a message if there is one."""
        try:
            size = self._replies.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:  # closed, while this thread was on its way here
            size = 0
        if not size:
            raise Closed
        self._take_in(reply_in(self._buffer[:size]))
        return True

    def _take_in(self, reply: Reply) -> None:
        worker = reply.worker
        self.totals.cpu_seconds[worker] = reply.cpu_seconds
        if self._quarantine:
            self._quarantine.clear(worker, reply)
        if reply.kind == READY:
            self._ready.add(worker)
            self._extra.discard(worker)
            self._failed_starts.clear()
            self._start_next()
            return
        if reply.kind == RETIRED:
            self._leaving.add(worker)
            self._num_asked_to_go = max(0, self._num_asked_to_go - 1)
            self._adjust()
            return
        if not reply.ticket and worker in self._extra:
            self._leaving.add(worker)  # it goes
            self._continue_without(worker, _raisable(pickle.loads(reply.content).error(), worker))
            return
        if not reply.ticket:
            self.failure = _raisable(pickle.loads(reply.content).error(), worker)
            self.failure.add_note(f"raised at the start of worker {worker}")
            return
        pending = self.pending.get(reply.ticket)
        if pending is None:  # it was requested again meanwhile
            if reply.is_apart:
                with suppress(OutOfDescriptors):
                    file_of(self._files, reply.ticket, self._files_received)
            return
        slot = pending.slot
        assert slot is not None
        if reply.extent != slot.extent:
            try:
                if reply.is_apart:
                    file = file_of(self._files, reply.ticket, self._files_received)
                    self.ring.adopt_apart(slot, file, Extent(0, reply.extent.num_bytes))
                else:
                    self.ring.adopt(slot, reply.extent)
            except (OutOfSharedMemory, OutOfDescriptors) as error:
                self._fail(pending, error)
                return
        slot.used = reply.used
        self.ring.sizes.add(reply.used)
        pending.reply = reply
        # only now: otherwise Ctrl-C here would leave a request that is waited for in vain
        del self.pending[reply.ticket]
        if not pending.queue.note(pending):
            self._free_slot(pending)

    def result_of(self, pending: Pending) -> Any:
        """Return the result of an answered request, or its error."""
        if pending.slot is not None:
            self._open(pending)
        return pending.result if pending.error is None else pending.error

    def _open(self, pending: Pending) -> None:
        reply, slot = pending.reply, pending.slot
        assert reply is not None
        assert slot is not None
        pickled: Any = reply.content
        if reply.size:
            assert slot.memory is not None
            pickled = memoryview(slot.memory)[reply.start : reply.start + reply.size]
        lease = self.ring.viewed(slot) if reply.kind == VIEWS else None
        try:
            if reply.kind == FAILURE:
                pending.error = _raisable(pickle.loads(pickled).error(), reply.worker)
            else:
                began = time.perf_counter()
                answer = unpickle_batch(pickled, lease, pins=self.options.pins_small)
                handover = reply.worker, reply.sent, time.perf_counter() - began
                pending.result = pending.queue.source.result(pending.recipe, answer, handover)
        except Exception as error:
            pending.error = error.with_traceback(None)
        pending.slot = None  # last: after Ctrl-C before this line, all of it is done again
        if lease is None:
            self.ring.give_back(slot)
        else:
            self.ring.lend(slot, lease)

    # ------------------------------------------------------------ deaths

    def _handle_worker_exit(self, worker: int) -> None:
        """Handle an unexpected worker exit: start a replacement and send its requests again."""
        process = self._processes.pop(worker)
        self.totals.ending(worker)
        self._poll.unregister(process.sentinel)
        del self._sentinels[process.sentinel]
        process.join()
        end = self._stacks.explained(describe_exit(process.exitcode), process.pid)
        process.close()
        if worker in self._extra:
            self._leaving.add(worker)
            self._continue_without(worker, WorkerDied("start-up", ends=[end]))
        if worker not in self._ready and worker not in self._leaving:
            self._failed_starts.append(end)
            # A worker that exits by itself would do so again; the error that it has sent, if any, comes first.
            if self.failure is None and (len(self._failed_starts) >= MAX_ENDS or end.startswith("exit code")):
                self.failure = WorkerDied("start-up", ends=self._failed_starts)
            if self.failure is not None:
                return
        is_replaced = worker not in self._leaving and self._num_lacking > 0
        if is_replaced:
            log.warning("worker %d has ended (%s) and is replaced; its batches are loaded again", worker, end)
        elif worker not in self._leaving:
            log.warning("worker %d has ended (%s); its batches are loaded again by other workers", worker, end)
        self._ready.discard(worker)
        self._leaving.discard(worker)
        self._quarantine.clear(worker)
        at = [self.pending[ticket] for ticket in self._in_flight.tickets(worker) if ticket in self.pending]
        for pending in at:
            if len(at) == 1:  # of two built side by side, it is unknown which is to blame
                pending.ends.append(end)
            pending.is_suspected = True
            if pending.slot is not None:
                self.ring.empty_behind(pending.slot)
        lost = self._lost_with_one_of_many(at) if not self.options.is_assigned else self._lost_with(worker)
        self._num_asked_to_go = (
            0  # a worker that took such a request will announce it, and is replaced then if it is needed
        )
        if is_replaced:
            self._start_one(worker)
        self._send_again(lost)
        self._adjust()

    def _lost_with(self, worker: int) -> list[Pending]:
        """Return the requests to be sent again, where each worker has requests of its own: all of that worker."""
        self._drained(worker)
        self._backlog = deque(pending for pending in self._backlog if pending.worker != worker)
        lost = [pending for pending in self.pending.values() if pending.worker == worker]
        for pending in lost:
            if pending.slot is not None:
                self.ring.empty_behind(pending.slot)
        self._renumber(lost)
        return lost

    def _lost_with_one_of_many(self, at: list[Pending]) -> list[Pending]:
        """Return the requests to be sent again, where any worker may take a request.

        A request that no worker has taken is still in the channel; one that the table shows is being built by a live
        worker. A request that is in neither was lost with the dead worker, or was taken this moment by a live one. It
        is built again in another slot, and the old slot is quarantined until no worker can still write to it.
        """
        waiting = set(self._drained(0)) | {pending.ticket for pending in self._backlog}
        self._backlog.clear()
        alive = set(self._processes)  # also workers that are not ready yet: their first message may be on its way
        last_ticket = self._last_ticket
        shown = {ticket for other in alive for ticket in self._in_flight.tickets(other)}
        again = []
        for pending in list(self.pending.values()):
            is_in_doubt = pending not in at and pending.ticket not in waiting
            if is_in_doubt and pending.ticket in shown:
                continue
            assert pending.slot is not None
            if is_in_doubt and alive:
                slot, pending.slot = pending.slot, self.ring.take()
                self._quarantine.add(pending.ticket, slot, alive, last_ticket=last_ticket)
            elif is_in_doubt:
                self.ring.empty_behind(pending.slot)
            again.append(pending)
        first = {id(pending) for pending in at}  # they have been waited for the longest
        again.sort(key=lambda pending: (id(pending) not in first, pending.ticket))
        self._renumber(again)
        return again

    def _renumber(self, lost: list[Pending]) -> None:
        """Give requests new tickets, so that replies to the old ones are recognized as late."""
        for pending in lost:
            ticket = pending.ticket
            self._number(pending)
            del self.pending[ticket]

    def _send_again(self, lost: list[Pending]) -> None:
        kept = []
        for pending in lost:
            if pending.queue.is_over:
                self._forget(pending)
            elif len(pending.ends) >= MAX_ENDS:
                self._fail(pending, WorkerDied(pending.queue.source.described(pending.recipe), ends=pending.ends))
            else:
                kept.append(pending)
        if self.options.is_assigned:
            kept = self._renew(kept)  # also when nothing is lost: the new worker has to know where to start
        for pending in kept:
            self._send(pending)

    def _renew(self, lost: list[Pending]) -> list[Pending]:
        """Return lost requests with recipes that a new worker can build, which has no state of the old one."""
        queue = self.queue
        if queue is None or queue.is_over:
            return []
        results = [self.result_of(pending) for pending in queue.entries if pending.reply is not None]
        received = [result for result in results if not isinstance(result, BaseException)]
        own = [pending for pending in lost if pending.queue is queue]
        for pending, recipe in zip(
            own, queue.source.restarted([pending.recipe for pending in own], received), strict=True
        ):
            pending.recipe = recipe
        return own

    def restart(self) -> None:
        """Start again after a stop, and send all unanswered requests again."""
        # Ctrl-C may have come while one was being numbered, or answered
        tickets = {pending: ticket for ticket, pending in self.pending.items() if not pending.is_done}
        self.pending = {ticket: pending for pending, ticket in tickets.items()}
        for pending, ticket in tickets.items():
            pending.ticket = ticket
        self.start()
        self._send_again(sorted(self.pending.values(), key=lambda pending: pending.ticket))

    def stacks(self, pending: Pending) -> str:
        """Return the stacks of the worker that is building a request, or of all workers if none is."""
        ready = [worker for worker in self._processes if worker in self._ready]
        at = [worker for worker in ready if pending.ticket in self._in_flight.tickets(worker)]
        if not ready:
            return "(no worker has started yet)"
        return "\n".join(f"worker {worker}:\n{self._stacks.of(self._processes[worker].pid)}" for worker in at or ready)


NOT_IN_MAIN = (
    "hint: workers started by spawn or forkserver do not have what a notebook or an interactive session has defined; "
    "move it to a module and import it from there, or use multiprocessing_context='fork', or threads (num_workers=0, "
    "num_threads=...)"
)
NO_DEBUGGER = (
    "hint: a worker process has no terminal for a debugger; set num_workers=0 while debugging: the batches are the same"
)


def _raisable(error: BaseException, worker: int) -> BaseException:
    """Return the exception to raise in the trainer for an error in a worker; SystemExit becomes an error."""
    error.add_note(f"raised in worker {worker}")
    if isinstance(error, AttributeError) and "on <module '__main__'" in str(error):
        error.add_note(NOT_IN_MAIN)
    if type(error).__module__ == "bdb":
        error.add_note(NO_DEBUGGER)
    if isinstance(error, Exception):
        return error
    raised = WorkerError(f"{type(error).__name__} was raised in worker {worker}{f': {error}' if str(error) else ''}")
    raised.__cause__ = error
    return raised
