"""Read the header of a `.npy` file."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

import numpy as np

from stoker.errors import ArgumentError, DamagedFile
from stoker.source.known_file import KnownFile

MAGIC = b"\x93NUMPY"

# NumPy's own limit: evaluating a longer header could overflow the stack.
_MAX_HEADER_BYTES = 10_000


class NpyLayout(NamedTuple):
    """Layout of an array in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    """Column-major order: the values of a row are not contiguous."""
    offset_bytes: int
    """Offset of the data."""

    @property
    def num_bytes(self) -> int:
        """Size of the data, as an unbounded integer."""
        product = self.dtype.itemsize
        for size in self.shape:
            product *= size
        return product


def read_npy_header(file: KnownFile) -> NpyLayout:
    """Return the layout of a `.npy` file, after checking that its size matches.

    Raises `DamagedFile` for a file that is truncated, too long, or not a `.npy` file, and `ArgumentError` for one that
    contains pickled objects.
    """
    head = file.head(12 + _MAX_HEADER_BYTES)
    if not head.startswith(MAGIC):
        found = f"its first bytes are {head[:6].hex(' ')}" if head else "it is empty"
        raise DamagedFile(file.path, what=f"is not a .npy file: {found}")
    version = tuple(head[6:8])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise DamagedFile(file.path, what=f"has an unknown version of the .npy header: {'.'.join(map(str, version))}")
    begin = 10 if version == (1, 0) else 12
    end = begin + int.from_bytes(head[8:begin], "little")
    if end - begin > _MAX_HEADER_BYTES:
        raise DamagedFile(file.path, what=f"has a .npy header of {end - begin} bytes, more than {_MAX_HEADER_BYTES}")
    if len(head) < end:
        raise DamagedFile(file.path, what=f"is truncated: its header takes {end} bytes, but it has {file.size_bytes}")
    try:
        layout = _layout(head[begin:end].decode("latin1" if version < (3, 0) else "utf-8"), end)
    except Exception as error:  # any error: the header may contain any expression
        raise DamagedFile(file.path, what=f"has a damaged .npy header: {type(error).__name__}: {error}") from error
    if layout.dtype.hasobject:
        raise ArgumentError(
            f"{file.path} contains pickled Python objects, and loading those could run any code",
            hint="save the numbers as an array of a plain dtype (for rows of different lengths: a store, with "
            "stoker.store.Writer); pickled data is never loaded",
        )
    check_size(file, layout)
    return layout


def check_size(file: KnownFile, layout: NpyLayout) -> None:
    """Raise `DamagedFile` unless the size of the file matches the layout."""
    wanted = layout.offset_bytes + layout.num_bytes
    if file.size_bytes < wanted:
        raise DamagedFile(file.path, what=f"is truncated: it has {file.size_bytes} of {wanted} bytes")
    if file.size_bytes > wanted:
        raise DamagedFile(
            file.path,
            what=f"is too long for {layout.dtype} {layout.shape}: it has {file.size_bytes} bytes, expected {wanted}",
            hint="save each array into a file of its own; or copy the file again",
        )


def _layout(header: str, offset_bytes: int) -> NpyLayout:
    fields = ast.literal_eval(header.strip())
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise ValueError("it is not a dict of descr, fortran_order and shape")
    shape, is_fortran = fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(size) is int and 0 <= size < 1 << 63 for size in shape):
        raise ValueError(f"shape is {shape!r}")
    if not isinstance(is_fortran, bool):
        raise ValueError(f"fortran_order is {is_fortran!r}")
    dtype = np.lib.format.descr_to_dtype(fields["descr"])
    if dtype.itemsize == 0 or dtype.subdtype is not None:
        raise ValueError(f"descr is {fields['descr']!r}")
    layout = NpyLayout(dtype, shape, is_fortran and len(shape) > 1, offset_bytes)
    if not layout.num_bytes:
        np.empty(shape, dtype)  # no size to compare: let NumPy check the shape
    return layout
