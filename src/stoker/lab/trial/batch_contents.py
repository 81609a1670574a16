"""Samples and bytes of any batch, however it is nested; and batches made larger or smaller.

Nothing is imported for it: tensors and arrays of all libraries have `shape` and `nbytes`, and can be indexed by a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from stoker.errors import ArgumentError
from stoker.foundation import trees

MAX_DEPTH = 16
"""Nested deeper than that, nothing is looked at: it may be a ring."""

TEXT = (str, bytes, bytearray, memoryview)
ATOMS = (*TEXT, int, float, complex, type(None))


def num_samples_in(batch: Any, *, expected: int | None = None) -> int:
    """Return the number of samples in a batch, at least 1.

    It is the length of what lies in it: the first dimension of tensors and arrays, or the length of a list of samples.
    Where a batch can be read in several ways, such as eight pictures of three channels in a list, the one that gives
    `expected` (the loader's `batch_size`) is meant; otherwise what most parts agree on.
    """
    shape = getattr(batch, "shape", None)  # the most frequent kind, and this runs for every batch
    if isinstance(shape, tuple):  # torch's is one, too
        return max(1, _first(shape) or 1)
    if expected is not None and expected in _lengths(batch, 0):
        return expected
    return max(1, _likely(batch, 0) or 1)


def num_bytes_in(batch: Any, depth: int = 0) -> int:
    """Return the bytes of the tensors, arrays and texts in a batch."""
    if isinstance(batch, TEXT):
        return len(batch)
    num_bytes = getattr(batch, "nbytes", None)
    if isinstance(num_bytes, int):
        return num_bytes
    if depth == MAX_DEPTH:
        return 0
    return sum(num_bytes_in(part, depth + 1) for part in _parts(batch))


def _lengths(batch: Any, depth: int) -> Iterator[int]:
    """Yield every number that could be meant."""
    if isinstance(batch, ATOMS) or depth == MAX_DEPTH:
        return
    told = _told(batch)
    if told is not None:
        yield told
        return
    if _is_list(batch):
        yield len(batch)
    for part in _parts(batch):
        yield from _lengths(part, depth + 1)


def _likely(batch: Any, depth: int) -> int | None:
    """Return what a batch of this structure most likely holds; None if nothing in it has a length."""
    if isinstance(batch, ATOMS) or depth == MAX_DEPTH:
        return None
    told = _told(batch)
    if told is not None:
        return told
    inner = [length for part in _parts(batch) if (length := _likely(part, depth + 1)) is not None]
    if not _is_list(batch):
        return Counter(inner).most_common(1)[0][0] if inner else None
    if not inner:
        return len(batch)  # of numbers, texts, or things that are not known: one for each sample
    # fields side by side have one length; samples of a list have each their own
    return inner[0] if len(set(inner)) == 1 and len(inner) == len(batch) else _of_fields(inner, batch)


def _of_fields(inner: list[int], batch: Any) -> int:
    """Return the length of a list whose parts do not agree: fields if most of them do, or samples."""
    length, times = Counter(inner).most_common(1)[0]
    is_most = 2 * times > len(batch) or (len(batch) <= 3 and len(inner) < len(batch))
    return length if is_most else len(batch)


def _told(batch: Any) -> int | None:
    """Return what something says by itself: its first dimension, or how many it holds."""
    if isinstance(batch, Mapping) and not hasattr(batch, "batch_size"):
        return None  # a key may well be called `shape`
    shape = getattr(batch, "shape", None)
    if shape is not None and not callable(shape):
        return _first(shape)
    for name in ("batch_size", "num_graphs"):
        told = getattr(batch, name, None)
        if isinstance(told, int) and not isinstance(told, bool):
            return told
        if isinstance(told, tuple) and told and isinstance(told[0], int):  # of a TensorDict
            return told[0]
    sizes = getattr(batch, "batch_sizes", None)  # of torch's PackedSequence: sequences that are there at each step
    return int(sizes[0]) if sizes is not None and len(sizes) else None


def _first(shape: Any) -> int | None:
    try:
        return int(shape[0]) if len(shape) else None
    except (TypeError, IndexError):
        return None


def _is_list(batch: Any) -> bool:
    return isinstance(batch, list | tuple) and not hasattr(batch, "_fields")


def _parts(batch: Any) -> Iterable[Any]:
    """Return what is inside a container, or inside an object of a class of the user's."""
    inside = trees.children(batch)
    if inside is None and hasattr(batch, "__dict__") and not isinstance(batch, type) and not callable(batch):
        inside = vars(batch).values()
    return () if inside is None else inside


SCALARS = (str, bytes, int, float, complex, type(None))
"""What is the same for all samples of a batch, where it is not in a list of them."""


def resize_batch(batch: Any, *, num_samples: int, size: int) -> Any:
    """Return a batch of `size` samples, where the one at `position` is that at `position % num_samples` of `batch`.

    All tensors and arrays in it have samples in their first dimension; a list may hold one thing for each sample. A
    batch of any other form is refused: what a larger one is like cannot be known.
    """
    places = [position % num_samples for position in range(size)]
    num_changed = 0

    def change(part: Any) -> Any:
        nonlocal num_changed
        if _has_samples(part):
            if part.shape[0] != num_samples:
                raise _unknown(f"it has something of shape {tuple(part.shape)} in it", num_samples)
            num_changed += 1
            return part[places]
        if isinstance(part, list | tuple) and not hasattr(part, "_fields") and not _are_fields(part, num_samples):
            if len(part) != num_samples:
                raise _unknown(f"it has a {type(part).__name__} of {len(part)} in it", num_samples)
            num_changed += 1
            return type(part)(part[place] for place in places)
        return _rebuilt(part, change)

    found = change(batch)
    if not num_changed:
        raise _unknown("it has no tensor, array or list", num_samples)
    return found


def with_new_containers(batch: Any) -> Any:
    """Return a batch with the same contents in new containers: what a step takes out of a dict is there next time."""
    return batch if hasattr(batch, "shape") else _rebuilt(batch, with_new_containers, is_strict=False)


def _rebuilt(part: Any, change: Callable[[Any], Any], *, is_strict: bool = True) -> Any:
    """Return a container of its kind whose parts are changed; a leaf is returned as it is, or refused."""
    inside = trees.children(part)
    if inside is not None:
        return trees.rebuild(part, list(map(change, inside)))
    if is_strict and not isinstance(part, SCALARS) and not hasattr(part, "shape"):
        raise _unknown(f"what is in a {type(part).__name__} is not known", None)
    return part


def _has_samples(part: Any) -> bool:
    return hasattr(part, "shape") and hasattr(part, "__getitem__") and len(part.shape) > 0


def _are_fields(parts: Any, num_samples: int) -> bool:
    """Whether a list is of things that each have all samples, and not of samples."""
    return bool(parts) and all(_is_field(part, num_samples) for part in parts)


def _is_field(part: Any, num_samples: int) -> bool:
    if _has_samples(part):
        return bool(part.shape[0] == num_samples)
    if isinstance(part, list | tuple):
        return len(part) == num_samples or _are_fields(part, num_samples)
    if isinstance(part, MutableMapping):
        return all(_is_field(value, num_samples) for value in part.values())
    return False


def _unknown(why: str, num_samples: int | None) -> ArgumentError:
    of = "" if num_samples is None else f" of {num_samples} samples"
    return ArgumentError(
        f"the loader's batch{of} cannot be made larger by repeating samples: {why}",
        hint="let the function make the batch: `def make_sized_step(batch_size): ...`, with `def step(): ...`",
    )
