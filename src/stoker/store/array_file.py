"""One array in one file, with its type and shape in front: a memory map that describes itself.

The file is a safetensors file with a single array, named `array`, that begins at a page.
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
from stoker.store.header import Extent, num_bytes_of, packed, unpacked
from stoker.store.manifest import sync_folder

NAME = "array"


def save_array(path: str | os.PathLike[str], array: ArrayLike) -> None:
    """Write an array to a file that `open_array` maps. The file appears when it is complete."""
    values = np.asarray(array)
    with create_array(path, values.dtype, values.shape) as out:
        out[...] = values


@contextmanager
def create_array(path: str | os.PathLike[str], dtype: DTypeLike, shape: tuple[int, ...]) -> Iterator[NDArray[Any]]:
    """Give a new file's array, to be filled in any order and part by part: it need not fit into memory.

    When the block is left the file takes its name; after an error nothing is left of it.
    """
    kind = np.dtype(dtype)
    if kind.name not in SAFETENSORS_NAMES:
        raise ArgumentError(f"an array file cannot hold {kind.name}", hint=f"it holds {', '.join(SAFETENSORS_NAMES)}")
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    header = packed({"format": "stoker.array", "version": "1"}, {NAME: (kind.name, tuple(shape))})
    num_bytes = num_bytes_of(kind.name, tuple(shape))
    try:
        with open(beside, "wb") as file:
            file.write(header)
            file.flush()
            if num_bytes:  # all at once: a full disk is told now, and not by a crash when a page is written
                os.posix_fallocate(file.fileno(), len(header), num_bytes)
            if num_bytes:
                mapped = np.memmap(beside, kind.newbyteorder("<"), "r+", offset=len(header), shape=tuple(shape))
                yield mapped.view(np.ndarray)
                mapped.flush()
                del mapped
            else:
                yield np.empty(shape, kind)
            os.fsync(file.fileno())
        os.replace(beside, target)
        sync_folder(target.parent)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def open_array(path: str | os.PathLike[str], *, writable: bool = False) -> NDArray[Any]:
    """Return the array in a file, mapped into memory: it takes no time, and pages are read when they are looked at.

    Any safetensors file with a single array will do. With `writable`, what is written goes to the file.
    """
    target = Path(path)
    extent = array_extent(target)
    dtype = np.dtype(extent.dtype).newbyteorder("<")
    if not extent.num_bytes:
        return np.empty(extent.shape, dtype)
    mode: Any = "r+" if writable else "r"
    return np.memmap(target, dtype, mode, offset=extent.begin, shape=extent.shape).view(np.ndarray)


def array_extent(target: Path) -> Extent:
    """Return where the array of a file lies in it."""
    with open(target, "rb") as file:
        header = unpacked(file, target, os.fstat(file.fileno()).st_size)
    if len(header.arrays) != 1:
        raise DamagedFile(
            target,
            what=f"holds {len(header.arrays)} arrays, and not one",
            hint="open a store by its folder, and other safetensors files with the safetensors library",
        )
    [extent] = header.arrays.values()
    return extent
