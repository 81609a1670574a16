"""Datasets saved by Hugging Face `datasets`, read without that library."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex, final

import numpy as np

from stoker.errors import ArgumentError, DamagedFile
from stoker.foundation.positions import position_in, positions_in
from stoker.source.arrow_file import ArrowFiles
from stoker.source.arrow_rows import arrow_library, chosen_columns
from stoker.source.known_file import KnownFile, Paths, files_at, fingerprint_of, known_file, named

STATE_FILE, DICT_FILE = "state.json", "dataset_dict.json"


@final
class ArrowFolder:
    """The rows of a dataset written by `datasets.Dataset.save_to_disk`, memory-mapped.

    `path` is the folder. That of a `DatasetDict` contains several datasets, of which `split` selects one. Arrow files
    (IPC streams, such as those in the cache of `datasets`, or IPC files), a pattern, or a list of them work as well.
    `columns` are those to read, by default all, or those of `set_format` when the dataset was saved. A mapping of
    indices, which older versions saved with a shuffled dataset, is followed.

    A sample is a dict by column. Numbers, strings, bytes and booleans are Python's; null is None. A list of numbers is
    a new NumPy array, writable; so is a list of lists of equal length. A struct is a dict, any other list a list.
    Images and audio are as saved: `{"bytes": ..., "path": ...}`.

    Opening reads the metadata of each record batch (usually 1000 rows). A truncated or damaged file raises
    `DamagedFile`, one that changed since it was opened `StaleSource`. Thread-safe; pickles as its paths and the offsets
    of the batches; works after a fork and in spawned processes.
    """

    def __init__(self, path: Paths, *, split: str | None = None, columns: Sequence[str] | str | None = None) -> None:
        arrow_library("reading Arrow data")
        folder = Path(os.path.abspath(path)) if isinstance(path, (str, os.PathLike)) else None
        mapping: list[KnownFile] = []
        if folder is not None and is_saved_dataset(folder):
            files, mapping, shown = _saved(_folder_of(folder, split))
            columns = shown if columns is None else columns
        elif split is not None:
            raise ArgumentError(
                f"split={split!r} is only for a folder with a {DICT_FILE}, and {path} has none",
                hint="omit split, or pass the folder that save_to_disk created",
            )
        else:
            files = list(files_at(path, suffixes=(".arrow",)))
        rows = ArrowFiles(files)
        names = chosen_columns(rows.schema.names, columns, named("ArrowFolder", files))
        self._set(rows, ArrowFiles(mapping) if mapping else None, names)
        if mapping:
            self._check_mapping()

    def _set(self, rows: ArrowFiles, mapping: ArrowFiles | None, columns: list[str]) -> None:
        self._rows, self._mapping, self._columns = rows, mapping, columns

    def __getstate__(self) -> tuple[ArrowFiles, ArrowFiles | None, list[str]]:
        return self._rows, self._mapping, self._columns

    def __setstate__(self, state: tuple[ArrowFiles, ArrowFiles | None, list[str]]) -> None:
        self._set(*state)

    def __repr__(self) -> str:
        return named("ArrowFolder", self._rows.files)

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are read."""
        return list(self._columns)

    @property
    def files(self) -> tuple[KnownFile, ...]:
        """The data files, in order."""
        return self._rows.files

    @property
    def schema(self) -> Any:
        """Arrow schema of all columns, including those that are not read."""
        return self._rows.schema

    @property
    def fingerprint(self) -> str:
        """Digest of the names, sizes and ends of the files, and of the columns."""
        more = self._mapping.files if self._mapping is not None else ()
        return fingerprint_of([*self._rows.files, *more], *self._columns)

    def __len__(self) -> int:
        return self._rows.num_rows if self._mapping is None else self._mapping.num_rows

    def __getitem__(self, position: SupportsIndex, /) -> dict[str, Any]:
        """Return the row at `position`; negative positions count from the end."""
        return self.__getitems__([position_in(position, len(self), self)])[0]

    def __getitems__(self, positions: Sequence[SupportsIndex], /) -> list[dict[str, Any]]:
        """Return the rows at `positions`, in that order; they are read in the order on disk."""
        return self._rows.read(self._mapped(positions_in(positions, len(self), self)), self._columns)

    def describe(self, position: SupportsIndex) -> str:
        """Return the location of a sample: path, and row from 0."""
        place = self._mapped(np.array([position_in(position, len(self), self)]))
        number, row = self._rows.place_of(int(place[0]))
        return f"{self._rows.files[number].path}, row {row}"

    def _mapped(self, positions: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the rows at `positions`, according to the mapping of indices."""
        if self._mapping is None:
            return positions
        found = [sample["indices"] for sample in self._mapping.read(positions, ["indices"])]
        outside = [index for index in found if not isinstance(index, int) or not 0 <= index < self._rows.num_rows]
        if outside:
            raise DamagedFile(
                self._mapping.files[0].path,
                what=f"maps a position to row {outside[0]!r}, but there are {self._rows.num_rows} rows",
            )
        return np.array(found, dtype=np.int64)

    def _check_mapping(self) -> None:
        import pyarrow as pa

        assert self._mapping is not None
        schema = self._mapping.schema
        if schema.names != ["indices"] or not pa.types.is_integer(schema.field(0).type):
            raise DamagedFile(
                self._mapping.files[0].path,
                what=f"should have one column 'indices' of integers, but has {', '.join(schema.names)}",
            )


def is_saved_dataset(folder: Path) -> bool:
    """Return whether `datasets` saved one or several datasets in this folder."""
    return (folder / STATE_FILE).is_file() or (folder / DICT_FILE).is_file()


def _folder_of(folder: Path, split: str | None) -> Path:
    """Return the folder of a split, or the folder itself if it is one dataset."""
    if not (folder / DICT_FILE).is_file():
        if split is not None:
            raise ArgumentError(f"{folder} is a single dataset, got split={split!r}", hint="omit split")
        return folder
    listed = _json(folder / DICT_FILE).get("splits")
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise DamagedFile(folder / DICT_FILE, what="does not list the splits")
    if split is None:
        if len(listed) == 1:
            return folder / _plain_name(listed[0], folder / DICT_FILE)
        raise ArgumentError(
            f"{folder} contains several datasets: {', '.join(listed)}",
            hint=f"choose one, e.g. split={listed[0]!r}" if listed else "it is empty",
        )
    if split not in listed:
        raise ArgumentError(f"{folder} has no split {split!r}", hint=f"it has {', '.join(listed)}")
    return folder / _plain_name(split, folder / DICT_FILE)


def _saved(folder: Path) -> tuple[list[KnownFile], list[KnownFile], list[str] | None]:
    """Return the data files of a saved dataset, the files of its mapping of indices, and its formatted columns."""
    state_path = folder / STATE_FILE
    if not state_path.is_file():
        raise DamagedFile(folder, what=f"has no {STATE_FILE}", hint="copy the complete folder again")
    state = _json(state_path)
    files = _listed(state, "_data_files", state_path)
    if not files:
        raise DamagedFile(state_path, what="lists no data files")
    # the second name is from versions before 1.5
    mapping = _listed(state, "_indices_files", state_path) or _listed(state, "_indices_data_files", state_path)
    shown = state.get("_format_columns")
    if state.get("_output_all_columns") or not shown:
        return files, mapping, None
    if not isinstance(shown, list) or not all(isinstance(name, str) for name in shown):
        raise DamagedFile(state_path, what="does not list its columns")
    return files, mapping, shown


def _listed(state: dict[str, Any], key: str, state_path: Path) -> list[KnownFile]:
    entries = state.get(key) or []
    if not isinstance(entries, list):
        raise DamagedFile(state_path, what=f"has {key} that is not a list")
    files = []
    for entry in entries:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if isinstance(entry, dict) and {"skip", "take"} & set(entry):
            raise ArgumentError(
                f"{state_path} takes only a part of {name} (skip, take), as early versions of datasets wrote it",
                hint="load it with that version of datasets, and save it with a newer one",
            )
        path = state_path.parent / _plain_name(name, state_path)
        try:
            files.append(known_file(path))
        except FileNotFoundError as error:
            raise DamagedFile(
                state_path, what=f"lists {name}, which does not exist", hint="copy the complete folder again"
            ) from error
    return files


def _plain_name(name: Any, listed_in: Path) -> str:
    # a name with a path in it could lead anywhere
    if not isinstance(name, str) or not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise DamagedFile(listed_in, what=f"lists {name!r}, which is not the name of a file in its folder")
    return name


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedFile(path, what=f"is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise DamagedFile(path, what="is JSON, but not an object")
    return content
