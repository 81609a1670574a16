"""Arrays as C takes them: addresses of memory whose type and layout were checked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError

SOURCES = {np.dtype(name): code for code, name in enumerate(("uint8", "uint16", "uint32", "int32", "int64"))}
"""Types that can be read, and their numbers in rows.c."""

TARGETS = {
    np.dtype(name): (np.dtype(name).itemsize, int(np.iinfo(name).min), int(np.iinfo(name).max))
    for name in ("uint16", "int32", "uint32", "int64")
}
"""Types that can be written: bytes, the smallest and the largest number."""

INT32, INT64, BOOL = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.bool_)

_nothing = ctypes.c_char * 0
_from_buffer: Callable[[Any], Any] = _nothing.from_buffer
_addressof = ctypes.addressof
_address_of = ctypes.pythonapi["PyBytes_AsString"]  # in brackets: a function object that no other code sets types of
_address_of.argtypes, _address_of.restype = (ctypes.py_object,), ctypes.c_void_p


def address(array: NDArray[Any]) -> int:
    """Return where an array's memory begins."""
    try:
        return _addressof(_from_buffer(array))  # a fifth of the time of `array.ctypes` and `__array_interface__`
    except TypeError:  # it is read-only
        return int(array.__array_interface__["data"][0])


def address_of_bytes(data: Any) -> tuple[int, int]:
    """Return the address and size of bytes, a memoryview or an array of bytes. The caller keeps `data` alive."""
    if type(data) is bytes:
        return _address_of(data), len(data)
    if type(data) is not np.ndarray:
        data = np.frombuffer(data, np.uint8)  # a view; refuses memory with gaps
    elif data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
        raise ArgumentError(
            f"a file must be uint8 in one dimension, got {data.dtype} in {data.ndim}", hint="or pass it as bytes"
        )
    return address(data), len(data)


def as_input(name: str, array: Any, *, dtype: np.dtype[Any] = INT64) -> NDArray[Any]:
    """Return a contiguous 1-D array of int64 (or bool): `array` itself, or a converted copy."""
    if type(array) is np.ndarray and array.dtype == dtype and array.ndim == 1:
        flags = array.flags
        if flags.c_contiguous and flags.aligned:
            return array
    found = np.asarray(array)
    if found.ndim != 1 or (found.dtype.kind not in "iub" and found.size):
        raise ArgumentError(
            f"{name} must be integers in one dimension, got {found.dtype} in {found.ndim} dimensions",
            hint="convert it first",
        )
    if found.dtype == np.uint64 and found.size and int(found.max()) > np.iinfo(np.int64).max:
        raise ArgumentError(f"{name} has numbers of more than 63 bits", hint="check how they were computed")
    return np.require(found, dtype, ["C", "A"])


def is_readable(array: NDArray[Any]) -> bool:
    """Return whether C can read an array as it lies."""
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def check_writeable(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raise unless an output has this shape and may be written."""
    if array.shape != shape:
        raise ArgumentError(
            f"{name} has the shape {array.shape}, expected {shape}", hint="all outputs have the same rows"
        )
    if not array.flags.writeable:
        raise ArgumentError(f"{name} is read-only", hint="pass an array that can be written")
