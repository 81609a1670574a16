"""Address space into which all files of a store are mapped, so that one gather can read from any number of them.

Python's `mmap` keeps a descriptor for each mapping, and a store may have thousands of shards, so this calls mmap(2)
directly: first an inaccessible reservation (PROT_NONE), which takes no memory, then each file over a part of it
(MAP_FIXED).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value

_system = ctypes.CDLL(None, use_errno=True)
_system.mmap.restype = ctypes.c_void_p
_system.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_system.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_system.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class AddressSpace:
    """Reserved addresses. Reading where nothing was mapped would end the process.

    Lives as long as any array over it.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = max(mmap.PAGESIZE, -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self.address = self._mapped(None, self.num_bytes, _PROT_NONE, flags, -1)
        self._memory: Any = (ctypes.c_char * self.num_bytes).from_address(self.address)
        finalize(self._memory, _system.munmap, self.address, self.num_bytes).atexit = False

    def map_file(self, descriptor: int, begin: int, num_bytes: int) -> None:
        """Map the file at byte `begin` of the space."""
        flags = mmap.MAP_SHARED | _MAP_FIXED
        assert begin % mmap.PAGESIZE == 0 and begin + num_bytes <= self.num_bytes  # noqa: PT018
        self._mapped(self.address + begin, num_bytes, mmap.PROT_READ, flags, descriptor)

    def will_need(self, begin: int, end: int) -> None:
        """Ask the kernel to read these bytes soon, without waiting for them."""
        begin -= begin % mmap.PAGESIZE
        _system.madvise(self.address + begin, end - begin, mmap.MADV_WILLNEED)  # only a hint: it may fail

    def array(self, dtype: Any, shape: tuple[int, ...], *, strides: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Return a read-only array over the space from its beginning."""
        array: NDArray[Any] = np.ndarray(shape, dtype, self._memory, 0, strides)
        array.flags.writeable = False
        return array

    @staticmethod
    def _mapped(address: int | None, num_bytes: int, protection: int, flags: int, descriptor: int) -> int:
        found = _system.mmap(address, num_bytes, protection, flags, descriptor, 0)
        if found == _FAILED or found is None:
            number = ctypes.get_errno()
            error = OSError(number, os.strerror(number))
            error.add_note(
                f"while mapping {num_bytes} bytes of a store\n"
                "hint: raise the limit on address space (`ulimit -v`) or on mappings (`sysctl vm.max_map_count`)"
            )
            raise error
        return int(found)
