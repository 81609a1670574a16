"""Page-lock (pin) shared memory, so that the device copies from it by DMA, asynchronously.

Registering is done once per slot by the training process. Memory must be unregistered before it is unmapped, and a slot
must not be refilled while a copy from it may still run: `CudaPageLock.fence` says when that is over.
"""

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
"""cudaHostRegisterPortable: page-locked for every device, not only the current one."""

_cuda: Any = torch.cuda  # parts of it have no types

POOL_SIZE = 32
"""Streams that torch has per device and priority, and hands out in turn."""


_Event = tuple[int, Any]
"""A device and an event on it."""


class CudaPageLock:
    """Page-locks memory for the devices of this process. The first lock initializes CUDA, if nothing did before.

    Uses the device that is current when this object is made, if CUDA is initialized by then; otherwise the one that is
    current at the first lock. Does nothing in a forked child: the locks are the parent's.
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
        """Page-lock; return whether that succeeded. The first failure gives a warning."""
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
                f"{format_bytes(num_bytes)} of batch memory cannot be page-locked (CUDA: "
                f"{runtime.cudaGetErrorString(code)}), so copies to the device are slower\n"
                "hint: raise the limit on locked memory (`ulimit -l`), or keep fewer bytes in flight, with a smaller "
                "prefetch_factor, num_workers or batch_size",
                stacklevel=2,
            )
        return False

    def unlock(self, address: int) -> None:
        """Unlock; call it after copies from the memory are complete and before it is unmapped. Never raises."""
        with suppress(Exception):  # at interpreter exit, CUDA and parts of Python may be gone
            if os.getpid() != self._process or address not in self._locked:
                return
            self._locked.discard(address)
            runtime = _cuda.cudart()
            with _relaxed():
                if int(runtime.cudaHostUnregister(address)):
                    self._clear_error()

    def _clear_error(self) -> None:
        """Clear CUDA's last error, which torch would otherwise raise after the next kernel it launches.

        torch has no function to read that error, so this launches a kernel, on a new stream: no graph is captured
        there.
        """
        with torch.cuda.stream(_cuda.Stream(self._device)), suppress(RuntimeError):
            torch.ones(1, device=f"cuda:{self._device}")

    # ---------------------------------------------------------------- fences

    def fence(self) -> Callable[[], bool]:
        """Return a function that returns whether all copies queued until now are complete, on any stream.

        torch tracks the page-locked memory that it allocated itself, but not a slot. A user may copy a batch with
        `non_blocking=True` on any stream and drop it at once; without the fence, a worker would then refill the slot
        while the copy still reads it.
        """
        if self._device is None or os.getpid() != self._process:
            return _always_past
        return _Fence(self, self._devices()).is_past

    def is_done(self, events: list[_Event] | None) -> bool:
        """Whether all `events` from `begun` are complete. None stands for events that could not be recorded."""
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
        """Return events for all work queued on `device`; None while a graph is being captured, when recording is not
        allowed.
        """
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
        """Return an event for each busy stream, for drivers without `record_all`. Misses streams not made by torch."""
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
        event.record(torch.cuda.default_stream(device))  # an event is created by its first record
        return event

    def _devices(self) -> list[int]:
        """Return the devices that a batch may have been copied to: all that this process uses."""
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
        """Return the default stream and all streams that torch hands out, and the handles of those that can be
        captured.

        Takes 6 ms, once.
        """
        found = self._streams.get(device)
        if found is None:
            streams = {0: torch.cuda.default_stream(device)}
            least, greatest = _cuda.Stream.priority_range()
            for priority in range(greatest, least + 1):
                # two rounds, in case another thread takes some meanwhile; full rounds leave torch's turn unchanged
                for _ in range(2 * POOL_SIZE):
                    stream = _cuda.Stream(device, priority=priority)
                    streams[stream.cuda_stream] = stream
            found = list(streams.values()), [ctypes.c_void_p(address) for address in streams if address]
            self._streams[device] = found
        return found


class _Fence:
    """Work queued on some devices that is not complete yet."""

    __slots__ = ("_begun", "_lock")

    def __init__(self, lock: CudaPageLock, devices: list[int]) -> None:
        self._lock = lock
        self._begun = [(device, lock.begun(device)) for device in devices]

    def is_past(self) -> bool:
        left = []
        for device, events in self._begun:
            if events is None:
                events = self._lock.begun(device)  # recorded later than asked, so it covers more work: safe
            if not self._lock.is_done(events):
                left.append((device, events))
        self._begun = left
        return not left


def _always_past() -> bool:
    return True


def _relaxed() -> AbstractContextManager[None]:
    cuda = driver()
    return nullcontext() if cuda is None else cuda.relaxed()
