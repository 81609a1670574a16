"""The library, loaded: when it is first needed, if it is there, made from these very sources, and not turned off."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any

from stoker.native.building import LIBRARY, digest, is_current

SWITCH = "STOKER_NATIVE"
"""The environment variable that turns the library off if it is 0."""

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

try:
    # Now, as the structures are of now too: an update under a running process brings a library that takes others.
    _SOURCES = digest()
except OSError:
    _SOURCES = "unreadable"


class Library:
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


def _taking(function: Any, layout: Struct) -> Callable[..., int]:
    function.argtypes, function.restype = (ctypes.c_char_p,), ctypes.c_int64
    pack = layout.pack

    def call(*fields: float) -> int:
        found: int = function(pack(*fields))
        return found

    return call


_found: tuple[Library | None, str] | None = None
"""The library, or None and why not. Found once in each process."""


def library() -> Library | None:
    """Return the library, or None where NumPy has to do."""
    return (_found or _find())[0]


def told() -> str:
    """Return whether the library is in use, and if not why, for people."""
    return (_found or _find())[1]


def _find() -> tuple[Library | None, str]:
    global _found
    _found = _looked_for()
    return _found


def _looked_for() -> tuple[Library | None, str]:
    if os.environ.get(SWITCH) == "0":
        return None, f"off, as {SWITCH} is 0"
    if not LIBRARY.exists():
        return None, "not there; installing again with a C compiler at hand builds them"
    if not is_current(sources=_SOURCES):
        return None, "of other sources; `python -m stoker.native.building` makes them anew"
    try:
        return Library(str(LIBRARY)), "in use"
    except (OSError, AttributeError) as error:  # of another kind of machine, say
        return None, f"cannot be loaded: {error}"


@contextmanager
def without() -> Iterator[None]:
    """Have NumPy do all in this block, in the whole process: to compare."""
    global _found
    before = _found
    _found = None, "off for now"
    try:
        yield
    finally:
        _found = before
