"""One array in one file, with its dtype and shape in a header: a self-describing memory map.

Layout: a safetensors file with a single array, named `array`, that begins at a page boundary.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from stoker.errors import ArgumentError, DamagedFile
from stoker.store.column import SAFETENSORS_NAMES
from stoker.store.header import ArrayExtent, num_bytes_of, packed, unpacked
from stoker.store.manifest import sync_folder

NAME = "array"


def save_array(path: str | os.PathLike[str], array: ArrayLike) -> None:
    """Write an array to a file for `open_array`. The file appears only when it is complete."""
    values = np.asarray(array)
    with create_array(path, values.dtype, values.shape) as out:
        out[...] = values


@contextmanager
def create_array(path: str | os.PathLike[str], dtype: DTypeLike, shape: tuple[int, ...]) -> Iterator[NDArray[Any]]:
    """Give the memory-mapped array of a new file, to fill in any order: it need not fit into memory.

    The file takes its name when the block ends; after an error it is removed.
    """
    kind = np.dtype(dtype)
    if kind.name not in SAFETENSORS_NAMES:
        raise ArgumentError(f"array files cannot have {kind.name}", hint=f"use one of {', '.join(SAFETENSORS_NAMES)}")
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    header = packed({"format": "stoker.array", "version": "1"}, {NAME: (kind.name, tuple(shape))})
    num_bytes = num_bytes_of(kind.name, tuple(shape))
    try:
        with open(temporary, "wb") as file:
            file.write(header)
            file.flush()
            if num_bytes:  # reserve all of it: a full disk is an error now, instead of SIGBUS when a page is written
                os.posix_fallocate(file.fileno(), len(header), num_bytes)
            if num_bytes:
                mapped = np.memmap(temporary, kind.newbyteorder("<"), "r+", offset=len(header), shape=tuple(shape))
                yield mapped.view(np.ndarray)
                mapped.flush()
                del mapped
            else:
                yield np.empty(shape, kind)
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def open_array(path: str | os.PathLike[str], *, writable: bool = False) -> NDArray[Any]:
    """Return the array in a file, memory-mapped: pages are read on access.

    Any safetensors file with a single array works. With `writable`, changes are written to the file.
    """
    target = Path(path)
    extent = array_extent(target)
    dtype = np.dtype(extent.dtype).newbyteorder("<")
    if not extent.num_bytes:
        return np.empty(extent.shape, dtype)
    mode: Any = "r+" if writable else "r"
    return np.memmap(target, dtype, mode, offset=extent.begin, shape=extent.shape).view(np.ndarray)


def array_extent(target: Path) -> ArrayExtent:
    """Return the location of the array in its file."""
    with open(target, "rb") as file:
        header = unpacked(file, target, os.fstat(file.fileno()).st_size)
    if len(header.arrays) != 1:
        raise DamagedFile(
            target,
            what=f"contains {len(header.arrays)} arrays, expected one",
            hint="open a store by its folder, and other safetensors files with the safetensors library",
        )
    [extent] = header.arrays.values()
    return extent
