"""The lines of a piece, as they lie in its file, plain or compressed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from stoker.errors import DamagedFile
from stoker.prepare.batch import BATCH_BYTES
from stoker.prepare.inputs import Input
from stoker.prepare.pieces import Piece
from stoker.prepare.skips import Skips
from stoker.source.compression import unpacked
from stoker.source.line_file import LineFile
from stoker.source.line_format import BOM, LineFormat
from stoker.source.line_reader import LineReader

_UNPACKED_BYTES = 64 << 10
"""Unpacked at a time, of which a file that is cut off loses the last."""


class Lines(NamedTuple):
    """Whole lines as they lie in the file, and where that is."""

    raw: bytes
    byte: int
    """Where they begin, in the unpacked data."""
    line: int | None
    """The number of the first, from 1; None where the lines before it were not read."""
    num_read: int

    def each(self) -> Iterator[tuple[bytes, int, int | None]]:
        """Yield each line without its end, with its place."""
        byte, line = self.byte, self.line
        pieces = self.raw.split(b"\n")
        last = pieces.pop()
        for piece in pieces:
            yield piece.removesuffix(b"\r"), byte, line
            byte += len(piece) + 1
            line = None if line is None else line + 1
        if last:  # the file's last line lacks its end
            yield last, byte, line


def lines_of(piece: Piece, skips: Skips, *, stop: int | None) -> Iterator[Lines]:
    """Yield the lines that begin from the piece's start on and before `stop`, about a MiB at a time."""
    entry = piece.inputs[0]
    line: int | None = None if piece.start else 1
    raws = _plain_lines(entry, piece.start, stop) if entry.compression is None else _unpacked_lines(entry, skips)
    for raw, byte, num_read in raws:
        has_mark = byte == 0 and raw.startswith(BOM)
        dropped = len(BOM) if has_mark else 0
        yield Lines(raw[dropped:], byte + dropped, line, min(num_read, piece.num_bytes))
        line = None if line is None else line + raw.count(b"\n")


def _plain_lines(entry: Input, start: int, stop: int | None) -> Iterator[tuple[bytes, int, int]]:
    file = LineFile(
        path=Path(os.path.abspath(entry.path)),
        size_bytes=entry.num_bytes,
        mtime_ns=entry.mtime_ns,
        compression=None,
        format=LineFormat("text"),
    )
    with LineReader(file, chunk_bytes=BATCH_BYTES) as reader:
        if reader.skip_to(start):
            while raw := reader.lines_before(stop):
                yield raw, reader.offset - len(raw), reader.offset - start


def _unpacked_lines(entry: Input, skips: Skips) -> Iterator[tuple[bytes, int, int]]:
    held: list[bytes] = []
    size = byte = 0
    with opened(entry) as file:
        for chunk in _unpacked(entry, file, skips):
            held.append(chunk)
            size += len(chunk)
            end = chunk.rfind(b"\n") + 1
            if size < BATCH_BYTES or not end:
                continue
            rest = chunk[end:]
            held[-1] = chunk[:end]
            raw = b"".join(held)
            yield raw, byte, file.tell()
            byte += len(raw)
            held, size = [rest], len(rest)
    if (raw := b"".join(held)) and (not skips.has_cut or b"\n" in raw):
        if skips.has_cut:
            raw = raw[: raw.rfind(b"\n") + 1]  # the line on which the data ended early is not whole
        yield raw, byte, entry.num_bytes


def _unpacked(entry: Input, file: IO[bytes], skips: Skips) -> Iterator[bytes]:
    assert entry.compression is not None
    try:
        yield from unpacked(file, entry.compression, path=Path(entry.path), chunk_bytes=_UNPACKED_BYTES)
    except DamagedFile as error:
        skips.note_cut(error)


def opened(entry: Input) -> IO[bytes]:
    """Open an input as it lies on disk, after checking that it is still the same."""
    file: IO[bytes] = open(entry.path, "rb", buffering=128 << 10)  # noqa: SIM115  # gzip asks for 8 KiB at a time
    try:
        entry.check(os.fstat(file.fileno()))
    except BaseException:
        file.close()
        raise
    return file
