"""Messages between the trainer and its workers: small packets, whole or not at all.

They go through sockets that keep packets apart (SOCK_SEQPACKET), so that any number of workers can wait at one socket
and each packet goes to exactly one of them, without a lock that a killed worker could keep.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from typing import NamedTuple

from stoker.engine.slots.arena import Arena, Extent
from stoker.errors import OutOfDescriptors

INLINE_BYTES = 4096
"""Longer contents lie in the slot, so that a socket holds many packets."""

PACKET_BYTES = 1 << 17
"""The longest packet: errors that found no slot travel in it whole."""

READY, WHOLE, VIEWS, FAILURE, RETIRED = range(5)
"""A worker is ready to work; a result that is wholly in its content; one that views its slot; an error; a worker goes,
as it was asked to.
"""

APART = (1 << 64) - 1
"""The offset of a batch that is in a file of its own."""

_REQUEST = struct.Struct("<QII?QQQQ")
_REPLY = struct.Struct("<IIQQQQQQdd")
_TICKET = struct.Struct("<Q")


class WorkerRequest(NamedTuple):
    """A request for a batch."""

    ticket: int
    """Its number, from 1 on. What has none is `RETIRE` or `END_OF_ITERATION`."""
    slot: int
    in_slot: int
    """Bytes of the content at the beginning of the slot; 0 if the content is here."""
    is_alone: bool
    """Build nothing else meanwhile: a worker died over this, or over what it built beside it."""
    extent: Extent
    end: int
    """Up to which address the slot may grow."""
    wanted: int
    """What recent batches needed."""
    content: bytes

    def packet(self) -> bytes:
        """Return it as bytes."""
        where = *self.extent, self.end
        head = _REQUEST.pack(self.ticket, self.slot, self.in_slot, self.is_alone, *where, self.wanted)
        return head + self.content


_NOTHING = WorkerRequest(0, 0, 0, False, Extent(0, 0), 0, 0, b"")

RETIRE = _NOTHING.packet()
"""The worker that takes this retires."""

END_OF_ITERATION = _NOTHING._replace(slot=1).packet()
"""The iteration is over: the worker that takes this closes what it was reading from."""


def request_in(packet: memoryview) -> WorkerRequest:
    """Return the request that a packet holds."""
    ticket, slot, in_slot, is_alone, offset, num_bytes, end, wanted = _REQUEST.unpack_from(packet)
    extent = Extent(offset, num_bytes)
    return WorkerRequest(ticket, slot, in_slot, is_alone, extent, end, wanted, bytes(packet[_REQUEST.size :]))


class _CpuTime:
    """What this process has used, as it was a few milliseconds ago at the most: asking costs a system call."""

    def __init__(self) -> None:
        self._due = self._seconds = 0.0

    def read(self, now: float) -> float:
        if now >= self._due:
            self._due, self._seconds = now + CPU_READ_SECONDS, time.process_time()
        return self._seconds


CPU_READ_SECONDS = 0.005

_cpu = _CpuTime()


class Reply(NamedTuple):
    """The answer to a request, or news of a worker."""

    worker: int
    kind: int
    ticket: int
    extent: Extent
    """Where the slot is now; at `APART` if the batch is in a file of its own."""
    used: int
    """How much of it the batch needs."""
    start: int
    size: int
    """Where the content lies in the slot; a size of 0 if it is here."""
    content: bytes
    sent: float = 0.0
    """When it was sent, by `time.perf_counter`, which all processes have in common."""
    cpu_seconds: float = 0.0
    """What the worker has used so far."""

    @property
    def is_apart(self) -> bool:
        """Whether the batch is in a file of its own, which was sent before this."""
        return self.extent.offset == APART

    def packet(self) -> bytes:
        """Return it as bytes, for now: it says when, and what the worker has used."""
        now = time.perf_counter()
        times = now, _cpu.read(now)
        where = *self.extent, self.used, self.start, self.size
        head = _REPLY.pack(self.worker, self.kind, self.ticket, *where, *times)
        return head + self.content


def reply_in(packet: memoryview) -> Reply:
    """Return the reply that a packet holds."""
    worker, kind, ticket, offset, num_bytes, used, start, size, sent, cpu = _REPLY.unpack_from(packet)
    content = bytes(packet[_REPLY.size :])
    return Reply(worker, kind, ticket, Extent(offset, num_bytes), used, start, size, content, sent, cpu)


def send_file(files: socket.socket, ticket: int, file: Arena) -> None:
    """Send the file that the batch of a request is in. The trainer has it when the reply comes."""
    socket.send_fds(files, [_TICKET.pack(ticket)], [file.descriptor])


def file_of(files: socket.socket, ticket: int, received: dict[int, Arena]) -> Arena:
    """Return the file that was sent for a request. Others that come before it are put into `received`."""
    while ticket not in received:
        try:
            packet, descriptors, _, _ = socket.recv_fds(files, _TICKET.size, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            descriptors = []
        if not descriptors:  # the kernel had none to give
            raise OutOfDescriptors("a batch that is bigger than its slot can become under `ulimit -f`")
        os.set_inheritable(descriptors[0], False)
        (number,) = _TICKET.unpack(packet)
        received[number] = Arena(descriptors[0])
    return received.pop(ticket)


def channel() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a channel for packets."""
    try:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise OutOfDescriptors("a channel to the worker processes") from error
        raise
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)  # as much as the system allows
    return ends
