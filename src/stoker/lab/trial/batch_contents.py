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
"""Deeper nesting is ignored: it may be circular."""

TEXT = (str, bytes, bytearray, memoryview)
ATOMS = (*TEXT, int, float, complex, type(None))


def num_samples_in(batch: Any, *, expected: int | None = None) -> int:
    """Return the number of samples in a batch, at least 1.

    It is the first dimension of tensors and arrays, or the length of a list of samples. If a batch is ambiguous, like
    a list of eight images of three channels, the reading that gives `expected` (the loader's `batch_size`) wins;
    otherwise the number that most parts have.
    """
    shape = getattr(batch, "shape", None)  # the most frequent case: this runs for every batch
    if isinstance(shape, tuple):  # torch.Size is a tuple
        return max(1, _first(shape) or 1)
    if expected is not None and expected in _lengths(batch, 0):
        return expected
    return max(1, _likely(batch, 0) or 1)


def num_bytes_in(batch: Any, depth: int = 0) -> int:
    """Return the size of the tensors, arrays and strings in a batch, in bytes."""
    if isinstance(batch, TEXT):
        return len(batch)
    num_bytes = getattr(batch, "nbytes", None)
    if isinstance(num_bytes, int):
        return num_bytes
    if depth == MAX_DEPTH:
        return 0
    return sum(num_bytes_in(part, depth + 1) for part in _parts(batch))


def _lengths(batch: Any, depth: int) -> Iterator[int]:
    """Yield every number that could be the number of samples."""
    if isinstance(batch, ATOMS) or depth == MAX_DEPTH:
        return
    length = _stated_length(batch)
    if length is not None:
        yield length
        return
    if _is_list(batch):
        yield len(batch)
    for part in _parts(batch):
        yield from _lengths(part, depth + 1)


def _likely(batch: Any, depth: int) -> int | None:
    """Return the most likely number of samples; None if nothing has a length."""
    if isinstance(batch, ATOMS) or depth == MAX_DEPTH:
        return None
    length = _stated_length(batch)
    if length is not None:
        return length
    inner = [length for part in _parts(batch) if (length := _likely(part, depth + 1)) is not None]
    if not _is_list(batch):
        return Counter(inner).most_common(1)[0][0] if inner else None
    if not inner:
        return len(batch)  # numbers, strings or unknown objects: one per sample
    # fields have one common length; samples in a list each have their own
    return inner[0] if len(set(inner)) == 1 and len(inner) == len(batch) else _of_fields(inner, batch)


def _of_fields(inner: list[int], batch: Any) -> int:
    """Return the length of a list whose parts differ: of fields if most agree, else of samples."""
    length, times = Counter(inner).most_common(1)[0]
    is_most = 2 * times > len(batch) or (len(batch) <= 3 and len(inner) < len(batch))
    return length if is_most else len(batch)


def _stated_length(batch: Any) -> int | None:
    """Return the number of samples that an object states: its first dimension, or an attribute."""
    if isinstance(batch, Mapping) and not hasattr(batch, "batch_size"):
        return None  # a key may be called `shape`
    shape = getattr(batch, "shape", None)
    if shape is not None and not callable(shape):
        return _first(shape)
    for name in ("batch_size", "num_graphs"):
        size = getattr(batch, name, None)
        if isinstance(size, int) and not isinstance(size, bool):
            return size
        if isinstance(size, tuple) and size and isinstance(size[0], int):  # of a TensorDict
            return size[0]
    sizes = getattr(batch, "batch_sizes", None)  # torch's PackedSequence: the number of sequences at each step
    return int(sizes[0]) if sizes is not None and len(sizes) else None


def _first(shape: Any) -> int | None:
    try:
        return int(shape[0]) if len(shape) else None
    except (TypeError, IndexError):
        return None


def _is_list(batch: Any) -> bool:
    return isinstance(batch, list | tuple) and not hasattr(batch, "_fields")


def _parts(batch: Any) -> Iterable[Any]:
    """Return the parts of a container, or of an object of a user's class."""
    inside = trees.children(batch)
    if inside is None and hasattr(batch, "__dict__") and not isinstance(batch, type) and not callable(batch):
        inside = vars(batch).values()
    return () if inside is None else inside


SCALARS = (str, bytes, int, float, complex, type(None))
"""Types that are the same for all samples of a batch, unless they are in a list."""


def resize_batch(batch: Any, *, num_samples: int, size: int) -> Any:
    """Return a batch of `size` samples, where the one at `position` is that at `position % num_samples` of `batch`.

    All tensors and arrays must have samples in their first dimension; lists may have one item per sample. Raise
    `ArgumentError` for other batches, of which a larger one cannot be made.
    """
    places = [position % num_samples for position in range(size)]
    num_changed = 0

    def change(part: Any) -> Any:
        nonlocal num_changed
        if _has_samples(part):
            if part.shape[0] != num_samples:
                raise _unknown(f"it contains an array of shape {tuple(part.shape)}", num_samples)
            num_changed += 1
            return part[places]
        if isinstance(part, list | tuple) and not hasattr(part, "_fields") and not _are_fields(part, num_samples):
            if len(part) != num_samples:
                raise _unknown(f"it contains a {type(part).__name__} of {len(part)}", num_samples)
            num_changed += 1
            return type(part)(part[place] for place in places)
        return _rebuilt(part, change)

    found = change(batch)
    if not num_changed:
        raise _unknown("it contains no tensor, array or list", num_samples)
    return found


def with_new_containers(batch: Any) -> Any:
    """Return a batch with the same contents in new containers, so that a step may change them."""
    return batch if hasattr(batch, "shape") else _rebuilt(batch, with_new_containers, is_strict=False)


def _rebuilt(part: Any, change: Callable[[Any], Any], *, is_strict: bool = True) -> Any:
    """Return a container of the same kind with changed parts; a leaf stays, or is refused if `is_strict`."""
    inside = trees.children(part)
    if inside is not None:
        return trees.rebuild(part, list(map(change, inside)))
    if is_strict and not isinstance(part, SCALARS) and not hasattr(part, "shape"):
        raise _unknown(f"the contents of {type(part).__name__} are unknown", None)
    return part


def _has_samples(part: Any) -> bool:
    return hasattr(part, "shape") and hasattr(part, "__getitem__") and len(part.shape) > 0


def _are_fields(parts: Any, num_samples: int) -> bool:
    """Whether the parts of a list are fields, each with all samples."""
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
