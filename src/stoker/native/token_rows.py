"""Rows of tokens, put together in one pass.

Each function returns False, having written nothing, where the library is not there or has no code for these arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native.arrays import BOOL, INT32, SOURCES, TARGETS, address, check_writeable, inputs, is_readable
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
    """Write rows `rows` of the outputs, those that are given, from spans of `flat`.

    Row `rows[r]` has the spans `row_starts[r]` to `row_starts[r + 1]`, one after the other. Span `s` is
    `flat[elements[s] : elements[s] + sizes[s]]`; the label of a token is the one behind it, and that of the span's last
    is found there too if `has_next[s]`, otherwise it is `ignored`. What is left of the row has `pad` as tokens,
    `ignored` as labels, positions of its own and the document -1. `cu_seqlens` gets 0, the ends of the spans, and the
    length of the row up to its end. Numbers that the outputs cannot hold lose their upper bits, as with `astype`.

    False if there is no code for these types or layouts; `ArgumentError` if something cannot be.
    """
    native = library()
    if native is None:
        return False
    source = SOURCES.get(flat.dtype)
    if source is None or flat.ndim != 1 or not is_readable(flat):
        return False
    shape: tuple[int, ...] | None = None
    for name, array in (
        ("tokens", tokens),
        ("labels", labels),
        ("positions", positions),
        ("document_ids", document_ids),
    ):
        if array is None:
            continue
        if array.ndim != 2:
            raise ArgumentError(f"{name} has {array.ndim} dimensions", hint="outputs are [rows, length]")
        if array.dtype not in TARGETS if name in ("tokens", "labels") else array.dtype != INT32:
            return False
        if shape is None:
            shape = array.shape
        if array.shape != shape or not array.flags.carray:
            check_writeable(name, array, shape)
            return False
    if shape is None:
        raise ArgumentError("there is no row to write", hint="pass tokens, labels, positions or document_ids")
    num_places, length = shape
    if length > LONGEST:
        return False
    width = 0
    if cu_seqlens is not None:
        if cu_seqlens.ndim != 2 or len(cu_seqlens) != num_places:
            raise ArgumentError(
                f"cu_seqlens has the shape {cu_seqlens.shape}, for {num_places} rows", hint="it is [rows, spans + 1]"
            )
        if cu_seqlens.dtype != INT32 or not cu_seqlens.flags.carray:
            check_writeable("cu_seqlens", cu_seqlens, cu_seqlens.shape)
            return False
        width = cu_seqlens.shape[1]
    token_bytes = 8 if tokens is None else bytes_for("pad", pad, tokens.dtype)
    label_bytes = 8 if labels is None else bytes_for("ignored", ignored, labels.dtype)
    elements, sizes = inputs("elements", elements), inputs("sizes", sizes)
    has_next = inputs("has_next", has_next, dtype=BOOL)
    row_starts, rows = inputs("row_starts", row_starts), inputs("rows", rows)
    num_spans, num_rows = len(sizes), len(rows)
    if len(elements) != num_spans or len(has_next) != num_spans or len(row_starts) != num_rows + 1:
        raise ArgumentError(
            f"{len(elements)} elements, {num_spans} sizes, {len(has_next)} has_next, {len(row_starts)} row_starts and "
            f"{num_rows} rows do not go together",
            hint="the first three have a number for each span, row_starts one more than rows",
        )
    found = native.fill_rows(
        address(flat),
        flat.shape[0],
        source,
        address(elements),
        address(sizes),
        address(has_next),
        num_spans,
        address(row_starts),
        address(rows),
        num_rows,
        num_places,
        length,
        0 if tokens is None else address(tokens),
        token_bytes,
        pad,
        0 if labels is None else address(labels),
        label_bytes,
        ignored,
        0 if positions is None else address(positions),
        0 if document_ids is None else address(document_ids),
        0 if cu_seqlens is None else address(cu_seqlens),
        width,
    )
    if found:
        raise_fault(found)
    return True


def bytes_for(name: str, number: int, dtype: np.dtype[Any]) -> int:
    """Return how many bytes a number of an output has, after a look at whether it can hold `number`."""
    num_bytes, smallest, largest = TARGETS[dtype]
    if not smallest <= number <= largest:
        raise ArgumentError(f"{name}={number} is no number of {dtype}", hint=f"use {smallest} to {largest}")
    return num_bytes


def can_gather(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether `gather_rows` is there for these types."""
    return library() is not None and source in SOURCES and target in TARGETS


def gather_rows(
    flat: NDArray[Any],
    elements: NDArray[np.int64],
    length: int,
    tokens: NDArray[Any] | None,
    labels: NDArray[Any] | None = None,
) -> bool:
    """Write `length` values of `flat` from each of `elements` on into `tokens`, and those from one later into `labels`.

    Row `r` of the outputs, those that are given, begins with `flat[elements[r]]`, and `flat[elements[r] + 1]`.

    False if there is no code for these types or layouts; `ArgumentError` if something cannot be.
    """
    native = library()
    if native is None:
        return False
    source = SOURCES.get(flat.dtype)
    if source is None or flat.ndim != 1 or not is_readable(flat) or length < 1:
        return False
    elements = inputs("elements", elements)
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
        address(flat),
        flat.shape[0],
        source,
        address(elements),
        shape[0],
        length,
        0 if tokens is None else address(tokens),
        8 if tokens is None else tokens.itemsize,
        0 if labels is None else address(labels),
        8 if labels is None else labels.itemsize,
    )
    if found:
        raise_fault(found)
    return True
