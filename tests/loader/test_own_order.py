"""A dataset that owns its order without being a mixture: the loader asks for the protocol, not for a class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

import stoker
from stoker.compose.mixtures.mixture import Mixture
from stoker.errors import ArgumentError, StateMismatch
from stoker.source.protocols import mixes_sources, owns_order, saves_order
from tests.loader.datasets import Numbers


class Curriculum:
    """Numbers from easy to hard, `size` to an epoch; a new run may begin elsewhere if the state says so."""

    owns_order = True

    def __init__(self, size: int, *, begin: int = 0) -> None:
        self.size, self.begin = size, begin

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: int) -> int:
        return self.begin + position

    def state(self, epoch: int, position: int) -> dict[str, Any]:
        return {"begin": self.begin, "epoch": epoch, "position": position}

    def resumed(self, state: Any) -> Curriculum:
        if not isinstance(state, Mapping):
            raise StateMismatch({"curriculum": (state, self.begin)})
        return Curriculum(self.size, begin=state["begin"])

    def has_changed_since(self, state: Mapping[str, Any]) -> bool:
        return bool(state["begin"] != self.begin)


class Fixed(Numbers):
    """Has an order of its own that never changes, so that no state is needed for it."""

    owns_order = True


ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_threads": 2},
    "workers": {"num_workers": 2},
}


def samples(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_it_is_read_in_its_own_order(engine: dict[str, Any]) -> None:
    assert samples(stoker.DataLoader(Curriculum(8), batch_size=3, **engine)) == list(range(8))


@pytest.mark.parametrize("options", [{"shuffle": True}, {"order": "shuffle"}, {"sampler": [0, 1]}], ids=str)
def test_another_order_is_refused(options: dict[str, Any]) -> None:
    for dataset in (Curriculum(8), Fixed(8)):
        with pytest.raises(ArgumentError, match="has an order of its own"):
            stoker.DataLoader(dataset, **options)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_its_state_is_saved_and_resumed_with_the_loaders(engine: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Curriculum(12, begin=100), batch_size=3, **engine)
    iterator = iter(loader)
    seen = [int(number) for _ in range(2) for number in next(iterator)]
    state = json.loads(json.dumps(loader.state_dict()))
    iterator.close()
    again = stoker.DataLoader(Curriculum(12), batch_size=2, **engine)
    again.load_state_dict(state)
    assert seen + samples(again) == list(range(100, 112))


def test_it_refuses_a_state_that_is_not_its_own() -> None:
    state = stoker.DataLoader(Numbers(8)).state_dict()
    loader = stoker.DataLoader(Curriculum(8))
    with pytest.raises(StateMismatch, match="curriculum"):
        loader.load_state_dict(state)
    assert samples(loader) == list(range(8))


def test_an_order_that_never_changes_is_compared_like_any_data() -> None:
    state = stoker.DataLoader(Fixed(8)).state_dict()
    with pytest.raises(StateMismatch, match="dataset_length"):
        stoker.DataLoader(Fixed(9)).load_state_dict(state)


def test_what_it_does_not_offer_is_not_asked_for() -> None:
    loader = stoker.DataLoader(Curriculum(8), batch_size=4)
    with pytest.raises(AttributeError, match="only mixtures have counts"):
        _ = loader.counts
    assert [(place.step, place.row) for place in loader.find(5)] == [(1, 1)]
    assert [content.position for content in loader.contents(1)] == [4, 5, 6, 7]


def test_a_mixture_offers_all_of_it() -> None:
    mixture = stoker.mix({"a": (Numbers(8), 0.5), "b": (Numbers(8), 0.5)})
    assert isinstance(mixture, Mixture)
    for offers in (owns_order, saves_order, mixes_sources):
        assert offers(mixture)
        assert not offers(Numbers(8))
    assert saves_order(Curriculum(8))
    assert not mixes_sources(Curriculum(8))
    assert not saves_order(Fixed(8))
