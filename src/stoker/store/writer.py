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
from stoker.store.shard_buffer import ShardBuffer, ShardSplitter


class Writer:
    """Writes a store sample by sample: `with Writer(path, columns) as writer: writer.append({...})`.

    Without `columns`, they follow from the first sample: strings and bytes of any length, everything else of a fixed
    shape. The store becomes visible only when the block exits without error. After an error, a writer with
    `resume=True` continues after the samples in complete shards (`num_samples` is their number: skip those). With
    `overwrite=True` an existing store stays valid until the new one replaces it.
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
        packed(Manifest({}, (), self._meta))  # check now, not after everything was written
        self._generation = 0
        """Part of the shards' names, so that they differ from those of the store that is replaced."""
        if (self.path / FILE).exists():
            if not overwrite:
                raise ArgumentError(
                    f"{self.path} contains a store already", hint="pass overwrite=True, or choose another folder"
                )
            self._generation = _next_generation(self.path)
        self._build: Build | None = None
        self._splitter: ShardSplitter | None = None
        self._keys: list[str] = []
        self._num_before = 0
        self._lock: Lock | None = None
        self._is_over = False
        if columns is not None:
            self._begin(columns, resume=resume)
        elif resume:
            raise ArgumentError("resume=True needs the columns", hint="pass columns= as before")

    def _begin(self, columns: Mapping[str, Column | str], *, resume: bool = False) -> ShardSplitter:
        self._build = build = Build(self.path, columns, shard_bytes=self._shard_bytes)
        self._splitter = splitter = ShardSplitter(build.columns, self._shard_bytes, self._write_shard)
        self._lock = locked(build.unfinished)
        if not resume:
            build.discard_pieces()
        while (record := build._unfinished_record(self._next_key)) is not None:
            self._keys.append(self._next_key)
            self._num_before += sum(entry["num_samples"] for entry in record["shards"])
        return splitter

    @property
    def _next_key(self) -> str:
        return f"g{self._generation}n{len(self._keys):06d}"

    @property
    def num_samples(self) -> int:
        """Number of samples so far, including those of an interrupted writer."""
        return self._num_before + (self._splitter.num_samples if self._splitter is not None else 0)

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: a value for each column. Values are copied."""
        splitter = self._current_splitter()
        if splitter is None:
            if not isinstance(sample, Mapping):
                raise ArgumentError(
                    f"a sample must be a dict, got {type(sample).__name__}", hint="pass {'column': value}"
                )
            splitter = self._begin({name: Column.of_sample(value) for name, value in sample.items()})
        splitter.append(sample)

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Add samples: for a fixed column an array, for a ragged one all values and the length of each sample.

        Values are copied.
        """
        splitter = self._current_splitter()
        if splitter is None:
            if not isinstance(columns, Mapping):
                raise ArgumentError(
                    f"columns must be a dict, got {type(columns).__name__}", hint="pass {'column': values}"
                )
            splitter = self._begin({name: _column_of(values) for name, values in columns.items()})
        splitter.extend(columns)

    def _current_splitter(self) -> ShardSplitter | None:
        if self._is_over:
            raise ArgumentError("the writer is closed", hint="write another store, or overwrite this one")
        return self._splitter

    def _write_shard(self, buffer: ShardBuffer) -> None:
        """Write a shard. Each is a piece, so that an interrupted writer loses no more than one."""
        assert self._build is not None
        try:
            with self._build.piece(self._next_key) as piece:
                piece._write_shard(buffer)
        except BaseException:
            self._unlock()  # this writer cannot continue, but another may
            raise
        self._keys.append(self._next_key)

    def close(self) -> Store:
        """Complete the store and return it."""
        if self._build is None or self._splitter is None:
            raise ArgumentError("nothing was written, so the columns are unknown", hint="pass columns= to the writer")
        self._current_splitter()
        self._splitter.finish()
        store = self._build.finish(self._keys, meta=self._meta)
        self._leave()
        return store

    def _leave(self) -> None:
        self._is_over = True
        self._unlock()

    def _unlock(self) -> None:
        """Release the lock, and remove the folder of unfinished pieces if it is empty."""
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
    """Return the column for the values of many samples."""
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
