"""The header of a safetensors file: written, and validated when read.

Layout: the length of the header (uint64, little-endian), the header (JSON, padded with spaces), then the arrays without
gaps. Everything in a header is checked against the file before it is mapped: reading outside the file would end the
process with SIGBUS.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from stoker.errors import DamagedFile
from stoker.store.checksums import BLOCK_BYTES
from stoker.store.column import NUMPY_NAMES, SAFETENSORS_NAMES, can_be_array

MAX_HEADER_BYTES = 100_000_000
"""Maximum in safetensors."""

METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class ArrayExtent:
    """Location of an array in its file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Offset in the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """Contents of a header."""

    metadata: dict[str, str]
    arrays: dict[str, ArrayExtent]
    begin: int
    """Offset of the first array."""


def num_bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the size of an array in bytes."""
    return math.prod(shape) * np.dtype(dtype).itemsize


def packed(metadata: Mapping[str, str], arrays: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """Return the header, preceded by its length, of arrays in this order.

    It is padded with spaces to a multiple of a block, so that the arrays begin at a page, for any page size.
    """
    entries: dict[str, Any] = {METADATA: dict(metadata)}
    at = 0
    for name, (dtype, shape) in arrays.items():
        end = at + num_bytes_of(dtype, shape)
        entries[name] = {"dtype": SAFETENSORS_NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=True).encode()
    num_bytes = -(-(8 + len(text)) // BLOCK_BYTES) * BLOCK_BYTES - 8
    return num_bytes.to_bytes(8, "little") + text.ljust(num_bytes)


def unpacked(file: IO[bytes], path: Path, file_bytes: int) -> Header:
    """Return the header of a file of `file_bytes`; raise `DamagedFile` if anything in it is invalid."""
    first = file.read(8)
    num_bytes = int.from_bytes(first, "little")
    if len(first) < 8 or num_bytes < 2:
        raise _damaged(path, "does not begin with the length of a safetensors header")
    if num_bytes > min(MAX_HEADER_BYTES, file_bytes - 8):
        raise _damaged(
            path, f"has a header of {num_bytes} bytes according to its length, but the file has {file_bytes}"
        )
    text = file.read(num_bytes)
    if len(text) < num_bytes:
        raise _damaged(path, f"ends within its header of {num_bytes} bytes")
    begin = 8 + num_bytes
    try:
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=without_repeats)
        if not isinstance(entries, dict):
            raise TypeError("it is not a JSON object")
        metadata = entries.pop(METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise TypeError(f"{METADATA} is not an object of strings")
        arrays = {name: _extent(entry, begin) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise _damaged(path, f"has a header that cannot be read: {error or type(error).__name__}") from error
    _check_places(arrays, path, begin, file_bytes)
    return Header(metadata, arrays, begin)


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict, for `json.loads`, which would keep the last of two values of one name."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _extent(entry: Any, begin: int) -> ArrayExtent:
    dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in NUMPY_NAMES:
        raise ValueError(f"unknown dtype {dtype!r}")
    if not isinstance(shape, list) or not all(
        type(size) is int and 0 <= size < 1 << 62 for size in [*shape, start, stop]
    ):
        raise ValueError("a size or an offset is not an integer from 0 to 2^62")
    if not can_be_array(NUMPY_NAMES[dtype], tuple(shape)):
        raise ValueError("an array is too big, or has too many dimensions")
    extent = ArrayExtent(NUMPY_NAMES[dtype], tuple(shape), begin + start, stop - start)
    if extent.num_bytes != num_bytes_of(extent.dtype, extent.shape):
        raise ValueError(f"an array of {dtype} and shape {shape} cannot have {stop - start} bytes")
    return extent


def _check_places(arrays: Mapping[str, ArrayExtent], path: Path, begin: int, file_bytes: int) -> None:
    """Check that the arrays fill the file without gaps or overlaps."""
    at = begin
    for name, extent in sorted(arrays.items(), key=lambda item: (item[1].begin, item[1].num_bytes)):
        if extent.begin != at:
            raise _damaged(path, f"has a header in which array {name!r} begins at byte {extent.begin} instead of {at}")
        if extent.num_bytes and extent.begin % np.dtype(extent.dtype).itemsize:
            raise _damaged(path, f"has an array {name!r} that is not aligned: it begins at byte {extent.begin}")
        at += extent.num_bytes
    if at != file_bytes:
        what = "is truncated" if at > file_bytes else "is too long"
        raise _damaged(path, f"{what}: it has {file_bytes} bytes, but {at} according to its header")


def _damaged(path: Path, what: str) -> DamagedFile:
    return DamagedFile(path, what=what, hint="copy the file again, or prepare the store again")
