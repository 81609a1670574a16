"""The libraries, loaded: when first needed, if they are there, made from these very sources, and not turned off."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Any, TypeVar

from stoker.native.building import JPEG_LIBRARY, LIBRARY, digest, is_current

SWITCH = "STOKER_NATIVE"
"""The environment variable that turns the libraries off if it is 0."""
JPEG_SWITCH = "STOKER_NATIVE_JPEG"
"""The one that turns off the decoder of JPEG files alone."""

# The structures that the functions take: addresses (P) and numbers (q, d), in the order of the sources.
LAYOUTS = {
    "fill_rows": "Pqq PPPq PPq qq Pqq Pqq PP Pq",
    "gather_rows": "Pqq Pqq Pq Pq",
    "apportion": "Pq Pq",
    "block_tables": "Pqqqq Pq PPPPPPPP",
    "find_spans": "PPqPq",
    "write_rows": "PPqPP",
    "jpeg_header": "PqP",
    "resize": "Pqqqq dddd Pqqqqqq",
}
JPEG_LAYOUTS = {"decode_jpeg": "Pq qqqq dddd d Pqqqqqq", "check_jpeg": ""}

try:
    # Now, as the structures are of now too: an update under a running process brings a library that takes others.
    _SOURCES = digest()
except OSError:
    _SOURCES = "unreadable"


class NativeLibrary:
    """The functions in C, each of which takes the fields of its structure. Calls let other threads run."""

    fill_rows: Callable[..., int]
    gather_rows: Callable[..., int]
    apportion: Callable[..., int]
    block_tables: Callable[..., int]
    find_spans: Callable[..., int]
    write_rows: Callable[..., int]
    jpeg_header: Callable[..., int]
    resize: Callable[..., int]

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        for name, layout in LAYOUTS.items():
            setattr(self, name, _taking(library[f"stoker_{name}"], Struct(layout)))


class JpegLibrary:
    """The decoder of JPEG files, which is a library of its own."""

    decode_jpeg: Callable[..., int]
    check_jpeg: Callable[..., int]

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        for name, layout in JPEG_LAYOUTS.items():
            setattr(self, name, _taking(library[f"stoker_{name}"], Struct(layout)))
        self._message = library["stoker_jpeg_message"]
        self._message.restype = ctypes.c_char_p
        if self.check_jpeg():
            raise OSError(self.message())

    def message(self) -> str:
        """Return what was wrong with the file of this thread's last call."""
        found: bytes = self._message()
        return found.decode(errors="replace")


def _taking(function: Any, layout: Struct) -> Callable[..., int]:
    function.argtypes, function.restype = (ctypes.c_char_p,), ctypes.c_int64
    pack = layout.pack

    def call(*fields: float) -> int:
        found: int = function(pack(*fields))
        return found

    return call


_found: tuple[NativeLibrary | None, str] | None = None
"""The library, or None and why not. Found once in each process."""

_found_jpeg: tuple[JpegLibrary | None, str] | None = None


def library() -> NativeLibrary | None:
    """Return the library, or None where NumPy has to do."""
    return (_found or _find())[0]


def jpeg_library() -> JpegLibrary | None:
    """Return the decoder of JPEG files, or None where another one has to do."""
    return (_found_jpeg or _find_jpeg())[0]


def describe() -> str:
    """Return whether the library is in use, and if not why, for people."""
    return (_found or _find())[1]


def describe_jpeg() -> str:
    """Return whether the decoder of JPEG files is in use, and if not why, for people."""
    return (_found_jpeg or _find_jpeg())[1]


def _find() -> tuple[NativeLibrary | None, str]:
    global _found
    _found = _looked_for(LIBRARY, NativeLibrary, "installing again with a C compiler at hand builds them")
    return _found


def _find_jpeg() -> tuple[JpegLibrary | None, str]:
    global _found_jpeg
    if os.environ.get(JPEG_SWITCH) == "0":
        _found_jpeg = None, f"off, as {JPEG_SWITCH} is 0"
        return _found_jpeg
    with_headers = "installing again with a C compiler and libjpeg-turbo's headers at hand builds it"
    _found_jpeg = _looked_for(JPEG_LIBRARY, JpegLibrary, with_headers)
    return _found_jpeg


Kind = TypeVar("Kind", NativeLibrary, JpegLibrary)


def _looked_for(path: Path, kind: type[Kind], how: str) -> tuple[Kind | None, str]:
    if os.environ.get(SWITCH) == "0":
        return None, f"off, as {SWITCH} is 0"
    if not path.exists():
        return None, f"not there; {how}"
    if not is_current(path, _SOURCES):
        return None, "of other sources; `python -m stoker.native` makes them anew"
    try:
        return kind(str(path)), "in use"
    except (OSError, AttributeError) as error:  # of another kind of machine, say, or one without the same libjpeg
        return None, f"cannot be loaded: {error}"


@contextmanager
def without() -> Iterator[None]:
    """Have NumPy, and other decoders, do all in this block, in the whole process: to compare."""
    global _found, _found_jpeg
    before, before_jpeg = _found, _found_jpeg
    _found = _found_jpeg = None, "off for now"
    try:
        yield
    finally:
        _found, _found_jpeg = before, before_jpeg
