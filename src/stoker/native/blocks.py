"""FlexAttention's block tables: the C twin of `compose/packs/block_tables.py`, which defines them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native.arrays import INT32, address, as_input, check_writeable
from stoker.native.faults import raise_fault
from stoker.native.library import library
from stoker.native.token_rows import LONGEST

KINDS = ("kv", "full_kv", "q", "full_q")


def block_tables(
    cu_seqlens: NDArray[Any],
    length: int,
    size: int,
    out: Mapping[str, NDArray[np.int32]],
    rows: NDArray[np.int64],
) -> bool:
    """Write the eight tables of R rows with these `cu_seqlens` [R, M + 1], into rows `rows` of `out`.

    Returns False, having written nothing, where the library is not loaded or has no code for these arrays. Raises
    `ArgumentError` if something is out of range.
    """
    native = library()
    if native is None or cu_seqlens.dtype != INT32 or cu_seqlens.ndim != 2 or not cu_seqlens.flags.c_contiguous:
        return False
    if not (0 < length <= LONGEST and 0 < size <= LONGEST and cu_seqlens.flags.aligned):
        return False
    rows = as_input("rows", rows)
    num_rows, width = cu_seqlens.shape
    if len(rows) != num_rows or width < 2:
        raise ArgumentError(
            f"cu_seqlens has the shape {cu_seqlens.shape}, for {len(rows)} rows", hint="it is [rows, spans + 1]"
        )
    num = -(-length // size)
    num_places = len(out["kv_num_blocks"])
    tables = {}
    for kind in KINDS:
        for name, field, shape in (
            (f"{kind}_num_blocks", f"{kind}_num", (num_places, num)),
            (f"{kind}_indices", kind, (num_places, num, num)),
        ):
            array = out[name]
            if array.dtype != INT32:
                return False
            if array.shape != shape or not array.flags.carray:
                check_writeable(name, array, shape)
                return False
            tables[field] = address(array)
    found = native.block_tables(
        cu_seqlens=address(cu_seqlens),
        num_rows=num_rows,
        width=width,
        length=length,
        size=size,
        rows=address(rows),
        num_places=num_places,
        **tables,
    )
    if found:
        raise_fault(found)
    return True
