"""Lines of text, CSV and JSONL files as samples, uncompressed or compressed, by position or in order."""

from __future__ import annotations

import operator
import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from threading import Lock
from typing import Any, SupportsIndex, TypeVar, final

from stoker.errors import DamagedFile, PositionError, StaleSource
from stoker.foundation.file_watch import FileWatch, WatchedFile
from stoker.source.known_file import Paths, fingerprint_of, named
from stoker.source.line_file import LineFile, line_files
from stoker.source.line_format import BOM, LineParser, Parse, bad_line
from stoker.source.line_index import IndexFolder, LineIndex
from stoker.source.line_stream import LineStream

__all__ = ["LineStream", "Lines"]

T = TypeVar("T")

# Each takes two file descriptors (the file and the memory map of its index); a common limit per process is 1024.
_MAX_OPEN_FILES = 64


@final
class Lines:
    r"""The lines of files as samples, with random access. `stream()` returns them in order instead.

    Every line is one sample, except the header of a CSV or TSV file. Lines end with LF or CR LF; the line end of the
    last one may be missing. Empty lines count like any other. A line end at the end of a file does not begin another
    line.

    `paths` is a file or several, in that order. `parse` is the format; None chooses it by each file's suffix:

    - `"text"` (any other suffix): a `str`.
    - `"json"` (`.jsonl`, `.ndjson`, `.json`): any JSON value. An empty line is invalid.
    - `"csv"`, `"tsv"`: a dict of strings with the names of the file's first line. Quoted fields must not contain
      line breaks.
    - `"bytes"`: the line unchanged, without its line end.
    - a function of the line's bytes, which returns the sample. It raises ValueError for an invalid line.

    Text is UTF-8; a byte order mark at the start of a file is removed (except from `"bytes"`). A line that cannot be
    parsed raises `BadLine` when it is read, with file, line number and offset; it still counts in `len`.

    Files whose names end in `.gz`, `.zst`, `.zstd`, `.xz` or `.bz2` are compressed; the suffix before that determines
    the format.

    The first `len` or read builds an index of each file and stores it in `index_dir` (by default
    `$XDG_CACHE_HOME/stoker/lines`, or `~/.cache/stoker/lines`) for later processes; if that is not writable, the index
    stays in memory. It takes well under 1% of the file's size. A *compressed file is decompressed* there as well, and
    takes the disk space of its whole content. `stream()` needs neither.

    Thread-safe; pickles as its arguments; works after a fork and in spawned processes. Files must not change during a
    run: if size or mtime differ from when this was created, opening the file raises `StaleSource`, or reading it does
    soon after the change.
    """

    def __init__(
        self, paths: Paths, *, parse: Parse | None = None, index_dir: str | os.PathLike[str] | None = None
    ) -> None:
        folder = None if index_dir is None else Path(os.path.abspath(index_dir))
        self._set(line_files(paths, parse), folder)

    def _set(self, files: tuple[LineFile, ...], index_dir: Path | None) -> None:
        self._files, self._index_dir = files, index_dir
        self._folder = IndexFolder(index_dir)
        self._fingerprint: str | None = None
        self._ends: list[int] | None = None
        """Number of samples up to the end of each file; None before the first use."""
        self._kept: dict[int, LineIndex] = {}
        """Indexes that could not be stored."""
        self._open: dict[int, _OpenFile] = {}
        self._locks: dict[int, Lock] = {}
        self._watch = FileWatch()

    def __getstate__(self) -> tuple[tuple[LineFile, ...], Path | None]:
        return self._files, self._index_dir

    def __setstate__(self, state: tuple[tuple[LineFile, ...], Path | None]) -> None:
        self._set(*state)

    def __repr__(self) -> str:
        return named("Lines", self._files)

    def __len__(self) -> int:
        """Return the number of samples. The first call builds missing indexes."""
        return self._ends_of_files()[-1]

    def __getitem__(self, position: SupportsIndex, /) -> Any:
        """Return the sample at `position`; negative positions count from the end."""
        number, line = self._place_of(operator.index(position))
        file = self._file(number)
        block, at = divmod(line, file.stride)
        sample = file.sample(block, file.read_block(block, at + 1), at)
        self._watch.check()
        return sample

    def __getitems__(self, positions: Sequence[SupportsIndex], /) -> list[Any]:
        """Return the samples at `positions`, in that order; they are read in the order on disk."""
        places = [self._place_of(operator.index(position)) for position in positions]
        samples: list[Any] = [None] * len(places)
        slots = sorted(range(len(places)), key=places.__getitem__)
        for number, in_file in groupby(slots, key=lambda slot: places[slot][0]):
            file = self._file(number)
            stride = file.stride
            for block, in_block in groupby(in_file, key=lambda slot, stride=stride: places[slot][1] // stride):  # type: ignore[misc]
                together = list(in_block)
                lines = file.read_block(block, places[together[-1]][1] % stride + 1)
                for slot in together:
                    samples[slot] = file.sample(block, lines, places[slot][1] % stride)
        self._watch.check()
        return samples

    def describe(self, position: SupportsIndex) -> str:
        """Return the location of the sample at `position`: the path, and the line from 1."""
        number, line = self._place_of(operator.index(position))
        return f"{self._files[number].path}, line {line + 1}"

    @property
    def fingerprint(self) -> str:
        """Digest of the files, unaffected by copying them elsewhere.

        It covers names, sizes, formats and the first and last 64 KiB. A change elsewhere that keeps the size is not
        detected.
        """
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(self._files)
        return self._fingerprint

    def stream(self) -> LineStream:
        """Return all lines in order, without an index and without decompressing to disk."""
        return LineStream.of(self._files)

    def _place_of(self, position: int) -> tuple[int, int]:
        """Return the file of a sample and its line there, from 0."""
        ends = self._ends or self._ends_of_files()
        wanted = position + ends[-1] if position < 0 else position
        if not 0 <= wanted < ends[-1]:
            raise PositionError(position, length=ends[-1], what=repr(self))
        number = bisect_right(ends, wanted)
        line = wanted - ends[number - 1] if number else wanted
        return number, line + self._files[number].format.has_header

    def _ends_of_files(self) -> list[int]:
        if self._ends is None:
            self._ends = self._run_locked(self._count)
        return self._ends

    def _count(self) -> list[int]:
        if self._ends is not None:  # another thread was first
            return self._ends
        counts = []
        for number, file in enumerate(self._files):
            head = self._folder.head(file)
            if head is None:
                head = self._build(number).head
            counts.append(max(0, head.num_lines - file.format.has_header))
        return list(accumulate(counts))

    def _build(self, number: int) -> LineIndex:
        index = self._folder.build(self._files[number])
        if self._folder.head(self._files[number]) is None:
            self._kept[number] = index
        return index

    def _file(self, number: int) -> _OpenFile:
        # No lock here, because this runs for every sample: a dict lookup is atomic.
        return self._open.get(number) or self._run_locked(lambda: self._opened(number))

    def _opened(self, number: int) -> _OpenFile:
        file = self._open.get(number)
        if file is None:
            index = self._kept.get(number) or self._folder.load(self._files[number]) or self._build(number)
            file = _OpenFile(self._files[number], self._folder, index, self._watch)
            while len(self._open) >= _MAX_OPEN_FILES:
                # The one opened first. It is closed when no thread has a reference to it, so never during a read.
                self._watch.discard(self._open.pop(next(iter(self._open))).watched)
            self._open[number] = file
        return file

    def _run_locked(self, work: Callable[[], T]) -> T:
        """Return `work()`, called by one thread of this process at a time.

        Each process has its own lock: one that another thread held during a fork would stay locked in the child.
        """
        with self._locks.setdefault(os.getpid(), Lock()):
            return work()


class _OpenFile:
    """An open file that can be read at any line from any thread.

    It uses `pread`, not a memory map: the GIL is released while the disk works, and a file truncated meanwhile raises
    an error instead of killing the process with SIGBUS.
    """

    def __init__(self, file: LineFile, folder: IndexFolder, index: LineIndex, watch: FileWatch) -> None:
        self._file, self._index = file, index
        self.stride = index.head.stride
        path, self._handle = _open_data(file, folder, index)
        weakref.finalize(self, os.close, self._handle)
        self.watched: WatchedFile = watch.add(path, os.fstat(self._handle))
        header = None
        if file.format.has_header and index.head.num_lines:
            header = self.read_block(0, 1)[0].removesuffix(b"\r").removeprefix(BOM)
        self._parser: LineParser = file.format.parser(header)

    def read_block(self, block: int, num_lines: int) -> list[bytes]:
        """Return the first `num_lines` lines of a block, with their carriage returns, then the rest unsplit."""
        begin, end = self._index.block(block)
        raw = os.pread(self._handle, end - begin, begin)
        if len(raw) < end - begin:
            raw = self._read_on(raw, begin, end)
        return raw.split(b"\n", num_lines)

    def sample(self, block: int, lines: list[bytes], at: int) -> Any:
        """Return line `at` of a block's lines, parsed."""
        if at >= len(lines):
            self.watched.check()
            raise DamagedFile(
                self._file.path,
                what=f"does not fit its index: block {block} should have more than {at} lines and has {len(lines)}",
                hint="delete the index folder (index_dir=, or stoker/lines in the cache folder) and open it again",
            )
        line = lines[at]
        if line.endswith(b"\r") and at + 1 < len(lines):  # without anything after it, it had no line feed
            line = line[:-1]
        number = block * self.stride + at
        if number == 0 and self._file.format.drops_bom:
            line = line.removeprefix(BOM)
        try:
            return self._parser(line)
        except ValueError as error:
            self.watched.check()  # if the file was overwritten meanwhile, lines begin elsewhere
            offset = self._index.block(block)[0] + sum(len(before) + 1 for before in lines[:at])
            raise bad_line(error, path=self._file.path, line=number + 1, offset=offset) from error
        except Exception as error:
            error.add_note(f"while parsing line {number + 1} of {self._file.path}")
            raise

    def _read_on(self, raw: bytes, begin: int, end: int) -> bytes:
        """Return all of a range after a short read, which is normal above 2 GiB."""
        parts, begin = [raw], begin + len(raw)
        while begin < end:
            part = os.pread(self._handle, end - begin, begin)
            if not part:
                self.watched.check()
                raise StaleSource(self._file.path, what=f"it ends {end - begin} bytes early")
            parts.append(part)
            begin += len(part)
        return b"".join(parts)


def _open_data(file: LineFile, folder: IndexFolder, index: LineIndex) -> tuple[Path, int]:
    """Return the path of the uncompressed content, and its open descriptor. Raise `StaleSource` if it changed."""
    with file.open() as original:
        if file.compression is None:
            return file.path, os.dup(original.fileno())
    path = folder.data_path(file)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise StaleSource(file.path, what="its decompressed content is gone from the index folder") from error
    if os.fstat(handle).st_size != index.head.data_bytes:
        os.close(handle)
        raise StaleSource(file.path, what="its decompressed content in the index folder has another size")
    return path, handle
