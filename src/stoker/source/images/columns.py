"""Images in columns of tables: Parquet files, and Hugging Face datasets on disk or in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from stoker.errors import ArgumentError, BadImage
from stoker.source.arrow_folder import ArrowFolder
from stoker.source.images.image_files import MAX_BYTES, ImageFiles, listing_of, too_large
from stoker.source.images.labels import ImageLabels, digest_of, labels_of
from stoker.source.known_file import KnownFile
from stoker.source.parquet import Parquet

_LABEL_ROWS = 4096
"""Rows of labels read at a time."""


@final
class ImageColumn:
    """Images in a column of bytes, or of Hugging Face's `{"bytes", "path"}`. Threads and pickling: as its rows.

    Rows of Arrow files are mapped and read one by one. Parquet is decoded by row groups, of which the latest are
    cached: reading in order, or shuffled within windows, is fast; shuffled over everything is slow, for which
    `stoker prepare images` makes a store.
    """

    def __init__(self, rows: Any, column: str, labels: ImageLabels) -> None:
        self._rows, self._column = rows, column
        self.labels, self.classes = labels.values, labels.classes

    def __repr__(self) -> str:
        return f"ImageColumn({self._rows!r}, {self._column!r})"

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def files(self) -> tuple[KnownFile, ...]:
        """The files of the rows; empty for rows in memory."""
        found: tuple[KnownFile, ...] = getattr(self._rows, "files", ())
        return found

    def read(self, position: int, /) -> bytes:
        """Return the image in the row at `position`."""
        value = self._rows[int(position)][self._column]
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, Mapping) else (value, None)
        if data is None and path:
            # saved by its path: the file may exist
            return ImageFiles(listing_of([path]), ImageLabels()).read(0)
        if data is None:
            raise BadImage(self.name(position), reason="the row has no image")
        if len(data) >= MAX_BYTES:
            raise too_large(self.name(position), len(data))
        return bytes(data)

    def name(self, position: int, /) -> str:
        """Return the file and the row."""
        return str(self._rows.describe(position))

    def within(self, position: int) -> bytes:
        """Return the name of an image in its row, or the number of the row."""
        value = self._rows[int(position)][self._column]
        path = value.get("path") if isinstance(value, Mapping) else None
        return os.fsencode(path) if path else str(position).encode()

    @cached_property
    def fingerprint(self) -> str:
        """Identity of these images."""
        rows = np.frombuffer(f"{self._rows.fingerprint} {self._column}".encode(), np.uint8)
        return digest_of([rows], ImageLabels(self.labels, self.classes))


def of_parquet(
    path: Any, *, column: str | None, label: str | None, has_labels: bool, classes: Sequence[str] | None
) -> ImageColumn:
    """Return the images of Parquet files."""
    import pyarrow.parquet

    rows = Parquet(path)
    schema = pyarrow.parquet.read_schema(rows.files[0].path)
    column, label = _chosen(schema, rows.columns, column, label, owner=repr(rows))
    labels = ImageLabels()
    if has_labels and label is not None:
        labels = _labels(Parquet(path, columns=label), label, _class_names(schema, label), classes)
    return ImageColumn(Parquet(path, columns=column), column, labels)


def of_arrow(
    path: Any, *, split: str | None, column: str | None, label: str | None, has_labels: bool,
    classes: Sequence[str] | None,
) -> ImageColumn:  # fmt: skip
    """Return the images of a dataset saved by Hugging Face `datasets`, or of Arrow files."""
    rows = ArrowFolder(path, split=split)
    schema = rows.schema
    column, label = _chosen(schema, rows.columns, column, label, owner=repr(rows))
    labels = ImageLabels()
    if has_labels and label is not None:
        names = _class_names(schema, label)
        labels = _labels(ArrowFolder(path, split=split, columns=label), label, names, classes)
    return ImageColumn(ArrowFolder(path, split=split, columns=column), column, labels)


class DatasetRows:
    """The rows of a Hugging Face dataset, with images not decoded."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __repr__(self) -> str:
        return f"datasets.Dataset({len(self):,} rows)"

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, position: int) -> Any:
        return self._dataset[position]

    def describe(self, position: int) -> str:
        """Return the location of a row."""
        return f"row {position} of the dataset"

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the dataset."""
        return str(getattr(self._dataset, "_fingerprint", len(self)))


def is_dataset(given: Any) -> bool:
    """Return whether an object is a Hugging Face dataset."""
    return all(hasattr(given, name) for name in ("features", "cast_column", "select_columns", "column_names"))


def of_dataset(
    dataset: Any, *, column: str | None, label: str | None, has_labels: bool, classes: Sequence[str] | None
) -> ImageColumn:
    """Return the images of a Hugging Face dataset."""
    import datasets  # type: ignore[import-not-found, unused-ignore]

    features = dataset.features
    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    kinds = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    column = _one_of(images, column, list(features), owner="the dataset")
    label = label or (kinds[0] if len(kinds) == 1 else "label" if "label" in features else None)
    if label is not None and label not in features:
        raise ArgumentError(f"the dataset has no column {label!r}", hint=f"it has {', '.join(features)}")
    labels = ImageLabels()
    if has_labels and label is not None:
        names = getattr(features[label], "names", None)
        values = dataset.with_format(None).select_columns([label])[:][label]
        labels = labels_of(list(values), classes if classes is not None else names)
    rows = dataset.with_format(None).select_columns([column])
    if isinstance(features[column], datasets.Image):
        rows = rows.cast_column(column, datasets.Image(decode=False))
    return ImageColumn(DatasetRows(rows), column, labels)


def _labels(rows: Any, label: str, names: list[str] | None, classes: Sequence[str] | None) -> ImageLabels:
    values: list[Any] = []
    for begin in range(0, len(rows), _LABEL_ROWS):
        part = rows.__getitems__(range(begin, min(begin + _LABEL_ROWS, len(rows))))
        values.extend(row[label] for row in part)
    lacking = next((row for row, value in enumerate(values) if value is None), None)
    if lacking is not None:
        raise ArgumentError(
            f"row {lacking} of {rows!r} has no {label!r}", hint="pass labels=False to ignore labels, or another label="
        )
    if classes is None and names is not None and not any(isinstance(value, str) for value in values[:1]):
        numbers = np.asarray(values, np.int64)
        if numbers.size and not -1 <= int(numbers.min()) <= int(numbers.max()) < len(names):
            raise ArgumentError(
                f"column {label!r} of {rows!r} has numbers outside its {len(names)} classes",
                hint="fix them, or pass labels=False to ignore labels",
            )
        return ImageLabels(numbers, list(names))
    return labels_of(values, classes)


def _chosen(
    schema: Any, shown: Sequence[str], column: str | None, label: str | None, *, owner: str
) -> tuple[str, str | None]:
    """Return the column of images and that of labels."""
    features = _features(schema)
    marked = [name for name in shown if features.get(name, {}).get("_type") == "Image"]
    fitting = [name for name in shown if _holds_bytes(schema.field(name).type)]
    column = _one_of(marked or fitting, column, shown, owner=owner)
    if not _holds_bytes(schema.field(column).type):
        raise ArgumentError(
            f"column {column!r} of {owner} contains {schema.field(column).type}, not image files",
            hint=f"pass column=, one of {', '.join(fitting)}" if fitting else "there is no column of bytes",
        )
    if label is None:
        kinds = [name for name in shown if features.get(name, {}).get("_type") == "ClassLabel"]
        label = kinds[0] if len(kinds) == 1 else next((name for name in ("label", "labels") if name in shown), None)
    elif label not in shown:
        raise ArgumentError(f"{owner} has no column {label!r}", hint=f"it has {', '.join(shown)}")
    return column, label


def _one_of(found: Sequence[str], asked: str | None, names: Sequence[str], *, owner: str) -> str:
    if asked is not None:
        if asked not in names:
            raise ArgumentError(f"{owner} has no column {asked!r}", hint=f"it has {', '.join(names)}")
        return asked
    if len(found) == 1:
        return found[0]
    if "image" in found:
        return "image"
    problem = f"several columns that may be images ({', '.join(found)})" if found else "no column of images"
    raise ArgumentError(f"{owner} has {problem}", hint=f"pass column=; it has {', '.join(names)}")


def _holds_bytes(kind: Any) -> bool:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        return "bytes" in names and _holds_bytes(kind.field("bytes").type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the features that Hugging Face `datasets` recorded for the columns."""
    try:
        noted = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in noted.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _class_names(schema: Any, label: str) -> list[str] | None:
    names = _features(schema).get(label, {}).get("names")
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
