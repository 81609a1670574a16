"""A batch made larger or smaller: its samples again and again, or the first of them.

Nothing is imported for it: tensors and arrays of all libraries have a `shape`, and can be indexed by a list.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from stoker.errors import ArgumentError
from stoker.foundation import trees

ATOMS = (str, bytes, int, float, complex, type(None))
"""What is the same for all samples of a batch, where it is not in a list of them."""


def resized(batch: Any, *, num_samples: int, size: int) -> Any:
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


def renewed(batch: Any) -> Any:
    """Return a batch with the same contents in new containers: what a step takes out of a dict is there next time."""
    return batch if hasattr(batch, "shape") else _rebuilt(batch, renewed, is_strict=False)


def _rebuilt(part: Any, change: Callable[[Any], Any], *, is_strict: bool = True) -> Any:
    """Return a container of its kind whose parts are changed; a leaf is returned as it is, or refused."""
    inside = trees.children(part)
    if inside is not None:
        return trees.rebuild(part, list(map(change, inside)))
    if is_strict and not isinstance(part, ATOMS) and not hasattr(part, "shape"):
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
