"""Labels of images: classes or numbers, from folders, tables, mappings or lists."""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, DamagedFile
from stoker.source.images.names import natural_order, printable

FILE_COLUMNS = ("file", "file_name", "filename", "path", "image", "image_path", "image_id", "img", "name", "id")
LABEL_COLUMNS = ("label", "labels", "class", "target", "category", "class_name", "label_name", "y")

_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BEYOND = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)

_NUM_NAMED = 5
"""Maximum number of names in an error."""


class ImageLabels(NamedTuple):
    """For each image one number or several; and the names of the classes, if they are classes."""

    values: NDArray[Any] | None = None
    classes: list[str] | None = None


def digest_of(arrays: Iterable[NDArray[Any]], labels: ImageLabels) -> str:
    """Return a digest of arrays and labels."""
    digest = hashlib.blake2b(digest_size=16)
    listed = [*arrays, *([] if labels.values is None else [labels.values])]
    for array in listed:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    digest.update("\0".join(labels.classes or []).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def class_labels(names: Sequence[str] | NDArray[Any], classes: Sequence[str] | None = None) -> ImageLabels:
    """Return labels for the names of classes, numbered in natural order, or as listed in `classes`."""
    found = sorted(set(names))
    if classes is None:
        encoded = [name.encode("utf-8", "surrogateescape") for name in found]
        listed = [found[number] for number in natural_order(encoded)]
    else:
        listed = checked_classes(classes)
        strange = [name for name in found if name not in set(listed)]
        if strange:
            raise ArgumentError(
                f"classes= lacks {_counted(strange, 'class', 'classes')} of the data: {_some(strange)}",
                hint="add them to classes=, or omit it to use the classes of the data",
            )
    numbers = {name: number for number, name in enumerate(listed)}
    return ImageLabels(np.fromiter((numbers[name] for name in names), np.int64, len(names)), listed)


def checked_classes(classes: Sequence[str]) -> list[str]:
    """Return the given names of classes as a list without repeats."""
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise ArgumentError(f"classes must be a list of names, got {classes!r}", hint="pass all of them, in order")
    listed = list(classes)
    if len(set(listed)) < len(listed):
        twice = sorted({name for name in listed if listed.count(name) > 1})
        raise ArgumentError(f"classes= has {_some(twice)} twice", hint="list each class once")
    return listed


def labels_of(values: Sequence[Any] | NDArray[Any], classes: Sequence[str] | None = None) -> ImageLabels:
    """Return labels from values: names become classes, numbers stay numbers."""
    is_tensor = type(values).__module__.split(".")[0] == "torch"
    array = values if isinstance(values, np.ndarray) else np.asarray(values.numpy()) if is_tensor else None  # type: ignore[attr-defined]
    if array is None:
        listed = list(values)
        if any(isinstance(value, (str, bytes)) for value in listed):
            return class_labels([_text(value) for value in listed], classes)
        try:
            array = np.asarray(listed)
        except ValueError as error:
            raise ArgumentError(f"the labels are not numbers of one shape: {error}", hint="pad them") from error
    if array.dtype.kind in "US":
        return class_labels([_text(value) for value in array.tolist()], classes)
    if array.dtype.kind not in "biuf":
        bad = next((value for value in array.reshape(-1).tolist() if not isinstance(value, (int, float))), None)
        raise ArgumentError(f"the label {bad!r} is neither a number nor a name", hint="pass numbers or names")
    if array.dtype.kind in "iu" or array.dtype == np.bool_:
        array = array.astype(np.int64)
    if classes is not None:
        listed_classes = checked_classes(classes)
        is_number = array.ndim == 1 and array.dtype == np.int64
        if not is_number or (array.size and not 0 <= int(array.min()) <= int(array.max()) < len(listed_classes)):
            raise ArgumentError(
                f"the labels are not numbers of {len(listed_classes)} classes", hint="omit classes=, or fix them"
            )
        return ImageLabels(array, listed_classes)
    return ImageLabels(array)


def parsed(texts: Sequence[str], classes: Sequence[str] | None = None) -> ImageLabels:
    """Return labels from text: numbers if all are numbers, otherwise names of classes.

    `007` is a name, because of its leading zeros. `nan` and `inf` are numbers if the others are.
    """
    if all(map(_WHOLE.fullmatch, texts)):
        with suppress(OverflowError, ValueError):  # too many digits for an int64: a name
            return labels_of(np.array([int(text) for text in texts], np.int64), classes)
    elif any(map(_NUMBER.fullmatch, texts)) and all(
        _NUMBER.fullmatch(text) or _BEYOND.fullmatch(text) for text in texts
    ):
        return labels_of(np.array([float(text) for text in texts], np.float64), classes)
    return class_labels(texts, classes)


def given_labels(
    labels: Any,
    num_images: int,
    within: Callable[[], Iterable[bytes]],
    *,
    columns: Sequence[str] | None,
    classes: Sequence[str] | None,
    owner: str,
) -> ImageLabels:
    """Return the labels passed by the user: the path of a table, a mapping by name, or a sequence by position.

    `within` returns the paths of all images relative to their folder. A table or mapping may use these, names without
    folders, names without extension, or paths that include the folder.
    """
    if isinstance(labels, (str, os.PathLike)):
        path = Path(os.path.abspath(labels))
        names, found = _table(path, columns, classes)
        return _matched(names, found, list(within()), table=str(path), owner=owner)
    if columns is not None:
        raise columns_without_table()
    if isinstance(labels, Mapping):
        names = [os.fsdecode(name) for name in labels]
        found = labels_of(list(labels.values()), classes)
        return _matched(names, found, list(within()), table="labels=", owner=owner)
    try:
        num_labels = len(labels)
    except TypeError:
        raise ArgumentError(
            f"unknown labels={labels!r}",
            hint="pass None, False, the path of a table, a mapping from name to label, or a list of labels",
        ) from None
    if num_labels != num_images:
        raise ArgumentError(
            f"labels= has {num_labels:,} labels, and {owner} {num_images:,} images",
            hint="pass one for each, in the order of the images; or a mapping from name to label",
        )
    return labels_of(labels, classes)


def columns_without_table() -> ArgumentError:
    """Return the error for columns= without a table."""
    return ArgumentError("columns= is only for labels from a table", hint="pass labels='labels.csv' with it")


def _matched(names: list[str], labels: ImageLabels, within: list[bytes], *, table: str, owner: str) -> ImageLabels:
    """Return the labels in the order of the images."""
    assert labels.values is not None
    rows: dict[bytes, int] = {}
    for row, name in enumerate(map(os.fsencode, names)):
        if rows.setdefault(os.path.normpath(name), row) != row:
            raise ArgumentError(f"{table} has {printable(name)} twice", hint="pass one label for each image")
    keys = _keys_like(next(iter(rows), b""), [os.path.normpath(name) for name in within], owner)
    order = np.fromiter((rows.get(key, -1) for key in keys), np.int64, len(keys))
    lacking = [printable(within[position]) for position in np.flatnonzero(order < 0)[:_NUM_NAMED].tolist()]
    if lacking:
        raise ArgumentError(
            f"{table} has no label for {int((order < 0).sum()):,} of the {len(within):,} images in {owner}: "
            f"{', '.join(lacking)}{', ...' if int((order < 0).sum()) > len(lacking) else ''}",
            hint=f"its names look like {names[0]!r}; add the labels, or pass a list of (path, label) pairs"
            if names
            else "it is empty",
        )
    if len(rows) > len(within):
        known = set(keys)
        strange = [printable(name) for name in rows if name not in known]
        raise ArgumentError(
            f"{table} has labels for {len(strange):,} images that are not in {owner}: {_some(strange)}",
            hint="remove those rows, or pass a list of (path, label) pairs",
        )
    return ImageLabels(labels.values[order], labels.classes)


def _keys_like(name: bytes, within: list[bytes], owner: str) -> list[bytes]:
    """Return the names of all images in the form of a name in the table."""
    forms: tuple[Callable[[bytes], bytes], ...] = (
        lambda one: one,
        os.path.basename,
        lambda one: os.path.splitext(one)[0],
        lambda one: os.path.splitext(os.path.basename(one))[0],
        lambda one: os.path.join(os.path.basename(os.fsencode(owner)), one),
        lambda one: os.path.join(os.fsencode(owner), one),
    )
    for form in forms:
        keys = [form(one) for one in within]
        if name in keys and len(set(keys)) == len(keys):
            return keys
    return within


def _table(path: Path, columns: Sequence[str] | None, classes: Sequence[str] | None) -> tuple[list[str], ImageLabels]:
    """Return the names in a table, and their labels."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return _parquet_table(path, columns, classes)
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        raise ArgumentError(f"{path} is not a supported table", hint="pass a .csv, .tsv or .parquet file")
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        first = file.readline()
        file.seek(0)
        delimiter = "\t" if path.suffix.lower() == ".tsv" or ("\t" in first and "," not in first) else ","
        reader = csv.reader(file, delimiter=delimiter)
        try:
            rows = [row for row in reader if row]
        except csv.Error as error:
            raise DamagedFile(path, what=f"cannot be read at line {reader.line_num}: {error}") from error
    if not rows:
        raise DamagedFile(path, what="is empty", hint="the first line of a table must contain the names of its columns")
    head = [name.strip() for name in rows[0]]
    chosen = [head.index(name) for name in _chosen(head, columns, path)]
    for number, row in enumerate(rows[1:], start=2):
        if len(row) < len(head):
            raise DamagedFile(path, what=f"has {len(row)} columns in row {number}, and {len(head)} in its first one")
    texts = [[row[column].strip() for row in rows[1:]] for column in chosen]
    for column in texts[1:]:
        if "" in column:
            raise _lacking(path, texts[0][column.index("")])
    if len(texts) == 2:
        return texts[0], parsed(texts[1], classes)
    return texts[0], _several([parsed(column) for column in texts[1:]], path)


def _parquet_table(
    path: Path, columns: Sequence[str] | None, classes: Sequence[str] | None
) -> tuple[list[str], ImageLabels]:
    from stoker.source.parquet import Parquet

    file = Parquet(path)
    chosen = _chosen(file.columns, columns, path)
    rows = Parquet(path, columns=chosen).__getitems__(range(len(file)))
    names = [str(row[chosen[0]]) if isinstance(row[chosen[0]], int) else _text(row[chosen[0]]) for row in rows]
    for name, row in zip(names, rows):
        if any(row[column] is None for column in chosen[1:]):
            raise _lacking(path, name)
    if len(chosen) == 2:
        return names, labels_of([row[chosen[1]] for row in rows], classes)
    return names, _several([labels_of([row[name] for row in rows]) for name in chosen[1:]], path)


def _lacking(path: Path, name: str) -> ArgumentError:
    return ArgumentError(
        f"{path} has no label for {printable(os.fsencode(name))}",
        hint="fill it in; for unknown numbers, use nan",
    )


def _several(columns: list[ImageLabels], path: Path) -> ImageLabels:
    """Return several columns of numbers as one label per image."""
    values = [column.values for column in columns if column.classes is None and column.values is not None]
    if len(values) < len(columns):
        raise ArgumentError(f"{path} has names in a label column", hint="several label columns must be numbers")
    return ImageLabels(np.stack(values, axis=1))


def _chosen(found: Sequence[str], columns: Sequence[str] | None, path: Path) -> list[str]:
    """Return the columns of names and labels."""
    if columns is not None:
        if isinstance(columns, str) or len(columns) < 2:
            raise ArgumentError(f"columns={columns!r} is not two names", hint="pass columns=('file', 'label')")
        for name in columns:
            if name not in found:
                raise ArgumentError(f"{path} has no column {name!r}", hint=f"it has {', '.join(found)}")
        return list(columns)
    by_name = {name.lower(): name for name in reversed(found)}
    file = next((by_name[name] for name in FILE_COLUMNS if name in by_name), None)
    label = next((by_name[name] for name in LABEL_COLUMNS if name in by_name), None)
    if file is not None and label is None and len(found) == 2:
        label = next(name for name in found if name != file)
    if file is None or label is None:
        raise ArgumentError(
            f"it is unclear which columns of {path} ({', '.join(found)}) contain file names and labels",
            hint="pass columns=('file', 'label'); its first line must contain the names of the columns",
        )
    return [file, label]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if not isinstance(value, str):
        raise ArgumentError(f"labels contain names, but also {value!r}", hint="pass names or numbers, not both")
    return value


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NUM_NAMED]) + (", ..." if len(names) > _NUM_NAMED else "")


def _counted(names: Sequence[str], one: str, several: str) -> str:
    return f"{len(names):,} {one if len(names) == 1 else several}"
