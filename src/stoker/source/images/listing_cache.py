"""What was found out once, kept on disk for the next start: arrays under a name, whole or not there at all.

A file holds a line of JSON (what the arrays are, and of what they were made), the arrays one after the other, and a
checksum of all before it. It lies in the cache folder of the user, named by a hash of what it is about.
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


class Found(NamedTuple):
    """What was kept."""

    about: Any
    """Anything JSON, as it was given."""
    arrays: dict[str, NDArray[Any]]
    """Read-only."""


class ArrayCache:
    """A folder of such files, for any number of processes. One that cannot be written to keeps nothing, silently."""

    def __init__(self, cache: Cache) -> None:
        if isinstance(cache, bool):
            lines = default_folder() if cache else None
            self._folder = None if lines is None else lines.with_name("pictures")
        elif isinstance(cache, (str, os.PathLike)):
            self._folder = Path(os.path.abspath(cache))
        else:
            raise ArgumentError(f"cache={cache!r} is not known", hint="pass True, False, or a folder")

    def load(self, *key: str | bytes) -> Found | None:
        """Return what is kept under a key; None where there is nothing, or something damaged."""
        path = self._path(key)
        if path is None:
            return None
        try:
            content = path.read_bytes()
            return _unpacked(content)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def save(self, *key: str | bytes, about: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep arrays under a key, in place of what was there, if that can be."""
        path = self._path(key)
        if path is None:
            return
        with suppress(OSError):  # no folder, no permission, no room: found out anew the next time
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".", suffix=".tmp")
            try:
                with open(handle, "wb") as file:
                    file.write(_packed(about, arrays))
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


def _packed(about: Any, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    shapes = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    head = json.dumps({"format": _FORMAT, "about": about, "arrays": shapes}).encode()
    # Padded, so that every array begins at a multiple of 8 bytes.
    parts = [head + b" " * (-(len(head) + 1) % 8) + b"\n"]
    for array in arrays.values():
        data = np.ascontiguousarray(array).tobytes()
        parts.append(data + bytes(-len(data) % 8))
    content = b"".join(parts)
    return content + checksum(content).to_bytes(8, "little")


def _unpacked(content: bytes) -> Found:
    if checksum(memoryview(content)[:-8]) != int.from_bytes(content[-8:], "little"):
        raise ValueError("it is damaged")
    at = content.index(b"\n") + 1
    head = json.loads(content[:at])
    if head["format"] != _FORMAT:
        raise ValueError("it is of another version")
    arrays = {}
    for name, (dtype, shape) in head["arrays"].items():
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(content, dtype, count, at).reshape(shape)
        arrays[name] = array
        at += array.nbytes + -array.nbytes % 8
    return Found(head["about"], arrays)


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed have left half-written."""
    now = time.time()
    for path in folder.glob("*.tmp"):
        with suppress(OSError):
            if now - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()
