"""The C libraries: loaded when first needed, if present, built from exactly these sources, and not turned off."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from stoker.native.building import JPEG_LIBRARY, LIBRARY, digest, is_current
from stoker.native.structures import declarations

SWITCH = "STOKER_NATIVE"
"""Environment variable that turns both libraries off when it is 0."""
JPEG_SWITCH = "STOKER_NATIVE_JPEG"
"""Environment variable that turns the JPEG decoder alone off when it is 0."""

try:
    # Read at import, not at first use: an update under a running process may replace the sources and the library with
    # ones of other structures, and the digest then no longer matches.
    _SOURCES = digest()
    declarations()
except OSError:
    _SOURCES = "unreadable"


class NativeLibrary:
    """The C functions. Each takes the fields of its structure, by name or in order; calls release the GIL."""

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
        for name in NativeLibrary.__annotations__:
            setattr(self, name, _bind(library, name))


class JpegLibrary:
    """The JPEG decoder, a library of its own: it needs libjpeg-turbo."""

    decode_jpeg: Callable[..., int]
    check_jpeg: Callable[..., int]

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        for name in JpegLibrary.__annotations__:
            setattr(self, name, _bind(library, name))
        self._message = library["stoker_jpeg_message"]
        self._message.restype = ctypes.c_char_p
        if self.check_jpeg():
            raise OSError(self.message())

    def message(self) -> str:
        """Return what was wrong with the file of this thread's last call."""
        found: bytes = self._message()
        return found.decode(errors="replace")


def _bind(library: Any, name: str) -> Callable[..., int]:
    """Return the C function of that name, called with the fields of its structure."""
    function = library[f"stoker_{name}"]
    function.argtypes, function.restype = (ctypes.c_char_p,), ctypes.c_int64
    taken = declarations().functions[name]
    if not taken:
        return lambda: function(b"")
    structure = declarations().structure(taken)
    # A function of its own for each, as namedtuple makes them: the quickest way to take fields by name, and Python then
    # refuses a field that is missing or unknown. `box[0]` becomes `box_0_`.
    parameters = ", ".join(re.sub(r"\W", "_", field) for field in structure.names)
    names = {"function": function, "pack": structure.layout.pack}
    call: Callable[..., int] = eval(f"lambda {parameters}: function(pack({parameters}))", names)
    return call


_found: tuple[NativeLibrary | None, str] | None = None
"""The library, or None and why not. Looked for once in each process."""

_found_jpeg: tuple[JpegLibrary | None, str] | None = None


def library() -> NativeLibrary | None:
    """Return the library; None where NumPy is used instead."""
    return (_found or _find())[0]


def jpeg_library() -> JpegLibrary | None:
    """Return the JPEG decoder; None where another decoder is used instead."""
    return (_found_jpeg or _find_jpeg())[0]


def describe() -> str:
    """Return whether the library is in use, and if not why."""
    return (_found or _find())[1]


def describe_jpeg() -> str:
    """Return whether the JPEG decoder is in use, and if not why."""
    return (_found_jpeg or _find_jpeg())[1]


def _find() -> tuple[NativeLibrary | None, str]:
    global _found
    _found = _load(LIBRARY, NativeLibrary, "installing again with a C compiler builds it")
    return _found


def _find_jpeg() -> tuple[JpegLibrary | None, str]:
    global _found_jpeg
    if os.environ.get(JPEG_SWITCH) == "0":
        _found_jpeg = None, f"off, as {JPEG_SWITCH} is 0"
        return _found_jpeg
    how = "installing again with a C compiler and the headers of libjpeg-turbo builds it"
    _found_jpeg = _load(JPEG_LIBRARY, JpegLibrary, how)
    return _found_jpeg


Kind = TypeVar("Kind", NativeLibrary, JpegLibrary)


def _load(path: Path, kind: type[Kind], how_to_build: str) -> tuple[Kind | None, str]:
    if os.environ.get(SWITCH) == "0":
        return None, f"off, as {SWITCH} is 0"
    if not path.exists():
        return None, f"not built; {how_to_build}"
    if not is_current(path, _SOURCES):
        return None, "built from other sources; `python -m stoker.native` rebuilds it"
    try:
        return kind(str(path)), "in use"
    except (OSError, AttributeError) as error:  # for another kind of machine, or without the same libjpeg
        return None, f"cannot be loaded: {error}"


@contextmanager
def without() -> Iterator[None]:
    """Use NumPy, and other decoders, for everything in this block, in the whole process: to compare."""
    global _found, _found_jpeg
    before, before_jpeg = _found, _found_jpeg
    _found = _found_jpeg = None, "off for now"
    try:
        yield
    finally:
        _found, _found_jpeg = before, before_jpeg
