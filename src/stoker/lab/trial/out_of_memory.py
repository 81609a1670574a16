"""Whether an error says that memory ran out, whoever says it; and a limit on memory that lets it run out early."""

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
"""How libraries say it in errors that have no type of their own for it, or when they end the process; in lower case."""

DOUBTFUL = (
    "unable to find an engine to execute",  # torch: all ways to do a convolution have failed, for whatever reason
    "unable to find a valid cudnn algorithm",
    "cublas_status_not_initialized",  # there was no memory for the library's own state, or it is not well installed
    "cudnn_status_not_initialized",
    "cusolver_status_not_initialized",
)
"""How libraries say it when they do not know better: it may be something else."""

KINDS = ("OutOfMemoryError", "OutOfSharedMemory")
"""Types that say it by their names: torch's, which is here not imported for it, and ours."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it came from or holds, says that memory ran out."""
    return any(_says_so(one) for one in _chain(error, set()))


def may_be_out_of_memory(error: BaseException) -> bool:
    """Whether an error is what some libraries raise when memory ran out, though it may have another reason."""
    texts = [str(one).lower() for one in _chain(error, set()) if isinstance(one, RuntimeError)]
    return any(saying in text for saying in DOUBTFUL for text in texts)


def mentions_out_of_memory(text: str) -> bool:
    """Whether the last words of a process say that memory ran out."""
    return any(saying in text.lower() for saying in SAYINGS)


def limit_memory(num_bytes: int) -> bool:
    """Let this process have so much memory of its own and no more; return whether the system can see to that.

    Asking for more then fails as it does where there is no more. What counts is what is written to: libraries, mapped
    files, and addresses that are set aside and not used do not, as they would with a limit on addresses.
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


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or any(kind.__name__ in KINDS for kind in type(error).__mro__):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError | OSError) and mentions_out_of_memory(str(error))


def _chain(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    """Yield an error, what it came from, and what it holds if it is a group."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _chain(one, seen)
    yield from _chain(error.__cause__, seen)
    yield from _chain(error.__context__, seen)
