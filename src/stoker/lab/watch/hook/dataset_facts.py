"""Inspect a dataset from outside: what it holds, and where its files are.

None of the user's code is called except `len`, which every loader calls. Nothing is read except the sizes of a few
files. It takes some hundredths of a second at most, whatever the dataset is.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from itertools import islice
from pathlib import PurePath
from time import perf_counter
from typing import Any

from stoker.foundation.machine import mount_of

MAX_SECONDS = 0.05
MAX_DEPTH = 4
NUM_INSPECTED = 64
"""Elements of a container that are inspected; the others are taken to be alike."""
MAX_FILES = 16

_PLAIN = (list, tuple, set, frozenset, dict, deque)


def facts_of(loader: Any) -> dict[str, Any]:
    """Return what is found in a loader's dataset, as plain values."""
    dataset = getattr(loader, "dataset", None)
    found = _Inspection()
    facts: dict[str, Any] = {}
    try:
        if dataset is not None:
            facts["dataset"] = type(dataset).__name__
            found.inspect(dataset)
        facts |= lengths_of(loader)
    except Exception as error:  # whatever a user's class does
        facts["error"] = f"{type(error).__name__}: {error}"[:200]
    return facts | found.facts()


def lengths_of(loader: Any) -> dict[str, int]:
    """Return how many batches and samples a loader has; nothing, if it has no length."""
    dataset = getattr(loader, "dataset", None)
    # the length of a stream is a promise, and torch remembers that it was asked for
    if dataset is None or _is_stream(dataset) or not hasattr(type(loader), "__len__"):
        return {}
    return {"num_batches": len(loader), "num_samples": len(dataset)}


def _is_stream(dataset: Any) -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(dataset, data.IterableDataset)


class _Inspection:
    """A walk through the attributes of a dataset."""

    def __init__(self) -> None:
        self._deadline = perf_counter() + MAX_SECONDS
        self._seen: set[int] = set()
        self._num_objects, self._object_bytes, self._held_in, self._most = 0, 0, "", 0
        self._array_bytes = self._mapped_bytes = 0
        self._paths: list[str] = []
        self._files_bytes: int | None = None
        self._num_files = 0

    def facts(self) -> dict[str, Any]:
        """Return what was found."""
        facts: dict[str, Any] = {
            "num_objects": self._num_objects,
            "object_bytes": self._object_bytes,
            "objects_in": self._held_in,
            "array_bytes": self._array_bytes,
            "mapped_bytes": self._mapped_bytes,
        }
        if self._files_bytes is not None:
            facts |= {"files_bytes": self._files_bytes, "num_files": self._num_files}
        for path in self._paths:
            mount = mount_of(path)
            if mount is not None:
                facts["mount"] = mount._asdict()
                break
        return facts

    def inspect(self, thing: Any, depth: int = 0) -> None:
        """Inspect the attributes of an object."""
        if depth > MAX_DEPTH or id(thing) in self._seen or perf_counter() > self._deadline:
            return
        self._seen.add(id(thing))
        try:
            attributes = object.__getattribute__(thing, "__dict__")
        except AttributeError:
            return
        for name, value in list(attributes.items()):
            if perf_counter() > self._deadline:
                return
            self._inspect_value(name, value, depth)

    def _inspect_value(self, name: str, value: Any, depth: int) -> None:
        kind = type(value)
        module = kind.__module__.partition(".")[0]
        if kind is str or isinstance(value, PurePath):
            self._note_path(os.fspath(value))
        elif kind in _PLAIN:
            self._inspect_container(name, value, depth)
        elif module == "numpy" and hasattr(value, "nbytes"):
            self._note_array(name, value)
        elif hasattr(kind, "element_size") and hasattr(kind, "numel"):  # on the class: instances may have any attribute
            self._array_bytes += value.numel() * value.element_size()
        elif module == "pandas" and hasattr(value, "dtypes") and hasattr(value, "columns"):
            num_columns = sum(1 for column in value.dtypes if str(column) == "object")
            self._note_objects(name, len(value) * num_columns, len(value) * num_columns * 60)
        elif module not in ("builtins", "torch", "threading", "logging", "_thread"):
            self.inspect(value, depth + 1)

    def _note_array(self, name: str, array: Any) -> None:
        file = getattr(array, "filename", None)
        if file is not None:
            self._mapped_bytes += int(array.nbytes)
            self._note_path(os.fspath(file))
        elif array.dtype.hasobject:
            self._note_objects(name, int(array.size), int(array.size) * 60)
        else:
            self._array_bytes += int(array.nbytes)

    def _inspect_container(self, name: str, held: Any, depth: int) -> None:
        """Estimate what a container holds from some of its elements."""
        num = len(held)
        if not num or id(held) in self._seen:
            return
        self._seen.add(id(held))
        if isinstance(held, list | tuple):
            some = [held[at] for at in range(0, num, max(1, num // NUM_INSPECTED))][:NUM_INSPECTED]
        else:
            some = list(islice(held.items() if isinstance(held, dict) else held, NUM_INSPECTED))
        counts, sizes = zip(*map(_count_objects, some))
        share = num / len(some)
        self._note_objects(name, int(sum(counts) * share), int(sum(sizes) * share))
        self._inspect_files(some, num)
        for element in some[:8]:
            if type(element) not in (*_PLAIN, str, bytes, int, float, bool):
                if type(element).__module__.partition(".")[0] == "numpy" and hasattr(element, "nbytes"):
                    self._array_bytes += int(element.nbytes * share)
                    share = 0
                else:
                    self.inspect(element, depth + 1)

    def _note_objects(self, name: str, num: int, size: int) -> None:
        self._num_objects += num
        self._object_bytes += size
        if num > self._most:
            self._most, self._held_in = num, name

    def _inspect_files(self, some: list[Any], num: int) -> None:
        """If elements are paths, or tuples that contain one, estimate how much there is to read."""
        names = []
        for element in some[:: max(1, len(some) // MAX_FILES)][:MAX_FILES]:
            parts = element if type(element) in (tuple, list) else (element,)
            text = next((part for part in parts if type(part) is str or isinstance(part, PurePath)), None)
            if text is not None:
                names.append(os.fspath(text))
        sizes = []
        for name in names:
            if perf_counter() > self._deadline:
                break
            for folder in ("", *self._paths[:2]):
                path = os.path.join(folder, name)
                if self._is_file(path):
                    sizes.append(os.path.getsize(path))
                    if len(self._paths) < MAX_FILES:
                        self._paths.append(path)
                    break
        if len(sizes) > len(names) // 2:
            self._files_bytes = (self._files_bytes or 0) + int(sum(sizes) / len(sizes) * num)
            self._num_files += num

    def _note_path(self, path: Any) -> None:
        if not isinstance(path, str) or len(self._paths) >= MAX_FILES or not 0 < len(path) < 4096:
            return
        try:
            if not os.path.exists(path) or (os.sep not in path and not os.path.isdir(path)):
                return
            self._paths.append(path)
            if os.path.isfile(path):
                self._files_bytes = (self._files_bytes or 0) + os.path.getsize(path)
                self._num_files += 1
        except (OSError, ValueError):
            return

    @staticmethod
    def _is_file(path: str) -> bool:
        try:
            return len(path) < 4096 and os.path.isfile(path)
        except ValueError:
            return False


def _count_objects(element: Any, depth: int = 0) -> tuple[int, int]:
    """Return how many objects an element of a container consists of, and their bytes."""
    kind = type(element)
    if kind not in (*_PLAIN, str, bytes, int, float, bool, complex, type(None)):
        return 1, 56
    num, size = 1, sys.getsizeof(element)
    if kind in _PLAIN and depth < 3 and len(element):
        some = list(islice(element.items() if kind is dict else element, 8))
        counts, sizes = zip(*(_count_objects(part, depth + 1) for part in some))
        share = len(element) / len(some)
        num, size = num + int(sum(counts) * share), size + int(sum(sizes) * share)
    return num, size
