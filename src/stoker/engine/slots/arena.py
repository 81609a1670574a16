"""Shared memory without a name: one anonymous memory file for each loader.

Nothing of it is ever in a file system, so nothing is left after a kill -9, and the size of /dev/shm does not matter.
The file is sparse. Each slot has a *window* of it, addresses that nothing else uses, and the writer of the slot puts
memory behind as much of the window as the batch needs, without asking anyone.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from bisect import bisect_left
from collections import deque
from multiprocessing import reduction
from typing import Any, NamedTuple
from weakref import finalize

from stoker.errors import OutOfDescriptors, OutOfSharedMemory

if sys.platform != "win32":
    import resource

WINDOW_BYTES = 1 << 40
"""Addresses of a slot. They are only numbers: memory is used where something was allocated."""

END_OF_ADDRESSES = 1 << 62


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

        Not by `mmap.mmap`, which keeps a descriptor for each map: a user who keeps batches would run out of them.
        """
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, extent.num_bytes, access, mmap.MAP_SHARED, self.descriptor, extent.offset)
        if address == _FAILED:
            raise OutOfSharedMemory(extent.num_bytes, reason=os.strerror(ctypes.get_errno()))
        memory = (ctypes.c_char * extent.num_bytes).from_address(address)
        # not at the interpreter's exit: a thread may still be reading it
        finalize(memory, _libc.munmap, address, extent.num_bytes).atexit = False
        return memoryview(memory).cast("B")

    def grown(self, extent: Extent, num_bytes: int) -> Extent:
        """Return `extent` with at least `num_bytes`, and memory behind every page of it.

        Memory is put there now: later, on first touch, a lack of it would be a bus error.
        """
        if num_bytes <= extent.num_bytes:
            return extent
        more = num_bytes - extent.num_bytes
        if (
            extent.offset + num_bytes > longest_file()
        ):  # asking the system would end a process that does not ignore SIGXFSZ
            raise beyond_longest_file(num_bytes)
        try:
            os.posix_fallocate(self.descriptor, extent.stop, more)
        except OSError as error:
            raise OutOfSharedMemory(num_bytes, reason=str(error)) from error
        return Extent(extent.offset, num_bytes)

    def empty(self, start: int, stop: int) -> None:
        """Give the memory between two offsets back to the system. Maps of it then read zeros."""
        if start < stop:
            _libc.fallocate(self.descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, stop - start)

    def numbers(self, extent: Extent) -> memoryview:
        """Return the extent's memory as 64-bit numbers."""
        return self.mapped(extent).cast("Q")


def _same_arena(descriptor: Any) -> Arena:
    return Arena(descriptor.detach())


class Addresses:
    """Free addresses of the file. The lowest ones are given out first, so that the file stays short."""

    def __init__(self) -> None:
        self._gaps = [Extent(0, END_OF_ADDRESSES)]
        """In order; no two of them touch."""
        self._returned: deque[Extent] = deque()
        """Given back, perhaps by a finalizer in the middle of `take`, and not yet among the gaps."""

    def take(self, num_bytes: int, *, end: int = END_OF_ADDRESSES) -> Extent | None:
        """Return `num_bytes` addresses in front of `end`, or None if there are none in a row."""
        num_bytes = whole_pages(num_bytes)
        while self._returned:
            self._sort_in(self._returned.popleft())
        for number, gap in enumerate(self._gaps):
            if gap.offset + num_bytes > end:
                return None
            if gap.num_bytes >= num_bytes:
                left = Extent(gap.offset + num_bytes, gap.num_bytes - num_bytes)
                self._gaps[number : number + 1] = [left] if left.num_bytes else []
                return Extent(gap.offset, num_bytes)
        return None

    def give_back(self, window: Extent) -> None:
        """Let the addresses of `window` be given out again."""
        if window.num_bytes:
            self._returned.append(window)

    def _sort_in(self, window: Extent) -> None:
        first = last = bisect_left(self._gaps, window)
        start, stop = window.offset, window.stop
        if first and self._gaps[first - 1].stop == start:
            first -= 1
            start = self._gaps[first].offset
        if last < len(self._gaps) and self._gaps[last].offset == stop:
            stop = self._gaps[last].stop
            last += 1
        self._gaps[first:last] = [Extent(start, stop - start)]


def whole_pages(num_bytes: int) -> int:
    """Return `num_bytes`, rounded up to whole pages."""
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def longest_file() -> int:
    """Return how many bytes a file of this process may have (`ulimit -f`): shared memory is one, holes included."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return END_OF_ADDRESSES if limit == resource.RLIM_INFINITY else min(limit, END_OF_ADDRESSES)


def beyond_longest_file(num_bytes: int) -> OutOfSharedMemory:
    """Return the error for a batch that is bigger than a file may be."""
    reason = f"files, and shared memory with them, are limited to {longest_file():,} bytes here (`ulimit -f`)"
    return OutOfSharedMemory(num_bytes, reason=reason)
