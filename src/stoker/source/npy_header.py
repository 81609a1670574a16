"""What stands in front of the data of a `.npy` file."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

import numpy as np

from stoker.errors import ArgumentError, DamagedFile
from stoker.source.known_file import KnownFile

MAGIC = b"\x93NUMPY"

# NumPy's own limit: what evaluates the header could run out of stack on a longer one.
_MAX_HEADER_BYTES = 10_000


class Layout(NamedTuple):
    """How an array lies in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    """The first index runs fastest, so that a row's values are far apart."""
    offset_bytes: int
    """Where the data begins."""

    @property
    def num_bytes(self) -> int:
        """The size of the data, without any limit."""
        product = self.dtype.itemsize
        for size in self.shape:
            product *= size
        return product


def read_npy_header(file: KnownFile) -> Layout:
    """Return how the array lies in a `.npy` file whose size fits it exactly.

    Raises `DamagedFile` for a file that is cut short, longer than it says, or not a `.npy` file at all, and
    `ArgumentError` for one that holds pickled objects.
    """
    head = file.head(12 + _MAX_HEADER_BYTES)
    if not head.startswith(MAGIC):
        found = f"its first bytes are {head[:6].hex(' ')}" if head else "it is empty"
        raise DamagedFile(file.path, what=f"is not a .npy file: {found}")
    version = tuple(head[6:8])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise DamagedFile(file.path, what=f"has a .npy header of an unknown version: {'.'.join(map(str, version))}")
    begin = 10 if version == (1, 0) else 12
    end = begin + int.from_bytes(head[8:begin], "little")
    if end - begin > _MAX_HEADER_BYTES:
        raise DamagedFile(file.path, what=f"has a .npy header of {end - begin} bytes, and {_MAX_HEADER_BYTES} may be")
    if len(head) < end:
        raise DamagedFile(file.path, what=f"is cut short: its header takes {end} bytes, and it has {file.size_bytes}")
    try:
        layout = _layout(head[begin:end].decode("latin1" if version < (3, 0) else "utf-8"), end)
    except Exception as error:  # of any kind: what is evaluated may be anything
        raise DamagedFile(file.path, what=f"has a damaged .npy header: {type(error).__name__}: {error}") from error
    if layout.dtype.hasobject:
        raise ArgumentError(
            f"{file.path} holds pickled Python objects, and loading those can run any code",
            hint="save the numbers as an array of a plain dtype (for rows of different lengths: a store, with "
            "stoker.store.Writer); pickled data is never loaded",
        )
    check_size(file, layout)
    return layout


def check_size(file: KnownFile, layout: Layout) -> None:
    """Raise `DamagedFile` unless the data is as long as the layout says."""
    wanted = layout.offset_bytes + layout.num_bytes
    if file.size_bytes < wanted:
        raise DamagedFile(file.path, what=f"is cut short: it should have {wanted} bytes, and has {file.size_bytes}")
    if file.size_bytes > wanted:
        raise DamagedFile(
            file.path,
            what=f"is longer than an array {layout.dtype} {layout.shape}: it should have {wanted} bytes, and has "
            f"{file.size_bytes}",
            hint="if several arrays were saved into one file, save each into its own; otherwise copy or make it again",
        )


def _layout(header: str, offset_bytes: int) -> Layout:
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
    layout = Layout(dtype, shape, is_fortran and len(shape) > 1, offset_bytes)
    if not layout.num_bytes:
        np.empty(shape, dtype)  # no size to compare, so that NumPy says whether there can be such a shape
    return layout
