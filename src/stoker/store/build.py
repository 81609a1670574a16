"""A store in the making: by pieces, in parallel, in bounded memory, so that a crash costs unfinished pieces alone.

A piece's shards appear under their names when they are complete, and its record after them. A store is there when its
manifest is, which names the shards of all pieces in their order. What the bytes are depends on what was written alone.
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
from stoker.store.shard_buffer import Filling, ShardBuffer

SHARD_BYTES = 128 << 20
"""A terabyte is then eight thousand files, and a writer holds one of them in memory."""

UNFINISHED = ".build"
PACKS = ".packs"
"""Where plans of packed rows are kept, which hold for one store alone."""

PIECES = "pieces.json"
"""What is known of the pieces of a complete store, for whoever makes it again."""

_KEY = re.compile(r"[0-9a-z]{1,64}")


class Build:
    """A store in the making. Any number of processes may hold one of the same folder, each at pieces of its own.

    Holds only the path and the columns, so it is picklable and made in no time.
    """

    def __init__(
        self, path: str | os.PathLike[str], columns: Mapping[str, Column | str], *, shard_bytes: int = SHARD_BYTES
    ) -> None:
        if not columns:
            raise ArgumentError("a store without columns holds nothing", hint="pass columns={'name': Column(...)}")
        if shard_bytes < 1:
            raise ArgumentError(f"shard_bytes={shard_bytes} is not positive", hint="leave it out: 128 MiB serve well")
        self.path = Path(path)
        self.columns = {checked_name(name): Column.of(column) for name, column in columns.items()}
        self.shard_bytes = shard_bytes
        self._known: tuple[Any, dict[str, dict[str, Any]]] = (None, {})

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": (None, {})}

    @property
    def unfinished(self) -> Path:
        """Where what is not complete is kept."""
        return self.path / UNFINISHED

    def piece(self, key: str) -> PieceWriter:
        """Begin a piece. Its shards are named by its key; a piece of this key that was there is replaced."""
        if not _KEY.fullmatch(key):
            raise ArgumentError(f"{key!r} cannot be the key of a piece", hint="use up to 64 digits and small letters")
        check_is_free(self.path)
        self.unfinished.mkdir(parents=True, exist_ok=True)
        (self.unfinished / f"{key}.json").unlink(missing_ok=True)
        return PieceWriter(self, key)

    def record(self, key: str) -> dict[str, Any] | None:
        """Return what is known of a piece that is complete, in this build or in the store that is there; or None.

        `shards` are the manifest's entries, `notes` what the writer noted. The files are there and have their size.
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
        """Return the records of the store that is there, read once as long as it stays the same."""
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
        """Whether a record is one of ours: of these columns, and with all that a manifest needs."""
        try:
            if record["columns"] != _listed(self.columns) or record["shard_bytes"] != self.shard_bytes:
                return False
            shards = tuple(Shard(**entry) for entry in record["shards"])
            parsed(Manifest(self.columns, shards).packed(), self.path / FILE)
            return isinstance(record["notes"], dict)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError, DataError):
            return False

    def finish(self, keys: Sequence[str], *, meta: Mapping[str, Any] | None = None, keeps_read: bool = False) -> Store:
        """Make the store of these pieces, in this order, and return it.

        The manifest takes its place at once, in place of one that was there; then what it does not name is removed,
        but, with `keeps_read`, for an earlier generation that somebody reads still.
        """
        check_is_free(self.path)
        records: dict[str, dict[str, Any]] = {}
        for key in keys:
            record = self.record(key)
            if record is None:
                raise ArgumentError(
                    f"the piece {key!r} is not complete", hint="make it first: with build.piece(key) as piece"
                )
            if key in records:
                raise ArgumentError(f"the piece {key!r} occurs twice", hint="give each piece a key of its own")
            records[key] = record
        shards = tuple(Shard(**entry) for record in records.values() for entry in record["shards"])
        manifest = Manifest(dict(self.columns), shards, dict(meta or {}))
        text = packed(manifest)
        parsed(text, self.path / FILE)  # never write what cannot be read
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
            for path in self.path.glob(f".{name}.*"):  # of a process that was killed while it wrote one
                path.unlink(missing_ok=True)
        self.discard()
        return open_store(self.path)

    def end_generations(self) -> None:
        """Remove what is left of earlier generations that nobody reads any more. Only for whoever holds the lock."""
        ended, _ = generations.end_unused(self.path)
        named = {shard.file for shard in read_manifest(self.path).shards}
        for name in ended - named:
            (self.path / name).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove what is not complete."""
        shutil.rmtree(self.unfinished, ignore_errors=True)

    def discard_if_empty(self) -> None:
        """Remove the folder of what is not complete if there is nothing in it."""
        if all(path.name == LOCK for path in self.unfinished.glob("*")):
            self.discard()

    def discard_pieces(self) -> None:
        """Remove what is not complete, but for the lock of whoever writes."""
        for path in self.unfinished.glob("*"):
            if path.name != LOCK and path.is_file():
                path.unlink(missing_ok=True)


def check_is_free(path: Path) -> None:
    """Refuse a folder that holds what is not ours."""
    if not path.exists() or (path / UNFINISHED).exists():
        return
    if path.is_dir() and (not any(path.iterdir()) or (path / UNFINISHED).exists()):  # others may be beginning just now
        return
    with suppress(OSError), open(path / FILE, "rb") as file:
        if FORMAT.encode() in file.read(4096):  # other programs have a file of that name too
            return
    raise ArgumentError(f"{path} is there already, and is not a store", hint="choose a new or an empty folder")


def packed(manifest: Manifest) -> bytes:
    """Return a manifest as text; meta that JSON cannot hold is an argument error."""
    try:
        return manifest.packed()
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"meta cannot be kept as JSON: {error}", hint="use tables, lists, texts, whole and finite numbers"
        ) from error


def _listed(columns: Mapping[str, Column]) -> dict[str, Any]:
    return {name: column.to_json() for name, column in columns.items()}


def _lines(table: Mapping[str, Any]) -> bytes:
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in table.items())
    return f"{{\n{lines}\n}}\n".encode()


class PieceWriter:
    """Writes one piece of a store. On leaving the block it is complete; after an error nothing of it remains."""

    def __init__(self, build: Build, key: str) -> None:
        self._build, self._key = build, key
        self.notes: dict[str, Any] = {}
        """Kept with the piece: anything that JSON can hold."""
        self._shards: list[Shard] = []
        self._beside: list[Path] = []
        """Where the shards are until the piece is complete."""
        self._filling = Filling(build.columns, build.shard_bytes, self._put)
        self._is_over = False

    @property
    def num_samples(self) -> int:
        """How many samples were added."""
        return self._filling.num_samples

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: a value for each column. What is given is copied."""
        self._check_is_open()
        self._filling.append(sample)

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Add samples: for a fixed column an array of them, for a ragged one all values and the length of each sample.

        What is given is copied.
        """
        self._check_is_open()
        self._filling.extend(columns)

    def _check_is_open(self) -> None:
        if self._is_over:
            raise ArgumentError("the piece is complete already", hint="begin another one with build.piece")

    def close(self) -> None:
        """Complete the piece."""
        if self._is_over:
            return
        self._filling.finish()
        self._is_over = True
        for beside, shard in zip(self._beside, self._shards, strict=True):
            os.replace(beside, self._build.path / shard.file)
        record = {
            "columns": _listed(self._build.columns),
            "shard_bytes": self._build.shard_bytes,
            "shards": [shard.to_json() for shard in self._shards],
            "notes": self.notes,
        }
        sync_folder(self._build.path)  # the shards' names are on disk before a record tells of them
        write_safely(self._build.unfinished / f"{self._key}.json", json.dumps(record).encode())

    def abandon(self) -> None:
        """Remove what was written of the piece."""
        self._is_over = True
        (self._build.unfinished / f"{self._key}.json").unlink(missing_ok=True)  # first: it tells of the shards
        for beside in self._beside:
            beside.unlink(missing_ok=True)
        if self._build._finished_records().get(self._key) is None:  # a store that is there may have them, too
            for shard in self._shards:
                (self._build.path / shard.file).unlink(missing_ok=True)

    def _put(self, sheet: ShardBuffer) -> None:
        """Write a shard."""
        name = f"{self._key}-{len(self._shards):03d}.safetensors"
        beside = self._build.unfinished / f"{name}.{os.getpid()}"
        self._shards.append(sheet.written(beside, name, piece=self._key))
        self._beside.append(beside)

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
