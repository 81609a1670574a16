"""Packing plans on disk: each a small store next to the tokens, named by a hash of everything it depends on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.compose.packs.pack_tables import TABLES, PackFacts, PackTables
from stoker.errors import ArgumentError, DataError
from stoker.store import Column, Store, Writer
from stoker.store.reader import ColumnValues

VERSION = 2
"""Version of the algorithm and the tables. Plans of other versions are ignored."""

MAX_WRITTEN = 1 << 24
"""Numbers that are passed to the writer at a time."""

_log = logging.getLogger("stoker")
_warned_of: set[Path] = set()


class PackPlanCache:
    """Cache directory for the plans of one source; with None they stay in memory. Holds only paths: cheap to pickle."""

    def __init__(self, folder: Path | None, *, fingerprint: str, settings: dict[str, Any], is_own: bool) -> None:
        self._folder = folder
        self._is_own = is_own
        """The folder belongs to one source, so plans with another fingerprint are stale and are removed."""
        self._depends_on = {"version": VERSION, "source": fingerprint, **settings}
        words = json.dumps(self._depends_on, sort_keys=True).encode()
        self._source = hashlib.blake2b(fingerprint.encode(), digest_size=8).hexdigest()
        self._key = f"{self._source}-{hashlib.blake2b(words, digest_size=12).hexdigest()}"

    @property
    def path(self) -> Path | None:
        """Where the plan is cached, if at all."""
        return None if self._folder is None else self._folder / self._key

    def load_or_make(self, plan: Callable[[], PackTables]) -> tuple[PackTables, bool]:
        """Return the plan, and whether it is on disk: loaded from there, or made and written, or only made.

        Of several processes, one plans and the others wait for it.
        """
        path = self.path
        if path is None:
            return plan(), False
        found = self._load()
        if found is not None:
            return found, True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return self._keep_in_memory(plan, error)
        with _exclusive(path.parent):
            found = self._load()  # another process may have written it meanwhile
            if found is not None:
                return found, True
            return self._write(plan)

    def replace_damaged(self, plan: Callable[[], PackTables]) -> PackTables:
        """Return the plan after a part of it was found damaged: made again, unless another process has done that."""
        path = self.path
        assert path is not None
        with _exclusive(path.parent):
            found = self._load(is_thorough=True)
            if found is not None:
                return found
            _log.warning("the packing plan in %s is damaged; planning again", path)
            return self._write(plan)[0]

    def _write(self, plan: Callable[[], PackTables]) -> tuple[PackTables, bool]:
        path = self.path
        assert path is not None
        tables = plan()
        try:
            shutil.rmtree(path, ignore_errors=True)  # half written, or damaged
            write_plan(path, tables, meta={"pack": {"depends_on": self._depends_on, "facts": asdict(tables.facts)}})
        except (
            OSError,
            ArgumentError,
            DataError,
        ) as error:  # DataError: another process removed what was being written
            shutil.rmtree(path, ignore_errors=True)
            return self._keep_in_memory(lambda: tables, error)
        if self._is_own:
            self._remove_stale(path.parent)
        found = self._load()
        return (tables, False) if found is None else (found, True)

    def _keep_in_memory(self, plan: Callable[[], PackTables], error: Exception) -> tuple[PackTables, bool]:
        assert self._folder is not None
        if self._folder not in _warned_of:
            _warned_of.add(self._folder)
            reason = str(error).splitlines()[0]
            _log.warning("the packing plan stays in memory: it cannot be written to %s (%s)", self._folder, reason)
        return plan(), False

    def _load(self, *, is_thorough: bool = False) -> PackTables | None:
        """Return the plan on disk; None if there is none, or none that can be used."""
        path = self.path
        assert path is not None
        try:
            store = Store(path)
            meta = store.meta["pack"]
            if meta["depends_on"] != self._depends_on:
                return None
            tables = read_plan(store, PackFacts.from_json(meta["facts"]))
            tables.check(self._depends_on["length"], is_concat=self._depends_on["strategy"] == "concat")
            if is_thorough:
                for name in ("order", "pieces"):
                    read_column(store, name)
        except (DataError, OSError, ValueError, TypeError, KeyError):
            return None
        return tables

    def _remove_stale(self, folder: Path) -> None:
        """Remove plans of earlier contents of the source."""
        with suppress(OSError):
            for path in folder.iterdir():
                if not path.name.startswith(f"{self._source}-"):
                    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Let one process or thread at a time plan in a folder; where folders cannot be locked, several may."""
    descriptor = -1
    try:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor >= 0:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked meanwhile holds a copy of it
            os.close(descriptor)


def write_plan(path: Path, plan: PackTables, *, meta: dict[str, Any]) -> None:
    """Write a plan as a store: the tables are the first sample, and parts of `order` and `pieces` the others."""
    flat = {name: table.reshape(-1) for name, table in plan.tables().items()}
    lists = {name: np.asarray(getattr(plan, name)) for name in ("order", "pieces")}
    columns = {name: Column.ragged(array.dtype) for name, array in {**flat, **lists}.items()}
    nothing = {name: (array[:0], [0]) for name, array in {**flat, **lists}.items()}
    with Writer(path, columns, meta=meta) as writer:
        writer.extend({**nothing, **{name: (table, [len(table)]) for name, table in flat.items()}})
        for at in range(0, max(map(len, lists.values())), MAX_WRITTEN):
            parts = {name: array[at : at + MAX_WRITTEN] for name, array in lists.items()}
            writer.extend({**nothing, **{name: (part, [len(part)]) for name, part in parts.items()}})


def read_plan(store: Store, facts: PackFacts) -> PackTables:
    """Return the plan in a store. Checksums of the tables are verified now, those of the lists when they are read."""
    tables = {name: read_column(store, name) for name in TABLES}
    tables["slots"] = tables["slots"].reshape(-1, 3)
    tables["classes"] = tables["classes"].reshape(-1, 5)
    return PackTables(facts=facts, order=store.stretch("order"), pieces=store.stretch("pieces"), **tables)


def read_column(store: Store, name: str) -> NDArray[Any]:
    """Return all values of a column: the mapped memory itself where they are in one shard."""
    stretch: ColumnValues = store.stretch(name)
    offsets = stretch.offsets(0, stretch.num_documents)
    parts = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        if end > begin:
            flat, elements = stretch.spans(np.array([begin]), np.array([end - begin]))
            parts.append(flat[int(elements[0]) : int(elements[0]) + end - begin])
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.zeros(0, stretch.dtype), *parts])
