"""Datasets inside other datasets: find the data that a user's wrapper reads from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from stoker.source.protocols import has_epochs, own_fingerprint, owns_order

SHUFFLED_MIXTURE = (
    "the dataset contains a mixture and is shuffled, so the shares of its sources hold only on average and not in "
    "every stretch of training\n"
    "hint: leave out shuffle, order and sampler: mix(order=..., seed=...) shuffles each source already"
)
"""Warning for a loader that shuffles a wrapper around a mixture."""

SORTED_ROWS = (
    "the rows of a pack lie sorted by the lengths of their documents, and this loader reads them in that order\n"
    "hint: pass shuffle=True to train on them, or order='sequential' if you want them as they lie, to validate for one"
)
"""Warning for a loader that does not shuffle a pack and does not say that it means it."""

HIDDEN_EPOCHS = (
    "the dataset contains one with an in_epoch() that its wrapper does not pass on, so every epoch has the same "
    "content\n"
    "hint: give the wrapper an in_epoch(epoch) that wraps dataset.in_epoch(epoch)"
)
"""Warning for a loader over a wrapper that hides the epochs of the data inside."""

MAX_DEPTH = 6
"""Wrappers inside wrappers; deeper than any real one."""

MAX_ITEMS = 64
"""Entries of a list or dict that is searched: larger ones hold samples, not datasets."""

MAX_OBJECTS = 1000
"""Objects that are looked at before the search gives up."""

NUM_PROBES = 1024
"""Indices of a `Subset` that are hashed: evenly spaced, so that a long list costs no more than a short one."""


def fingerprint_of(dataset: Any) -> str | None:
    """Return the fingerprint of a dataset, or that of the data inside its wrappers; None if nothing inside has one.

    Looks into lists, tuples, dicts and the attributes of objects that can be indexed or iterated over. A wrapper around
    one dataset has the fingerprint of that dataset; a `Subset` adds its indices, and several datasets are combined in
    order. Takes microseconds and never raises.
    """
    try:
        found = _DatasetSearch().fingerprints(dataset, 0)
    except Exception:  # a dataset that cannot be examined has no fingerprint
        return None
    if not found:
        return None
    return found[0] if len(found) == 1 else _combined("several", *found)


def has_wrapped_mixture(dataset: Any) -> bool:
    """Return whether a mixture is inside a wrapper. False for a mixture itself, whose order the loader knows."""
    if owns_order(dataset):
        return False
    try:
        return _DatasetSearch().finds(dataset, 0, owns_order)
    except Exception:
        return False


def hides_epochs(dataset: Any) -> bool:
    """Return whether a wrapper hides that the data inside has another content in each epoch.

    Datasets of this package are read through any wrapper in the epoch that it is.
    """
    if has_epochs(dataset):
        return False
    try:
        return _DatasetSearch().finds(dataset, 0, lambda value: has_epochs(value) and not _is_in_package(value))
    except Exception:
        return False


def has_sorted_rows(dataset: Any) -> bool:
    """Return whether a dataset is, or wraps, rows that lie sorted by length.

    False where the order is chosen already: by a mixture, or by the indices of a `Subset`.
    """
    try:
        return _DatasetSearch().finds(dataset, 0, _is_sorted, unless=_has_chosen_order)
    except Exception:
        return False


class _DatasetSearch:
    """One walk through a dataset and what it contains."""

    def __init__(self) -> None:
        self._num_objects = 0
        self._open: set[int] = set()
        """Objects that contain the one that is looked at: a cycle ends here."""

    def fingerprints(self, value: Any, depth: int) -> list[str]:
        own = own_fingerprint(value)
        if own is not None:
            return [own]
        inside = [self.fingerprints(part, depth + 1) for part in self._parts(value, depth)]
        if not isinstance(value, (list, tuple, dict)):
            # two attributes may name the same data; two entries of a list are data that comes twice
            inside = [part for number, part in enumerate(inside) if part not in inside[:number]]
        found = [fingerprint for part in inside for fingerprint in part]
        indices = _subset_indices(value) if found else None
        return found if indices is None else [_combined("subset", *found, indices)]

    def finds(
        self, value: Any, depth: int, wanted: Callable[[Any], bool], *, unless: Callable[[Any], bool] | None = None
    ) -> bool:
        """Return whether `value` is what is wanted or contains it; nothing inside what `unless` is true for counts."""
        if unless is not None and unless(value):
            return False
        return wanted(value) or any(
            self.finds(part, depth + 1, wanted, unless=unless) for part in self._parts(value, depth)
        )

    def _parts(self, value: Any, depth: int) -> Iterator[Any]:
        """Yield what is directly inside `value` and may be a dataset."""
        self._num_objects += 1
        if depth >= MAX_DEPTH or self._num_objects > MAX_OBJECTS or id(value) in self._open:
            return
        self._open.add(id(value))
        try:
            for part in _contents(value):
                if isinstance(part, (list, tuple, dict)) or _is_readable(part):
                    yield part
        finally:
            self._open.discard(id(value))


def _contents(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values()) if len(value) <= MAX_ITEMS else []
    if isinstance(value, (list, tuple)):
        return list(value) if len(value) <= MAX_ITEMS else []
    if not _is_readable(value):
        return []
    if _is_in_package(value):
        # what else is in our own objects are caches, which change while they are read
        sources = getattr(value, "sources", None)
        return list(sources.values()) if isinstance(sources, Mapping) else []
    attributes = list(getattr(value, "__dict__", {}).values())
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        attributes += [getattr(value, name, None) for name in ((slots,) if isinstance(slots, str) else slots)]
    return attributes


def _is_readable(value: Any) -> bool:
    """Return whether samples may come out of `value`; not so of classes, functions, numbers and text."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, (type, np.ndarray)):
        return False
    return hasattr(kind, "__getitem__") or hasattr(kind, "__iter__")


_PLAIN = frozenset({str, bytes, bytearray, memoryview, range, set, frozenset})


def _is_in_package(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "stoker"


def _is_sorted(value: Any) -> bool:
    return getattr(value, "rows_are_sorted", False) is True


def _has_chosen_order(value: Any) -> bool:
    return owns_order(value) or (hasattr(value, "indices") and hasattr(value, "dataset"))


def _subset_indices(value: Any) -> str | None:
    """Return a hash of the indices of torch's `Subset`, or of anything that looks like one; None for other objects."""
    indices = getattr(value, "indices", None)
    if indices is None or not hasattr(value, "dataset"):
        return None
    try:
        size = len(indices)
        probes = (
            range(size) if size <= NUM_PROBES else [at * (size - 1) // (NUM_PROBES - 1) for at in range(NUM_PROBES)]
        )
        chosen = np.array([int(indices[at]) for at in probes], np.int64)
    except (TypeError, ValueError, OverflowError, LookupError):
        return None
    return f"{size}.{hashlib.blake2b(chosen.tobytes(), digest_size=8).hexdigest()}"


def _combined(*texts: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        field = text.encode("utf-8", "surrogateescape")
        digest.update(len(field).to_bytes(8, "little") + field)
    return digest.hexdigest()
