"""Decompress files: gzip, zstd, xz and bzip2, by suffix."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Literal

from stoker.errors import ArgumentError, DamagedFile, MissingExtra

Compression = Literal["gzip", "zstd", "xz", "bzip2"]

SUFFIXES: dict[str, Compression] = {
    ".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".xz": "xz", ".bz2": "bzip2",
}  # fmt: skip

_UNREADABLE: dict[str, str] = {
    ".7z": "7z x", ".br": "brotli -d", ".lz4": "lz4 -d", ".lzma": "xz -d", ".rar": "unrar x", ".sz": "snzip -d",
    ".tar": "tar xf", ".tbz2": "tar xf", ".tgz": "tar xf", ".txz": "tar xf", ".z": "uncompress", ".zip": "unzip",
}  # fmt: skip
"""Suffixes of files that would be mistaken for text, and the commands that unpack them."""

_TOOLS: dict[Compression, str] = {"gzip": "gzip -t", "zstd": "zstd -t", "xz": "xz -t", "bzip2": "bzip2 -t"}

# zstd frames may announce windows up to 2 GiB (`zstd --long=31`); the library's own limit is 128 MiB.
_MAX_WINDOW_BYTES = 1 << 31

# One call of the zstd object decompresses all its input, so this bounds its memory: 32 KiB become a few hundred.
_ZSTD_INPUT_BYTES = 32 << 10


def compression_of(path: Path) -> Compression | None:
    """Return the compression of a file, by its suffix only."""
    return SUFFIXES.get(path.suffix.lower())


def check_readable(path: Path) -> None:
    """Raise `ArgumentError` for an archive, or a file whose compression is not supported."""
    inner = path.with_suffix("") if compression_of(path) is not None else path
    tool = _UNREADABLE.get(inner.suffix.lower())
    if tool is not None:
        raise ArgumentError(
            f"{path} is not text: {inner.suffix} files cannot be read",
            hint=f"unpack it first (`{tool} {path}`); compressed files may be .gz, .zst, .xz or .bz2",
        )


def check_magic(path: Path, compression: Compression) -> None:
    """Raise `DamagedFile` unless the first bytes of the file match its suffix."""
    with open(path, "rb") as file:
        head = file.read(6)
    if compression == "gzip":
        is_right = head.startswith(b"\x1f\x8b")
    elif compression == "xz":
        is_right = head == b"\xfd7zXZ\0"
    elif compression == "bzip2":
        is_right = head.startswith(b"BZh")
    else:  # a zstd frame, or a skippable one (0x184D2A50 to 0x184D2A5F), which parallel compressors write first
        is_right = head[:4] == b"\x28\xb5\x2f\xfd" or (head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F)
    if not is_right:
        found = f"its first bytes are {head[:4].hex(' ')}" if head else "it is empty"
        raise DamagedFile(
            path,
            what=f"is not a {compression} file, though its suffix says so: {found}",
            hint=f"rename it without {path.suffix!r} if it is not compressed; otherwise copy or compress it again",
        )


def require_library(compression: Compression) -> None:
    """Raise `MissingExtra` if the library to decompress is not installed."""
    if compression == "zstd":
        try:
            import zstandard  # noqa: F401
        except ImportError as error:
            raise MissingExtra("zstandard", extra="zstd", need="reading .zst files") from error


def decompress(
    file: IO[bytes], compression: Compression, *, path: Path, chunk_bytes: int
) -> Generator[bytes, None, None]:
    """Yield the decompressed content of `file` in non-empty chunks of about `chunk_bytes`.

    Concatenated gzip members, zstd frames, or xz and bzip2 streams are one content. Truncated or damaged data raises
    `DamagedFile` after the chunks before it. The caller closes `file`.
    """
    num_bytes = 0
    if compression == "gzip":
        pieces = _unpacked_gzip(file, chunk_bytes)
    elif compression == "zstd":
        pieces = _unpacked_zstd(file)
    else:
        pieces = _unpacked_streams(file, compression, chunk_bytes)
    try:
        for piece in pieces:
            num_bytes += len(piece)
            yield piece
    except EOFError as error:
        raise _damaged(path, compression, num_bytes, "the data ends early: the file is truncated") from error
    except (zlib.error, gzip.BadGzipFile, lzma.LZMAError, _FrameError) as error:
        raise _damaged(path, compression, num_bytes, f"the data is damaged ({error})") from error


class _FrameError(Exception):
    """Error of the zstd library or of bz2; a class of its own, because zstandard is imported late."""


def _damaged(path: Path, compression: Compression, num_bytes: int, reason: str) -> DamagedFile:
    tool = _TOOLS[compression]
    return DamagedFile(
        path,
        what=f"cannot be unpacked: {reason}, after about {num_bytes} unpacked bytes",
        hint=f"`{tool} {path}` checks the file; copy or compress it again",
    )


def _unpacked_gzip(file: IO[bytes], chunk_bytes: int) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file, mode="rb") as members:
        while piece := members.read(chunk_bytes):
            yield piece


def _unpacked_zstd(file: IO[bytes]) -> Iterator[bytes]:
    require_library("zstd")
    import zstandard

    # Not `stream_reader`, which accepts data that ends inside a frame.
    context = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    frame = None
    while packed := file.read(_ZSTD_INPUT_BYTES):
        while packed:
            if frame is None:
                frame = context.decompressobj()
            try:
                piece = frame.decompress(packed)
            except zstandard.ZstdError as error:
                raise _FrameError(str(error)) from error
            packed = b""
            if frame.eof:
                packed, frame = frame.unused_data, None
            if piece:
                yield piece
    if frame is not None:
        raise EOFError("inside a zstd frame")


def _unpacked_streams(file: IO[bytes], compression: Compression, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the content of xz and bzip2 streams. Between xz streams there may be zeros."""
    stream: lzma.LZMADecompressor | bz2.BZ2Decompressor | None = None
    packed, is_first = b"", True
    while True:
        if not packed and (stream is None or stream.needs_input):
            packed = file.read(chunk_bytes)
            if not packed:
                break
        if stream is None:
            if compression == "xz" and not is_first:
                packed = packed.lstrip(b"\0")
                if not packed:
                    continue
            stream = lzma.LZMADecompressor(lzma.FORMAT_XZ) if compression == "xz" else bz2.BZ2Decompressor()
            is_first = False
        try:
            piece = stream.decompress(packed, chunk_bytes)
        except (OSError, ValueError) as error:  # what bz2 raises
            raise _FrameError(str(error)) from error
        packed = b""
        if stream.eof:
            packed, stream = stream.unused_data, None
        if piece:
            yield piece
    if stream is not None or is_first:
        raise EOFError("inside a stream")
