"""FlexAttention's block tables; `compose/packs/block_tables.py` says what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native.arrays import INT32, address, check_writeable, inputs
from stoker.native.faults import raise_fault
from stoker.native.library import library

TABLES = (
    ("kv_num_blocks", "kv_indices"),
    ("full_kv_num_blocks", "full_kv_indices"),
    ("q_num_blocks", "q_indices"),
    ("full_q_num_blocks", "full_q_indices"),
)
"""The tables, each with its counts before it, in the order of blocks.c."""

LONGEST = 2**31 - 1


def block_tables(
    cu_seqlens: NDArray[Any],
    length: int,
    size: int,
    out: Mapping[str, NDArray[np.int32]],
    rows: NDArray[np.int64],
) -> bool:
    """Write the eight tables of rows with these borders into rows `rows` of the arrays in `out`.

    False, and nothing written, where the library is not there or has no code for these arrays; `ArgumentError` if
    something cannot be.
    """
    native = library()
    if native is None or cu_seqlens.dtype != INT32 or cu_seqlens.ndim != 2 or not cu_seqlens.flags.c_contiguous:
        return False
    if not (0 < length <= LONGEST and 0 < size <= LONGEST and cu_seqlens.flags.aligned):
        return False
    rows = inputs("rows", rows)
    num_rows, width = cu_seqlens.shape
    if len(rows) != num_rows or width < 2:
        raise ArgumentError(
            f"there are borders of {num_rows} rows, {width} for each, and {len(rows)} rows for them",
            hint="cu_seqlens is [rows, spans + 1]",
        )
    num = -(-length // size)
    num_places = len(out["kv_num_blocks"])
    addresses = []
    for counts, indices in TABLES:
        for name, shape in ((counts, (num_places, num)), (indices, (num_places, num, num))):
            array = out[name]
            if array.dtype != INT32:
                return False
            if array.shape != shape or not array.flags.carray:
                check_writeable(name, array, shape)
                return False
            addresses.append(address(array))
    found = native.block_tables(
        address(cu_seqlens), num_rows, width, length, size, address(rows), num_places, *addresses
    )
    if found:
        raise_fault(found)
    return True
