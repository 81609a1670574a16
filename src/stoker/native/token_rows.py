"""Rows of tokens, written in one pass.

Each function returns False, having written nothing, where the library is not loaded or has no code for these arrays.

Shapes: V values in `flat`; S spans, of all rows together; R rows to write, into outputs of B rows with T columns; at
most M spans in a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native.arrays import BOOL, INT32, SOURCES, TARGETS, address, as_input, check_writeable, is_readable
from stoker.native.faults import raise_fault
from stoker.native.library import library

LONGEST = 2**31 - 1
"""Columns are counted with 32 bits."""


def fill_rows(
    flat: NDArray[Any],
    elements: NDArray[np.int64],
    sizes: NDArray[np.int64],
    has_next: NDArray[np.bool_],
    row_starts: NDArray[np.int64],
    rows: NDArray[np.int64],
    *,
    tokens: NDArray[Any] | None = None,
    labels: NDArray[Any] | None = None,
    positions: NDArray[np.int32] | None = None,
    document_ids: NDArray[np.int32] | None = None,
    cu_seqlens: NDArray[np.int32] | None = None,
    pad: int = 0,
    ignored: int = -100,
) -> bool:
    """Write rows `rows` [R] of the given outputs, [B, T] and `cu_seqlens` [B, M + 1], from spans of `flat` [V].

    Row `rows[r]` gets the spans `row_starts[r]` to `row_starts[r + 1]`, one after the other. Span `s` is
    `flat[elements[s] : elements[s] + sizes[s]]`. The label of a token is the token after it; that of the span's last
    token is read from `flat` too if `has_next[s]`, and is `ignored` otherwise. The rest of the row is padding: token
    `pad`, label `ignored`, document -1, positions that start at 0 again. `cu_seqlens` is 0, then the ends of the spans,
    then the length of the row up to its last entry. Numbers that do not fit an output lose their upper bits, as with
    `astype`.

    Raises `ArgumentError` if something is out of range.
    """
    native = library()
    if native is None:
        return False
    source = SOURCES.get(flat.dtype)
    if source is None or flat.ndim != 1 or not is_readable(flat):
        return False
    columns = {"tokens": tokens, "labels": labels, "positions": positions, "document_ids": document_ids}
    shape: tuple[int, ...] | None = None
    for name, array in columns.items():
        if array is None:
            continue
        if array.ndim != 2:
            raise ArgumentError(f"{name} has {array.ndim} dimensions", hint="outputs are [rows, length]")
        if array.dtype not in TARGETS if name in ("tokens", "labels") else array.dtype != INT32:
            return False
        shape = shape or array.shape
        if array.shape != shape or not array.flags.carray:
            check_writeable(name, array, shape)
            return False
    if shape is None:
        raise ArgumentError("there is no output to write", hint="pass tokens, labels, positions or document_ids")
    num_places, length = shape
    if length > LONGEST:
        return False
    if cu_seqlens is not None:
        if cu_seqlens.ndim != 2 or len(cu_seqlens) != num_places:
            raise ArgumentError(
                f"cu_seqlens has the shape {cu_seqlens.shape}, for {num_places} rows", hint="it is [rows, spans + 1]"
            )
        if cu_seqlens.dtype != INT32 or not cu_seqlens.flags.carray:
            check_writeable("cu_seqlens", cu_seqlens, cu_seqlens.shape)
            return False
    token_bytes = 8 if tokens is None else checked_bytes("pad", pad, tokens.dtype)
    label_bytes = 8 if labels is None else checked_bytes("ignored", ignored, labels.dtype)
    elements, sizes = as_input("elements", elements), as_input("sizes", sizes)
    has_next = as_input("has_next", has_next, dtype=BOOL)
    row_starts, rows = as_input("row_starts", row_starts), as_input("rows", rows)
    num_spans, num_rows = len(sizes), len(rows)
    if len(elements) != num_spans or len(has_next) != num_spans or len(row_starts) != num_rows + 1:
        raise ArgumentError(
            f"{len(elements)} elements, {num_spans} sizes, {len(has_next)} has_next, {len(row_starts)} row_starts and "
            f"{num_rows} rows do not go together",
            hint="the first three have a number for each span, row_starts one more than rows",
        )
    found = native.fill_rows(
        flat=address(flat),
        num_values=len(flat),
        source=source,
        elements=address(elements),
        sizes=address(sizes),
        has_next=address(has_next),
        num_spans=num_spans,
        row_starts=address(row_starts),
        rows=address(rows),
        num_rows=num_rows,
        num_places=num_places,
        length=length,
        tokens=_address_or_0(tokens),
        token_bytes=token_bytes,
        pad=pad,
        labels=_address_or_0(labels),
        label_bytes=label_bytes,
        ignored=ignored,
        positions=_address_or_0(positions),
        document_ids=_address_or_0(document_ids),
        cu_seqlens=_address_or_0(cu_seqlens),
        width=0 if cu_seqlens is None else cu_seqlens.shape[1],
    )
    if found:
        raise_fault(found)
    return True


def checked_bytes(name: str, number: int, dtype: np.dtype[Any]) -> int:
    """Return the bytes of an output's numbers, or raise `ArgumentError` if `number` does not fit."""
    num_bytes, smallest, largest = TARGETS[dtype]
    if not smallest <= number <= largest:
        raise ArgumentError(f"{name}={number} does not fit {dtype}", hint=f"use {smallest} to {largest}")
    return num_bytes


def can_gather(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether `gather_rows` is available for these types."""
    return library() is not None and source in SOURCES and target in TARGETS


def gather_rows(
    flat: NDArray[Any],
    elements: NDArray[np.int64],
    length: int,
    tokens: NDArray[Any] | None,
    labels: NDArray[Any] | None = None,
) -> bool:
    """Copy `length` values of `flat` [V] from each of `elements` [R] into `tokens` [R, length], and into `labels` the
    values one position later.

    Raises `ArgumentError` if something is out of range.
    """
    native = library()
    if native is None:
        return False
    source = SOURCES.get(flat.dtype)
    if source is None or flat.ndim != 1 or not is_readable(flat) or length < 1:
        return False
    elements = as_input("elements", elements)
    shape = len(elements), length
    for name, array in (("tokens", tokens), ("labels", labels)):
        if array is None:
            continue
        if array.dtype not in TARGETS:
            return False
        if array.shape != shape or not array.flags.carray:
            check_writeable(name, array, shape)
            return False
    found = native.gather_rows(
        flat=address(flat),
        num_values=len(flat),
        source=source,
        elements=address(elements),
        num_rows=len(elements),
        length=length,
        tokens=_address_or_0(tokens),
        token_bytes=8 if tokens is None else tokens.itemsize,
        labels=_address_or_0(labels),
        label_bytes=8 if labels is None else labels.itemsize,
    )
    if found:
        raise_fault(found)
    return True


def _address_or_0(array: NDArray[Any] | None) -> int:
    return 0 if array is None else address(array)
