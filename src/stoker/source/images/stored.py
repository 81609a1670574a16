"""Images in a store made by `stoker prepare images`."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.source.images.labels import ImageLabels, digest_of
from stoker.source.images.names import printable
from stoker.store import Store

IMAGE, LABEL, NAME = "image", "label", "name"
"""The columns of such a store."""


@final
class StoredImages:
    """Images in a store, memory-mapped, each block verified when first read. Threads, pickling: as the store."""

    def __init__(
        self,
        store: Store,
        column: str,
        labels: ImageLabels,
        *,
        apply_exif_orientation: bool = True,
        is_reencoded: bool = False,
    ) -> None:
        self._store, self.column = store, column
        self.apply_exif_orientation, self.is_reencoded = apply_exif_orientation, is_reencoded
        """Whether images are to be rotated upright, and whether downscaled ones already are."""
        self._values = store.stretch(column)
        self.labels, self.classes = labels.values, labels.classes

    def __repr__(self) -> str:
        return f"StoredImages({str(self._store.path)!r}, {len(self):,} images)"

    def __len__(self) -> int:
        return len(self._store)

    @property
    def store(self) -> Store:
        """The store."""
        return self._store

    def read(self, position: int, /) -> NDArray[np.uint8]:
        """Return the bytes of the image at `position`, as a view of the memory map."""
        begins, sizes = self._values.bounds(np.array([position], np.int64))
        size = int(sizes[0])
        if not size:
            return np.empty(0, np.uint8)
        values, elements = self._values.spans(begins, sizes)
        begin = int(elements[0])
        return values[begin : begin + size]

    def name(self, position: int, /) -> str:
        """Return the store's path and the original name of the image."""
        return f"{printable(os.fsencode(self._store.path))}: {printable(self.within(position))}"

    def within(self, position: int) -> bytes:
        """Return the original name of the image."""
        if NAME not in self._store.columns:
            return str(position).encode()
        values, _ = self._store.read_ragged(NAME, [position])
        return values.tobytes()

    @cached_property
    def fingerprint(self) -> str:
        """Identity of these images."""
        store = np.frombuffer(f"{self._store.fingerprint} {self.column}".encode(), np.uint8)
        return digest_of([store], ImageLabels(self.labels, self.classes))


def of_store(store: Store, *, column: str | None, label: str | None, has_labels: bool) -> StoredImages:
    """Return the images of a store."""
    column = IMAGE if column is None else column
    found = store.columns.get(column)
    if found is None or (found.dtype, found.shape, found.is_ragged) != ("uint8", (), True):
        fitting = [name for name, one in store.columns.items() if one.kind == "bytes"]
        raise ArgumentError(
            f"{store.path} has no column {column!r} of images",
            hint=f"pass column=, one of {', '.join(fitting)}" if fitting else "it is a store of other data",
        )
    if label is not None and label not in store.columns:
        raise ArgumentError(f"{store.path} has no column {label!r}", hint=f"it has {', '.join(store.columns)}")
    label = LABEL if label is None else label
    labels = ImageLabels()
    if has_labels and label in store.columns and not store.columns[label].is_ragged:
        labels = ImageLabels(store.read(label, np.arange(len(store))), _classes(store.meta))
    settings = store.meta.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    return StoredImages(
        store,
        column,
        labels,
        apply_exif_orientation=settings.get("apply_exif_orientation") is not False,
        is_reencoded=settings.get("encoder") is not None,
    )


def _classes(meta: dict[str, Any]) -> list[str] | None:
    names = meta.get("classes")
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
