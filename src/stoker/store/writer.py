"""A store written sample by sample, by one process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from stoker.errors import ArgumentError, DataError
from stoker.store.build import SHARD_BYTES, Build, check_is_free, packed
from stoker.store.column import Column
from stoker.store.lock import Lock, locked
from stoker.store.manifest import FILE, Manifest, read_manifest
from stoker.store.reader import Store
from stoker.store.shard_buffer import Filling, ShardBuffer


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
        columns: Mapping[str, Column | str] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        shard_bytes: int = SHARD_BYTES,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        self.path, self._meta, self._shard_bytes = Path(path), dict(meta or {}), shard_bytes
        check_is_free(self.path)
        packed(Manifest({}, (), self._meta))  # now, and not after everything was written
        self._generation = 0
        """Part of the shards' names, so that a new store's are not those of the one it replaces."""
        if (self.path / FILE).exists():
            if not overwrite:
                raise ArgumentError(
                    f"{self.path} holds a store already", hint="pass overwrite=True, or choose another folder"
                )
            self._generation = _next_generation(self.path)
        self._build: Build | None = None
        self._filling: Filling | None = None
        self._keys: list[str] = []
        self._num_before = 0
        self._lock: Lock | None = None
        self._is_over = False
        if columns is not None:
            self._begin(columns, resume=resume)
        elif resume:
            raise ArgumentError("an interrupted writer needs its columns to go on", hint="pass columns= as before")

    def _begin(self, columns: Mapping[str, Column | str], *, resume: bool = False) -> Filling:
        self._build = build = Build(self.path, columns, shard_bytes=self._shard_bytes)
        self._filling = filling = Filling(build.columns, self._shard_bytes, self._put)
        self._lock = locked(build.unfinished)
        if not resume:
            build.discard_pieces()
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
        filling = self._open_filling()
        if filling is None:
            if not isinstance(sample, Mapping):
                raise ArgumentError(f"a sample is a table, not {type(sample).__name__}", hint="pass {'column': value}")
            filling = self._begin({name: Column.of_sample(value) for name, value in sample.items()})
        filling.append(sample)

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Add samples: for a fixed column an array of them, for a ragged one all values and the length of each sample.

        What is given is copied.
        """
        filling = self._open_filling()
        if filling is None:
            if not isinstance(columns, Mapping):
                raise ArgumentError(
                    f"columns are a table, not {type(columns).__name__}", hint="pass {'column': values}"
                )
            filling = self._begin({name: _column_of(values) for name, values in columns.items()})
        filling.extend(columns)

    def _open_filling(self) -> Filling | None:
        if self._is_over:
            raise ArgumentError(
                "the writer is closed, and its store complete", hint="write another store, or overwrite it"
            )
        return self._filling

    def _put(self, sheet: ShardBuffer) -> None:
        """Write a shard. Each is a piece, so that an interrupted writer loses no more than one."""
        assert self._build is not None
        try:
            with self._build.piece(self._next_key) as piece:
                piece._put(sheet)
        except BaseException:
            self._unlock()  # this one cannot go on, and another may
            raise
        self._keys.append(self._next_key)

    def close(self) -> Store:
        """Complete the store and return it."""
        if self._build is None or self._filling is None:
            raise ArgumentError(
                "nothing was written, and the columns are not known", hint="pass columns= to the writer"
            )
        self._open_filling()
        self._filling.finish()
        store = self._build.finish(self._keys, meta=self._meta)
        self._leave()
        return store

    def _leave(self) -> None:
        self._is_over = True
        self._unlock()

    def _unlock(self) -> None:
        """Let others write here. If nothing is worth going on with, nothing is left."""
        if self._lock is not None and self._build is not None:
            self._build.discard_if_empty()
            self._lock.leave()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._leave()


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
