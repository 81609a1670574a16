"""A file as it was when a source was made of it: where it is, and how to tell that it changed."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stoker.errors import ArgumentError, StaleSource
from stoker.foundation.file_watch import difference

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

# Enough to tell two files of one size apart, and little enough to read from thousands of files.
_FINGERPRINT_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class KnownFile:
    """One file and its identity when the source was made."""

    path: Path
    """Absolute, so that a worker with another current folder finds the same file."""
    size_bytes: int
    mtime_ns: int

    def check(self, found: os.stat_result) -> None:
        """Raise `StaleSource` unless `found` is the file this was made of."""
        if (what := difference(self.size_bytes, self.mtime_ns, found)) is not None:
            raise StaleSource(self.path, what=what)

    def check_now(self) -> None:
        """Raise `StaleSource` unless the file at the path is the one this was made of."""
        try:
            self.check(os.stat(self.path))
        except FileNotFoundError as error:
            raise StaleSource(self.path, what="it is gone") from error

    def open(self) -> IO[bytes]:
        """Open the file, after checking that it is still the same."""
        try:
            file: IO[bytes] = open(self.path, "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError as error:
            raise StaleSource(self.path, what="it is gone") from error
        try:
            self.check(os.fstat(file.fileno()))
        except BaseException:
            file.close()
            raise
        return file

    def head(self, num_bytes: int) -> bytes:
        """Return the first bytes of the file, fewer where it is shorter."""
        with self.open() as file:
            return file.read(num_bytes)


def known_file(given: Any) -> KnownFile:
    """Return the file at a path with what it is at this moment.

    Raises `FileNotFoundError` where there is none, and `ArgumentError` for what is not a plain file.
    """
    path = _path_of(given)
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from error
    if stat.S_ISDIR(found.st_mode):
        raise ArgumentError(f"{path} is a folder", hint="pass a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise ArgumentError(
            f"{path} is not a regular file",
            hint="pipes and devices have no positions to read at; copy the data to a file first",
        )
    return KnownFile(path, found.st_size, found.st_mtime_ns)


def known_files(paths: Paths, *, suffixes: Sequence[str]) -> tuple[KnownFile, ...]:
    """Return the files at `paths`: each a file, a pattern, or a folder, which stands for the files in it.

    Those of a pattern or a folder come in the order of their names; of a folder, all at any depth whose names end in
    one of `suffixes`, except hidden ones.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise ArgumentError("paths is empty", hint="pass at least one file; did a glob match nothing?")
    return tuple(known_file(path) for one in given for path in _expanded(one, suffixes))


def files_within(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the files of a folder, at any depth, whose names end in one of `suffixes`, sorted; none that is hidden."""
    found: list[Path] = []
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        wanted = (name for name in names if not name.startswith(".") and name.lower().endswith(tuple(suffixes)))
        found.extend(Path(where, name) for name in wanted)
    return sorted(found)


def fingerprint_of(files: Sequence[KnownFile], *more: str) -> str:
    """Return a short text that differs when `more`, or names, sizes or the ends of the files differ.

    Folders and times are left out: a copy of the files on another machine has the same fingerprint.
    """
    digest = hashlib.blake2b(digest_size=16)

    def add(field: bytes) -> None:
        digest.update(len(field).to_bytes(8, "little") + field)  # with its length, so that fields cannot run together

    for text in more:
        add(text.encode("utf-8", "surrogateescape"))
    for known in files:
        add(known.path.name.encode("utf-8", "surrogateescape"))
        add(str(known.size_bytes).encode())
        with known.open() as file:
            add(file.read(_FINGERPRINT_BYTES))
            file.seek(max(0, known.size_bytes - _FINGERPRINT_BYTES))
            add(file.read(_FINGERPRINT_BYTES))
    return digest.hexdigest()


def has_pattern(given: Any) -> bool:
    """Whether a path is a pattern for `glob`."""
    return isinstance(given, (str, os.PathLike)) and glob.has_magic(os.fspath(given))


def named(kind: str, files: Sequence[KnownFile]) -> str:
    """Return what a source of `files` is called in messages."""
    more = len(files) - 1
    return f"{kind}({str(files[0].path)!r}{f' and {more} more' if more else ''})"


def _expanded(given: Any, suffixes: Sequence[str]) -> list[Path]:
    path = _path_of(given)
    if path.is_dir():
        found = files_within(path, suffixes)
        if not found:
            raise ArgumentError(f"{path} is a folder without {' or '.join(suffixes)} files", hint="pass the files")
        return found
    if not path.exists() and has_pattern(given):
        found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        if not found:
            raise FileNotFoundError(errno.ENOENT, "the pattern matches no file", str(path))
        return found
    return [path]


def _path_of(given: Any) -> Path:
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(f"{given!r} is not a path", hint="pass a str, a Path, or a sequence of them")
    return Path(os.path.abspath(given))
