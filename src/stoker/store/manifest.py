"""The manifest: columns, shards and origin of a store.

Layout: JSON with one shard per line; the last line is the checksum of everything before it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError, DamagedFile, NotAStore
from stoker.store.checksums import BLOCK_BYTES, checksum, num_checksums_for
from stoker.store.column import SAFETENSORS_NAMES, Column, checked_name
from stoker.store.header import MAX_HEADER_BYTES, without_repeats

FORMAT = "stoker.store"
VERSION = 1
FILE = "manifest.json"

MAX_MANIFEST_BYTES = 1 << 30

_FILE_NAME = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,200}")
_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class Shard:
    """The manifest's entry of one file."""

    file: str
    piece: str
    """Key of the piece that it is part of."""
    num_samples: int
    num_bytes: int
    """Size of the file."""
    body: int
    """Offset of the first block with a checksum: after the header and the checksums."""
    values: dict[str, int]
    """Number of values of each ragged column."""
    digest: str
    """The xxh3_64 of everything before the body, as 16 hexadecimal digits."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a store."""

    columns: dict[str, Column]
    shards: tuple[Shard, ...]
    meta: dict[str, Any] = field(default_factory=dict)
    """Metadata from the writer of the store."""

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return sum(shard.num_samples for shard in self.shards)

    def fingerprint(self) -> str:
        """Return the identity of these samples in this order: a digest of the columns and the shards' digests."""
        return self._fingerprint(len(self.shards))

    def earlier_fingerprints(self) -> Iterator[str]:
        """Yield the fingerprints of the stores that this one may have grown from: its first shards."""
        for num_shards in range(len(self.shards) - 1, 0, -1):
            yield self._fingerprint(num_shards)

    def _fingerprint(self, num_shards: int) -> str:
        columns = {name: column.to_json() for name, column in self.columns.items()}
        shards = self.shards[:num_shards]
        content = [columns, [[shard.num_samples, shard.num_bytes, shard.digest] for shard in shards]]
        return f"{checksum(_line(content).encode()):016x}"

    def packed(self) -> bytes:
        """Return the manifest as text, one line per shard."""
        columns = {name: column.to_json() for name, column in self.columns.items()}
        shards = ",\n".join("  " + _line(shard.to_json()) for shard in self.shards)
        return signed(
            (
                f'{{"format": "{FORMAT}", "version": {VERSION}, "num_samples": {self.num_samples},\n'
                f'"columns": {_line(columns)},\n'
                f'"meta": {_line(self.meta)},\n'
                f'"shards": [\n{shards}\n],\n'
            ).encode()
        )


_CHECKSUM = b'"checksum": "'


def signed(text: bytes) -> bytes:
    """Append the last line of a manifest, the checksum of the text before it."""
    return text + _CHECKSUM + f'{checksum(text):016x}"}}\n'.encode()


def _check_is_signed(text: bytes) -> None:
    content, mark, last = text.rpartition(_CHECKSUM)
    if not mark or len(last) > 32:
        raise ValueError("it does not end with its checksum")
    if last != f'{checksum(content):016x}"}}\n'.encode():
        raise ValueError("its checksum does not match: it was changed after it was written")


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_manifest(folder: Path, name: str = FILE) -> Manifest:
    """Read the manifest of a store, or, by the name of its file, that of an earlier generation."""
    path = folder / name
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_MANIFEST_BYTES:
                raise _damaged(path, "is too large for a manifest")
            text = file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        if not folder.exists():
            raise NotAStore(folder, what="the path does not exist") from error
        is_unfinished = (folder / ".build").is_dir()
        raise NotAStore(
            folder, what="its preparation is unfinished" if is_unfinished else f"it has no {FILE}"
        ) from error
    return parsed(text, path)


def parsed(text: bytes, path: Path) -> Manifest:
    """Parse a manifest; raise `DamagedFile` if it is not valid."""
    try:
        content = json.loads(text.decode("utf-8"), object_pairs_hook=without_repeats)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise NotAStore(path.parent, what=f"its {FILE} is from another program")
        if content["version"] != VERSION:
            raise DamagedFile(
                path,
                what=f"has version {content['version']!r}, but only version {VERSION} is supported",
                hint="install a newer stoker, or prepare the store again",
            )
        columns = {checked_name(name): _column(entry) for name, entry in content["columns"].items()}
        shards = tuple(_shard(entry, columns) for entry in content["shards"])
        meta = content["meta"]
        if not isinstance(meta, dict):
            raise TypeError("meta is not a JSON object")
        if not columns:
            raise ValueError("it has no columns")
        manifest = Manifest(columns, shards, meta)
        if max(manifest.num_samples, sum(shard.num_bytes for shard in shards)) >= _MAX:
            raise ValueError("its sizes are too large")
        if len({shard.file for shard in shards}) < len(shards):
            raise ValueError("a file occurs twice")
        if content["num_samples"] != manifest.num_samples:
            raise ValueError(f"it has {content['num_samples']!r} samples, but its shards {manifest.num_samples}")
        _check_is_signed(text)  # last, because other errors are more specific
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, ArgumentError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise _damaged(path, f"cannot be read as a manifest: {what}") from error
    return manifest


def _column(entry: Any) -> Column:
    shape, is_ragged = entry["shape"], entry["ragged"]
    if not isinstance(shape, list) or not all(_is_count(size) for size in shape) or not isinstance(is_ragged, bool):
        raise ValueError(f"{entry!r} is not a column")
    if entry["dtype"] not in SAFETENSORS_NAMES:
        raise ValueError(f"unknown dtype {entry['dtype']!r}")
    return Column(entry["dtype"], tuple(shape), is_ragged, entry["kind"])


def _shard(entry: Any, columns: Mapping[str, Column]) -> Shard:
    shard = Shard(**{name: entry[name] for name in Shard.__slots__})
    if not isinstance(shard.file, str) or not _FILE_NAME.fullmatch(shard.file):
        raise ValueError(f"{shard.file!r} is not a valid name of a shard")
    if not isinstance(shard.piece, str) or not isinstance(shard.digest, str):
        raise ValueError(f"shard {shard.file} has no piece or no digest")
    ragged = {name for name, column in columns.items() if column.is_ragged}
    counts = [shard.num_samples, shard.num_bytes, shard.body, *shard.values.values()]
    if set(shard.values) != ragged or not all(map(_is_count, counts)):
        raise ValueError(f"inconsistent counts for shard {shard.file}")
    header_bytes = shard.body - 8 * num_checksums_for(shard.num_bytes - shard.body)
    is_sound = shard.body <= shard.num_bytes and 0 < header_bytes <= MAX_HEADER_BYTES + 8
    if not is_sound or shard.body % BLOCK_BYTES:
        raise ValueError(f"the body of shard {shard.file} cannot begin at byte {shard.body}")
    return shard


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number < _MAX


def _damaged(path: Path, what: str) -> DamagedFile:
    return DamagedFile(path, what=what, hint="copy the file again, or prepare the store again")


def write_safely(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably: readers, and a restart after a crash, see the old or the new content.

    In this order: write and sync a temporary file, rename it, sync the folder, without which the rename may be lost.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that new names in it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
