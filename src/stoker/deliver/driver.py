"""The few functions of CUDA's driver that torch does not offer, called in the library that torch has loaded already."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: what this thread does has nothing to do with a graph that is being captured."""


class CudaDriver:
    """CUDA's driver. Calls take less than a microsecond, and keep the GIL: to let it go would cost more."""

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
        """Let this thread lock memory and ask events without spoiling a graph that is being captured meanwhile."""
        mode = ctypes.c_int(RELAXED)
        self._exchange(ctypes.byref(mode))
        try:
            yield
        finally:
            self._exchange(ctypes.byref(mode))  # back to what it was

    def any_capturing(self, streams: Iterable[ctypes.c_void_p]) -> bool:
        """Whether a graph is being captured on one of the streams. To ask does it no harm."""
        status = ctypes.c_int(0)
        reference, is_capturing = ctypes.byref(status), self._is_capturing
        return any(is_capturing(stream, reference) or status.value for stream in streams)

    def is_active(self, device: int) -> bool:
        """Whether this process has used `device` at all."""
        flags, active = ctypes.c_uint(0), ctypes.c_int(0)
        return not self._state(ctypes.c_int(device), ctypes.byref(flags), ctypes.byref(active)) and bool(active.value)

    def record_all(self, device: int, event: torch.cuda.Event) -> bool:
        """Let `event` stand for all work on `device`, on every stream, begun until now; False if it cannot be had.

        A graph that is being captured on any stream of the device would be spoilt by it.
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
    """Return CUDA's driver, or None where there is none: torch also calls AMD's devices "cuda"."""
    try:
        return CudaDriver() if torch.version.cuda else None
    except (OSError, AttributeError):
        return None
