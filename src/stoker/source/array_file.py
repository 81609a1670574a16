"""Rows of an array in a file as samples: `.npy`, or raw values of a given dtype and shape, memory-mapped."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stoker.errors import ArgumentError, DamagedFile
from stoker.foundation.positions import position_in, positions_in
from stoker.source.flat_values import ValueFile
from stoker.source.known_file import KnownFile, fingerprint_of, known_file, named, single_path
from stoker.source.mapped_files import MappedFiles
from stoker.source.npy_header import NpyLayout, check_size, read_npy_header

if TYPE_CHECKING:
    from stoker.store.crops import Crops

# dtypes that torch supports, too, by NumPy's letters
_TORCH_LETTERS = "?bBhHiIlLqQefdFD"


def is_safetensors(path: Path) -> bool:
    """Return whether a file begins like one of `stoker.store.save_array`, or another safetensors file."""
    with open(path, "rb") as file:
        return file.read(10)[8:] == b'{"'


def _own_layout(file: KnownFile) -> NpyLayout:
    from stoker.store.saved_array import array_extent

    extent = array_extent(file.path)
    return NpyLayout(np.dtype(extent.dtype).newbyteorder("<"), extent.shape, False, extent.begin)


@final
class ArrayFile:
    """The rows of an array in a file, memory-mapped: the sample at a position is what `array[position]` would be.

    `path` is a `.npy` file or one of `stoker.store.save_array`; or, with `dtype` and `shape`, a file of raw values, as
    written by `np.memmap` and `tofile`, after `offset_bytes`. One size in `shape` may be -1: it follows from the size
    of the file.

    A sample is a new array, writable, in native byte order; a NumPy scalar if the array has one dimension; a dict if it
    is structured. Arrays of Python objects are not supported, because they are pickles.

    Opening reads only the header. A file size that does not match dtype and shape raises `DamagedFile`; a file that
    changed since raises `StaleSource`, also in other processes. Thread-safe; pickles as its path; works after a fork
    and in spawned processes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: DTypeLike | None = None,
        shape: Sequence[int] | int | None = None,
        offset_bytes: int = 0,
    ) -> None:
        file = known_file(single_path(path, "ArrayFile"))
        if dtype is None and shape is None:
            if offset_bytes:
                raise ArgumentError("offset_bytes is only for raw values", hint="pass dtype= and shape= as well")
            layout = _own_layout(file) if is_safetensors(file.path) else read_npy_header(file)
        elif dtype is None or shape is None:
            raise ArgumentError(
                "raw values need both dtype and shape",
                hint="e.g. dtype='float32', shape=(-1, 3, 32, 32); a .npy file contains both",
            )
        else:
            layout = _raw_layout(file, np.dtype(dtype), shape, offset_bytes)
        if not layout.shape:
            raise ArgumentError(f"{file.path} contains a single value, not rows", hint="use np.load")
        self._set(file, layout)

    def _set(self, file: KnownFile, layout: NpyLayout) -> None:
        self._file, self._layout = file, layout
        self._native = layout.dtype.newbyteorder("=")
        self._row_bytes = layout.dtype.itemsize * math.prod(layout.shape[1:])
        self._files = MappedFiles([file])
        self._array: NDArray[Any] | None = None

    def __getstate__(self) -> tuple[KnownFile, NpyLayout]:
        return self._file, self._layout

    def __setstate__(self, state: tuple[KnownFile, NpyLayout]) -> None:
        self._set(*state)

    def __repr__(self) -> str:
        return named("ArrayFile", [self._file])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the samples."""
        return self._native

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array; the first size is the number of samples."""
        return self._layout.shape

    @property
    def fingerprint(self) -> str:
        """Digest of the file's name, size and ends, and of the layout."""
        return fingerprint_of([self._file], repr(self._layout))

    def __len__(self) -> int:
        return self._layout.shape[0]

    def __getitem__(self, position: SupportsIndex, /) -> Any:
        """Return the row at `position`; negative positions count from the end."""
        return _sample(self._mapped(), position_in(position, len(self), self))

    def __getitems__(self, positions: Sequence[SupportsIndex], /) -> list[Any]:
        """Return the rows at `positions`, in that order, as views of one array."""
        wanted = positions_in(positions, len(self), self)
        if self._native.names is not None:
            array = self._mapped()
            samples = [_sample(array, position) for position in wanted.tolist()]
            self._files.check()
            return samples
        rows = np.empty((len(wanted), *self.shape[1:]), self._native)
        self._gather(wanted, rows)
        return list(rows)

    def __getbatch__(
        self, positions: NDArray[np.int64], empty: Callable[[tuple[int, ...], DTypeLike], NDArray[Any]], /
    ) -> Any:
        """Return the rows at `positions` as one array, gathered directly into memory from `empty`."""
        if self._native.char not in _TORCH_LETTERS:
            return NotImplemented
        wanted = positions_in(positions, len(self), self)
        batch = empty((len(wanted), *self.shape[1:]), self._native)
        self._gather(wanted, batch)
        return batch

    def describe(self, position: SupportsIndex) -> str:
        """Return the location of a sample: path, and row from 0."""
        return f"{self._file.path}, row {position_in(position, len(self), self)}"

    def tokens(self, length: int = 2048, **options: Any) -> Crops:
        """Return crops of `length` tokens, if the array is one-dimensional integers; see `stoker.store.Crops`."""
        from stoker.source.raw_tokens import RawTokens
        from stoker.store.crops import Crops

        if len(self.shape) != 1 or self._native.kind not in "iu":
            raise ArgumentError(
                f"{self!r} contains {self._native} of shape {self.shape}, which are not tokens",
                hint="tokens are integers in a one-dimensional array",
            )
        layout = self._layout
        tokens = RawTokens.of([ValueFile(self._file, layout.offset_bytes, len(self))], layout.dtype)
        return Crops(tokens, length=length, **options)

    def _mapped(self) -> NDArray[Any]:
        """Return the whole array, after checking that the file has not become shorter."""
        content = self._files[0].content
        if self._array is None:
            layout = self._layout
            data = content[layout.offset_bytes :] if layout.num_bytes else b""
            self._array = np.ndarray(layout.shape, layout.dtype, buffer=data, order="F" if layout.is_fortran else "C")
        return self._array

    def _gather(self, positions: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy the rows at `positions`, which exist, into `out`."""
        if not out.size:
            return
        if self._layout.is_fortran or not out.flags.c_contiguous:
            out[...] = self._mapped()[positions]
            self._files.check()
            return
        # As bytes, because `take` would first copy an array that is not aligned completely. mode="clip", because with
        # "raise" it would gather into a copy of `out`; the positions are checked already.
        begin = self._layout.offset_bytes
        rows = self._files[0].content[begin : begin + self._layout.num_bytes].reshape(len(self), self._row_bytes)
        into = out.reshape(-1).view(np.uint8).reshape(len(positions), self._row_bytes)
        np.take(rows, positions, axis=0, out=into, mode="clip")
        self._files.check()
        if not self._layout.dtype.isnative:
            out.byteswap(inplace=True)


def _sample(array: NDArray[Any], position: int) -> Any:
    if array.dtype.names is not None:
        return {name: _sample(array[name], position) for name in array.dtype.names}
    row = array[position]
    # an array is a view of read-only memory until it is copied
    return np.array(row, dtype=row.dtype.newbyteorder("="), order="C") if isinstance(row, np.ndarray) else row


def _raw_layout(file: KnownFile, dtype: np.dtype[Any], shape: Sequence[int] | int, offset_bytes: int) -> NpyLayout:
    if dtype.hasobject or dtype.itemsize == 0 or dtype.subdtype is not None:
        raise ArgumentError(f"dtype={dtype} has no fixed size in a file", hint="pass e.g. dtype='uint16'")
    if not 0 <= operator.index(offset_bytes) <= file.size_bytes:
        raise ArgumentError(
            f"offset_bytes={offset_bytes} is beyond {file.path}, which has {file.size_bytes} bytes",
            hint="it is the number of bytes before the first value",
        )
    sizes = (shape,) if isinstance(shape, int) else tuple(operator.index(size) for size in shape)
    if any(size < -1 for size in sizes) or sizes.count(-1) > 1:
        raise ArgumentError(
            f"shape={shape} is invalid", hint="sizes are at least 0; one may be -1, to follow from the file"
        )
    if -1 in sizes:
        known = NpyLayout(dtype, tuple(size for size in sizes if size != -1), False, 0).num_bytes
        data_bytes = file.size_bytes - offset_bytes
        if not known or data_bytes % known:
            raise DamagedFile(
                file.path,
                what=f"has {data_bytes} bytes of data, not a multiple of {known} ({dtype}, shape {sizes})",
                hint="check dtype, shape and offset_bytes; if they are right, the file is truncated",
            )
        sizes = tuple(data_bytes // known if size == -1 else size for size in sizes)
    layout = NpyLayout(dtype, sizes, False, offset_bytes)
    check_size(file, layout)
    return layout
