"""Cache of listings and indexes on disk, for the next start: named arrays, each file complete or missing.

Layout of a file: one line of JSON (dtypes and shapes of the arrays, and what they were made from), padded with spaces
to a multiple of 8 bytes; the arrays, each padded with zeros to a multiple of 8; the xxh3_64 of everything before
(uint64, little-endian). Files are in the user's cache folder, named by a hash of their key.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.source.line_index import default_folder
from stoker.store.checksums import checksum

_FORMAT = "stoker pictures 1"
_ABANDONED_SECONDS = 24 * 3600

Cache = bool | str | os.PathLike[str]


class CachedArrays(NamedTuple):
    """Contents of a cache file."""

    about: Any
    """JSON values, as passed to `save`."""
    arrays: dict[str, NDArray[Any]]
    """Read-only."""


class ArrayCache:
    """A folder of cache files, shared by any number of processes. If it is not writable, nothing is cached."""

    def __init__(self, cache: Cache) -> None:
        if isinstance(cache, bool):
            lines = default_folder() if cache else None
            self._folder = None if lines is None else lines.with_name("pictures")
        elif isinstance(cache, (str, os.PathLike)):
            self._folder = Path(os.path.abspath(cache))
        else:
            raise ArgumentError(f"cache must be True, False or a folder, got {cache!r}", hint="False disables it")

    def load(self, *key: str | bytes) -> CachedArrays | None:
        """Return the arrays of a key; None if there are none, or the file is damaged."""
        path = self._path(key)
        if path is None:
            return None
        try:
            content = path.read_bytes()
            return _parse(content)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def save(self, *key: str | bytes, about: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store arrays under a key, replacing earlier ones, if possible."""
        path = self._path(key)
        if path is None:
            return
        with suppress(OSError):  # no folder, no permission, no space: not cached
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".", suffix=".tmp")
            try:
                with open(handle, "wb") as file:
                    file.write(_serialize(about, arrays))
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
            _sweep(path.parent)

    def _path(self, key: tuple[str | bytes, ...]) -> Path | None:
        if self._folder is None:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for part in key:
            content = part if isinstance(part, bytes) else part.encode("utf-8", "surrogateescape")
            digest.update(len(content).to_bytes(8, "little") + content)
        return self._folder / f"{digest.hexdigest()}.pictures"


def _serialize(about: Any, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    shapes = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    head = json.dumps({"format": _FORMAT, "about": about, "arrays": shapes}).encode()
    # padded, so that every array begins at a multiple of 8 bytes
    parts = [head + b" " * (-(len(head) + 1) % 8) + b"\n"]
    for array in arrays.values():
        data = np.ascontiguousarray(array).tobytes()
        parts.append(data + bytes(-len(data) % 8))
    content = b"".join(parts)
    return content + checksum(content).to_bytes(8, "little")


def _parse(content: bytes) -> CachedArrays:
    if checksum(memoryview(content)[:-8]) != int.from_bytes(content[-8:], "little"):
        raise ValueError("it is damaged")
    at = content.index(b"\n") + 1
    head = json.loads(content[:at])
    if head["format"] != _FORMAT:
        raise ValueError("it has another version")
    arrays = {}
    for name, (dtype, shape) in head["arrays"].items():
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(content, dtype, count, at).reshape(shape)
        arrays[name] = array
        at += array.nbytes + -array.nbytes % 8
    return CachedArrays(head["about"], arrays)


def _sweep(folder: Path) -> None:
    """Remove temporary files of processes that were killed."""
    now = time.time()
    for path in folder.glob("*.tmp"):
        with suppress(OSError):
            if now - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()
