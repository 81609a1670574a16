"""The layout of a shard: header, checksums of the blocks, then the arrays of all columns, widest dtype first."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path

from stoker.errors import DamagedFile, StaleSource
from stoker.store.checksums import BLOCK_BYTES, checksum, num_blocks_in, num_checksums_for
from stoker.store.column import OFFSETS, Column
from stoker.store.header import Header, num_bytes_of, packed, unpacked
from stoker.store.manifest import Shard

CHECKSUMS = "stoker.checksums"
FORMAT = "stoker.shard"

Arrays = dict[str, tuple[str, tuple[int, ...]]]
"""Dtypes and shapes by name, in the order of the file."""


def arrays_of(columns: Mapping[str, Column], num_samples: int, values: Mapping[str, int]) -> Arrays:
    """Return the arrays in the body of a shard. Wide dtypes come first, so that each array is aligned."""
    arrays: Arrays = {}
    for name, column in columns.items():
        if column.is_ragged:
            arrays[name] = (column.dtype, (values[name], *column.shape))
            arrays[name + OFFSETS] = ("int64", (num_samples + 1,))
        else:
            arrays[name] = (column.dtype, (num_samples, *column.shape))
    return dict(sorted(arrays.items(), key=lambda item: -num_bytes_of(item[1][0], ())))


def header_of(arrays: Arrays, num_samples: int) -> bytes:
    """Return the header of a shard with these arrays, preceded by its length."""
    num_bytes = sum(num_bytes_of(*array) for array in arrays.values())
    metadata = {
        "format": FORMAT,
        "version": "1",
        "num_samples": str(num_samples),
        "block_bytes": str(BLOCK_BYTES),
        "num_blocks": str(num_blocks_in(num_bytes)),
    }
    return packed(metadata, {CHECKSUMS: ("uint64", (num_checksums_for(num_bytes),)), **arrays})


def checked_header(path: Path, descriptor: int, shard: Shard, columns: Mapping[str, Column]) -> Header:
    """Return the header of a shard's file, after checking that it matches the manifest."""
    num_bytes = os.fstat(descriptor).st_size
    if num_bytes != shard.num_bytes:
        what = "is truncated" if num_bytes < shard.num_bytes else "is too long"
        raise _damaged(path, f"{what}: it has {num_bytes} bytes, but {shard.num_bytes} in the manifest")
    before = os.pread(descriptor, shard.body, 0)
    if f"{checksum(before):016x}" != shard.digest:
        unpacked(io.BytesIO(before), path, num_bytes)  # may raise a more specific error
        raise _damaged(path, "is not the file in the manifest: its header or its checksums differ")
    header = unpacked(io.BytesIO(before), path, num_bytes)
    expected = arrays_of(columns, shard.num_samples, shard.values)
    found = {name: (extent.dtype, extent.shape) for name, extent in header.arrays.items() if name != CHECKSUMS}
    if found != expected:
        names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise _damaged(path, f"does not match the manifest: {', '.join(names)} differ")
    body_bytes = num_bytes - shard.body
    sums = header.arrays.get(CHECKSUMS)
    is_sound = sums is not None and (sums.dtype, sums.shape) == ("uint64", (num_checksums_for(body_bytes),))
    if not is_sound or sums is None or sums.begin != header.begin or header.begin + sums.num_bytes != shard.body:
        raise _damaged(path, "has no checksums at their place")
    if header.metadata.get("block_bytes") != str(BLOCK_BYTES):
        raise _damaged(path, f"has blocks of {header.metadata.get('block_bytes')} bytes, instead of {BLOCK_BYTES}")
    return header


def opened(path: Path) -> int:
    """Open a shard's file and return the descriptor."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not block if it is a pipe
    except FileNotFoundError as error:
        if path.parent.is_dir():
            raise DamagedFile(
                path,
                what="is listed in the manifest, but missing",
                hint="copy the file again, or prepare the store again; if it was prepared meanwhile, reopen it",
            ) from error
        raise StaleSource(path.parent, what="it is gone") from error


def columns_in(header: Header, begin: int, end: int) -> list[str]:
    """Return the names of the arrays with bytes in a part of the file."""
    return [
        name for name, extent in header.arrays.items() if extent.begin < end and begin < extent.begin + extent.num_bytes
    ]


def _damaged(path: Path, what: str) -> DamagedFile:
    return DamagedFile(path, what=what, hint="copy the file again, or prepare the store again")


def block_at(shard: Shard, block: int) -> tuple[int, int]:
    """Return begin and end of a block in the file."""
    begin = shard.body + block * BLOCK_BYTES
    return begin, min(begin + BLOCK_BYTES, shard.num_bytes)
