"""Whole lines of one file, read forward in big pieces."""

from __future__ import annotations

from typing import IO

from stoker.errors import StaleSource
from stoker.source.compression import decompress
from stoker.source.line_file import LineFile
from stoker.source.line_format import BOM


class LineReader:
    """Reads one file forward; what it gives out always begins and ends at line boundaries.

    Memory is bounded by `chunk_bytes` and the longest line. Not for several threads at once. Close it, or use
    it as a context.
    """

    def __init__(self, file: LineFile, *, chunk_bytes: int) -> None:
        self._chunks: _PlainChunks | _UnpackedChunks = (
            _PlainChunks(file, chunk_bytes) if file.compression is None else _UnpackedChunks(file, chunk_bytes)
        )
        self._held = b""
        """Read and not yet given out."""
        self.offset = 0
        """Where the next line begins, in the unpacked data."""

    def __enter__(self) -> LineReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._chunks.close()

    def skip_to(self, offset: int) -> bool:
        """Go to the first line that begins at or after `offset`; return whether there may be one."""
        if offset > self.offset:
            # A line begins at `offset` when the byte before it ends one, so the search starts at that byte.
            num_bytes = offset - 1 - self.offset
            if num_bytes < len(self._held):
                self._held = self._held[num_bytes:]
            else:
                self._chunks.skip(num_bytes - len(self._held))
                self._held = b""
            self.offset = offset - 1
            while (end := self._held.find(b"\n")) < 0:
                self.offset += len(self._held)
                self._held = self._chunks.read()
                if not self._held:
                    return False
            self._held = self._held[end + 1 :]
            self.offset += end + 1
        return True

    def lines_before(self, stop: int | None) -> bytes:
        """Return whole lines from here on, those that begin before `stop`; empty when there are none left.

        A line keeps its end, except the last of the file where it has none.
        """
        if stop is not None and self.offset >= stop:
            return b""
        parts = [self._held]
        end = self._held.rfind(b"\n")
        while end < 0:
            chunk = self._chunks.read()
            if not chunk:
                break
            parts.append(chunk)
            end = chunk.rfind(b"\n")
        if end >= 0:
            last = parts[-1]
            parts[-1], self._held = last[: end + 1], last[end + 1 :]
        else:
            self._held = b""  # the end of the file: the rest is a line without an end
        lines = parts[0] if len(parts) == 1 else b"".join(parts)
        if stop is not None and self.offset + len(lines) > stop:
            end = lines.find(b"\n", stop - 1 - self.offset)
            if 0 <= end < len(lines) - 1:
                self._held = lines[end + 1 :] + self._held
                lines = lines[: end + 1]
        self.offset += len(lines)
        return lines


def first_line(file: LineFile, *, chunk_bytes: int) -> bytes:
    """Return the first line of a file without its end and its byte order mark."""
    with LineReader(file, chunk_bytes=chunk_bytes) as reader:
        return without_end(reader.lines_before(1)).removeprefix(BOM)


def without_end(line: bytes) -> bytes:
    """Return `line` without the line feed it ends with, and without a carriage return before that."""
    return line[:-1].removesuffix(b"\r") if line.endswith(b"\n") else line


class _PlainChunks:
    """The bytes of a plain file, up to the size it had when the source was made."""

    def __init__(self, file: LineFile, chunk_bytes: int) -> None:
        self._file: IO[bytes] = file.open()
        self._path, self._left_bytes, self._chunk_bytes = file.path, file.size_bytes, chunk_bytes

    def read(self) -> bytes:
        chunk = self._file.read(min(self._chunk_bytes, self._left_bytes))
        self._left_bytes -= len(chunk)
        if not chunk and self._left_bytes:
            raise StaleSource(self._path, what=f"it ends {self._left_bytes} bytes early")
        return chunk

    def skip(self, num_bytes: int) -> None:
        num_bytes = min(num_bytes, self._left_bytes)
        self._file.seek(num_bytes, 1)
        self._left_bytes -= num_bytes

    def close(self) -> None:
        self._file.close()


class _UnpackedChunks:
    """The bytes of a compressed file, unpacked on the way; skipping unpacks too."""

    def __init__(self, file: LineFile, chunk_bytes: int) -> None:
        assert file.compression is not None
        self._file: IO[bytes] = file.open(buffer_bytes=128 << 10)  # the gzip module asks for 8 KiB at a time
        self._chunks = decompress(self._file, file.compression, path=file.path, chunk_bytes=chunk_bytes)
        self._held = b""

    def read(self) -> bytes:
        chunk, self._held = self._held or next(self._chunks, b""), b""
        return chunk

    def skip(self, num_bytes: int) -> None:
        while num_bytes > 0:
            chunk = self.read()
            if not chunk:
                return
            self._held = chunk[num_bytes:]
            num_bytes -= len(chunk)

    def close(self) -> None:
        self._chunks.close()
        self._file.close()
