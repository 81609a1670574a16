"""Memory of batches is used again when nobody holds it, and never before."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stoker.batch.memory import MAX_BLOCKS, POOLED_BYTES, Pool

SHAPE = (POOLED_BYTES,)


def address(array: Any) -> int:
    return int(array.ctypes.data)


def test_memory_that_nobody_holds_is_used_again() -> None:
    pool = Pool()
    first = pool.empty(SHAPE, np.uint8)
    where = address(first)
    del first
    for _ in range(5):
        assert address(pool.empty(SHAPE, np.uint8)) == where
    assert address(pool.empty((POOLED_BYTES // 8,), np.int64)) == where


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "array": lambda array: array,
    "view": lambda array: array[5:7],
    "view of a view": lambda array: array.reshape(4, -1)[1:].T[3:],
    "tensor": torch.from_numpy,
    "tensor view": lambda array: torch.from_numpy(array)[3:9].view(2, 3),
    "storage": lambda array: torch.from_numpy(array).untyped_storage(),
    "memoryview": memoryview,
    "dlpack": lambda array: torch.utils.dlpack.from_dlpack(array),
    "detached": lambda array: torch.from_numpy(array).detach(),
    "closure": lambda array: lambda: array,
    "iterator": iter,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_somebody_holds_is_not(holder: str) -> None:
    pool = Pool()
    array = pool.empty(SHAPE, np.uint8)
    where = address(array)
    held = HOLDERS[holder](array)
    del array
    others = [pool.empty(SHAPE, np.uint8) for _ in range(3)]
    assert where not in map(address, others)
    del held
    gc.collect()
    assert address(pool.empty(SHAPE, np.uint8)) == where


def test_who_keeps_many_batches_keeps_them_all() -> None:
    pool = Pool()
    kept = []
    for number in range(3 * MAX_BLOCKS):
        array = pool.empty(SHAPE, np.int16)
        array[:] = number
        kept.append(array)
    assert all((array == number).all() for number, array in enumerate(kept))
    assert len(pool._blocks) <= MAX_BLOCKS


def test_memory_is_aligned_and_of_the_size_that_was_asked_for() -> None:
    pool = Pool()
    for shape in ((3, POOLED_BYTES), (POOLED_BYTES + 1,), (7, 11), (), (0, 5)):
        array = pool.empty(shape, np.float64)
        assert array.shape == shape and array.flags.c_contiguous and array.flags.writeable
        assert array.nbytes < POOLED_BYTES or address(array) % 64 == 0


def test_a_block_that_is_far_too_big_is_not_used() -> None:
    pool = Pool()
    pool.empty((10 * POOLED_BYTES,), np.uint8)
    small = pool.empty(SHAPE, np.uint8)
    assert small.base is not None and len(small.base) < 2 * POOLED_BYTES


def test_threads_never_share_a_block() -> None:
    pool = Pool()
    wrong: list[int] = []

    def use(number: int) -> None:
        for _ in range(300):
            array = pool.empty(SHAPE, np.uint8)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_pool_travels_empty_and_goes_with_its_blocks() -> None:
    pool = Pool()
    array = pool.empty(SHAPE, np.uint8)
    assert pickle.loads(pickle.dumps(pool))._blocks == []
    gone = weakref.ref(pool)
    del pool
    assert gone() is None
    array[:] = 5  # still its own
