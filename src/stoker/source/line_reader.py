"""Read one file forward, in chunks of whole lines."""

from __future__ import annotations

from typing import IO

from stoker.errors import StaleSource
from stoker.source.compression import decompress
from stoker.source.line_file import LineFile
from stoker.source.line_format import BOM


class LineReader:
    """Reads one file forward and returns whole lines.

    Memory is bounded by `chunk_bytes` and the longest line. Not thread-safe. Close it, or use it as a context manager.
    """

    def __init__(self, file: LineFile, *, chunk_bytes: int) -> None:
        self._chunks: _PlainChunks | _UnpackedChunks = (
            _PlainChunks(file, chunk_bytes) if file.compression is None else _UnpackedChunks(file, chunk_bytes)
        )
        self._held = b""
        """Bytes read, but not yet returned."""
        self.offset = 0
        """Offset of the next line in the decompressed data."""

    def __enter__(self) -> LineReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._chunks.close()

    def skip_to(self, offset: int) -> bool:
        """Skip to the first line that begins at or after `offset`. Return False if the file ends before."""
        if offset > self.offset:
            # A line begins at `offset` if the byte before it is a line feed, so the search starts at that byte.
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
        """Return the next whole lines that begin before `stop`; empty if none is left.

        Each ends with its line feed, which may be missing at the end of the file.
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
            self._held = b""  # end of the file: the rest is a line without a line feed
        lines = parts[0] if len(parts) == 1 else b"".join(parts)
        if stop is not None and self.offset + len(lines) > stop:
            end = lines.find(b"\n", stop - 1 - self.offset)
            if 0 <= end < len(lines) - 1:
                self._held = lines[end + 1 :] + self._held
                lines = lines[: end + 1]
        self.offset += len(lines)
        return lines


def first_line(file: LineFile, *, chunk_bytes: int) -> bytes:
    """Return the first line of a file, without line end and byte order mark."""
    with LineReader(file, chunk_bytes=chunk_bytes) as reader:
        return without_end(reader.lines_before(1)).removeprefix(BOM)


def without_end(line: bytes) -> bytes:
    """Return `line` without the line feed or CR LF at its end."""
    return line[:-1].removesuffix(b"\r") if line.endswith(b"\n") else line


class _PlainChunks:
    """The bytes of an uncompressed file, up to its size when the source was created."""

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
    """The bytes of a compressed file, decompressed while reading. Skipping decompresses, too."""

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
