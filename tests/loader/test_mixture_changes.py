"""Mixtures in loaders where something goes wrong or changes: bad samples, other terms, sources that leave."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker.errors import ArgumentError, StateError
from tests.loader.datasets import KeyedMany, KeyedOnly, KeyedWhole

# batch sizes are tried in these that are not the schedule's
pytestmark = pytest.mark.filterwarnings("ignore:the mixture's schedule counts")

ENGINES: list[dict[str, Any]] = [{}, {"num_threads": 2}, {"num_workers": 1}, {"num_workers": 1, "num_threads": 2}]


class Named:
    """Sample i is a table of the name and i."""

    def __init__(self, name: str, length: int, bad: int | None = None) -> None:
        self.name, self.length, self.bad = name, length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> Any:
        if position == self.bad:
            raise ValueError(f"{position} is bad")
        return {"name": ord(self.name), "position": position}


def plain(state: Any) -> Any:
    return json.loads(json.dumps(state))


def mixed(weights: dict[str, float], sizes: dict[str, int] | None = None, **options: Any) -> stoker.Mixture:
    lengths = {"a": 10, "b": 7, "c": 5} | (sizes or {})
    sources = {name: (Named(name, lengths[name]), weight) for name, weight in weights.items()}
    return stoker.mix(sources, **{"changes": True} | options)


def names(batch: Any) -> str:
    return "".join(map(chr, batch["name"].tolist()))


def after(loader: Any, num_batches: int) -> Any:
    """Return the state after so many batches."""
    iterator = iter(loader)
    for _ in range(num_batches):
        next(iterator)
    state = plain(loader.state_dict())
    iterator.close()
    return state


# ---------------------------------------------------------------- bad samples


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stop", ["never", 40])
def test_what_takes_the_place_of_a_bad_sample_is_of_its_source(engine: dict[str, Any], stop: Any) -> None:
    sources = {"a": (Named("a", 10, bad=3), 0.5), "b": (Named("b", 20), 0.5)}
    mixture = stoker.mix(sources, stop=stop, label="source")
    loader = stoker.DataLoader(mixture, batch_size=4, seed=1, on_error=stoker.Policy(max_rate=None), **engine)
    iterator = iter(loader)
    for step in range(10):
        batch = next(iterator)
        assert names(batch) == "".join(mixture.at(4 * step + row)[0] for row in range(4))
        assert names(batch) == "".join(mixture.names[number] for number in batch["source"].tolist())
        counts = [list(mixture.counts(4 * step + row + 1).values()) for row in range(4)]
        assert batch["source_counts"].tolist() == counts
    iterator.close()
    assert len(loader.ledger) == 2
    for skipped in loader.ledger:
        bad, other = mixture.at(skipped.position), mixture.at(skipped.replaced_by)
        assert bad[:2] == other[:2]  # the same source, in the same epoch of its own
        assert bad[2] == 3 != other[2]


def test_a_bad_row_of_a_pack_is_replaced_in_the_form_of_the_batch() -> None:
    class Bad(stoker.Packed):
        def fill(self, positions: Any, batch: Any, rows: Any) -> None:
            if 3 in list(positions):
                raise ValueError("row 3 is bad")
            super().fill(positions, batch, rows)

    short, long = stoker.pack([np.arange(5)] * 20, length=16), stoker.pack([np.arange(12)] * 40, length=16)
    bad = object.__new__(Bad)
    bad.__dict__.update(short.__dict__ | {"_views": {}})
    bad._root = bad
    mixture = stoker.mix({"short": (bad, 0.5), "long": (long, 0.5)}, label="source")
    loader = stoker.DataLoader(mixture, batch_size=6, on_error=stoker.Policy(max_rate=None))
    for batch in loader:
        assert batch["cu_seqlens"].shape[1] == 5
        assert set(batch["max_seqlen"].tolist()) == {12}
        assert (batch["source"] == torch.arange(len(batch["source"])) % 2).all()
    assert len(loader.ledger) == 1


@pytest.mark.parametrize("torch_too", [False, True])
def test_single_rows_of_packs_are_as_wide_as_those_of_batches(torch_too: bool) -> None:
    short, long = stoker.pack([np.arange(5)] * 20, length=16), stoker.pack([np.arange(12)] * 40, length=16)
    mixture = stoker.mix({"short": (short, 0.5), "long": (long, 0.5)}, label="source")
    expected = next(iter(stoker.DataLoader(mixture, batch_size=6)))
    if torch_too:
        batch = next(iter(torch.utils.data.DataLoader(mixture, batch_size=6)))  # type: ignore[arg-type]
        assert {name: values.dtype for name, values in batch.items()} == {
            name: values.dtype for name, values in expected.items()
        }
    else:
        rows = [mixture[at] for at in range(6)]
        batch = {name: torch.as_tensor(np.stack([row[name] for row in rows])) for name in rows[0]}
    assert all(torch.equal(batch[name], values) for name, values in expected.items())


# ---------------------------------------------------------------- random numbers


@pytest.mark.parametrize("kind", [KeyedOnly, KeyedMany, KeyedWhole])
def test_sources_and_their_epochs_draw_different_numbers(kind: Any) -> None:
    mixture = stoker.mix({"a": (kind(4), 0.5), "b": (kind(4), 0.5)}, stop=24)
    drawn = []
    for engine in ENGINES:
        loader = stoker.DataLoader(mixture, batch_size=6, seed=3, **engine)
        drawn.append([float(number) for batch in loader for number in batch[1]])
    assert len(set(drawn[0])) == 24  # three epochs of two sources of four samples
    assert all(numbers == drawn[0] for numbers in drawn)
    with stoker.sample_context(5, seed=3):
        assert mixture[5][1] == drawn[0][5]


# ---------------------------------------------------------------- samples of different forms


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ([{"name": 1}], "dicts of 'name', 'position', those of source 'b' dicts of 'name'"),
        ([{"name": 1, "position": 2, "more": 3}], "dicts of 'more', 'name', 'position'"),
        ([(1, 2)], "source 'b' tuples of 2"),
        ([1], "source 'b' of type int"),
    ],
)
def test_samples_that_do_not_go_together_are_shown_by_source(other: Any, text: str) -> None:
    mixture = stoker.mix({"a": (Named("a", 8), 0.5), "b": (other * 8, 0.5)})
    with pytest.raises(ArgumentError, match=text):
        next(iter(stoker.DataLoader(mixture, batch_size=4)))
    own = stoker.DataLoader(mixture, batch_size=4, collate_fn=list)
    assert sum(map(len, own)) == len(mixture)  # whoever collates knows what to do


# ---------------------------------------------------------------- states


def test_a_run_that_is_over_can_be_loaded_and_go_on_with_more() -> None:
    options: dict[str, Any] = {"limits": {"a": 1, "b": 1}, "stop": "all_exhausted"}
    loader = stoker.DataLoader(mixed({"a": 1, "b": 1}, **options), batch_size=4, seed=0)
    seen = sum(len(names(batch)) for batch in loader)
    state = plain(loader.state_dict())
    again = stoker.DataLoader(mixed({"a": 1, "b": 1}, **options), batch_size=4, seed=0)
    again.load_state_dict(state)
    assert again.counts == {"a": 10, "b": 7}
    with pytest.raises(ArgumentError, match="there is no epoch 1"):
        iter(again)
    more = mixed({"a": 1, "b": 1, "c": 1}, limits={"a": 2, "b": 2}, stop="all_exhausted")
    again = stoker.DataLoader(more, batch_size=4, seed=0)
    again.load_state_dict(state)
    assert Counter("".join(map(names, again)))["a"] == 10
    assert sum(again.counts.values()) == seen + len(more.resumed(*state["mixture"]))


def test_steps_that_were_overtaken_do_not_go_with_other_weights() -> None:
    state = after(stoker.DataLoader(mixed({"a": 1, "b": 1}, stop=16), batch_size=2, seed=0), 1)
    state["ahead"] = [2]  # as with in_order=False
    del state["checksums"]
    for weights, is_refused in (({"a": 1.0, "b": 1.0}, False), ({"a": 1.0, "b": 3.0}, True)):
        loader = stoker.DataLoader(mixed(weights, stop=16), batch_size=2, seed=0, num_workers=1, in_order=False)
        if is_refused:
            with pytest.raises(StateError, match="can only go on as it was"):
                loader.load_state_dict(state)
        else:
            loader.load_state_dict(state)


@pytest.mark.parametrize("batch_size", [4, 8, 11])
def test_padding_is_not_of_a_source_that_has_left(batch_size: int) -> None:
    both = stoker.DataLoader(mixed({"a": 1, "b": 1}, stop=35), batch_size=batch_size, seed=0, tail="pad")
    state = after(both, 1)
    for gone, rest in (("a", "b"), ("b", "a")):
        engines: list[dict[str, Any]] = [{}, {"num_workers": 1}]
        for engine in engines:
            loader = stoker.DataLoader(mixed({rest: 1}, stop=35), batch_size=batch_size, seed=0, tail="pad", **engine)
            loader.load_state_dict(state)
            assert set("".join(map(names, loader))) == {rest}
            assert loader.counts[gone] == state["mixture"][0]["counts"][gone] > 0
            last = loader.contents(-(-35 // batch_size) - 1)
            assert {content.source for content in last} == {rest}
            assert any(content.is_padding for content in last)


def test_numbers_of_sources_are_those_of_the_mixture_at_hand() -> None:
    loader = stoker.DataLoader(mixed({"b": 1, "a": 1}, stop=30, label="source"), batch_size=4, seed=0)
    state = json.loads(json.dumps(after(loader, 2), sort_keys=True))
    for weights in ({"a": 1.0, "b": 1.0}, {"b": 1.0, "a": 1.0}, {"c": 1.0, "a": 1.0}, {"c": 1.0}):
        mixture = mixed(weights, stop=30, label="source")
        loader = stoker.DataLoader(mixture, batch_size=4, seed=0)
        loader.load_state_dict(state)
        for batch in loader:
            assert names(batch) == "".join(mixture.names[number] for number in batch["source"].tolist())


def test_going_back_to_before_a_change_is_refused_where_it_cannot_be() -> None:
    first = stoker.DataLoader(mixed({"a": 1, "b": 1}, stop=15), batch_size=3, seed=0)
    list(first)
    state = after(first, 1)
    longer = stoker.DataLoader(mixed({"a": 1, "b": 1}, stop=12), batch_size=3, seed=0)
    longer.load_state_dict(state)
    longer.set_epoch(0)
    with pytest.raises(ArgumentError, match="epoch 0 of the mixture has 15 samples(.|\n)*12"):
        iter(longer)
    gone = stoker.DataLoader(mixed({"a": 1}, stop=15), batch_size=3, seed=0)
    gone.load_state_dict(state)
    gone.set_epoch(0)
    with pytest.raises(ArgumentError, match="epoch 0 has samples of source 'b'"):
        iter(gone)
    same = stoker.DataLoader(mixed({"a": 1, "b": 3}, stop=15), batch_size=3, seed=0)
    same.load_state_dict(state)
    same.set_epoch(0)
    back = after(same, 2)
    again = stoker.DataLoader(mixed({"a": 1, "b": 3}, stop=15), batch_size=3, seed=0)
    again.load_state_dict(back)  # the change is still ahead, where it was
    fresh = stoker.DataLoader(mixed({"a": 1, "b": 1}, stop=15), batch_size=3, seed=0)
    assert list(map(names, again)) == list(map(names, fresh))[2:]
    assert again.state_dict()["mixture"][0]["phases"] == back["mixture"][0]["phases"]


def test_what_came_before_a_plan_has_no_place_in_it() -> None:
    first = stoker.DataLoader(mixed({"a": 1, "b": 1}), batch_size=3, seed=0)
    list(first)
    loader = stoker.DataLoader(mixed({"a": 1, "b": 1, "c": 3}), batch_size=3, seed=0)
    loader.load_state_dict(after(first, 1))
    places = [place for position in range(10) for place in loader.find(position, source="a")]
    assert places and all(place.epoch >= 1 for place in places)


POOL = {"a": 1, "b": 3, "c": 7, "d": 10, "e": 20}


def some_terms(draw: random.Random) -> Any:
    chosen = draw.sample(list(POOL), draw.randint(1, 4))
    weights = {name: draw.choice([1, 2, 0.3, 0.123]) for name in chosen}
    options: dict[str, Any] = {"stop": draw.choice(["first_exhausted", "all_exhausted", "never", draw.randint(5, 90)])}
    if draw.random() < 0.4:
        options["limits"] = {name: draw.choice([1, 2, 5]) for name in chosen if draw.random() < 0.5}
    if draw.random() < 0.4:
        steps = sorted(draw.sample(range(1, 30), draw.randint(1, 3)))
        options["schedule"] = {
            step: {name: draw.randint(1, 3) for name in draw.sample(chosen, draw.randint(1, len(chosen)))}
            for step in steps
        }
        options["batch_size"] = draw.randint(1, 5)
    return weights, options


@given(draw=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_resumes_of_resumes_with_any_changes_lose_and_repeat_nothing(draw: random.Random) -> None:
    terms: Any = None
    state: Any = None
    served: list[tuple[str, int]] = []
    tail: Any = draw.choice(["keep", "pad"])
    for _ in range(5):
        num_ranks, batch_size = draw.randint(1, 3), draw.randint(1, 4)
        loaders: list[Any] = []
        wanted = some_terms(draw) if terms is None or draw.random() < 0.5 else terms
        for chosen in (wanted, terms):
            try:
                loaders = [
                    stoker.DataLoader(
                        mixed(chosen[0], POOL, **chosen[1]),
                        batch_size=batch_size, num_ranks=num_ranks, rank=rank, seed=5, tail=tail,
                    )
                    for rank in range(num_ranks)
                ]  # fmt: skip
                for loader in loaders if state is not None else ():
                    loader.load_state_dict(plain(state))
            except ArgumentError:
                if chosen is None or chosen is terms:
                    return
                if terms is None:
                    return
            else:
                terms = chosen
                break
        iterators: list[Any] = []
        for _ in range(draw.randint(0, 25)):
            try:
                iterators = iterators or list(map(iter, loaders))
            except ArgumentError:  # the limits do not leave another epoch
                break
            batches: list[Any] = [next(iterator, None) for iterator in iterators]
            assert (batches[0] is None) == (batches[-1] is None)
            if batches[0] is None:
                iterators = []
                continue
            for batch, loader in zip(batches, loaders):
                padding = loader.recipe.padding
                for row, name in enumerate(names(batch)):
                    if padding is None or not padding[row]:
                        served.append((name, int(batch["position"][row])))
        given_so_far = Counter(name for name, _ in served)
        assert {name: count for name, count in loaders[0].counts.items() if count} == given_so_far
        state = plain(loaders[-1].state_dict())
    for name, length in POOL.items():
        own = Counter(position for source, position in served if source == name)
        full = sum(own.values()) // length
        assert all(full <= own[position] <= full + 1 for position in range(length))
