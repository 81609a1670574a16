"""Shared memory without a name: one anonymous memory file for each loader.

Nothing of it is ever in a file system, so nothing is left after a kill -9, and the size of /dev/shm does not matter.
The file is sparse. The trainer and each worker allocate in a *region* of their own, so that nobody has to ask: a
worker whose batch is too big for its slot makes a bigger one there and then.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
from multiprocessing import reduction
from typing import Any, NamedTuple
from weakref import finalize

from stoker.errors import OutOfDescriptors, OutOfSharedMemory

REGION_BYTES = 1 << 44
"""Addresses in a region. They are only numbers: memory is used where something was allocated."""


_KEEP_SIZE, _PUNCH_HOLE, _CLOEXEC = 1, 2, 1

_libc = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":  # elsewhere there are no worker processes, and not all of these calls
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    _libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_FAILED = ctypes.c_void_p(-1).value


class Extent(NamedTuple):
    """A piece of the file."""

    offset: int
    num_bytes: int

    @property
    def stop(self) -> int:
        """The offset behind it."""
        return self.offset + self.num_bytes


def memory_file(name: str) -> int:
    """Return the descriptor of a new file that is only memory. Its name is for people who look into /proc."""
    try:
        if hasattr(os, "memfd_create"):
            return os.memfd_create(name, os.MFD_CLOEXEC)
        # not in every build of Python, whatever the system has
        descriptor: int = _libc.memfd_create(name.encode(), _CLOEXEC)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return descriptor
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise OutOfDescriptors("memory shared with worker processes") from error
        raise


class Arena:
    """The file. In another process it is the same memory under another descriptor."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = memory_file("stoker-slots")
        self.descriptor = descriptor
        # not at the interpreter's exit: another thread may be at it still
        finalize(self, os.close, descriptor).atexit = False

    def __reduce__(self) -> Any:
        return _same_arena, (reduction.DupFd(self.descriptor),)

    def mapped(self, extent: Extent) -> memoryview:
        """Return the extent's memory, for as long as anyone holds it.

        Not by `mmap.mmap`, which keeps a descriptor for each map: whoever keeps batches would run out of them.
        """
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, extent.num_bytes, access, mmap.MAP_SHARED, self.descriptor, extent.offset)
        if address == _FAILED:
            raise OutOfSharedMemory(extent.num_bytes, reason=os.strerror(ctypes.get_errno()))
        memory = (ctypes.c_char * extent.num_bytes).from_address(address)
        # not at the interpreter's exit: whoever holds it then may still be reading it
        finalize(memory, _libc.munmap, address, extent.num_bytes).atexit = False
        return memoryview(memory).cast("B")

    def empty(self, start: int, stop: int) -> None:
        """Give the memory between two offsets back to the system. Whoever has it mapped sees zeros."""
        if start < stop:
            _libc.fallocate(self.descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, stop - start)

    def numbers(self, extent: Extent) -> memoryview:
        """Return the extent's memory as 64-bit numbers."""
        return self.mapped(extent).cast("Q")


def _same_arena(descriptor: Any) -> Arena:
    return Arena(descriptor.detach())


class Region:
    """One allocator's part of the file: extents lie one after the other and are never handed out twice."""

    def __init__(self, arena: Arena, number: int) -> None:
        self._arena = arena
        self._next, self._stop = number * REGION_BYTES, (number + 1) * REGION_BYTES
        self._lock = threading.Lock()  # the lanes of a worker allocate in one region

    def allocated(self, num_bytes: int) -> Extent:
        """Return a new extent of at least `num_bytes`, with memory behind every page of it."""
        num_bytes = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            extent = Extent(self._next, num_bytes)
            if extent.stop > self._stop:
                raise OutOfSharedMemory(num_bytes, reason="this process has used up its addresses")
            _allocate(self._arena.descriptor, *extent)
            self._next += num_bytes
        return extent


def _allocate(descriptor: int, offset: int, num_bytes: int) -> None:
    """Put memory behind the pages now: later, on first touch, a lack of it would be a bus error."""
    try:
        os.posix_fallocate(descriptor, offset, num_bytes)
    except OSError as error:
        raise OutOfSharedMemory(num_bytes, reason=str(error)) from error
