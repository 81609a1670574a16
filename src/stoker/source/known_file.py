"""Identity of a source file (path, size and modification time), to detect changes; and how sources take paths.

Every source that takes `paths` expands them with `files_at`:

- A str or Path is a file. If it is a folder, it means all files in it, at any depth, whose names end in the suffixes of
  the format; hidden files and folders are left out. If it does not exist and contains `*`, `?` or `[`, it is a pattern
  for `glob`, in which `**` matches any number of folders. The files of a folder or pattern are sorted by path.
- A list (any iterable) of these is expanded one by one, and keeps its order.

Sources of a single file (`.npy`, Megatron-LM) take a str or Path, and no folders or patterns. `stoker.open` accepts all
of these, and detects the format of each file (`formats.py`). `stoker.images` and `stoker.prepare` sort naturally
(`part-9` before `part-10`); `stoker.images` also expands braces in the names of tar archives.
"""

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

# Enough to distinguish two files of the same size, and little enough to read from thousands of files.
_FINGERPRINT_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class KnownFile:
    """One file, and its size and modification time when the source was created."""

    path: Path
    """Absolute, so that a worker with another current folder finds the same file."""
    size_bytes: int
    mtime_ns: int

    def check(self, found: os.stat_result) -> None:
        """Raise `StaleSource` unless `found` has the same size and time."""
        if (what := difference(self.size_bytes, self.mtime_ns, found)) is not None:
            raise StaleSource(self.path, what=what)

    def check_now(self) -> None:
        """Raise `StaleSource` if the file at the path has changed or is gone."""
        try:
            self.check(os.stat(self.path))
        except FileNotFoundError as error:
            raise StaleSource(self.path, what="it is gone") from error

    def open(self, *, buffer_bytes: int = 0) -> IO[bytes]:
        """Open the file, after checking that it has not changed."""
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

    def head(self, num_bytes: int) -> bytes:
        """Return the first bytes of the file, fewer if it is shorter."""
        with self.open() as file:
            return file.read(num_bytes)

    @property
    def identity(self) -> tuple[str, ...]:
        """What identifies the file in a fingerprint, besides its content: independent of folder and time."""
        return self.path.name, str(self.size_bytes)


def single_path(given: Any, owner: str) -> Path:
    """Return the absolute path given to a source of a single file."""
    if isinstance(given, (str, os.PathLike)):
        return Path(os.path.abspath(given))
    what = f"{len(given)} paths" if isinstance(given, Sequence) else repr(given)
    raise ArgumentError(f"{owner} reads a single file, got {what}", hint="pass one str or Path; open files one by one")


def known_file(path: str | os.PathLike[str]) -> KnownFile:
    """Return the file at a path with its present size and time.

    Raises `FileNotFoundError` if it does not exist, and `ArgumentError` if it is not a regular file.
    """
    path = Path(os.path.abspath(path))
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


def files_at(paths: Paths, *, suffixes: Sequence[str]) -> tuple[KnownFile, ...]:
    """Return the files that `paths` means: see the top of this module. `suffixes` select the files of a folder."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise ArgumentError("the list of paths is empty", hint="pass at least one file; did a glob match nothing?")
    return tuple(known_file(path) for one in given for path in _expand(one, suffixes))


def _expand(given: Any, suffixes: Sequence[str]) -> list[Path]:
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(f"{given!r} is not a path", hint="pass a str, a Path, or a list of them")
    path = Path(os.path.abspath(given))
    if path.is_dir():
        found = files_within(path, suffixes)
        if not found:
            shown = ", ".join(suffix for suffix in suffixes if suffix.count(".") == 1)  # without ".txt.gz" and the like
            raise ArgumentError(f"folder {path} contains no files named {shown}", hint="pass the files themselves")
        return found
    return [path] if path.exists() or not has_pattern(given) else files_matching(path)


def files_matching(pattern: Path) -> list[Path]:
    """Return the files that match a pattern, sorted; raise `FileNotFoundError` if there are none."""
    found = [Path(name) for name in sorted(glob.glob(str(pattern), recursive=True))]
    if not found:
        raise FileNotFoundError(errno.ENOENT, "the pattern matches no file", str(pattern))
    return found


def files_within(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the files of a folder, at any depth, whose names end in one of `suffixes`, sorted; no hidden ones."""
    found: list[Path] = []
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        wanted = (name for name in names if not name.startswith(".") and name.lower().endswith(tuple(suffixes)))
        found.extend(Path(where, name) for name in wanted)
    return sorted(found)


def has_pattern(given: Any) -> bool:
    """Return whether a path is a pattern for `glob`."""
    return isinstance(given, (str, os.PathLike)) and glob.has_magic(os.fspath(given))


def fingerprint_of(files: Sequence[KnownFile], *more: str) -> str:
    """Return a digest of `more` and of the names, sizes and ends (64 KiB each) of the files.

    Folders and times are left out: a copy of the files on another machine has the same fingerprint.
    """
    digest = hashlib.blake2b(digest_size=16)

    def add(field: bytes) -> None:
        digest.update(len(field).to_bytes(8, "little") + field)  # with its length, so that fields cannot run together

    for text in more:
        add(text.encode("utf-8", "surrogateescape"))
    for known in files:
        for text in known.identity:
            add(text.encode("utf-8", "surrogateescape"))
        with known.open() as file:
            add(file.read(_FINGERPRINT_BYTES))
            file.seek(max(0, known.size_bytes - _FINGERPRINT_BYTES))
            add(file.read(_FINGERPRINT_BYTES))
    return digest.hexdigest()


def named(kind: str, files: Sequence[KnownFile]) -> str:
    """Return the repr of a source of `files`."""
    more = len(files) - 1
    return f"{kind}({str(files[0].path)!r}{f' and {more} more' if more else ''})"
