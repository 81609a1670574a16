"""How far an iteration is: what was *yielded*, saved and restored.

A progress belongs to one iteration. It is advanced when a batch is handed to the trainer, never when one is prefetched,
and turns into a small JSON-serialisable state and back. There is one kind for each way to know what comes: a plan, a
user's sampler, a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import torch

from stoker.batch.result import BatchResult
from stoker.errors import StateError, StateUnreadable
from stoker.loader.state.fields import check_fields
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

    def advance(self, made: BatchResult) -> None:
        """Note that a batch was handed over."""
        ...

    def begin_digest(self) -> None:
        """Let the digest begin here."""
        ...

    def finish(self) -> None:
        """Note that the epoch is over: the next one begins."""
        ...

    def state(self) -> dict[str, Any]:
        """Return where this is."""
        ...

    def resumed(self, state: dict[str, Any]) -> Progress:
        """Return the place in `state`, for this loader. Fields that make no sense raise ValueError.

        Nothing else changes: the state may still be refused.
        """
        ...

    def take_up(self) -> None:
        """Bring what is the user's, such as a sampler, to where a state was taken."""
        ...


_COMMON = "epoch step seed"
_FIELDS = {
    "plan": "plan batch_size origin skip rank num_ranks position digest digest_since ahead",
    "sampler": "num_batches num_samples batch_size sampler sampler_length sampler_state sampler_epoch generator ahead "
    "is_ended digest",
    "stream": "sharing num_workers num_ranks rank place digest",
}
_NESTED = ("mixture", "place", "sampler_state", "dataset_state")
"""Entries whose contents have other names from one state to the next."""


def readable(state: Any) -> dict[str, Any]:
    """Return `state` if it is one of ours, with every field it should have."""
    if not isinstance(state, dict):
        raise StateUnreadable(f"it is a {type(state).__name__}, not a dict")
    if "version" not in state or "kind" not in state:
        keys = ", ".join(sorted(map(str, state))) or "none"
        raise StateUnreadable(f"it has no version and kind; its keys are {keys}")
    if type(state["version"]) is not int or state["version"] != VERSION:
        raise StateUnreadable(f"it has version {state['version']!r}, and this Stoker reads version {VERSION}")
    if not isinstance(state["kind"], str) or state["kind"] not in _FIELDS:
        raise StateUnreadable(f"its kind is {state['kind']!r}")
    missing = {*_COMMON.split(), *_FIELDS[state["kind"]].split()} - set(state)
    if missing:
        raise StateUnreadable(f"its kind is {state['kind']!r} and it lacks {', '.join(sorted(missing))}")
    # older states have these entries open, and a sampler's own state may be a list
    names = _NESTED if "checksums" in state else [name for name in _NESTED if name != "sampler_state"]
    found = state | {name: _only(state[name], name) for name in names if isinstance(state.get(name), tuple | list)}
    check_fields(found)
    return found


def _only(entry: Sequence[Any], name: str) -> Any:
    if len(entry) != 1:
        raise StateUnreadable(f"its {name} must be a list of one entry, got {len(entry)} entries")
    return entry[0]


def enclosed(state: dict[str, Any]) -> dict[str, Any]:
    """Return `state` with its nested entries in tuples of one, which JSON makes lists; `readable` takes them out.

    torch.distributed.checkpoint takes dicts apart, reads only those names that the reader's own state has, and refuses
    a checkpoint that lacks one of them. Tuples it saves whole.
    """
    return state | {name: (state[name],) for name in _NESTED if state.get(name) is not None}


def differing(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the entries that are not the same, as (theirs, ours)."""
    return {
        name: (theirs.get(name), ours.get(name))
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name) != ours.get(name)
    }


_IDENTITY = "dataset dataset_length mixture"
_DIGEST = {"digest", "digest_since"}
_RANK = {"rank", "num_ranks"}


def checksums(state: dict[str, Any]) -> list[int]:
    """Return a checksum of what decides which samples come next, and one of the rank and its digest.

    torch.distributed.checkpoint saves each entry of a dict once, from any rank, and reads only what the dict of the
    reader has entries for. So what comes back may be put together from the states of several ranks.
    """
    # ranks of a plan or a stream that all read are interchangeable, unless their batches have overtaken each other
    is_whole = state["kind"] == "stream" and state["sharing"] == "whole"
    is_shared = state["kind"] == "sampler" or is_whole or (state["kind"] == "plan" and not state["ahead"])
    names = {*_COMMON.split(), *_IDENTITY.split(), *_FIELDS[state["kind"]].split()} - _DIGEST
    parts = (names - _RANK if is_shared else names, _RANK | _DIGEST)
    return [crc32(json.dumps([_plain(state.get(name)) for name in sorted(part)]).encode()) for part in parts]


def _plain(value: Any) -> Any:
    """Return a value as JSON would have it; of arrays and tensors, a checksum; of what else does not fit, its type."""
    if isinstance(value, dict):
        return sorted((str(name), _plain(entry)) for name, entry in value.items())
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes | bytearray):
        return crc32(value)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return crc32(value.tobytes())
    return type(value).__name__


def check_sums(progress: Progress, state: dict[str, Any]) -> None:
    """Refuse a state whose entries are of several ranks; where they differ in the digest alone, begin a new one."""
    saved, found = state.get("checksums"), checksums(state)
    if saved in (None, found):
        return
    if saved[0] != found[0]:
        raise StateError(
            "the state was changed: it is put together from those of several ranks or lacks entries, as states do that "
            "torch.distributed.checkpoint has saved entry by entry\n"
            'hint: save the state of each rank as one entry, {f"loader_{rank}": json.dumps(loader.state_dict())}'
        )
    progress.begin_digest()
