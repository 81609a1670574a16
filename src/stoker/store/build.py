"""Build a store from pieces, in parallel, in bounded memory. A crash costs only the unfinished pieces.

Crash safety, in this order: each shard is written under a temporary name in `.build` and synced; when the piece is
complete, its shards are renamed into the folder and the folder is synced; then the piece's record appears in `.build`.
So a record implies complete shards. `finish` writes pieces.json, then the manifest, which lists all shards in the order
of the pieces and makes the store visible; only then are files removed that it does not list. Every file appears by
rename, so a reader sees the old or the new content. The bytes depend only on the samples.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stoker.errors import ArgumentError, DataError
from stoker.store import generations
from stoker.store.column import Column, checked_name
from stoker.store.lock import LOCK
from stoker.store.manifest import FILE, FORMAT, Manifest, Shard, parsed, read_manifest, sync_folder, write_safely
from stoker.store.reader import Store, open_store
from stoker.store.shard_buffer import ShardBuffer, ShardSplitter

SHARD_BYTES = 128 << 20
"""Size of a shard: a terabyte is eight thousand files, and a writer holds one of them in memory."""

UNFINISHED = ".build"
PACKS = ".packs"
"""Cache of packing plans, each valid for one store."""

PIECES = "pieces.json"
"""Records of the pieces of a complete store, for the next build in the same folder."""

_KEY = re.compile(r"[0-9a-z]{1,64}")


class Build:
    """An unfinished store. Any number of processes may write pieces of the same folder, each its own.

    Contains only the path and the columns, so it is cheap to create and pickle.
    """

    def __init__(
        self, path: str | os.PathLike[str], columns: Mapping[str, Column | str], *, shard_bytes: int = SHARD_BYTES
    ) -> None:
        if not columns:
            raise ArgumentError("a store needs at least one column", hint="pass columns={'name': Column(...)}")
        if shard_bytes < 1:
            raise ArgumentError(f"shard_bytes must be positive, got {shard_bytes}", hint="the default is 128 MiB")
        self.path = Path(path)
        self.columns = {checked_name(name): Column.of(column) for name, column in columns.items()}
        self.shard_bytes = shard_bytes
        self._known: tuple[Any, dict[str, dict[str, Any]]] = (None, {})

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": (None, {})}

    @property
    def unfinished(self) -> Path:
        """Folder of unfinished pieces and records."""
        return self.path / UNFINISHED

    def piece(self, key: str) -> PieceWriter:
        """Start a piece. Its shards are named by its key; an existing piece with this key is replaced."""
        if not _KEY.fullmatch(key):
            raise ArgumentError(f"{key!r} is not a valid key", hint="use up to 64 digits and lower-case letters")
        check_is_free(self.path)
        self.unfinished.mkdir(parents=True, exist_ok=True)
        (self.unfinished / f"{key}.json").unlink(missing_ok=True)
        return PieceWriter(self, key)

    def record(self, key: str) -> dict[str, Any] | None:
        """Return the record of a complete piece, in this build or in the existing store; else None.

        `shards` are the manifest's entries, `notes` those of the writer. The files exist and have their size.
        """
        for record in (self._unfinished_record(key), self._finished_records().get(key)):
            if record is not None and self._has_files(record):
                return record
        return None

    def _has_files(self, record: Mapping[str, Any]) -> bool:
        try:
            return all(os.stat(self.path / entry["file"]).st_size == entry["num_bytes"] for entry in record["shards"])
        except OSError:
            return False

    def _unfinished_record(self, key: str) -> dict[str, Any] | None:
        try:
            record = json.loads((self.unfinished / f"{key}.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return record if self._is_sound(record) else None

    def _finished_records(self) -> dict[str, dict[str, Any]]:
        """Return the records of the existing store, read again only after it changed."""
        try:
            found = [os.stat(self.path / name) for name in (PIECES, FILE)]
        except OSError:
            return {}
        seen = [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in found]
        if self._known[0] != seen:
            self._known = (seen, self._read_records())
        return self._known[1]

    def _read_records(self) -> dict[str, dict[str, Any]]:
        try:
            notes = json.loads((self.path / PIECES).read_bytes())
            manifest = read_manifest(self.path)
        except (OSError, ValueError, RecursionError, DataError):
            return {}
        if manifest.columns != self.columns or not isinstance(notes, dict):
            return {}
        records: dict[str, dict[str, Any]] = {
            key: {"shards": [], "notes": noted["notes"]}
            for key, noted in notes.items()
            if isinstance(noted, dict)
            and noted.get("shard_bytes") == self.shard_bytes
            and isinstance(noted.get("notes"), dict)
        }
        for shard in manifest.shards:
            if shard.piece in records:
                records[shard.piece]["shards"].append(shard.to_json())
        return {key: record for key, record in records.items() if len(record["shards"]) == notes[key].get("num_shards")}

    def _is_sound(self, record: Any) -> bool:
        """Return whether a record is valid: of these columns, and with everything that a manifest needs."""
        try:
            if record["columns"] != _listed(self.columns) or record["shard_bytes"] != self.shard_bytes:
                return False
            shards = tuple(Shard(**entry) for entry in record["shards"])
            parsed(Manifest(self.columns, shards).packed(), self.path / FILE)
            return isinstance(record["notes"], dict)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError, DataError):
            return False

    def finish(self, keys: Sequence[str], *, meta: Mapping[str, Any] | None = None, keeps_read: bool = False) -> Store:
        """Make the store from these pieces, in this order, and return it.

        The manifest replaces an existing one atomically; then files that it does not list are removed, except, with
        `keeps_read`, those of an earlier generation that is still open in some process.
        """
        check_is_free(self.path)
        records: dict[str, dict[str, Any]] = {}
        for key in keys:
            record = self.record(key)
            if record is None:
                raise ArgumentError(
                    f"piece {key!r} is not complete", hint="write it first: with build.piece(key) as piece"
                )
            if key in records:
                raise ArgumentError(f"piece {key!r} occurs twice", hint="use a different key for each piece")
            records[key] = record
        shards = tuple(Shard(**entry) for record in records.values() for entry in record["shards"])
        manifest = Manifest(dict(self.columns), shards, dict(meta or {}))
        text = packed(manifest)
        parsed(text, self.path / FILE)  # never write a manifest that cannot be read
        self.path.mkdir(parents=True, exist_ok=True)
        pieces = {
            key: {"num_shards": len(record["shards"]), "shard_bytes": self.shard_bytes, "notes": record["notes"]}
            for key, record in records.items()
        }
        write_safely(self.path / PIECES, _lines(pieces))
        if keeps_read:
            generations.keep(self.path, manifest)
        write_safely(self.path / FILE, text)
        shutil.rmtree(self.path / PACKS, ignore_errors=True)
        named = {shard.file for shard in shards} | generations.end_unused(self.path)[1]
        for path in self.path.glob("*.safetensors"):
            if path.name not in named:
                path.unlink(missing_ok=True)
        for name in (FILE, PIECES):
            for path in self.path.glob(f".{name}.*"):  # temporary files of a process that was killed
                path.unlink(missing_ok=True)
        self.discard()
        return open_store(self.path)

    def end_generations(self) -> None:
        """Remove earlier generations that no process has open any more. Only while holding the lock."""
        ended, _ = generations.end_unused(self.path)
        named = {shard.file for shard in read_manifest(self.path).shards}
        for name in ended - named:
            (self.path / name).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove everything unfinished."""
        shutil.rmtree(self.unfinished, ignore_errors=True)

    def discard_if_empty(self) -> None:
        """Remove the folder of unfinished pieces if it is empty."""
        if all(path.name == LOCK for path in self.unfinished.glob("*")):
            self.discard()

    def discard_pieces(self) -> None:
        """Remove everything unfinished, except the lock of the writer."""
        for path in self.unfinished.glob("*"):
            if path.name != LOCK and path.is_file():
                path.unlink(missing_ok=True)


def check_is_free(path: Path) -> None:
    """Raise `ArgumentError` if a folder contains anything but a store."""
    if not path.exists() or (path / UNFINISHED).exists():
        return
    if path.is_dir() and (not any(path.iterdir()) or (path / UNFINISHED).exists()):  # another process may be starting
        return
    with suppress(OSError), open(path / FILE, "rb") as file:
        if FORMAT.encode() in file.read(4096):  # other programs use this file name, too
            return
    raise ArgumentError(f"{path} exists already, and is not a store", hint="choose a new or an empty folder")


def packed(manifest: Manifest) -> bytes:
    """Return a manifest as text; raise `ArgumentError` for meta that is not JSON."""
    try:
        return manifest.packed()
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"meta cannot be stored as JSON: {error}", hint="use dicts, lists, strings, ints and finite floats"
        ) from error


def _listed(columns: Mapping[str, Column]) -> dict[str, Any]:
    return {name: column.to_json() for name, column in columns.items()}


def _lines(records: Mapping[str, Any]) -> bytes:
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in records.items())
    return f"{{\n{lines}\n}}\n".encode()


class PieceWriter:
    """Writes one piece of a store: complete when the block ends; removed after an error."""

    def __init__(self, build: Build, key: str) -> None:
        self._build, self._key = build, key
        self.notes: dict[str, Any] = {}
        """JSON values recorded with the piece."""
        self._shards: list[Shard] = []
        self._temporary: list[Path] = []
        """Paths of the shards until the piece is complete."""
        self._splitter = ShardSplitter(build.columns, build.shard_bytes, self._write_shard)
        self._is_over = False

    @property
    def num_samples(self) -> int:
        """Number of samples added."""
        return self._splitter.num_samples

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: a value for each column. Values are copied."""
        self._check_is_open()
        self._splitter.append(sample)

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Add samples: for a fixed column an array, for a ragged one all values and the length of each sample.

        Values are copied.
        """
        self._check_is_open()
        self._splitter.extend(columns)

    def _check_is_open(self) -> None:
        if self._is_over:
            raise ArgumentError("the piece is complete already", hint="start another one with build.piece")

    def close(self) -> None:
        """Complete the piece."""
        if self._is_over:
            return
        self._splitter.finish()
        self._is_over = True
        for temporary, shard in zip(self._temporary, self._shards, strict=True):
            os.replace(temporary, self._build.path / shard.file)
        record = {
            "columns": _listed(self._build.columns),
            "shard_bytes": self._build.shard_bytes,
            "shards": [shard.to_json() for shard in self._shards],
            "notes": self.notes,
        }
        sync_folder(self._build.path)  # the shards' names are on disk before the record that lists them
        write_safely(self._build.unfinished / f"{self._key}.json", json.dumps(record).encode())

    def abandon(self) -> None:
        """Remove everything written of the piece."""
        self._is_over = True
        (self._build.unfinished / f"{self._key}.json").unlink(missing_ok=True)  # first, because it lists the shards
        for temporary in self._temporary:
            temporary.unlink(missing_ok=True)
        if self._build._finished_records().get(self._key) is None:  # unless the existing store uses them, too
            for shard in self._shards:
                (self._build.path / shard.file).unlink(missing_ok=True)

    def _write_shard(self, buffer: ShardBuffer) -> None:
        name = f"{self._key}-{len(self._shards):03d}.safetensors"
        temporary = self._build.unfinished / f"{name}.{os.getpid()}"
        self._shards.append(buffer.write(temporary, name, piece=self._key))
        self._temporary.append(temporary)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            self.abandon()
            return
        try:
            self.close()
        except BaseException:
            self.abandon()
            raise
