"""The files that a preparation reads: found, sorted, and identified by their content."""

from __future__ import annotations

import glob
import json
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stoker.errors import ArgumentError, DamagedFile, StaleSource
from stoker.foundation import machine
from stoker.source.compression import Compression, check_readable, compression_of, decompress, require_library
from stoker.source.line_format import BOM

Kind = Literal["parquet", "arrow", "json", "json array", "csv", "tsv", "text"]
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

# Suffixes read from folders. A file given by its path may have any suffix, and is text unless listed here.
_IN_FOLDERS: dict[str, Kind] = {
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".jsonl": "json", ".ndjson": "json", ".txt": "text",
    ".text": "text", ".md": "text",
}  # fmt: skip
_NAMED: dict[str, Kind] = _IN_FOLDERS | {".json": "json", ".csv": "csv", ".tsv": "tsv"}

_COMPRESSIBLE: tuple[Kind, ...] = ("json", "json array", "csv", "tsv", "text")

_BLOCK_BYTES = 1 << 20
"""Read and hashed at a time. Hashing releases the GIL, and is faster than any disk."""

_HEAD_BYTES = 4096
"""Read from a JSON file to see whether it is an array."""

_MAX_HASHING_THREADS = 8
_REPORT_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One file, with its size and time when it was found."""

    path: str
    """As given, or below the given folder."""
    kind: Kind
    compression: Compression | None
    num_bytes: int
    mtime_ns: int
    digest: str = ""
    """xxh3_128 of the content, in hexadecimal; empty if not computed yet."""

    def to_meta(self) -> dict[str, Any]:
        """Return the file as recorded in the manifest."""
        return {"path": self.name, "num_bytes": self.num_bytes, "mtime_ns": self.mtime_ns, "digest": self.digest}

    @property
    def name(self) -> str:
        """The path as text; bytes that are not UTF-8 are escaped."""
        return os.fsencode(self.path).decode(errors="backslashreplace")

    def check(self, found: os.stat_result) -> None:
        """Raise `StaleSource` unless `found` has the size and time of this file."""
        if found.st_size != self.num_bytes:
            raise StaleSource(self.path, what=f"it had {self.num_bytes} bytes and has {found.st_size}")
        if found.st_mtime_ns != self.mtime_ns:
            raise StaleSource(self.path, what="its size is the same, but its modification time changed")


def find_inputs(paths: Paths, *, without: Path | None = None) -> tuple[Input, ...]:
    """Return the files at `paths`: files, patterns (`**` includes subfolders) and folders with all files below.

    They are in natural order of their paths (`part-9` before `part-10`), each once. From folders, files with a known
    suffix are taken, except hidden ones. Files in `without` are always left out: the output folder may be among the
    inputs, and the same command must work again.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    by_path: dict[str, Input] = {}
    excluded = None if without is None else os.path.realpath(without)
    for one in paths:
        for path in _matches(os.fspath(one)):
            if excluded is not None and f"{os.path.realpath(path)}/".startswith(f"{excluded}/"):
                continue
            files = _in_folder(path, excluded) if os.path.isdir(path) else [path]
            kinds = _IN_FOLDERS if os.path.isdir(path) else _NAMED
            for file in files:
                by_path.setdefault(os.path.realpath(file), _input(file, kinds))
    if not by_path:
        raise ArgumentError("no input files given", hint="pass files, patterns or folders")
    return tuple(sorted(by_path.values(), key=lambda entry: _natural(entry.path)))


def identify_inputs(
    inputs: Sequence[Input], known: Iterable[Mapping[str, Any]], *, progress: Callable[[int], None] | None = None
) -> tuple[Input, ...]:
    """Return `inputs` with their digests.

    Digests in `known` (entries of a manifest) with the same path, size and time are reused; other files are read, in
    several threads. `progress` is called regularly with the number of bytes read so far.
    """
    kept = {(entry["path"], entry["num_bytes"], entry["mtime_ns"]): entry["digest"] for entry in known}
    digests = [kept.get((entry.name, entry.num_bytes, entry.mtime_ns)) for entry in inputs]
    if not all(digests):
        unknown = [number for number, digest in enumerate(digests) if not digest]
        for number, digest in zip(unknown, _digests([inputs[number] for number in unknown], progress), strict=True):
            digests[number] = digest
    return tuple(replace(entry, digest=digest or "") for entry, digest in zip(inputs, digests, strict=True))


def _digests(inputs: Sequence[Input], progress: Callable[[int], None] | None) -> list[str]:
    reading = _Hashing(inputs)
    num_threads = min(_MAX_HASHING_THREADS, machine.num_cores())
    with ThreadPoolExecutor(num_threads, thread_name_prefix="stoker-hash") as threads:
        try:
            # one task per thread, not per file: there may be millions, and `wait` looks at all of them
            pending = {threads.submit(reading.run) for _ in range(num_threads)}
            while pending:
                done, pending = wait(pending, timeout=_REPORT_SECONDS, return_when=FIRST_EXCEPTION)
                if progress is not None:
                    progress(reading.num_bytes)
                for result in done:
                    result.result()
        except BaseException:
            reading.is_over = True  # Ctrl-C does not wait for the end of a large file
            raise
    return reading.digests


class _Hashing:
    """Queue of files to hash, shared by several threads."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self.digests = [""] * len(inputs)
        self.num_bytes = 0
        self.is_over = False
        self._waiting = iter(enumerate(inputs))
        self._lock = threading.Lock()

    def run(self) -> None:
        """Hash one file after the other, until none are left."""
        while not self.is_over:
            with self._lock:
                number, entry = next(self._waiting, (-1, None))
            if entry is None:
                break
            self.digests[number] = self._digest(entry)

    def _digest(self, entry: Input) -> str:
        """Return the digest of a file; raise `StaleSource` if it has changed since it was found."""
        import xxhash

        digest, num_bytes, block = xxhash.xxh3_128(), 0, memoryview(bytearray(_BLOCK_BYTES))
        with open(entry.path, "rb", buffering=0) as file:
            while (size := file.readinto(block)) and not self.is_over:
                digest.update(block[:size])
                num_bytes += size
                with self._lock:
                    self.num_bytes += size
            entry.check(os.fstat(file.fileno()))
        if num_bytes != entry.num_bytes and not self.is_over:
            raise StaleSource(entry.path, what=f"it had {entry.num_bytes} bytes, and {num_bytes} were read")
        return str(digest.hexdigest())


def _matches(given: str) -> list[str]:
    if os.path.exists(given):
        return [given]
    matches = glob.glob(given, recursive=True) if glob.has_magic(given) else []
    if not matches:
        what = "matches no files" if glob.has_magic(given) else "does not exist"
        raise ArgumentError(f"the input {given} {what}", hint="pass existing files, patterns or folders")
    return matches


def _in_folder(folder: str, without: str | None) -> list[str]:
    files = list(_walked(folder, without))
    if not files:
        suffixes = ", ".join(_IN_FOLDERS)
        raise ArgumentError(
            f"the folder {folder} contains no file to read ({suffixes}; also .gz, .zst, .xz and .bz2 of the last five)",
            hint="pass other files by path or pattern: .json and .csv are read as such, all others as text",
        )
    return files


def _walked(folder: str, without: str | None, above: tuple[str, ...] = ()) -> Iterator[str]:
    place = os.path.realpath(folder)
    if place == without or place in above:  # a link to a folder above it would never end
        return
    if (listed := _hugging_face_files(folder)) is not None:
        yield from listed
        return
    for name in sorted(os.listdir(folder)):  # sorted: of two links to a file, the same one is used everywhere
        path = os.path.join(folder, name)
        if name.startswith("."):
            continue
        if os.path.isdir(path):
            yield from _walked(path, without, (*above, place))
        elif _kind_of(path, _IN_FOLDERS) is not None:
            yield path


def _hugging_face_files(folder: str) -> list[str] | None:
    """Return the data files of a folder written by `Dataset.save_to_disk`; None if it is another folder.

    Caches of transformed copies, with the same suffix, may be next to them.
    """
    splits = _json_at(os.path.join(folder, "dataset_dict.json"))
    if isinstance(splits, dict) and isinstance(splits.get("splits"), list):
        names = ", ".join(map(str, splits["splits"]))
        raise ArgumentError(
            f"{folder} is a Hugging Face dataset with the splits {names}",
            hint=f"pass the folder of one: {os.path.join(folder, str(splits['splits'][0]))}",
        )
    state = _json_at(os.path.join(folder, "state.json"))
    if not isinstance(state, dict) or not isinstance(state.get("_data_files"), list):
        return None
    if state.get("_indices_data_files"):
        raise ArgumentError(
            f"{folder} is a Hugging Face dataset whose order is in a separate file",
            hint="save it with `dataset.flatten_indices().save_to_disk(...)`",
        )
    return [os.path.join(folder, str(entry["filename"])) for entry in state["_data_files"]]


def _json_at(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def _kind_of(path: str, kinds: Mapping[str, Kind]) -> Kind | None:
    inner = Path(path)
    if compression_of(inner) is not None:
        kind = kinds.get(inner.with_suffix("").suffix.lower())
        return kind if kind in _COMPRESSIBLE else None
    return kinds.get(inner.suffix.lower())


def _input(path: str, kinds: Mapping[str, Kind]) -> Input:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ArgumentError(
            f"{path} is not a regular file", hint="pipes and devices cannot be split; copy the data to a file first"
        )
    check_readable(Path(path))
    kind = _kind_of(path, kinds) or "text"
    compression = compression_of(Path(path)) if kind in _COMPRESSIBLE else None
    if compression is not None:
        require_library(compression)
    if kind == "json" and _is_array(Path(path), compression):
        kind = "json array"
    return Input(path=path, kind=kind, compression=compression, num_bytes=status.st_size, mtime_ns=status.st_mtime_ns)


def _is_array(path: Path, compression: Compression | None) -> bool:
    """Return whether a JSON file is one array, rather than a value per line: whether it begins with a bracket."""
    with open(path, "rb") as file:
        blocks: Iterator[bytes] = iter(lambda: file.read(_HEAD_BYTES), b"")
        if compression is not None:
            blocks = decompress(file, compression, path=path, chunk_bytes=_HEAD_BYTES)
        try:
            for block in blocks:
                if head := block.removeprefix(BOM).lstrip():
                    return head.startswith(b"[")
        except DamagedFile:
            pass  # reading it raises the error
    return False


def _natural(path: str) -> tuple[list[str | int], str]:
    """Return a key that sorts `part-9` before `part-10`: text and numbers alternate, to be comparable."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", path))], path
