"""A sparse index of the lines of a file, built once and cached on disk.

The index contains the byte offset of every `stride`-th line. The stride is at most 64, and such that about 4 KiB lie
between two indexed lines: a random read costs one small read from the file, and the index is well under 1% of its size.

Each file has its own folder, named by a hash of its real path. The index in it is named by a hash of the file's size
and mtime, so a changed file has no index, and processes that still use the old one are not affected. The decompressed
content of a compressed file is stored next to its index. Both get their names only when they are complete.

Layout, little-endian: a header (`_HEADER`, then its CRC-32), then the offsets as int64.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.source.compression import decompress
from stoker.source.line_file import LineFile

try:
    import fcntl
except ImportError:  # not a POSIX system: concurrent builders then repeat the work, which is only slower
    fcntl = None  # type: ignore[assignment]

_MAGIC = b"stoker lines 1\n\0"
# magic; size and mtime of the file; stride; number of lines; size of the (unpacked) data; CRC-32 of the offsets
_HEADER = struct.Struct("<16s6q")
_HEADER_BYTES = _HEADER.size + 8

_MAX_STRIDE = 64
_TARGET_BYTES = 4 << 10

# 512 KiB stays in a core's L2 cache between the comparison and the search for line feeds.
SCAN_BYTES = 512 << 10

_NUM_PROBES, _PROBE_BYTES = 16, 64 << 10
_ABANDONED_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class IndexHead:
    """The header of an index: everything but the offsets."""

    stride: int
    num_lines: int
    """All lines, including the header of a CSV file."""
    data_bytes: int
    offsets_crc: int

    @property
    def num_offsets(self) -> int:
        """Number of indexed lines."""
        return -(-self.num_lines // self.stride)


@dataclass(frozen=True, slots=True)
class LineIndex:
    """The offset of every `stride`-th line; `offsets` may be memory-mapped."""

    head: IndexHead
    offsets: NDArray[np.int64]

    def block(self, number: int) -> tuple[int, int]:
        """Return the range of bytes of block `number`, which has `stride` lines."""
        is_last = number + 1 >= self.head.num_offsets
        return int(self.offsets[number]), self.head.data_bytes if is_last else int(self.offsets[number + 1])


class IndexFolder:
    """The cache folder of indexes and decompressed files, shared by any number of processes.

    If it cannot be created or written to, `build` keeps the index of an uncompressed file in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = default_folder() if folder is None else folder

    def head(self, file: LineFile) -> IndexHead | None:
        """Return the header of the stored index of `file`; None if there is none, or it is invalid."""
        place = self._index_path(file)
        if place is None:
            return None
        try:
            with open(place, "rb", buffering=0) as stored:
                return self._read_head(stored, file)
        except OSError:
            return None

    def load(self, file: LineFile) -> LineIndex | None:
        """Return the stored index of `file`, memory-mapped; None if there is none, or it is damaged."""
        place = self._index_path(file)
        if place is None:
            return None
        try:
            with open(place, "rb", buffering=0) as stored:
                head = self._read_head(stored, file)
                if head is None:
                    return None
                content = mmap.mmap(stored.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError:
            return None
        offsets = np.frombuffer(content, dtype="<i8", offset=_HEADER_BYTES)
        if _crc_of(offsets) != head.offsets_crc:
            return None
        return LineIndex(head, offsets)

    def build(self, file: LineFile) -> LineIndex:
        """Build the index of `file` and store it if possible; a compressed file is first decompressed into the folder.

        If several processes build the same index, one does the work, and the others wait for it.
        """
        place = self._index_path(file)
        with _locked(place):
            # The previous holder of the lock may have built it. A damaged index is not loaded, and so replaced.
            stored = self.load(file)
            if stored is not None:
                return stored
            if file.compression is not None:
                self._unpack(file)
            return self._scan_and_store(file, place)

    def data_path(self, file: LineFile) -> Path:
        """Return the path of the uncompressed lines: the file itself, or its decompressed content."""
        if file.compression is None:
            return file.path
        place = self._index_path(file)
        if place is None:
            raise _cannot_decompress(file, "there is no cache folder for this user")
        return place.with_suffix(".unpacked")

    def _index_path(self, file: LineFile) -> Path | None:
        if self._folder is None:
            return None
        where = _hash(os.path.realpath(file.path).encode("utf-8", "surrogateescape"))
        what = _hash(f"{file.size_bytes} {file.mtime_ns}".encode())
        return self._folder / where / f"{what}.lines"

    def _read_head(self, stored: IO[bytes], file: LineFile) -> IndexHead | None:
        packed = stored.read(_HEADER_BYTES)
        if len(packed) < _HEADER_BYTES or packed[_HEADER.size :] != _crc_bytes(packed[: _HEADER.size]):
            return None
        magic, size_bytes, mtime_ns, stride, num_lines, data_bytes, crc = _HEADER.unpack_from(packed)
        head = IndexHead(stride, num_lines, data_bytes, crc)
        if (magic, size_bytes, mtime_ns) != (_MAGIC, file.size_bytes, file.mtime_ns):
            return None
        if os.fstat(stored.fileno()).st_size != _HEADER_BYTES + 8 * head.num_offsets:
            return None
        if file.compression is not None and self.data_path(file).stat().st_size != data_bytes:
            return None
        return head

    def _scan_and_store(self, file: LineFile, place: Path | None) -> LineIndex:
        with _open_data(file, self.data_path(file)) as data:
            data_bytes = os.fstat(data.fileno()).st_size
            stride = _choose_stride(data, data_bytes)
            if place is not None:
                with suppress(OSError):  # no folder, no permission, disk full: keep it in memory
                    with _write_atomically(place, like=file.path) as stored:
                        stored.write(bytes(_HEADER_BYTES))
                        head = _scan(data, data_bytes, stride, into=stored)
                        self._check_unchanged(file, data)
                        stored.seek(0)
                        stored.write(_packed(head, file))
                    _remove_stale(place)
                    index = self.load(file)
                    if index is not None:
                        return index
            offsets = io.BytesIO()
            head = _scan(data, data_bytes, stride, into=offsets)
            self._check_unchanged(file, data)
            return LineIndex(head, np.frombuffer(offsets.getbuffer(), dtype="<i8"))

    def _check_unchanged(self, file: LineFile, data: IO[bytes]) -> None:
        if file.compression is None:
            file.check(os.fstat(data.fileno()))

    def _unpack(self, file: LineFile) -> None:
        assert file.compression is not None
        place = self.data_path(file)
        with file.open(buffer_bytes=128 << 10) as packed:
            try:
                with _write_atomically(place, like=file.path) as plain:
                    for chunk in decompress(packed, file.compression, path=file.path, chunk_bytes=1 << 20):
                        plain.write(chunk)
                    file.check(os.fstat(packed.fileno()))
                    plain.flush()
                    os.fsync(plain.fileno())  # after a crash, the size must not be right and the bytes wrong
            except OSError as error:
                raise _cannot_decompress(file, f"{place.parent}: {error.strerror or error}") from error


def default_folder() -> Path | None:
    """Return `$XDG_CACHE_HOME/stoker/lines`, by default `~/.cache/stoker/lines`; None without a home directory."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # the XDG specification: relative paths are ignored
        return Path(given) / "stoker" / "lines"
    try:
        return Path.home() / ".cache" / "stoker" / "lines"
    except RuntimeError:
        return None


def _choose_stride(data: IO[bytes], data_bytes: int) -> int:
    """Return the stride with about `_TARGET_BYTES` between indexed lines, estimated from samples of the file."""
    num_bytes = num_ends = 0
    for probe in range(_NUM_PROBES):
        data.seek(data_bytes * probe // _NUM_PROBES)
        sample = data.read(_PROBE_BYTES)
        num_bytes += len(sample)
        num_ends += sample.count(b"\n")
    stride = 1
    while stride < _MAX_STRIDE and 2 * stride * num_bytes <= _TARGET_BYTES * num_ends:
        stride *= 2
    return stride


def _scan(data: IO[bytes], data_bytes: int, stride: int, *, into: IO[bytes]) -> IndexHead:
    """Write the offset of every `stride`-th line to `into`, in bounded memory."""
    buffer = np.empty(SCAN_BYTES, dtype=np.uint8)
    is_end = np.empty(SCAN_BYTES, dtype=np.bool_)
    crc = num_ends = base = 0
    last_byte = ord("\n")

    def put(offsets: NDArray[np.int64]) -> None:
        nonlocal crc
        packed = offsets.astype("<i8").tobytes()
        crc = zlib.crc32(packed, crc)
        into.write(packed)

    if data_bytes:
        put(np.zeros(1, dtype=np.int64))
    data.seek(0)
    while num_bytes := data.readinto(buffer):  # type: ignore[attr-defined]
        np.equal(buffer[:num_bytes], ord("\n"), out=is_end[:num_bytes])
        ends = np.flatnonzero(is_end[:num_bytes])
        # Line n + 1 begins after line feed n: take those where the stride divides n + 1.
        starts = ends[-(num_ends + 1) % stride :: stride] + (base + 1)
        num_ends += len(ends)
        base += num_bytes
        last_byte = int(buffer[num_bytes - 1])
        if len(starts) and starts[-1] == data_bytes:
            starts = starts[:-1]  # no line begins after the last line feed
        if len(starts):
            put(starts)
    return IndexHead(stride, num_ends + (last_byte != ord("\n")), data_bytes, crc)


def _open_data(file: LineFile, path: Path) -> IO[bytes]:
    return file.open() if file.compression is None else open(path, "rb", buffering=0)


def _packed(head: IndexHead, file: LineFile) -> bytes:
    packed = _HEADER.pack(
        _MAGIC, file.size_bytes, file.mtime_ns, head.stride, head.num_lines, head.data_bytes, head.offsets_crc
    )
    return packed + _crc_bytes(packed)


def _crc_bytes(packed: bytes) -> bytes:
    return zlib.crc32(packed).to_bytes(8, "little")


def _crc_of(offsets: NDArray[np.int64]) -> int:
    return zlib.crc32(offsets.data)


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=10).hexdigest()


@contextmanager
def _write_atomically(place: Path, *, like: Path) -> Iterator[IO[bytes]]:
    """Create a temporary file, renamed to `place` when the block ends, and removed if the block fails.

    Users who can read `like` can read it: an index in a shared folder serves every user of the data.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=place.name + ".", suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            os.fchmod(handle, os.stat(like).st_mode & 0o444 | 0o600)
            yield file
        os.replace(temporary, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def _locked(place: Path | None) -> Iterator[None]:
    """Hold the lock of an index, if the file system has locks; the kernel releases it if the process dies."""
    handle = None
    if place is not None and fcntl is not None:
        with suppress(OSError):  # read-only folder, or no locks: processes repeat the work
            place.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(place.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.lockf(handle, fcntl.LOCK_EX)  # not flock, whose lock a forked worker would inherit and keep
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _remove_stale(place: Path) -> None:
    """Remove indexes of other versions of the file, and temporary files of killed builders."""
    now = time.time()
    for other in place.parent.iterdir():
        with suppress(OSError):
            is_abandoned = other.suffix != ".tmp" or now - other.stat().st_mtime > _ABANDONED_SECONDS
            if is_abandoned and other.stem != place.stem:
                other.unlink()


def _cannot_decompress(file: LineFile, reason: str) -> ArgumentError:
    return ArgumentError(
        f"{file.path} cannot be decompressed to disk, as random access needs: {reason}",
        hint="pass index_dir=, a folder with space for the decompressed content, or read in order with .stream()",
    )
