"""A file of lines as it was when the source was made: where it is, what is in it, and how to tell that it changed."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stoker.errors import ArgumentError, StaleSource
from stoker.foundation.file_watch import difference
from stoker.source.compression import Compression, check_magic, check_readable, compression_of, require_library
from stoker.source.line_format import LineFormat, Parse, format_of

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

# Enough to tell two files of one size apart, and little enough to read from thousands of files.
_FINGERPRINT_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFile:
    """One file of lines and its identity when the source was made."""

    path: Path
    """Absolute, so that a worker with another current folder finds the same file."""
    size_bytes: int
    mtime_ns: int
    compression: Compression | None
    format: LineFormat

    def check(self, found: os.stat_result) -> None:
        """Raise `StaleSource` unless `found` is the file this was made of."""
        if (what := difference(self.size_bytes, self.mtime_ns, found)) is not None:
            raise StaleSource(self.path, what=what)

    def open(self, *, buffer_bytes: int = 0) -> IO[bytes]:
        """Open the file as it lies on disk, after checking that it is still the same."""
        try:
            file: IO[bytes] = open(self.path, "rb", buffering=buffer_bytes)  # noqa: SIM115
        except FileNotFoundError as error:
            raise StaleSource(self.path, what="it is gone") from error
        try:
            self.check(os.fstat(file.fileno()))
        except BaseException:
            file.close()
            raise
        return file


def line_files(paths: Paths, parse: Parse | None) -> tuple[LineFile, ...]:
    """Return the files at `paths`, in that order, with what they are at this moment.

    Raises `FileNotFoundError` for a file that is not there, `ArgumentError` for one that cannot be a file of
    lines, and `DamagedFile` for one whose first bytes are not those of its compression.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    files = tuple(_line_file(path, parse) for path in paths)
    if not files:
        raise ArgumentError("paths is empty", hint="pass at least one file; did a glob match nothing?")
    return files


def fingerprint_of(files: Sequence[LineFile]) -> str:
    """Return a short text that differs when names, sizes, formats or the ends of the files differ.

    Folders and times are left out: a copy of the files on another machine has the same fingerprint.
    """
    digest = hashlib.blake2b(digest_size=16)

    def add(field: bytes) -> None:
        digest.update(len(field).to_bytes(8, "little") + field)  # with its length, so that fields cannot run together

    for line_file in files:
        add(line_file.path.name.encode("utf-8", "surrogateescape"))
        add(str(line_file.size_bytes).encode())
        add(line_file.format.name.encode())
        with line_file.open() as file:
            add(file.read(_FINGERPRINT_BYTES))
            file.seek(max(0, line_file.size_bytes - _FINGERPRINT_BYTES))
            add(file.read(_FINGERPRINT_BYTES))
    return digest.hexdigest()


def _line_file(given: Any, parse: Parse | None) -> LineFile:
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(
            f"paths holds {given!r}, which is not a path", hint="pass a str, a Path, or a sequence of them"
        )
    path = Path(os.path.abspath(given))
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        has_pattern = any(mark in str(given) for mark in "*?[")
        hint = " (patterns are not expanded: pass sorted(glob.glob(...)))" if has_pattern else ""
        raise FileNotFoundError(errno.ENOENT, f"no such file of lines{hint}", str(path)) from error
    if stat.S_ISDIR(found.st_mode):
        raise ArgumentError(
            f"{path} is a folder", hint="pass the files in it, in the order wanted: sorted(folder.glob('*.jsonl'))"
        )
    if not stat.S_ISREG(found.st_mode):
        raise ArgumentError(
            f"{path} is not a regular file", hint="pipes and devices cannot be split; copy the data to a file first"
        )
    check_readable(path)
    compression = compression_of(path)
    if compression is not None:
        require_library(compression)
        check_magic(path, compression)
    return LineFile(
        path=path,
        size_bytes=found.st_size,
        mtime_ns=found.st_mtime_ns,
        compression=compression,
        format=format_of(path.with_suffix("") if compression else path, parse),
    )
