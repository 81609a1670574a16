"""States in which something is not what a loader has written: they load, or are refused with an error of ours."""

from __future__ import annotations

import copy
import json
import operator
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler

import stoker
from stoker.errors import StateError, StateUnreadable
from tests.loader.datasets import Numbers, plain


class Stateful(Numbers):
    """A dataset with a state of its own."""

    def __init__(self) -> None:
        super().__init__(60)
        self.seen = 0

    def __getitem__(self, position: int) -> int:
        self.seen += 1
        return super().__getitem__(position)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "nested": {"list": [self.seen]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = operator.index(state["seen"]) + 0 * operator.index(state["nested"]["list"][0])


class Stream(IterableDataset[int]):
    """Counts."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(60))


class StatefulStream(IterableDataset[int]):
    """Counts from where its state says."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 60:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = range(61)[state["at"]]  # refuses what is no such place


class StatefulSampler:
    """Counts, and says how far it is."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return 60

    def __iter__(self) -> Iterator[int]:
        while self.at < 60:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = range(61)[state["at"]]  # refuses what is no such place


def mixture() -> Any:
    return stoker.mix({"a": (Numbers(40), 0.7), "b": (Numbers(30), 0.3)})


def batch_sampler() -> BatchSampler:
    return BatchSampler(RandomSampler(Numbers(60), generator=torch.Generator()), 5, drop_last=False)


LOADERS: dict[str, Callable[[], stoker.DataLoader[Any]]] = {
    "plan": lambda: stoker.DataLoader(Numbers(60), batch_size=5, shuffle=True, seed=1),
    "ranks": lambda: stoker.DataLoader(Numbers(60), batch_size=5, order="window", seed=1, rank=1, num_ranks=2),
    "stateful dataset": lambda: stoker.DataLoader(Stateful(), batch_size=5),
    "mixture": lambda: stoker.DataLoader(mixture(), batch_size=5, seed=1),
    "sampler": lambda: stoker.DataLoader(
        Numbers(60), batch_size=5, sampler=RandomSampler(Numbers(60), generator=torch.Generator())
    ),
    "stateful sampler": lambda: stoker.DataLoader(Numbers(60), batch_size=5, sampler=StatefulSampler()),
    "batch sampler": lambda: stoker.DataLoader(Numbers(60), batch_sampler=batch_sampler()),
    "stream": lambda: stoker.DataLoader(Stream(), batch_size=5),
    "stateful stream": lambda: stoker.DataLoader(StatefulStream(), batch_size=5),
    "shared stream": lambda: stoker.DataLoader(Stream(), batch_size=5, shard="auto", rank=1, num_ranks=2),
}

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    7,
    2**63,
    10**400,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "12",
    "QUJD",
    "é\ud800",
    b"\xff",
    [],
    [None],
    [1],
    [[]],
    [1, 2, 3, 4],
    [[0, 1]],
    [["a", "b"]],
    (),
    ((),),
    {},
    {"a": 1},
    {1: [2]},
    [{}],
    {"x"},
    object(),
    int,
    torch.arange(3),
]


def states_of(name: str) -> list[dict[str, Any]]:
    """Return states from the beginning, the middle and the end of an epoch, as they are and through JSON."""
    loader = LOADERS[name]()
    states = [loader.state_dict()]
    for number, _ in enumerate(loader):
        if number == 2:
            states.append(loader.state_dict())
    states.append(loader.state_dict())
    return [*map(copy.deepcopy, states), *(json.loads(json.dumps(state)) for state in states)]


LENGTHS = {name: len(list(make())) for name, make in LOADERS.items()}
STATES = {name: states_of(name) for name in LOADERS}


def without_checksums(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as versions wrote it that had none, and a sampler's own state open."""
    kept = {key: value for key, value in state.items() if key != "checksums"}
    return kept | {key: value[0] for key, value in kept.items() if key == "sampler_state" and value is not None}


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything inside a state."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list | tuple):
            yield from places_in(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of a state with something else at a place."""
    if not path:
        return new
    inner = replaced(value[path[0]], path[1:], new)
    if isinstance(value, dict):
        return {**value, path[0]: inner}
    return type(value)([*value[: path[0]], inner, *value[path[0] + 1 :]])


def read_on(loader: stoker.DataLoader[Any]) -> list[Any]:
    """Return what is left of the epoch."""
    return [plain(batch) for batch in loader]


def read_on_or_refuse(loader: stoker.DataLoader[Any]) -> None:
    """Read what is left. What only a stream or a sampler can judge is refused when that takes up its state."""
    with suppress(StateError):
        read_on(loader)
        loader.state_dict()


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors])
@given(data=st.data(), name=st.sampled_from(list(LOADERS)), keeps_checksums=st.booleans())
def test_a_state_with_any_field_replaced_loads_or_is_refused(
    data: st.DataObject, name: str, keeps_checksums: bool
) -> None:
    state = data.draw(st.sampled_from(STATES[name]))
    if not keeps_checksums:  # they find most changes, and states of older versions have none
        state = without_checksums(state)
    path = data.draw(st.sampled_from(list(places_in(state))))
    loader = LOADERS[name]()
    before = loader.state_dict()
    try:
        loader.load_state_dict(replaced(state, path, data.draw(st.sampled_from(ODD))))
    except StateError:
        assert loader.state_dict() == before  # a refused state changes nothing
        assert len(read_on(loader)) == LENGTHS[name]
        return
    read_on_or_refuse(loader)


@pytest.mark.parametrize("name", LOADERS)
def test_a_state_that_nothing_was_done_to_loads(name: str) -> None:
    for state in STATES[name]:
        loader = LOADERS[name]()
        loader.load_state_dict(state)
        again = LOADERS[name]()
        again.load_state_dict(without_checksums(state))
        assert read_on(loader) == read_on(again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "x"}, "version 'x'"),
        ({"kind": ["plan"]}, r"its kind is \['plan'\]"),
        ({"epoch": "3"}, "its epoch must be an integer of at least 0, got '3'"),
        ({"step": 1.5}, "its step must be an integer of at least 0, got 1.5"),
        ({"seed": None}, "its seed must be an integer, got None"),
        ({"plan": []}, r"its plan must be a dict, got \[\]"),
        ({"skip": [1]}, r"its skip must be pairs of integers .* got \[1\]"),
        ({"digest": 5}, "its digest must be 16 hexadecimal digits, got 5"),
        ({"checksums": 5}, "its checksums must be"),
        ({"served": "many"}, "its served must be an integer of at least 0, got 'many'"),
    ],
    ids=str,
)
def test_a_field_of_another_type_is_named(change: dict[str, Any], message: str) -> None:
    loader = LOADERS["plan"]()
    with pytest.raises(StateUnreadable, match=message):
        loader.load_state_dict(loader.state_dict() | change)
