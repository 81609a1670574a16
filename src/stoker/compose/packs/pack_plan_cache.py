"""Where plans of packed rows are kept: a small store for each, beside the tokens, under a key of all it depends on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.compose.packs.pack_tables import TABLES, PackFacts, PackTables
from stoker.errors import ArgumentError, DataError
from stoker.store import Column, Store, Writer
from stoker.store.reader import Stretch

VERSION = 2
"""Of the algorithm and of the tables: plans of another one are not looked at."""

WRITTEN_TOGETHER = 1 << 24
"""Numbers that are handed to the writer in one go."""

_log = logging.getLogger("stoker")
_told: set[Path] = set()


class PackPlanCache:
    """A folder for plans of one source, or for none (`folder=None`). Holds names alone, so it pickles in no time."""

    def __init__(self, folder: Path | None, *, fingerprint: str, settings: dict[str, Any], is_own: bool) -> None:
        self._folder = folder
        self._is_own = is_own
        """The folder is for one source's plans, so that others' are of a source that is no more."""
        self._depends_on = {"version": VERSION, "source": fingerprint, **settings}
        words = json.dumps(self._depends_on, sort_keys=True).encode()
        self._source = hashlib.blake2b(fingerprint.encode(), digest_size=8).hexdigest()
        self._key = f"{self._source}-{hashlib.blake2b(words, digest_size=12).hexdigest()}"

    @property
    def path(self) -> Path | None:
        """Where the plan is, if it is kept."""
        return None if self._folder is None else self._folder / self._key

    def layout(self, planned: Callable[[], PackTables]) -> tuple[PackTables, bool]:
        """Return the plan, and whether it is on the shelf: found there, or planned and put there, or only planned.

        Of several processes one plans, and the others wait for it.
        """
        path = self.path
        if path is None:
            return planned(), False
        found = self._opened()
        if found is not None:
            return found, True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return self._only_planned(planned, error)
        with _alone(path.parent):
            found = self._opened()  # somebody else may have been quicker
            if found is not None:
                return found, True
            return self._put(planned)

    def renewed(self, planned: Callable[[], PackTables]) -> PackTables:
        """Return the plan after a part of it was found to be damaged: planned anew, unless somebody else has."""
        path = self.path
        assert path is not None
        with _alone(path.parent):
            found = self._opened(is_thorough=True)
            if found is not None:
                return found
            _log.warning("the plan of packed rows in %s is damaged, and is made anew", path)
            return self._put(planned)[0]

    def _put(self, planned: Callable[[], PackTables]) -> tuple[PackTables, bool]:
        path = self.path
        assert path is not None
        layout = planned()
        try:
            shutil.rmtree(path, ignore_errors=True)  # half written, or damaged
            written(path, layout, meta={"pack": {"depends_on": self._depends_on, "facts": layout.facts.to_json()}})
        except (OSError, ArgumentError, DataError) as error:  # DataError: somebody removed what was being written
            shutil.rmtree(path, ignore_errors=True)
            return self._only_planned(lambda: layout, error)
        if self._is_own:
            self._clear_up(path.parent)
        found = self._opened()
        return (layout, False) if found is None else (found, True)

    def _only_planned(self, planned: Callable[[], PackTables], error: Exception) -> tuple[PackTables, bool]:
        assert self._folder is not None
        if self._folder not in _told:
            _told.add(self._folder)
            reason = str(error).splitlines()[0]
            _log.warning(
                "the plan of packed rows is kept in memory: it cannot be kept in %s (%s)", self._folder, reason
            )
        return planned(), False

    def _opened(self, *, is_thorough: bool = False) -> PackTables | None:
        """Return the plan on the shelf; None if there is none, or none that can be used."""
        path = self.path
        assert path is not None
        try:
            store = Store(path)
            meta = store.meta["pack"]
            if meta["depends_on"] != self._depends_on:
                return None
            layout = read(store, PackFacts.from_json(meta["facts"]))
            layout.check(self._depends_on["length"], is_laid=self._depends_on["strategy"] == "concat")
            if is_thorough:
                for name in ("order", "pieces"):
                    whole(store, name)
        except (DataError, OSError, ValueError, TypeError, KeyError):
            return None
        return layout

    def _clear_up(self, folder: Path) -> None:
        """Remove the plans for what the source was before."""
        with suppress(OSError):
            for path in folder.iterdir():
                if not path.name.startswith(f"{self._source}-"):
                    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process, or thread, at a time plan in a folder; where folders cannot be locked, all at once."""
    descriptor = -1
    try:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor >= 0:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for children that were forked meanwhile
            os.close(descriptor)


def written(path: Path, layout: PackTables, *, meta: dict[str, Any]) -> None:
    """Write a plan as a store: the tables are the first sample, and parts of `order` and `pieces` the others."""
    flat = {name: table.reshape(-1) for name, table in layout.tables().items()}
    lists = {name: np.asarray(getattr(layout, name)) for name in ("order", "pieces")}
    columns = {name: Column.ragged(array.dtype) for name, array in {**flat, **lists}.items()}
    nothing = {name: (array[:0], [0]) for name, array in {**flat, **lists}.items()}
    with Writer(path, columns, meta=meta) as writer:
        writer.extend({**nothing, **{name: (table, [len(table)]) for name, table in flat.items()}})
        for at in range(0, max(map(len, lists.values())), WRITTEN_TOGETHER):
            parts = {name: array[at : at + WRITTEN_TOGETHER] for name, array in lists.items()}
            writer.extend({**nothing, **{name: (part, [len(part)]) for name, part in parts.items()}})


def read(store: Store, facts: PackFacts) -> PackTables:
    """Return the plan that a store holds. The tables are checked now, and the rest when it is looked at."""
    tables = {name: whole(store, name) for name in TABLES}
    tables["slots"] = tables["slots"].reshape(-1, 3)
    tables["classes"] = tables["classes"].reshape(-1, 5)
    return PackTables(facts=facts, order=store.stretch("order"), pieces=store.stretch("pieces"), **tables)


def whole(store: Store, name: str) -> NDArray[Any]:
    """Return all values of a column, as they are in memory where they are in one shard."""
    stretch: Stretch = store.stretch(name)
    borders = stretch.borders(0, stretch.num_documents)
    parts = []
    for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist()):
        if end > begin:
            flat, elements = stretch.spans(np.array([begin]), np.array([end - begin]))
            parts.append(flat[int(elements[0]) : int(elements[0]) + end - begin])
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.zeros(0, stretch.dtype), *parts])
