"""Read the lines of files in order, without an index; split them without counting lines."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, NoReturn, Self, cast, final

from stoker.errors import ArgumentError, StateMismatch, StateUnreadable
from stoker.source.known_file import Paths, fingerprint_of, named
from stoker.source.line_file import LineFile, line_files
from stoker.source.line_format import BOM, LineParser, Parse, bad_line
from stoker.source.line_reader import LineReader, first_line

_STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of reads and of the units that are split; tests make them tiny."""

    chunk_bytes: int = 64 << 10
    """Size of a read. From 128 KiB on, the allocator maps and unmaps each buffer, which costs more than reading."""
    block_bytes: int = 1 << 20
    """Lines that begin in the same block of decompressed data belong to the same part. States depend on this size."""


@dataclass(frozen=True, slots=True)
class ByteShare:
    """The lines of an uncompressed file that begin in one range of bytes."""

    file: int
    start: int
    stop: int

    def ranges(self, start: int, sizes: Sizes) -> Iterator[tuple[int, int | None]]:  # noqa: ARG002
        """Yield the ranges of this share from the line at `start` on."""
        yield max(self.start, start), self.stop


@dataclass(frozen=True, slots=True)
class BlockShare:
    """The lines of a compressed file that begin in every `modulus`-th block.

    Blocks are counted from the file's number, not from zero: if there are many files shorter than a block, every part
    gets some of them.
    """

    file: int
    residue: int = 0
    modulus: int = 1

    def ranges(self, start: int, sizes: Sizes) -> Iterator[tuple[int, int | None]]:
        """Yield the ranges of this share from the line at `start` on, endlessly: the file's length is unknown."""
        if self.modulus == 1:
            yield start, None
            return
        first = start // sizes.block_bytes
        first += (self.residue - self.file - first) % self.modulus
        for block in count(first, self.modulus):
            yield max(start, block * sizes.block_bytes), (block + 1) * sizes.block_bytes


Share = ByteShare | BlockShare


@final
class LineStream:
    """The lines of files in order, each parsed into a sample. Every `iter` starts at the beginning.

    Takes the arguments of `Lines`. Nothing is indexed or counted; compressed files are decompressed while reading.
    `split` returns a part for a worker or rank. Iterators know their exact position (`state_dict`). Files must not
    change during a run: size and mtime are checked when a file is opened.
    """

    def __init__(self, paths: Paths, *, parse: Parse | None = None) -> None:
        self._set(line_files(paths, parse), sizes=Sizes())

    @classmethod
    def of(cls, files: Sequence[LineFile], *, sizes: Sizes | None = None) -> LineStream:
        """Return the stream over files that are already checked."""
        stream = cls.__new__(cls)
        stream._set(tuple(files), sizes=sizes or Sizes())
        return stream

    def _set(self, files: tuple[LineFile, ...], *, sizes: Sizes) -> None:
        self._files, self._sizes = files, sizes
        self._part: tuple[tuple[int, int], ...] = ()
        self._fingerprint: str | None = None
        self._shares: tuple[Share, ...] = tuple(
            ByteShare(number, 0, file.size_bytes) if file.compression is None else BlockShare(number)
            for number, file in enumerate(files)
        )

    def __iter__(self) -> LineIterator:
        return LineIterator.over(_Cursor(self._files, self._shares, self._part, self._sizes))

    def __repr__(self) -> str:
        part = "".join(f".split({index}, {count})" for index, count in self._part)
        return f"{named('LineStream', self._files)}{part}"

    @property
    def fingerprint(self) -> str:
        """Digest of the files, unaffected by copying them elsewhere. Equal for all parts."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(self._files)
        return self._fingerprint

    def split(self, index: int, count: int, /) -> Self:
        """Return part `index` of `count`. The parts together hold every line exactly once; a part can be split again.

        Uncompressed files are split by bytes: a line belongs to the part that contains its first byte. If there are at
        least `count` compressed files, each part gets whole files; otherwise every part decompresses every file and
        takes its blocks (1 MiB of decompressed data each).
        """
        index, count = operator.index(index), operator.index(count)
        if not 0 <= index < count:
            raise ArgumentError(
                f"there is no part {index} of {count}",
                hint="parts are numbered from 0 to count - 1, and count is at least 1",
            )
        part = self.of(self._files, sizes=self._sizes)
        part._part = (*self._part, (index, count))
        part._shares = _split(self._shares, index, count)
        part._fingerprint = self._fingerprint
        return part


@final
class LineIterator(chain[Any]):
    """An iterator over a `LineStream` that knows its exact position.

    A line that cannot be parsed raises `BadLine`; the next call continues with the line after it. Any other error
    of the data (`StaleSource`, a damaged compressed file) is raised again by every further call. The file is
    closed at the end, after such an error, by `close`, and when the iterator is deleted. Not thread-safe.
    """

    # A `chain` of one iterator per chunk of lines: lines pass from a list to the caller without a Python call for each,
    # which would take longer than reading and splitting them. The position is not counted, but derived from the length
    # hint of the list's iterator.

    _cursor: _Cursor

    @classmethod
    def over(cls, cursor: _Cursor) -> LineIterator:
        """Return the iterator over what `cursor` reads."""
        lines = cast(LineIterator, cls.from_iterable(cursor))
        lines._cursor = cursor
        return lines

    def __reduce__(self) -> NoReturn:
        raise TypeError("an iterator over lines cannot be pickled or copied; use its state_dict()")

    def close(self) -> None:
        """Close the file; the iterator is at its end."""
        self._cursor.end()

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON values: the file and the byte at which the next line begins."""
        file, offset, line = self._cursor.position()
        part = [list(split) for split in self._cursor.part]
        return {"version": _STATE_VERSION, "part": part, "file": file, "offset": offset, "line": line}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. The iterator must be new, over the same part of the same files.

        Uncompressed files are opened at that byte; compressed ones are decompressed up to it, without parsing.
        """
        try:
            version, part = state["version"], [list(split) for split in state["part"]]
            file, offset = operator.index(state["file"]), operator.index(state["offset"])
            line = None if state["line"] is None else operator.index(state["line"])
        except (TypeError, KeyError) as error:
            raise StateUnreadable(f"it is not the position of a stream of lines ({error!r})") from error
        if version != _STATE_VERSION:
            raise StateUnreadable(f"expected version {_STATE_VERSION}, got {version!r}")
        ours = [list(split) for split in self._cursor.part]
        if part != ours:
            raise StateMismatch({"part": (part, ours)})
        if not 0 <= file <= self._cursor.num_files or offset < 0:
            raise StateUnreadable(f"expected one of {self._cursor.num_files} files, got file {file}, byte {offset}")
        if self._cursor.is_ended:
            raise StateUnreadable("this iterator is at its end; load the state into a new one")
        self._cursor.go_to(file, offset, line)


@dataclass(frozen=True, slots=True)
class _LineChunk:
    """A chunk of whole lines of one file."""

    file: int
    offset: int
    """Offset of `raw` in the decompressed data."""
    line: int | None
    """Number of lines before it in the file, if known."""
    raw: bytes
    is_next: bool = False
    """Whether it follows the previous chunk directly, so that `line` can be counted on from there."""


class _Cursor:
    """Reads chunk after chunk, and knows the position of the caller.

    Each `next` returns an iterator over the samples of one chunk. Nothing here refers to these iterators or to the
    `LineIterator`: without a reference cycle, deleting it closes the file at once.
    """

    def __init__(
        self, files: tuple[LineFile, ...], shares: tuple[Share, ...], part: tuple[tuple[int, int], ...], sizes: Sizes
    ) -> None:
        self._files, self._shares, self._sizes, self.part = files, shares, sizes, part
        self._lines: Iterator[Any] = iter(())
        """Lines of the chunk that are not yet consumed: a list's iterator, whose length hint is exact."""
        self._chunks: Iterator[_LineChunk] | None = None
        self._parser: tuple[int, LineParser] | None = None
        self.failure: Exception | None = None
        self.is_ended = False
        self.go_to(0, 0, 0)

    def __iter__(self) -> Iterator[Iterable[Any]]:
        return self

    def __next__(self) -> Iterable[Any]:
        if self.is_ended:
            raise StopIteration
        try:
            start = self.position()
            if self._chunks is None:
                self._chunks = _chunks(self._files, self._shares, start, self._sizes)
            chunk = next(self._chunks, None)
            if chunk is None:
                self.end()
                raise StopIteration
            return self._samples(chunk)
        except StopIteration:
            raise
        except Exception as error:
            # `chain` ends for good after an error here, but not after one from an iterator that it was given.
            self._close()
            self.failure = error
            return _FailedChunk(self)

    @property
    def num_files(self) -> int:
        return len(self._files)

    def go_to(self, file: int, offset: int, line: int | None) -> None:
        """Continue with the line at `offset` of a file; drop the rest of the current chunk."""
        for _ in self._lines:
            pass
        self._close()
        self.failure = None
        self._mark(_LineChunk(file, offset, line, b""), 0)

    def end(self) -> None:
        """Close the file and end the iteration."""
        self.go_to(self.num_files, 0, None)
        self.is_ended = True

    def position(self) -> tuple[int, int, int | None]:
        """Return the file, the offset and (if known) the number, from 0, of the next line."""
        return self._place_of(self._num_lines - operator.length_hint(self._lines))

    def _close(self) -> None:
        self._chunks = None  # deleting the generator closes its file

    def _mark(self, chunk: _LineChunk, num_lines: int) -> None:
        self._chunk, self._num_lines = chunk, num_lines
        self._known = (0, 0)  # a line of the chunk and its offset in `raw`: see `_place_of`

    def _place_of(self, number: int) -> tuple[int, int, int | None]:
        """Return the position of line `number` of the chunk, searching from the last one that was found."""
        chunk = self._chunk
        known, begin = self._known if self._known[0] <= number else (0, 0)
        if number == self._num_lines:
            begin = len(chunk.raw)
        else:
            for _ in range(number - known):
                begin = chunk.raw.index(b"\n", begin) + 1
        self._known = (number, begin)
        return chunk.file, chunk.offset + begin, None if chunk.line is None else chunk.line + number

    def _samples(self, chunk: _LineChunk) -> Iterable[Any]:
        file = self._files[chunk.file]
        parser = self._parser_of(chunk.file)
        raw = chunk.raw
        if not chunk.offset and file.format.drops_bom:
            raw = raw.removeprefix(BOM)
        if b"\r" in raw:
            raw = raw.replace(b"\r\n", b"\n")
        lines: list[Any]
        function: Callable[[Any], Any] | None = parser.function
        try:
            lines = raw.decode().split("\n") if parser.is_text else raw.split(b"\n")
        except UnicodeDecodeError:
            lines, function = raw.split(b"\n"), parser  # one by one, to find the bad ones
        if chunk.raw.endswith(b"\n"):
            del lines[-1]
        if chunk.is_next:
            chunk = replace(chunk, line=None if self._chunk.line is None else self._chunk.line + self._num_lines)
        self._mark(chunk, len(lines))
        self._lines = iter(lines)
        return self._lines if function is None else map(self._locating(function), self._lines)

    def _parser_of(self, number: int) -> LineParser:
        if self._parser is None or self._parser[0] != number:
            file = self._files[number]
            header = first_line(file, chunk_bytes=self._sizes.chunk_bytes) if file.format.has_header else None
            self._parser = number, file.format.parser(header)
        return self._parser[1]

    def _locating(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return `function` with file and position added to its errors."""

        def parse(line: Any) -> Any:
            try:
                return function(line)
            except ValueError as error:
                _, offset, number = self._place_of_last()
                path = self._files[self._chunk.file].path
                line_number = None if number is None else number + 1
                raise bad_line(error, path=path, line=line_number, offset=offset) from error
            except Exception as error:
                _, offset, _ = self._place_of_last()
                error.add_note(f"while parsing the line at byte {offset} of {self._files[self._chunk.file].path}")
                raise

        return parse

    def _place_of_last(self) -> tuple[int, int, int | None]:
        return self._place_of(self._num_lines - operator.length_hint(self._lines) - 1)


class _FailedChunk:
    """An iterator that raises the failure of a cursor at every call, until `load_state_dict` moves the cursor."""

    def __init__(self, cursor: _Cursor) -> None:
        self._cursor = cursor

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> NoReturn:
        raise StopIteration if self._cursor.failure is None else self._cursor.failure


def _chunks(
    files: tuple[LineFile, ...], shares: tuple[Share, ...], start: tuple[int, int, int | None], sizes: Sizes
) -> Iterator[_LineChunk]:
    """Yield the lines of `shares` from `start` on, in chunks. Each file is open only while it is read."""
    for share in shares:
        if share.file < start[0]:
            continue
        offset, line = (start[1], start[2]) if share.file == start[0] else (0, 0)
        file, is_next = files[share.file], False
        with LineReader(file, chunk_bytes=sizes.chunk_bytes) as reader:
            for begin, stop in share.ranges(offset, sizes):
                if begin > reader.offset:
                    # Skipped lines are not counted, so the number is unknown, except at `offset`: it is in the state.
                    is_next, line = False, line if begin == offset else None
                if not reader.skip_to(begin):
                    break
                while raw := reader.lines_before(stop):
                    at = reader.offset - len(raw)
                    if at == 0 and file.format.has_header:
                        at = raw.find(b"\n") + 1 or len(raw)
                        raw, line, is_next = raw[at:], 1, False
                    if raw:
                        # Counting lines here would cost as much as splitting them; the cursor knows how many it split.
                        yield _LineChunk(share.file, at, line, raw, is_next)
                        is_next = True


def _split(shares: tuple[Share, ...], index: int, count: int) -> tuple[Share, ...]:
    plain = [share for share in shares if isinstance(share, ByteShare)]
    blocks = [share for share in shares if isinstance(share, BlockShare)]
    taken: list[Share] = []

    num_bytes = sum(share.stop - share.start for share in plain)
    begin, end = num_bytes * index // count, num_bytes * (index + 1) // count
    base = 0
    for share in plain:
        start, stop = max(share.start, share.start + begin - base), min(share.stop, share.start + end - base)
        if start < stop:
            taken.append(ByteShare(share.file, start, stop))
        base += share.stop - share.start

    if len(blocks) >= count:
        taken += blocks[index::count]
    else:
        taken += (
            replace(share, residue=share.residue + share.modulus * index, modulus=share.modulus * count)
            for share in blocks
        )
    return tuple(sorted(taken, key=lambda share: share.file))


if "torch.utils.data" in sys.modules:  # otherwise `stoker.loader` does this: sources do not import torch
    sys.modules["torch.utils.data"].IterableDataset.register(LineStream)
