"""How far an iteration is: what was *yielded*, saved and restored.

A progress belongs to one iteration. It is advanced when a batch is handed to the trainer, never when one is prefetched,
and turns into a small JSON-serialisable state and back. There is one kind for each way to know what comes: a plan, a
user's sampler, a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from stoker.errors import StateUnreadable
from stoker.loader.work import Made
from stoker.plan import Recipe

VERSION = 1


class Progress(Protocol):
    """One iteration's place in the stream of samples."""

    epoch: int
    last: Recipe | None
    """The recipe of the batch that was yielded last."""

    def go_on_from(self, previous: Any) -> None:
        """Count on from the iteration before this one."""
        ...

    def recipes(self) -> Iterator[Any]:
        """Yield what is to be made from here to the end of the epoch."""
        ...

    @property
    def is_at_start(self) -> bool:
        """Whether nothing of the epoch is behind us."""
        ...

    def skip_first(self, num_batches: int) -> int:
        """Pass over so many batches of the epoch, from its beginning; return how many are yet to be drawn for that."""
        ...

    def advance(self, made: Made) -> None:
        """Note that a batch was handed over."""
        ...

    def finish(self) -> None:
        """Note that the epoch is over: the next one begins."""
        ...

    def state(self) -> dict[str, Any]:
        """Return where this is."""
        ...

    def resumed(self, state: dict[str, Any]) -> Progress:
        """Return the place that `state` tells of, for this loader. Fields that make no sense raise ValueError."""
        ...


_COMMON = "epoch step seed"
_FIELDS = {
    "plan": "plan batch_size origin skip rank num_ranks position digest digest_since ahead",
    "sampler": "num_batches num_samples batch_size sampler sampler_length sampler_state sampler_epoch generator ahead "
    "is_ended digest",
    "stream": "sharing num_workers num_ranks rank place digest",
}


def readable(state: Any) -> dict[str, Any]:
    """Return `state` if it is one of ours, with every field it should have."""
    if not isinstance(state, dict):
        raise StateUnreadable(f"it is a {type(state).__name__}, not a dict")
    if "version" not in state or "kind" not in state:
        keys = ", ".join(sorted(map(str, state))) or "none"
        raise StateUnreadable(f"it has no version and kind; its keys are {keys}")
    if state["version"] != VERSION:
        raise StateUnreadable(f"it has version {state['version']!r}, and this Stoker reads version {VERSION}")
    if state["kind"] not in _FIELDS:
        raise StateUnreadable(f"its kind is {state['kind']!r}")
    missing = {*_COMMON.split(), *_FIELDS[state["kind"]].split()} - set(state)
    if missing:
        raise StateUnreadable(f"its kind is {state['kind']!r} and it lacks {', '.join(sorted(missing))}")
    return state


def differing(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the entries that are not the same, as (theirs, ours)."""
    return {
        name: (theirs.get(name), ours.get(name))
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name) != ours.get(name)
    }
