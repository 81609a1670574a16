"""Writing stores: by pieces, in parallel, in bounded memory, and so that a crash costs the unfinished pieces alone.

A piece's shards appear under their names when they are complete, and its record after them. A store is there when its
manifest is, which names the shards of all pieces in their order. What the bytes are depends on what was written alone.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, DataError
from stoker.store.checksums import RunningChecksums, checksum, num_checksums_for
from stoker.store.column import OFFSETS, Column, checked_name
from stoker.store.header import num_bytes_of
from stoker.store.manifest import FILE, FORMAT, Manifest, Shard, parsed, read_manifest, sync_folder, write_safely
from stoker.store.reader import Store, open_store
from stoker.store.shard import arrays_of, header_of

SHARD_BYTES = 128 << 20
"""A terabyte is then eight thousand files, and a writer holds one of them in memory."""

UNFINISHED = ".build"
PIECES = "pieces.json"
"""What is known of the pieces of a complete store, for whoever makes it again."""

_KEY = re.compile(r"[0-9a-z]{1,64}")


class Build:
    """A store in the making. Any number of processes may hold one of the same folder, each at pieces of its own.

    Holds only the path and the columns, so it is picklable and made in no time.
    """

    def __init__(
        self, path: str | os.PathLike[str], columns: Mapping[str, Column], *, shard_bytes: int = SHARD_BYTES
    ) -> None:
        if not columns:
            raise ArgumentError("a store without columns holds nothing", hint="pass columns={'name': Column(...)}")
        if shard_bytes < 1:
            raise ArgumentError(f"shard_bytes={shard_bytes} is not positive", hint="leave it out: 128 MiB serve well")
        self.path = Path(path)
        self.columns = {checked_name(name): column for name, column in columns.items()}
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
        _check_is_free(self.path)
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

    def finish(self, keys: Sequence[str], *, meta: Mapping[str, Any] | None = None) -> Store:
        """Make the store of these pieces, in this order, and return it.

        The manifest takes its place at once, in place of one that was there; then what it does not name is removed.
        """
        _check_is_free(self.path)
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
        text = _packed(Manifest(dict(self.columns), shards, dict(meta or {})))
        parsed(text, self.path / FILE)  # never write what cannot be read
        self.path.mkdir(parents=True, exist_ok=True)
        pieces = {
            key: {"num_shards": len(record["shards"]), "shard_bytes": self.shard_bytes, "notes": record["notes"]}
            for key, record in records.items()
        }
        write_safely(self.path / PIECES, _lines(pieces))
        write_safely(self.path / FILE, text)
        named = {shard.file for shard in shards}
        for path in self.path.glob("*.safetensors"):
            if path.name not in named:
                path.unlink(missing_ok=True)
        for name in (FILE, PIECES):
            for path in self.path.glob(f".{name}.*"):  # of a process that was killed while it wrote one
                path.unlink(missing_ok=True)
        self.discard()
        return open_store(self.path)

    def discard(self) -> None:
        """Remove what is not complete."""
        shutil.rmtree(self.unfinished, ignore_errors=True)


def _check_is_free(path: Path) -> None:
    """Refuse a folder that holds what is not ours."""
    if not path.exists() or (path / UNFINISHED).exists():
        return
    if path.is_dir() and (not any(path.iterdir()) or (path / UNFINISHED).exists()):  # others may be beginning just now
        return
    with suppress(OSError), open(path / FILE, "rb") as file:
        if FORMAT.encode() in file.read(4096):  # other programs have a file of that name too
            return
    raise ArgumentError(f"{path} is there already, and is not a store", hint="choose a new or an empty folder")


def _packed(manifest: Manifest) -> bytes:
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
        self._filling = _Filling(build.columns, build.shard_bytes, self._put)
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

    def _put(self, sheet: _Sheet) -> None:
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


class _Filling:
    """Shares samples out to shards. Where one ends depends on the samples alone, however they are handed over."""

    def __init__(self, columns: Mapping[str, Column], shard_bytes: int, put: Callable[[_Sheet], None]) -> None:
        self._columns, self._shard_bytes, self._put = columns, shard_bytes, put
        self._loose, self._sheet = _Loose(columns), _Sheet(columns)
        self._has_failed = False
        self.num_samples = 0

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add a sample."""
        self._check_is_whole()
        self._loose.add(sample)
        self.num_samples += 1
        if self._loose.is_much:
            self._settle()

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Add samples."""
        self._check_is_whole()
        rows = _Rows(columns, self._columns)
        self._settle()
        self._add(rows)
        self.num_samples += rows.num_samples

    def finish(self) -> None:
        """Put the last shard."""
        self._check_is_whole()
        self._settle()
        if self._sheet.num_samples:
            self._end_shard()

    def _settle(self) -> None:
        if self._loose.num_samples:
            self._add(_Rows(self._loose.taken(), self._columns))

    def _add(self, rows: _Rows) -> None:
        at = 0
        while at < rows.num_samples:
            stop = rows.stop_within(at, self._shard_bytes - self._sheet.num_bytes)
            if stop == at:
                if self._sheet.num_samples:
                    self._end_shard()
                    continue
                stop = at + 1  # a sample that is bigger than a shard has one of its own
            self._sheet.add(rows, at, stop)
            at = stop

    def _end_shard(self) -> None:
        self._has_failed = True  # unless what follows goes well
        self._put(self._sheet)
        self._sheet = _Sheet(self._columns)
        self._has_failed = False

    def _check_is_whole(self) -> None:
        if self._has_failed:
            raise ArgumentError(
                "a shard could not be written before, and its samples would be missing",
                hint="begin the piece again; a Writer goes on behind what is complete with resume=True",
            )


class _Loose:
    """Samples that came one by one, until there are enough to be worth a vectorised look at them."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._values: dict[str, list[NDArray[Any]]] = {name: [] for name in columns}
        self.num_samples = 0
        self._num_bytes = 0

    @property
    def is_much(self) -> bool:
        """Whether it is time to take them."""
        return self.num_samples >= 512 or self._num_bytes >= 1 << 20

    def add(self, sample: Mapping[str, Any]) -> None:
        """Copy a sample, if it is what the columns hold."""
        _check_names(sample, self._columns)
        taken = {name: _array_of(sample[name], column, name) for name, column in self._columns.items()}
        for name, array in taken.items():
            self._values[name].append(array)
            self._num_bytes += array.nbytes
        self.num_samples += 1

    def taken(self) -> dict[str, Any]:
        """Return the samples as `extend` takes them."""
        values, self._values = self._values, {name: [] for name in self._columns}
        self.num_samples = self._num_bytes = 0
        return {
            name: (np.concatenate(values[name]), np.array(list(map(len, values[name]))))
            if column.is_ragged
            else np.array(values[name])
            for name, column in self._columns.items()
        }


def _array_of(value: Any, column: Column, name: str) -> NDArray[Any]:
    """Return one sample's value as a new array of the column's type."""
    if column.kind == "text":
        if not isinstance(value, str):
            raise ArgumentError(f"{name!r} is a column of text, not of {type(value).__name__}", hint="pass a str")
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"{name!r} has text that is not Unicode: {error}", hint="mend or skip it") from error
    if column.kind != "array":
        try:
            return np.frombuffer(memoryview(value).tobytes(), np.uint8)
        except TypeError as error:
            raise ArgumentError(
                f"{name!r} is a column of bytes, not of {type(value).__name__}", hint="pass bytes"
            ) from error
    try:
        array = np.array(value)
    except ValueError as error:
        raise ArgumentError(f"{name!r} is given what makes no array: {error}", hint="pass an array") from error
    if column.is_ragged:
        if not array.size and array.ndim == 1 and column.shape:
            array = array.reshape(0, *column.shape)  # an empty list does not tell its shape
        if not array.size:
            array = array.astype(column.numpy)
        return _converted(array, column, name)
    converted: NDArray[Any] = _converted(array[None], column, name)[0]
    return converted


def _check_names(given: Mapping[str, Any], columns: Mapping[str, Column]) -> None:
    if given.keys() != columns.keys():
        for name in given:
            if name not in columns:
                raise ArgumentError(
                    f"the store has no column {name!r}", hint="name it in the columns the writer is made with"
                )
        missing = sorted(columns.keys() - given.keys())
        raise ArgumentError(f"samples have no {', '.join(missing)}", hint="give a value for every column")


class _Rows:
    """Samples that were handed over, checked."""

    def __init__(self, given: Mapping[str, Any], columns: Mapping[str, Column]) -> None:
        _check_names(given, columns)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.starts: dict[str, NDArray[np.int64]] = {}
        counts: dict[str, int] = {}
        for name, column in columns.items():
            if column.is_ragged:
                if not isinstance(given[name], tuple | list) or len(given[name]) != 2:
                    raise ArgumentError(
                        f"{name!r} is ragged, and takes a pair", hint="pass (values, lengths), a length for each sample"
                    )
                values, lengths = given[name]
                array, lengths = _converted(values, column, name), np.asarray(lengths)
                if lengths.ndim != 1 or (lengths.size and (lengths.dtype.kind not in "iu" or lengths.min() < 0)):
                    raise ArgumentError(f"the lengths of {name!r} are not a list of counts", hint="pass int64 lengths")
                starts = np.zeros(len(lengths) + 1, np.int64)
                np.cumsum(lengths, out=starts[1:], dtype=np.int64)
                is_beyond = bool(lengths.size and lengths.max() > len(array))  # a sum of such may come round again
                if is_beyond or starts[-1] != len(array):
                    raise ArgumentError(
                        f"{name!r} has {len(array)} values, but its lengths add up to {starts[-1]}",
                        hint="pass (values, lengths) with one length for each sample",
                    )
                if column.kind == "text":
                    _check_is_text(array, starts, name)
                self.starts[name] = starts
                counts[name] = len(lengths)
            else:
                array = _converted(given[name], column, name)
                counts[name] = len(array)
            self.arrays[name] = array
        if len(set(counts.values())) > 1:
            raise ArgumentError(f"the columns have different numbers of samples: {counts}", hint="give as many of each")
        self.num_samples = next(iter(counts.values()))
        self._columns = columns
        sizes = np.zeros(self.num_samples + 1, np.int64)
        for name, column in columns.items():
            if column.is_ragged:
                sizes += self.starts[name] * column.value_bytes + 8 * np.arange(self.num_samples + 1)
            else:
                sizes += column.value_bytes * np.arange(self.num_samples + 1)
        self._sizes = sizes

    def stop_within(self, at: int, num_bytes: int) -> int:
        """Return where those samples end that from `at` on take no more than `num_bytes`."""
        return max(at, int(np.searchsorted(self._sizes, self._sizes[at] + num_bytes, "right")) - 1)

    def num_bytes(self, at: int, stop: int) -> int:
        """Return how much room samples take."""
        return int(self._sizes[stop] - self._sizes[at])


def _check_is_text(values: NDArray[np.uint8], starts: NDArray[np.int64], name: str) -> None:
    """Refuse what could not be read again: bytes that are not UTF-8, and samples that begin within a character."""
    begins = starts[:-1][starts[:-1] < starts[1:]]
    try:
        str(values.data, "utf-8")
        is_cut = bool(((values[begins] & 0xC0) == 0x80).any())
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{name!r} is a column of text, and not all is UTF-8: {error}", hint="keep it as Column.blob()"
        ) from error
    if is_cut:
        raise ArgumentError(f"a length of {name!r} ends within a character", hint="lengths of text count bytes")


def _converted(values: Any, column: Column, name: str) -> NDArray[Any]:
    """Return values as an array of the column's type; those that it cannot hold are an error."""
    array = np.asarray(values)
    if array.ndim != 1 + len(column.shape) or array.shape[1:] != column.shape:
        raise ArgumentError(
            f"{name!r} is a column of {column.described()}, and does not hold values of the shape {array.shape[1:]}",
            hint="say Column.ragged(dtype) for samples of different lengths",
        )
    if array.dtype == column.numpy:
        return np.ascontiguousarray(array)
    converted = array.astype(column.numpy) if not array.size else _as_type(array, column.numpy)
    if converted is None:
        raise ArgumentError(
            f"{name!r} is a column of {column.dtype}, which cannot hold every value of the {array.dtype} given",
            hint="choose a wider type for the column, or convert the values before",
        )
    return np.ascontiguousarray(converted)


def _as_type(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return an array of another type, if it can hold every value: fractions rounded, whole numbers as they are."""
    if array.dtype.kind not in "biufc" or (array.dtype.kind == "c" and dtype.kind != "c"):
        return None
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        if array.dtype.kind in "fc" and dtype.kind in "fc":
            is_held = np.array_equal(np.isfinite(converted), np.isfinite(array))
        else:  # both ways: -1 comes back from an unsigned type, and 2**53 + 1 is equal to what it was rounded to
            is_held = bool(np.all(converted == array)) and bool(np.all(converted.astype(array.dtype) == array))
    return converted if is_held else None


class _Growing:
    """An array that is added to. It doubles when it is full, so that adding costs one copy and not one object."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._array: NDArray[Any] = np.empty((0, *shape), dtype)
        self._size = 0

    def add(self, part: NDArray[Any]) -> None:
        size = self._size + len(part)
        if size > len(self._array):
            least = 4096 // max(1, math.prod(self._array.shape[1:]) * self._array.itemsize)
            array = np.empty((max(size, 2 * self._size, least), *self._array.shape[1:]), self._array.dtype)
            array[: self._size] = self._array[: self._size]
            self._array = array
        self._array[self._size : size] = part
        self._size = size

    @property
    def data(self) -> memoryview:
        """The bytes of what was added."""
        return self._array[: self._size].reshape(-1).view(np.uint8).data


class _Sheet:
    """A shard that is being filled, in memory."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._arrays = {name: _Growing(column.numpy, column.shape) for name, column in columns.items()}
        self._num_values = {name: 0 for name, column in columns.items() if column.is_ragged}
        for name in self._num_values:
            self._arrays[name + OFFSETS] = offsets = _Growing(np.dtype("<i8"), ())
            offsets.add(np.zeros(1, np.int64))
        self.num_samples = 0
        self.num_bytes = 0

    def add(self, rows: _Rows, at: int, stop: int) -> None:
        """Add some of the samples."""
        for name, array in rows.arrays.items():
            if name not in self._num_values:
                self._arrays[name].add(array[at:stop])
                continue
            starts = rows.starts[name]
            first, last = int(starts[at]), int(starts[stop])
            self._arrays[name].add(array[first:last])
            self._arrays[name + OFFSETS].add(starts[at + 1 : stop + 1] - (first - self._num_values[name]))
            self._num_values[name] += last - first
        self.num_samples += stop - at
        self.num_bytes += rows.num_bytes(at, stop)

    def written(self, path: Path, name: str, *, piece: str) -> Shard:
        """Write the shard to `path` and return what the manifest says of it under its `name`."""
        arrays = arrays_of(self._columns, self.num_samples, self._num_values)
        body_bytes = sum(num_bytes_of(*array) for array in arrays.values())
        sums = RunningChecksums()
        parts = [self._arrays[name].data for name in arrays]
        for part in parts:
            sums.update(part)
        header = header_of(arrays, self.num_samples)
        before = header + sums.result(body_bytes).tobytes()
        assert len(before) == len(header) + 8 * num_checksums_for(body_bytes)
        try:
            with open(path, "wb", buffering=0) as file:
                for data in (memoryview(before), *parts):
                    _write(file.fileno(), data)
                os.fsync(file.fileno())
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                error.add_note(
                    f"raised while {len(before) + body_bytes} bytes were written to {path.parent.parent / name}"
                )
            raise
        return Shard(
            file=name,
            piece=piece,
            num_samples=self.num_samples,
            num_bytes=len(before) + body_bytes,
            body=len(before),
            values=dict(self._num_values),
            digest=f"{checksum(before):016x}",
        )


def _write(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data[: 1 << 30]) :]


class Writer:
    """Writes a store sample by sample: `with Writer(path, columns) as writer: writer.append({...})`.

    Without `columns` they are those of the first sample: strings and bytes of any length, all else of the same shape.
    The store is there when the block is left; after an error it is not, and with `resume=True` a later writer goes on
    behind the samples that are in complete shards (`num_samples` says how many: skip those). With `overwrite=True` a
    store that is there stays whole until the new one takes its place.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Mapping[str, Column] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        shard_bytes: int = SHARD_BYTES,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        self.path, self._meta, self._shard_bytes = Path(path), dict(meta or {}), shard_bytes
        _check_is_free(self.path)
        _packed(Manifest({}, (), self._meta))  # now, and not after everything was written
        self._generation = 0
        """Part of the shards' names, so that a new store's are not those of the one it replaces."""
        if (self.path / FILE).exists():
            if not overwrite:
                raise ArgumentError(
                    f"{self.path} holds a store already", hint="pass overwrite=True, or choose another folder"
                )
            self._generation = _next_generation(self.path)
        self._build: Build | None = None
        self._filling: _Filling | None = None
        self._keys: list[str] = []
        self._num_before = 0
        if columns is not None:
            self._begin(columns, resume=resume)
        elif resume:
            raise ArgumentError("an interrupted writer needs its columns to go on", hint="pass columns= as before")

    def _begin(self, columns: Mapping[str, Column], *, resume: bool = False) -> _Filling:
        self._build = build = Build(self.path, columns, shard_bytes=self._shard_bytes)
        self._filling = filling = _Filling(build.columns, self._shard_bytes, self._put)
        if not resume:
            build.discard()
        while (record := build._unfinished_record(self._next_key)) is not None:
            self._keys.append(self._next_key)
            self._num_before += sum(entry["num_samples"] for entry in record["shards"])
        return filling

    @property
    def _next_key(self) -> str:
        return f"g{self._generation}n{len(self._keys):06d}"

    @property
    def num_samples(self) -> int:
        """How many samples the store has so far, those of an interrupted writer included."""
        return self._num_before + (self._filling.num_samples if self._filling is not None else 0)

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: a value for each column. What is given is copied."""
        filling = self._filling
        if filling is None:
            filling = self._begin({name: Column.of_sample(value) for name, value in sample.items()})
        filling.append(sample)

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Add samples: for a fixed column an array of them, for a ragged one all values and the length of each sample.

        What is given is copied.
        """
        filling = self._filling
        if filling is None:
            filling = self._begin({name: _column_of(values) for name, values in columns.items()})
        filling.extend(columns)

    def _put(self, sheet: _Sheet) -> None:
        """Write a shard. Each is a piece, so that an interrupted writer loses no more than one."""
        assert self._build is not None
        with self._build.piece(self._next_key) as piece:
            piece._put(sheet)
        self._keys.append(self._next_key)

    def close(self) -> Store:
        """Complete the store and return it."""
        if self._build is None or self._filling is None:
            raise ArgumentError(
                "nothing was written, and the columns are not known", hint="pass columns= to the writer"
            )
        self._filling.finish()
        return self._build.finish(self._keys, meta=self._meta)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()


def _column_of(values: Any) -> Column:
    """Return the column that many samples' values look like."""
    if isinstance(values, tuple):
        array = np.asarray(values[0])
        return Column.ragged(array.dtype, array.shape[1:])
    array = np.asarray(values)
    return Column.fixed(array.dtype, array.shape[1:])


def _next_generation(path: Path) -> int:
    try:
        manifest = read_manifest(path)
    except DataError:
        return 1
    found = [re.fullmatch(r"g(\d+)n\d+", shard.piece) for shard in manifest.shards]
    return 1 + max((int(match[1]) for match in found if match), default=0)


__all__ = ["Build", "PieceWriter", "Writer"]
