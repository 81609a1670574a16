"""Errors that say that memory ran out are known, and others are not taken for them."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from stoker.errors import OutOfSharedMemory
from stoker.lab.trial.child import Child
from stoker.lab.trial.out_of_memory import is_out_of_memory, limit_memory, may_be_out_of_memory, mentions_out_of_memory


class OutOfMemoryError(RuntimeError):
    """torch's has this name, and CUDA is not at hand."""


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("CUDA error: insufficient resources when calling `cusparseSpMM`"),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OutOfSharedMemory(1 << 30, reason="no space"),
        caused(ValueError("the step failed"), MemoryError()),
        ExceptionGroup("several", [KeyError("x"), ExceptionGroup("inner", [MemoryError()])]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lack_of_memory_is_known_whoever_tells_of_it(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x3 and 4x5)"),
        ValueError("CUDA out of memory is what this text is about"),
        OSError(errno.ENOENT, "No such file"),
        ExceptionGroup("several", [KeyError("x")]),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_not_taken_for_it(error: BaseException) -> None:
    assert not is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("GET was unable to find an engine to execute this computation"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    ],
)
def test_what_may_have_another_reason_is_distinguished(error: BaseException) -> None:
    assert may_be_out_of_memory(error) and not is_out_of_memory(error)
    assert may_be_out_of_memory(caused(ValueError("the step failed"), error))
    assert not may_be_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))


def test_an_error_whose_cause_is_itself_ends_the_search() -> None:
    error = ValueError("x")
    error.__cause__ = caused(KeyError("y"), error)
    assert not is_out_of_memory(error)


def test_last_words_tell_of_memory() -> None:
    assert mentions_out_of_memory("libgomp: Thread creation failed: Resource temporarily unavailable")
    assert mentions_out_of_memory("terminate called after throwing an instance of 'std::bad_alloc'")
    assert not mentions_out_of_memory("Segmentation fault")


def limiting(num_bytes: int) -> object:
    """Answer, in a child, whether so many MiB can be had."""
    assert limit_memory(num_bytes)

    def has(num_mib: int) -> bool:
        try:
            np.ones(num_mib << 17)
        except MemoryError:
            return False
        return True

    return has


def test_a_limit_makes_memory_run_out_early_and_only_there() -> None:
    with Child(limiting, 400 << 20) as child:  # type: ignore[arg-type]
        assert child.pid != os.getpid()
        assert [child.ask(num_mib) for num_mib in (50, 500, 100, 2000)] == [True, False, True, False]
    np.ones(500 << 17)
