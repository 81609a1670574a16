"""Recognize out-of-memory errors of all libraries, and limit the memory of a process."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from stoker.foundation import machine

SAYINGS = (
    "out of memory",  # CUDA, HIP, XPU, MPS, NCCL
    "can't allocate memory",  # torch, on the CPU
    "cannot allocate memory",  # the system
    "not enough memory",
    "unable to allocate",  # NumPy
    "alloc_failed",  # cuBLAS, cuDNN
    "allocation_failed",  # cuDNN 9
    "insufficient resources when calling",  # cuSPARSE
    "bad_alloc",  # C++
    "bad allocation",
    "unable to mmap",
    "insufficient memory",
    "thread creation failed: resource temporarily unavailable",  # OpenMP: no memory for the stack of a thread
)
"""Messages of out-of-memory errors without a type of their own, or of processes that ended; in lower case."""

DOUBTFUL = (
    "unable to find an engine to execute",  # torch: all ways to do a convolution have failed, for whatever reason
    "unable to find a valid cudnn algorithm",
    "cublas_status_not_initialized",  # there was no memory for the library's own state, or it is not well installed
    "cudnn_status_not_initialized",
    "cusolver_status_not_initialized",
)
"""Messages that may also have other reasons."""

KINDS = ("OutOfMemoryError", "OutOfSharedMemory")
"""Names of types: torch's, which is not imported here, and Stoker's."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, its cause or a member of its group is an out-of-memory error."""
    return any(_is_one(one) for one in _chain(error, set()))


def may_be_out_of_memory(error: BaseException) -> bool:
    """Whether an error is one that some libraries raise when memory runs out, but also for other reasons."""
    texts = [str(one).lower() for one in _chain(error, set()) if isinstance(one, RuntimeError)]
    return any(saying in text for saying in DOUBTFUL for text in texts)


def mentions_out_of_memory(text: str) -> bool:
    """Whether the last output of a process mentions that memory ran out."""
    return any(saying in text.lower() for saying in SAYINGS)


def limit_memory(num_bytes: int) -> bool:
    """Limit the memory of this process; return whether the system supports that.

    Allocations beyond it fail as on a machine without free memory. Only writable memory counts, not libraries and
    mapped files, as it would with a limit on address space.
    """
    try:
        import resource
    except ImportError:
        return False
    if machine.data_bytes() is None:
        return False
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    except (OSError, ValueError):
        return False
    return True


def _is_one(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or any(kind.__name__ in KINDS for kind in type(error).__mro__):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError | OSError) and mentions_out_of_memory(str(error))


def _chain(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    """Yield an error, its causes, and the members of its group."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _chain(one, seen)
    yield from _chain(error.__cause__, seen)
    yield from _chain(error.__context__, seen)
