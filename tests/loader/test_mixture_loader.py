"""Mixtures and datasets with epochs, in a loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import ArgumentError, StateError, StateMismatch
from tests.loader.datasets import Broken, KeyedOnly, Numbers, listed

ENGINES: list[dict[str, Any]] = [{}, {"num_threads": 2}, {"num_workers": 1}, {"num_workers": 1, "num_threads": 2}]


class Turning:
    """Sample i is (epoch, i)."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 10

    def __getitem__(self, position: int) -> Any:
        return self.epoch, position

    def in_epoch(self, epoch: int) -> Turning:
        return Turning(epoch)


class TurningBroken(Turning):
    """The same, but one sample cannot be read."""

    def __getitem__(self, position: int) -> Any:
        if position == 3:
            raise ValueError("sample 3 is broken")
        return self.epoch, position

    def in_epoch(self, epoch: int) -> Turning:
        return TurningBroken(epoch)

    def describe(self, position: int) -> str:
        return f"{position} of epoch {self.epoch}"


class TurningWhole(Turning):
    """The same, as whole batches."""

    def __getbatch__(self, positions: Any, empty: Any) -> Any:
        epochs = empty((len(positions),), np.int64)
        epochs[...] = self.epoch
        numbers = empty((len(positions),), np.int64)
        numbers[...] = positions
        return [epochs, numbers]

    def in_epoch(self, epoch: int) -> Turning:
        return TurningWhole(epoch)


@pytest.mark.parametrize("engine", [*ENGINES, {"num_workers": 2, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("kind", [Turning, TurningWhole])
def test_a_dataset_with_epochs_is_read_as_it_is_in_each(kind: type[Turning], engine: dict[str, Any]) -> None:
    loader = stoker.DataLoader(kind(), batch_size=4, **engine)
    for epoch in range(3):
        rows = [row for epochs, numbers in loader for row in zip(epochs.tolist(), numbers.tolist())]
        assert rows == [(epoch, position) for position in range(10)]
    state = loader.state_dict()
    again = stoker.DataLoader(kind(), batch_size=5, **engine)
    again.load_state_dict(state)
    assert {int(epoch) for epochs, _ in again for epoch in epochs} == {3}


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_the_sample_in_the_place_of_a_bad_one_is_of_the_same_epoch(engine: dict[str, Any]) -> None:
    loader = stoker.DataLoader(TurningBroken(), batch_size=4, seed=1, on_error="skip", **engine)
    for epoch in range(2):
        assert {int(number) for epochs, _ in loader for number in epochs} == {epoch}
    assert [skipped.where for skipped in loader.ledger] == ["3 of epoch 0", "3 of epoch 1"]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_plain_datasets_are_mixed_in_every_engine(engine: dict[str, Any]) -> None:
    mixture = stoker.mix({"a": (Numbers(30), 2), "b": (Broken(20, set()), 1)}, stop=50)
    loader = stoker.DataLoader(mixture, batch_size=8, **engine)
    for epoch in range(2):
        view = mixture.in_epoch(epoch)
        rows = [int(number) for batch in loader for number in batch]
        assert rows == [view[at] for at in range(50)]
    assert loader.counts == mixture.counts(100)


def test_numbers_keyed_by_the_sample_are_the_same_in_every_engine() -> None:
    mixture = stoker.mix({"a": (KeyedOnly(30), 2), "b": (KeyedOnly(20), 1)}, stop=50)
    plain = listed(stoker.DataLoader(mixture, batch_size=8, seed=3))
    for engine in ENGINES[1:]:
        assert listed(stoker.DataLoader(mixture, batch_size=8, seed=3, **engine)) == plain


def test_a_bad_sample_is_told_by_source() -> None:
    mixture = stoker.mix({"a": (Numbers(30), 1), "b": (Broken(20, {7}), 1)}, stop="all_exhausted")
    with pytest.raises(ValueError, match="sample 7 is broken") as error:
        list(stoker.DataLoader(mixture, batch_size=4))
    assert "sample 7 of source 'b', in its epoch 0: file-7.bin" in error.value.__notes__[0]
    loader = stoker.DataLoader(mixture, batch_size=4, on_error="skip")
    assert sum(len(batch) for batch in loader) == len(mixture)
    assert "of source 'b'" in str(next(iter(loader.ledger)).where)


def test_an_order_of_the_loader_is_refused() -> None:
    mixture = stoker.mix({"a": (Numbers(30), 1)})
    for options in ({"shuffle": True}, {"order": "window"}, {"order": "sequential"}):
        with pytest.raises(ArgumentError, match="a Mixture has an order of its own"):
            stoker.DataLoader(mixture, **options)
    assert len(stoker.DataLoader(mixture, shuffle=False, batch_size=10)) == 3


def test_states_of_mixtures_and_of_others_are_told_apart() -> None:
    mixture = stoker.mix({"a": (Numbers(30), 1)}, order="sequential")
    mixed, plain = stoker.DataLoader(mixture, batch_size=4), stoker.DataLoader(Numbers(30), batch_size=4)
    with pytest.raises(StateMismatch, match="mixture: the state has None"):
        mixed.load_state_dict(plain.state_dict())
    with pytest.raises(StateMismatch, match=r"mixture: the state has \['a'\], this loader None"):
        plain.load_state_dict(mixed.state_dict())
    assert "mixture" not in plain.state_dict()


def test_a_refused_state_leaves_the_loader_as_it_was() -> None:
    def loader(**options: Any) -> stoker.DataLoader[Any]:
        mixture = stoker.mix({"a": (Numbers(30), 0.5), "b": (Numbers(50), 0.5)}, stop=60, **options)
        return stoker.DataLoader(mixture, batch_size=6, seed=4)

    other = stoker.mix({"a": (Numbers(30), 0.9), "b": (Numbers(50), 0.1)}, stop=60)
    state = stoker.DataLoader(other, batch_size=6, seed=4).state_dict()
    kept = loader()
    with pytest.raises(StateMismatch, match="weights"):
        kept.load_state_dict(state)
    assert listed(kept) == listed(loader())
    late = loader(changes=True)
    with pytest.raises(StateError):
        late.load_state_dict(state | {"step": 99})
    assert listed(late) == listed(loader())


def test_the_state_of_a_mixture_is_small_and_comes_back_as_it_was() -> None:
    mixture = stoker.mix({"a": (Numbers(30), 0.5), "b": (Numbers(50), 0.5)}, stop=60)
    loader = stoker.DataLoader(mixture, batch_size=6, seed=4)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    assert len(json.dumps(state)) < 2000
    assert state["mixture"][0]["counts"] == loader.counts == mixture.counts(18)
    again = stoker.DataLoader(mixture, batch_size=6, seed=4)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert again.state_dict() == state


def test_an_epoch_that_becomes_longer_goes_on_and_keeps_its_steps() -> None:
    short = stoker.mix({"a": (Numbers(30), 1), "b": (Numbers(50), 1)}, stop=40, order="sequential")
    first = stoker.DataLoader(short, batch_size=5, seed=1, skip=[(9, 10)])
    list(first)
    iterator = iter(first)
    for _ in range(2):
        next(iterator)
    state = first.state_dict()
    assert (state["step"], state["position"]) == (11, 15)  # one step of the second epoch is skipped
    long = stoker.mix({"a": (Numbers(30), 1), "b": (Numbers(50), 3)}, stop=70, order="sequential", changes=True)
    for batch_size in (5, 4):
        again = stoker.DataLoader(long, batch_size=batch_size, seed=1)
        again.load_state_dict(state)
        assert again.plan is not None
        assert again.plan.num_samples == 70
        steps, rows = [], 0
        for batch in again:
            assert again.recipe is not None
            steps.append(again.recipe.step)
            rows += len(batch)
        assert rows == 55
        assert steps == list(range(11, 11 + len(steps)))
        # 55 samples half and half, as many at one to three
        assert sum(again.counts.values()) == 110
        assert abs(again.counts["a"] - 27.5 - 55 / 4) < 2
        assert sum(len(batch) for batch in again) == 70


def test_an_epoch_that_the_limits_do_not_leave_is_refused_when_it_begins() -> None:
    mixture = stoker.mix({"a": (Numbers(30), 1)}, limits={"a": 1})
    loader = stoker.DataLoader(mixture, batch_size=10, num_workers=1)
    assert len(list(loader)) == 3
    with pytest.raises(ArgumentError, match="there is no epoch 1"):
        iter(loader)


# ---------------------------------------------------------------- find


def test_samples_of_plain_datasets_are_found() -> None:
    loaders = [
        stoker.DataLoader(Numbers(50), batch_size=4, shuffle=True, seed=2, rank=rank, num_ranks=2) for rank in (0, 1)
    ]
    batches = {}
    for rank, loader in enumerate(loaders):
        for batch in loader:
            assert loader.recipe is not None
            batches[loader.recipe.step, rank] = batch
    for position in range(50):
        (place,) = loaders[0].find(position)
        assert batches[place.step, place.rank][place.row] == position
        assert place.columns is None
        assert not place.is_skipped
    dropped = stoker.DataLoader(Numbers(50), batch_size=49, drop_last=True)
    assert dropped.find(49) == []


def test_documents_of_packs_are_found_in_every_epoch() -> None:
    packed = stoker.pack([np.full(3 + at % 40, at) for at in range(60)], length=32)
    loader = stoker.DataLoader(packed, batch_size=4, shuffle=True, seed=2)
    for epoch in range(2):
        batches = {}
        for batch in loader:
            assert loader.recipe is not None
            batches[loader.recipe.step] = batch
        for document in range(60):
            found = loader.find(document, epoch)
            tokens = [batches[place.step]["tokens"][place.row].numpy()[place.columns] for place in found]
            assert np.array_equal(np.concatenate(tokens), np.full(3 + document % 40, document))


def test_what_cannot_be_found_is_refused() -> None:
    mixture = stoker.mix({"a": (Numbers(30), 1), "b": (Numbers(50), 1)}, limits={"a": 1}, stop=60)
    loader = stoker.DataLoader(mixture, batch_size=10)
    with pytest.raises(ArgumentError, match="samples of a mixture are found by source\nhint: pass source= one of 'a'"):
        loader.find(3)
    with pytest.raises(ArgumentError, match="no source 'c'"):
        loader.find(3, source="c")
    assert loader.find(3, 1, source="a") == []
    plain = stoker.DataLoader(Numbers(30))
    with pytest.raises(ArgumentError, match="there is only one"):
        plain.find(3, source="a")
    with pytest.raises(AttributeError, match="only mixtures have counts"):
        _ = plain.counts
    with pytest.raises(StateError, match="without a sampler or stream"):
        stoker.DataLoader(Numbers(30), sampler=[1, 2]).find(1)


def test_a_schedule_of_other_steps_is_warned_of_unless_the_run_was_resumed() -> None:
    def loader(batch_size: int) -> stoker.DataLoader[Any]:
        mixture = stoker.mix(
            {"a": list(range(50)), "b": list(range(50, 100))},
            schedule={0: {"a": 1, "b": 0}, 2: {"a": 1, "b": 1}},
            batch_size=8,
            stop=80,
        )
        return stoker.DataLoader(mixture, batch_size=batch_size)

    first = loader(8)
    iterator = iter(first)
    assert max(int(x) for _ in range(2) for x in next(iterator)) < 50  # a weight of 0: not yet
    state = first.state_dict()
    with pytest.warns(UserWarning, match="schedule counts steps of 8 samples, and those of this loader have 4"):
        next(iter(loader(4)))
    resumed = loader(4)
    resumed.load_state_dict(state)
    next(iter(resumed))


def test_a_sampler_of_ones_own_is_refused_for_a_mixture() -> None:
    mixture = stoker.mix({"a": ([1, 2], 1), "b": ([3, 4], 1)})
    with pytest.raises(ArgumentError, match="a sampler of your own: a Mixture has an order of its own"):
        stoker.DataLoader(mixture, sampler=[0, 1])


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        ({"web": ("data/web", 0.7)}, "source 'web' is a path, expected a dataset\nhint: pass stoker.pack.'data/web'"),
        ({"web": (Path("data/web"), 0.7)}, "source 'web' is a path"),
        ({"web": (0.7, [1, 2])}, "source 'web' is the number 0.7\nhint: write \\(dataset, weight\\)"),
        ([([1], 0.7)], "sources is a list, expected a dict by name"),
        ({}, "there is nothing to mix"),
    ],
)
def test_what_is_no_source_is_refused(sources: Any, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        stoker.mix(sources)


class Wrapped:
    """A user's dataset around another one."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __len__(self) -> int:
        return len(self.inside)

    def __getitem__(self, position: int) -> Any:
        return self.inside[position]


def test_a_state_knows_the_weights_of_a_mixture_inside_a_wrapper_whose_sources_have_no_fingerprint() -> None:
    def loader(weight: float) -> stoker.DataLoader[Any]:
        sources = {"a": (list(range(40)), weight), "b": (list(range(100, 130)), 1 - weight)}
        return stoker.DataLoader(Wrapped(stoker.mix(sources, stop=24, seed=5)), batch_size=4, seed=1)

    first = loader(0.7)
    batches = iter(first)
    seen = [next(batches).tolist() for _ in range(2)]
    state = json.loads(json.dumps(first.state_dict()))
    with pytest.raises(StateMismatch, match="dataset: the state has"):
        loader(0.5).load_state_dict(state)
    resumed = loader(0.7)
    resumed.load_state_dict(state)
    assert [*seen, *listed(resumed)] == listed(loader(0.7))
