"""The files in a tar archive and the offsets of their content: reads the headers, and skips the content.

`tarfile` in the standard library finds the same members, but takes twice as long, because each becomes an object with
all metadata. A test compares both.

Layout of an archive: blocks of 512 bytes; each member is a header block and its content, padded to a block; a block of
zeros ends the archive. Fields of a header used here: name [0:100], size in octal [124:136], checksum [148:156], type
[156], magic [257:263], prefix of the name [345:500]. Types L and K (GNU), x and X (pax) hold a long name or more fields
of the next member as their content, g fields of all following ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from stoker.errors import ArgumentError, DamagedFile
from stoker.source.images.names import printable
from stoker.source.known_file import KnownFile

BLOCK = 512

# Headers of small files are read together; a larger window would be wasted between large files.
_READ_BYTES = 4096

_MAX_EXTENDED_BYTES = 1 << 20

_REGULAR = frozenset(b"07\0")
_NUL = bytes(BLOCK)
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class TarMember(NamedTuple):
    """A regular file in an archive."""

    name: bytes
    offset: int
    """Offset of its content, in bytes."""
    size: int


class TarReader:
    """An open archive, read at any offset through a small window."""

    def __init__(self, file: KnownFile, handle: int) -> None:
        self.file, self._handle = file, handle
        self._begin = 0
        self._window = b""

    def at(self, offset: int, size: int) -> bytes:
        """Return bytes of the archive, fewer at its end."""
        begin = offset - self._begin
        if begin < 0 or begin + size > len(self._window):
            self._window = os.pread(self._handle, max(size, _READ_BYTES), offset)
            self._begin, begin = offset, 0
        return self._window[begin : begin + size]


def members(reader: TarReader) -> Iterator[TarMember]:
    """Yield the regular files of an archive, in order.

    Long names are supported in the forms of GNU tar and POSIX (pax). Folders and links are skipped. Raises
    `DamagedFile` if the archive is truncated, or a header is invalid.
    """
    file = reader.file
    at = 0
    general: dict[bytes, bytes] = {}
    special: dict[bytes, bytes] = {}
    long_name: bytes | None = None
    while True:
        header = reader.at(at, BLOCK)
        if at == 0:
            _check_is_plain(file, header)
        if len(header) < BLOCK:
            raise _truncated(file, at)
        if header == _NUL:
            return
        _check_sum(file, header, at)
        size = _number(file, header[124:136], at)
        kind = header[156]
        begin = at + BLOCK
        if kind in b"LKxgX":
            # describes the next member
            if size > _MAX_EXTENDED_BYTES:
                raise DamagedFile(file.path, what=f"has a header of {size} bytes at byte {at}")
            content = reader.at(begin, size)
            if len(content) < size:
                raise _truncated(file, at)
            if kind == ord("L"):
                long_name = content.partition(b"\0")[0]
            elif kind in b"xX":
                special = _pax(file, content, at)
            elif kind == ord("g"):
                general |= _pax(file, content, at)
            at = begin + size + -size % BLOCK
            continue
        fields = general | special if special or general else {}
        if b"size" in fields:
            size = _whole(file, fields[b"size"], at)
        # links, folders and devices have no content, whatever their size field
        end = begin if kind in b"123456" else begin + size
        if end > file.size_bytes:
            raise _truncated(file, at)
        name = fields.get(b"path") or long_name or _name(header)
        is_folder = kind == 0 and name.endswith(b"/")
        if kind == ord("S") or any(field.startswith(b"GNU.sparse") for field in fields):
            raise ArgumentError(
                f"{file.path} contains {printable(name)} as a sparse file", hint="write it again without --sparse"
            )
        if kind in _REGULAR and not is_folder:
            yield TarMember(name, begin, size)
        at = end + -(end - begin) % BLOCK
        special, long_name = {}, None


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0":  # headers of GNU tar have other fields there
        prefix = header[345:500].partition(b"\0")[0]
        if prefix:
            return prefix + b"/" + name
    return name


def _number(file: KnownFile, field: bytes, at: int) -> int:
    if field[0] in (0x80, 0xFF):  # too large for octal digits
        value = int.from_bytes(field[1:], "big")
        if field[0] == 0xFF:
            raise DamagedFile(file.path, what=f"has a member of negative size at byte {at}")
        return value
    digits = field.partition(b"\0")[0].strip()
    if not digits:
        return 0
    try:
        value = int(digits, 8)
    except ValueError:
        value = -1
    if value < 0:
        raise DamagedFile(file.path, what=f"has an invalid size {field!r} of the member at byte {at}")
    return value


def _whole(file: KnownFile, digits: bytes, at: int) -> int:
    if not digits.isdigit() or len(digits) > 18:
        raise DamagedFile(file.path, what=f"has an invalid size {digits!r} of the member at byte {at}")
    return int(digits)


def _pax(file: KnownFile, content: bytes, at: int) -> dict[bytes, bytes]:
    """Return the fields of a POSIX (pax) header: lines of `length key=value`."""
    fields = {}
    while content and content[0]:
        digits, _, _ = content.partition(b" ")
        length = _whole(file, digits, at)
        line = content[len(digits) + 1 : length]
        key, mark, value = line.partition(b"=")
        if length > len(content) or not mark or not value.endswith(b"\n"):
            raise DamagedFile(file.path, what=f"has an extended header that cannot be read at byte {at}")
        fields[key] = value[:-1]
        content = content[length:]
    return fields


def _check_sum(file: KnownFile, header: bytes, at: int) -> None:
    """Raise `DamagedFile` unless the checksum of a header matches: the sum of its bytes, its own counted as spaces."""
    digits = header[148:156].strip(b" \0")
    rest = header[:148] + header[156:]
    found = sum(rest) + 8 * ord(" ")
    # some old programs summed signed bytes
    signed = found - 256 * sum(1 for byte in rest if byte > 127) if not rest.isascii() else found
    try:
        expected = int(digits, 8)
    except ValueError:
        expected = -1
    if expected not in (found, signed):
        raise DamagedFile(
            file.path,
            what=f"is not a tar archive: there is no header at byte {at}"
            if at == 0
            else f"is damaged: there is no header at byte {at}",
        )


def _check_is_plain(file: KnownFile, header: bytes) -> None:
    for magic, packing in _PACKED.items():
        if header.startswith(magic):
            raise ArgumentError(
                f"{file.path} is compressed ({packing}), so images in it cannot be read at any position",
                hint="decompress it to a plain .tar; images are compressed already",
            )


def _truncated(file: KnownFile, at: int) -> DamagedFile:
    return DamagedFile(
        file.path,
        what=f"is truncated: it has {file.size_bytes} bytes, and the member at byte {at} or the end mark is missing",
        hint="copy or create the file again; if only the end mark is missing, `truncate -s +1024` adds it",
    )
