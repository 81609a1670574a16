"""The few functions of the CUDA driver that torch does not offer, called in the library that torch has loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: calls of this thread are unrelated to a graph that is being captured."""


class CudaDriver:
    """The CUDA driver. Calls take less than a microsecond and keep the GIL: releasing it would cost more."""

    def __init__(self) -> None:
        library = ctypes.PyDLL("libcuda.so.1")
        self._exchange = library.cuThreadExchangeStreamCaptureMode
        self._is_capturing = library.cuStreamIsCapturing
        self._state = library.cuDevicePrimaryCtxGetState
        self._retain = library.cuDevicePrimaryCtxRetain
        self._record_all = getattr(library, "cuCtxRecordEvent", None)  # since CUDA 12.5
        self._contexts: dict[int, ctypes.c_void_p] = {}

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Let this thread page-lock memory and query events without invalidating a graph that is being captured."""
        mode = ctypes.c_int(RELAXED)
        self._exchange(ctypes.byref(mode))
        try:
            yield
        finally:
            self._exchange(ctypes.byref(mode))  # back to what it was

    def any_capturing(self, streams: Iterable[ctypes.c_void_p]) -> bool:
        """Whether a graph is being captured on one of the streams. Asking does not invalidate it."""
        status = ctypes.c_int(0)
        reference, is_capturing = ctypes.byref(status), self._is_capturing
        return any(is_capturing(stream, reference) or status.value for stream in streams)

    def is_active(self, device: int) -> bool:
        """Whether this process has used `device` at all."""
        flags, active = ctypes.c_uint(0), ctypes.c_int(0)
        return not self._state(ctypes.c_int(device), ctypes.byref(flags), ctypes.byref(active)) and bool(active.value)

    def record_all(self, device: int, event: torch.cuda.Event) -> bool:
        """Record `event` for all work queued on `device` so far, on every stream; return False if that is not
        supported.

        Invalidates a graph that is being captured on any stream of the device.
        """
        if self._record_all is None:
            return False
        context = self._contexts.get(device)
        if context is None:
            context = ctypes.c_void_p()
            if self._retain(ctypes.byref(context), ctypes.c_int(device)):
                return False
            self._contexts[device] = context
        return not self._record_all(context, ctypes.c_void_p(event.cuda_event))


@lru_cache(maxsize=1)
def driver() -> CudaDriver | None:
    """Return the CUDA driver; None where there is none: torch calls AMD's devices "cuda" too."""
    try:
        return CudaDriver() if torch.version.cuda else None
    except (OSError, AttributeError):
        return None
