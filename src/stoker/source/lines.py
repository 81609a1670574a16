"""The lines of text, CSV and JSONL files as samples, plain or compressed, by position or in order."""

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

# Each takes two file descriptors (the file, its index's memory map), and 1024 is a common limit for a process.
_MAX_OPEN_FILES = 64


@final
class Lines:
    r"""The lines of some files as samples, addressed by position. `stream()` gives them in order instead.

    Every line is one sample, except the header of a CSV or TSV file. A line ends at a line feed; a carriage return
    before it belongs to the end; the last line of a file may lack its end. Empty lines count like any other, and a
    line end at the end of a file does not begin another line.

    `paths` is a file or several, in that order. `parse` says what becomes of a line; None goes by each file's suffix:

    - `"text"` (any other suffix): a `str`.
    - `"json"` (`.jsonl`, `.ndjson`, `.json`): any JSON value. An empty line is a bad one.
    - `"csv"`, `"tsv"`: a dict of strings by the file's first line. Fields may be quoted but hold no line breaks.
    - `"bytes"`: the line as it is, without its end.
    - a function: what it returns for the line's bytes. A ValueError from it makes the line a bad one.

    Text is UTF-8; a byte order mark at the start of a file is dropped (except from `"bytes"`). A line that cannot be
    parsed raises `BadLine` when it is read, with its file, number and place, and is counted all the same.

    Files whose names end in `.gz`, `.zst`, `.zstd`, `.xz` or `.bz2` are compressed; the suffix before that tells the
    format.

    The first `len` or read builds an index of each file and keeps it in `index_dir` (by default
    `$XDG_CACHE_HOME/stoker/lines`, or `~/.cache/stoker/lines`) for every later process; where that cannot be written
    to, it stays in memory. The index is a few thousandths of the file. A *compressed file is unpacked* there as
    well, and takes the disk space of its whole content; `stream()` needs neither.

    Safe to use from any number of threads; pickles as its arguments; works after a fork and in spawned processes.
    Files must not change during a run: one that differs in size or time from what it was when this was made raises
    `StaleSource` when it is opened, or soon after while it is read.
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
        """Ends of the files, counted in samples; None before the first use."""
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
        """Return the number of samples. The first call builds the indexes that are not there yet."""
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
        """Return the samples at `positions`, in that order; they are read in the order in which they lie on disk."""
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
        """Return where the sample at `position` comes from: the path, and the line counted from 1."""
        number, line = self._place_of(operator.index(position))
        return f"{self._files[number].path}, line {line + 1}"

    @property
    def fingerprint(self) -> str:
        """A short text that changes when the files do, and stays when they are copied to another place.

        Made of the files' names, sizes, formats and first and last 64 KiB. A change elsewhere that keeps the size is
        not seen.
        """
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(self._files)
        return self._fingerprint

    def stream(self) -> LineStream:
        """Return all lines in order, without an index and without unpacking to disk."""
        return LineStream.of(self._files)

    def _place_of(self, position: int) -> tuple[int, int]:
        """Return the file of a sample and the number from 0 of its line there."""
        ends = self._ends or self._ends_of_files()
        wanted = position + ends[-1] if position < 0 else position
        if not 0 <= wanted < ends[-1]:
            raise PositionError(position, length=ends[-1], what=repr(self))
        number = bisect_right(ends, wanted)
        line = wanted - ends[number - 1] if number else wanted
        return number, line + self._files[number].format.has_header

    def _ends_of_files(self) -> list[int]:
        if self._ends is None:
            self._ends = self._alone(self._count)
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
        # No lock on the way that is taken for every sample: looking into a dict is atomic.
        return self._open.get(number) or self._alone(lambda: self._opened(number))

    def _opened(self, number: int) -> _OpenFile:
        file = self._open.get(number)
        if file is None:
            index = self._kept.get(number) or self._folder.load(self._files[number]) or self._build(number)
            file = _OpenFile(self._files[number], self._folder, index, self._watch)
            while len(self._open) >= _MAX_OPEN_FILES:
                # The one opened first. A thread that is reading it holds a reference; it is closed after that.
                self._watch.discard(self._open.pop(next(iter(self._open))).watched)
            self._open[number] = file
        return file

    def _alone(self, work: Callable[[], T]) -> T:
        """Return `work()`, done by one thread of this process at a time.

        The lock belongs to the process: one that another thread held during a fork would stay locked in the child.
        """
        with self._locks.setdefault(os.getpid(), Lock()):
            return work()


class _OpenFile:
    """A file that can be read at any line, from any thread: each read names its place, and nothing is shared.

    Reads are `pread`, not a memory map: they let other threads run while the disk works, and a file cut short
    under our hands is an error, not a signal that ends the process.
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
        """Return the first `num_lines` lines of a block, with their carriage returns, and the rest unsplit."""
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
        if line.endswith(b"\r") and at + 1 < len(lines):  # what is not followed by anything had no line feed
            line = line[:-1]
        number = block * self.stride + at
        if number == 0 and self._file.format.drops_bom:
            line = line.removeprefix(BOM)
        try:
            return self._parser(line)
        except ValueError as error:
            self.watched.check()  # what was written over the file meanwhile may begin anywhere
            offset = self._index.block(block)[0] + sum(len(before) + 1 for before in lines[:at])
            raise bad_line(error, path=self._file.path, line=number + 1, offset=offset) from error
        except Exception as error:
            error.add_note(f"while parsing line {number + 1} of {self._file.path}")
            raise

    def _read_on(self, raw: bytes, begin: int, end: int) -> bytes:
        """Return the rest of a read that was cut short, as those over 2 GiB are."""
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
    """Return where the file's plain content is, and a descriptor of it, checked to be what was indexed."""
    with file.open() as original:
        if file.compression is None:
            return file.path, os.dup(original.fileno())
    path = folder.data_path(file)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise StaleSource(file.path, what="its unpacked content is gone from the index folder") from error
    if os.fstat(handle).st_size != index.head.data_bytes:
        os.close(handle)
        raise StaleSource(file.path, what="its unpacked content in the index folder has another size")
    return path, handle
