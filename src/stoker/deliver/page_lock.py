"""Page-locking memory that others have mapped, so that the device's copy engine reads it by itself."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch

from stoker.deliver.driver import driver
from stoker.foundation.text import format_bytes

PORTABLE = 1
"""cudaHostRegisterPortable: locked for every device, not only the one that is current."""

_cuda: Any = torch.cuda  # parts of it have no types

POOL_SIZE = 32
"""Streams that torch has per device and priority, handed out in turn."""


_Event = tuple[int, Any]
"""A device and an event on it."""


class CudaPageLock:
    """Locks memory for the devices of this process. CUDA is started with the first lock, not before.

    The device is the one that is current, in the thread that makes this object, if CUDA runs already; otherwise the
    one that is current at the first lock. In a forked child nothing happens: the locks are the parent's.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._device: int | None = torch.cuda.current_device() if _cuda.is_initialized() else None
        self._locked: set[int] = set()
        self._streams: dict[int, tuple[list[torch.cuda.Stream], list[ctypes.c_void_p]]] = {}
        self._spare: list[_Event] = []
        self._has_warned = False

    # ---------------------------------------------------------------- locking

    def lock(self, address: int, num_bytes: int) -> bool:
        """Lock; return whether that was allowed. The first refusal gives a warning."""
        if os.getpid() != self._process:
            return False
        if self._device is None:
            self._device = torch.cuda.current_device()
        runtime = _cuda.cudart()
        with torch.cuda.device(self._device), _relaxed():
            code = runtime.cudaHostRegister(address, num_bytes, PORTABLE)
            if not int(code):
                self._locked.add(address)
                return True
            self._clear_error()
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{format_bytes(num_bytes)} of memory for batches cannot be page-locked (CUDA says: "
                f"{runtime.cudaGetErrorString(code)}), so batches are copied to the device the ordinary way, slower\n"
                "hint: raise the limit on locked memory (`ulimit -l`), or have fewer bytes in flight: a smaller "
                "prefetch_factor, num_workers or batch_size",
                stacklevel=2,
            )
        return False

    def unlock(self, address: int) -> None:
        """Unlock, before the memory is unmapped and after copies from it are complete. Never raises."""
        with suppress(Exception):  # CUDA may be gone, or half of Python, when the interpreter ends
            if os.getpid() != self._process or address not in self._locked:
                return
            self._locked.discard(address)
            runtime = _cuda.cudart()
            with _relaxed():
                if int(runtime.cudaHostUnregister(address)):
                    self._clear_error()

    def _clear_error(self) -> None:
        """Take back CUDA's last error, which torch would take for its own after the next kernel it starts.

        torch offers no way to ask for that error, so a kernel is started for it; on a stream that nobody captures.
        """
        with torch.cuda.stream(_cuda.Stream(self._device)), suppress(RuntimeError):
            torch.ones(1, device=f"cuda:{self._device}")

    # ---------------------------------------------------------------- fences

    def fence(self) -> Callable[[], bool]:
        """Return a function that tells whether all copies begun until now are complete, on whatever stream.

        torch looks after page-locked memory of its own in that way. It does not know ours, and a user may copy with
        `non_blocking=True` on a side stream and let go of the batch at once.
        """
        if self._device is None or os.getpid() != self._process:
            return _is_past
        return _Fence(self, self._devices()).is_past

    def is_done(self, events: list[_Event] | None) -> bool:
        """Whether all `events`, made by `begun`, are complete. None stands for what could not be recorded."""
        if os.getpid() != self._process:
            return True
        if events is None:
            return False
        try:
            with _relaxed():
                while events and events[-1][1].query():
                    self._spare.append(events.pop())
        except RuntimeError:  # a graph is being captured, or the device is lost
            return False
        return not events

    def begun(self, device: int) -> list[_Event] | None:
        """Return events for all that is begun on `device`; None if that cannot be told while a graph is captured."""
        streams, addresses = self._pool(device)
        cuda = driver()
        try:
            current = torch.cuda.current_stream(device)
            if cuda is None:
                return None if torch.cuda.is_current_stream_capturing() else self._swept(device, [current, *streams])
            with cuda.relaxed():
                if cuda.any_capturing(addresses) or torch.cuda.is_current_stream_capturing():
                    return None
                event = self._event(device)
                if cuda.record_all(device, event):
                    return [(device, event)]
                return self._swept(device, [current, *streams])
        except RuntimeError:
            return None

    def _swept(self, device: int, streams: list[torch.cuda.Stream]) -> list[_Event]:
        """Return events for the streams that have something to do. Misses streams that are not torch's."""
        events = []
        for stream in streams:
            if not stream.query():
                event = self._event(device)
                event.record(stream)
                events.append((device, event))
        return events

    def _event(self, device: int) -> Any:
        for number, (where, event) in enumerate(self._spare):
            if where == device:
                del self._spare[number]
                return event
        event = _cuda.Event()
        event.record(torch.cuda.default_stream(device))  # what makes it
        return event

    def _devices(self) -> list[int]:
        """Return the devices that a batch may have been copied to."""
        assert self._device is not None
        if torch.cuda.device_count() == 1:
            return [self._device]
        cuda = driver()
        return [
            device
            for device in range(torch.cuda.device_count())
            if device == self._device or cuda is None or cuda.is_active(device)
        ]

    def _pool(self, device: int) -> tuple[list[torch.cuda.Stream], list[ctypes.c_void_p]]:
        """Return the default stream and all that torch hands out, and the addresses of those that can be captured.

        Takes 6 ms, once.
        """
        found = self._streams.get(device)
        if found is None:
            streams = {0: torch.cuda.default_stream(device)}
            least, greatest = _cuda.Stream.priority_range()
            for priority in range(greatest, least + 1):
                # twice round, in case another thread takes some out of turn; whole rounds leave the turn as it was
                for _ in range(2 * POOL_SIZE):
                    stream = _cuda.Stream(device, priority=priority)
                    streams[stream.cuda_stream] = stream
            found = list(streams.values()), [ctypes.c_void_p(address) for address in streams if address]
            self._streams[device] = found
        return found


class _Fence:
    """What was begun on some devices, as far as it is not complete."""

    __slots__ = ("_begun", "_lock")

    def __init__(self, lock: CudaPageLock, devices: list[int]) -> None:
        self._lock = lock
        self._begun = [(device, lock.begun(device)) for device in devices]

    def is_past(self) -> bool:
        left = []
        for device, events in self._begun:
            if events is None:
                events = self._lock.begun(device)  # later than it should be, so that it covers more
            if not self._lock.is_done(events):
                left.append((device, events))
        self._begun = left
        return not left


def _is_past() -> bool:
    return True


def _relaxed() -> AbstractContextManager[None]:
    cuda = driver()
    return nullcontext() if cuda is None else cuda.relaxed()
