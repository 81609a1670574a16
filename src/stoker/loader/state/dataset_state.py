"""What the `state_dict` of an iterable dataset can be used for.

By torchdata's convention the state of a dataset continues from epoch to epoch and is exact. Streams of Hugging Face
differ: each iteration begins at the start, or again at the state that was loaded last, until `set_epoch` is called. And
the samples in a shuffle buffer are not in the state.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from stoker.errors import StateUnreadable
from stoker.source.protocols import has_state, loads_state


def state_between_epochs(dataset: Any) -> Any:
    """Return the state with which a copy of the dataset begins the next epoch as the dataset would; None if none."""
    if _is_hugging_face(dataset) or not has_state(dataset):
        return None
    return copy.deepcopy(dataset.state_dict())


def load_own_state(target: Any, state: Any) -> None:
    """Load the state of a dataset, a sampler or an iterator that has one. `StateUnreadable` if that fails."""
    try:
        target.load_state_dict(state)
    except Exception as error:
        raise StateUnreadable(
            f"{type(target).__name__}.load_state_dict raised {type(error).__name__}: {error}"
        ) from error


def with_state(dataset: Any, state: Any) -> Any:
    """Return the dataset with a state loaded. That of Hugging Face is a copy: later epochs begin at the start again."""
    if not loads_state(dataset):
        return dataset
    if _is_hugging_face(dataset):
        # by hand: `copy` would give both of them one and the same dict of attributes
        original, dataset = dataset, object.__new__(type(dataset))
        vars(dataset).update(vars(original))
    load_own_state(dataset, state)
    return dataset


def has_exact_state(dataset: Any) -> bool:
    """Return whether a state in the middle of an epoch loses and repeats nothing."""
    if not _is_hugging_face(dataset):
        return True
    # the two exceptions in the documentation of their state_dict: shuffle buffers, and batches of tables
    parts = list(_parts(dataset._ex_iterable))
    has_buffer = any(type(part).__name__.startswith("BufferShuffled") for part in parts)
    return not has_buffer and not any(getattr(getattr(part, "formatting", None), "is_table", False) for part in parts)


def _is_hugging_face(dataset: Any) -> bool:
    return hasattr(dataset, "_ex_iterable") and type(dataset).__module__.partition(".")[0] == "datasets"


def _parts(iterable: Any) -> Iterator[Any]:
    """Yield a source of Hugging Face and those inside it: `shuffle`, `map` and the like wrap each other."""
    yield iterable
    inside = [getattr(iterable, "ex_iterable", None), *getattr(iterable, "ex_iterables", ())]
    for part in inside:
        if part is not None:
            yield from _parts(part)
