"""Packs and mixtures inside a user's own dataset follow the loader's epoch, and their data is part of the state."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, StackDataset, Subset

import stoker
from stoker.compose.wrapped_datasets import SHUFFLED_MIXTURE, SORTED_ROWS, fingerprint_of, has_wrapped_mixture
from stoker.errors import StateMismatch
from stoker.store import Writer
from tests.store.places import folder

ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_threads": 2},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "threads in processes": {"num_workers": 1, "num_threads": 2, "multiprocessing_context": "fork"},
}
SPAWN: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}
NUM_EPOCHS = 3


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder() as path:
        yield path


class Masked(torch.utils.data.Dataset[dict[str, Any]]):
    """What a user writes to add a loss mask."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> dict[str, Any]:
        row = self.rows[position]
        return {**row, "loss_mask": row["labels"] != -100}


class MaskedMany(Masked):
    """The same, a whole batch at once."""

    def __getitems__(self, positions: list[int]) -> list[dict[str, Any]]:
        return [{**row, "loss_mask": row["labels"] != -100} for row in self.rows.__getitems__(positions)]


def documents(first: int = 0, number: int = 60) -> list[Any]:
    """Documents of few lengths, whose tokens are their number: many ways to put them together."""
    return [np.full(3 + at % 3, first + at) for at in range(number)]


def packed(first: int = 0, number: int = 60) -> Any:
    return stoker.pack(documents(first, number), 12)


def mixed(**options: Any) -> Any:
    return stoker.mix({"web": (packed(), 0.6), "code": (packed(100, 40), 0.4)}, **options)


def stored(path: Path, first: int = 0) -> Any:
    with Writer(path, {"tokens": "uint16[*]"}) as writer:
        for document in documents(first):
            writer.append({"tokens": document.astype("uint16")})
    return stoker.open(path)


def tokens_in(dataset: Any, **arguments: Any) -> list[list[list[list[int]]]]:
    """Return the tokens of each batch of each epoch."""
    loader = stoker.DataLoader(dataset, batch_size=4, seed=3, **arguments)
    return [[batch["tokens"].tolist() for batch in loader] for _ in range(NUM_EPOCHS)]


# ---------------------------------------------------------------- rows of the epoch


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [Masked, MaskedMany])
def test_a_wrapped_pack_gives_the_rows_of_each_epoch(kind: type[Masked], engine: str) -> None:
    pack = packed()
    wanted = tokens_in(pack, shuffle=True)
    assert wanted[0] != wanted[1] != wanted[2]
    assert tokens_in(kind(pack), shuffle=True, **ENGINES[engine]) == wanted


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [Masked, MaskedMany])
def test_a_wrapped_mixture_gives_the_samples_of_each_epoch(kind: type[Masked], engine: str) -> None:
    mixture = mixed(label="source")
    wanted = tokens_in(mixture)
    assert wanted[0] != wanted[1] != wanted[2]
    assert tokens_in(kind(mixture), **ENGINES[engine]) == wanted


@pytest.mark.slow
def test_spawned_workers_know_the_epoch_too() -> None:
    assert tokens_in(Masked(packed()), shuffle=True, **SPAWN) == tokens_in(packed(), shuffle=True)
    nested = stoker.mix({"inner": (mixed(), 0.5), "more": (packed(200), 0.5)})
    assert tokens_in(Masked(nested), **SPAWN) == tokens_in(nested)


@pytest.mark.parametrize("engine", ["inline", "fork"])
def test_wrappers_in_torchs_own_datasets(engine: str) -> None:
    pack, mixture = packed(), mixed()
    epochs = tokens_in(ConcatDataset([Masked(mixture), Masked(pack)]), order="sequential", **ENGINES[engine])
    for epoch, batches in enumerate(epochs):
        rows = [row for batch in batches for row in batch]
        here = [*rows_of(mixture.in_epoch(epoch)), *rows_of(pack.in_epoch(epoch))]
        assert rows == here
    subset = tokens_in(Subset(Masked(pack), list(range(5))), **ENGINES[engine])
    assert [rows for batch in subset[2] for rows in batch] == rows_of(pack.in_epoch(2))[:5]


def rows_of(rows: Any) -> list[list[int]]:
    return [rows[position]["tokens"].tolist() for position in range(len(rows))]


def test_a_mixture_in_a_mixture_in_a_wrapper() -> None:
    nested = stoker.mix({"inner": (mixed(), 0.5), "more": (packed(200), 0.5)})
    assert tokens_in(Masked(nested)) == tokens_in(nested)


def test_a_wrapped_pack_in_a_mixture_is_in_the_epoch_of_that_source() -> None:
    sources = {"small": packed(0, 20), "large": packed(100, 90)}
    plain = stoker.mix({name: (pack, 0.5) for name, pack in sources.items()}, stop="all_exhausted")
    wrapped = stoker.mix({name: (Masked(pack), 0.5) for name, pack in sources.items()}, stop="all_exhausted")
    assert max(plain.at(number)[1] for number in range(len(plain))) > 1  # the small one comes several times
    wanted = tokens_in(plain)
    assert tokens_in(wrapped) == wanted
    assert tokens_in(wrapped, **ENGINES["fork"]) == wanted
    assert tokens_in(Masked(wrapped)) == wanted
    assert rows_of(wrapped.in_epoch(1)) == rows_of(plain.in_epoch(1))  # by itself, without a loader


def test_a_stream_over_a_pack_reads_the_rows_of_its_epoch() -> None:
    class Rows(IterableDataset[Any]):
        def __init__(self, rows: Any) -> None:
            self.rows = rows

        def __iter__(self) -> Iterator[Any]:
            return (self.rows[position] for position in range(len(self.rows)))

    pack = packed()
    assert tokens_in(Rows(pack)) == tokens_in(pack, order="sequential")


def test_whoever_chooses_an_epoch_gets_that_one() -> None:
    pack, mixture = packed(), mixed()
    for dataset in (pack, mixture):
        for epoch in (0, 2):
            bound = dataset.in_epoch(epoch)
            assert bound.epoch == epoch
            wanted = tokens_in(Masked(bound), order="sequential")
            assert wanted == [wanted[0]] * NUM_EPOCHS
            assert bound.in_epoch(epoch) is bound
            assert rows_of(pickle.loads(pickle.dumps(bound))) == rows_of(bound)
            with stoker.sample_context(0, epoch=1):
                assert bound.epoch == epoch
                assert pickle.loads(pickle.dumps(bound)).epoch == epoch
        assert rows_of(bound.in_epoch(0)) == rows_of(dataset)


def test_outside_a_loader_it_is_epoch_0_unless_a_sample_context_says_otherwise() -> None:
    pack, mixture = packed(), mixed()
    for dataset in (pack, mixture, pickle.loads(pickle.dumps(pack)), pickle.loads(pickle.dumps(mixture))):
        assert dataset.epoch == 0
        first = rows_of(dataset)
        with stoker.sample_context(3, epoch=2):
            assert dataset.epoch == 2
            assert rows_of(dataset) == rows_of(dataset.in_epoch(2)) != first
            assert dataset.describe(3) == dataset.in_epoch(2).describe(3) != dataset.in_epoch(0).describe(3)
            assert rows_of(dataset.in_epoch(0)) == first
        assert rows_of(dataset) == first
    with stoker.sample_context(3, epoch=2):
        assert pack.documents(3) == pack.in_epoch(2).documents(3)
        assert pack.find(7) == pack.in_epoch(2).find(7)


def test_a_wrapped_pack_is_resumed_in_the_middle_of_its_second_epoch() -> None:
    wanted = tokens_in(packed(), shuffle=True)
    loader = stoker.DataLoader(Masked(packed()), batch_size=4, shuffle=True, seed=3)
    list(loader)
    batches = iter(loader)
    seen = [next(batches)["tokens"].tolist() for _ in range(2)]
    again = stoker.DataLoader(Masked(packed()), batch_size=4, shuffle=True, seed=3, num_threads=2)
    again.load_state_dict(loader.state_dict())
    assert seen + [batch["tokens"].tolist() for batch in again] == wanted[1]


# ---------------------------------------------------------------- whose data it is


def test_the_fingerprint_of_wrapped_data(tmp_path: Path) -> None:
    one: Any = stoker.pack(stored(tmp_path / "one"), 12)
    other: Any = stoker.pack(stored(tmp_path / "other", 500), 12)
    assert fingerprint_of(one) == one.fingerprint
    assert fingerprint_of(Masked(one)) == fingerprint_of(Masked(Masked(one))) == one.fingerprint
    found = [
        fingerprint_of(Masked(other)),
        fingerprint_of(Subset(one, [1, 2])),
        fingerprint_of(Subset(Masked(one), [1, 2])),
        fingerprint_of(Subset(one, [2, 1])),
        fingerprint_of(Subset(one, range(2))),
        fingerprint_of(ConcatDataset([one, other])),
        fingerprint_of(ConcatDataset([other, one])),
        fingerprint_of(ConcatDataset([one, other, one])),
        fingerprint_of(ConcatDataset([Subset(one, [1]), other])),
    ]
    assert None not in found
    assert found[1] == found[2]
    assert len({one.fingerprint, *found}) == len(found)
    assert fingerprint_of(StackDataset(one, other)) is not None
    assert fingerprint_of(Subset(one, np.array([1, 2]))) == fingerprint_of(Subset(one, [1, 2]))  # type: ignore[arg-type]
    assert fingerprint_of(Subset(one, torch.tensor([1, 2]))) == fingerprint_of(Subset(one, [1, 2]))  # type: ignore[arg-type]
    mixture = stoker.mix({"one": (one, 0.5), "other": (other, 0.5)})
    assert fingerprint_of(Masked(mixture)) == mixture.fingerprint is not None
    # of wrapped sources, too
    wrapped = stoker.mix({"one": (Masked(one), 0.5), "other": (Masked(other), 0.5)})
    assert wrapped.fingerprint == mixture.fingerprint


def test_a_fingerprint_never_fails_and_costs_little() -> None:
    class Odd:
        def __init__(self) -> None:
            self.me, self.many, self.table = self, list(range(1_000_000)), {"me": [self]}

        def __getitem__(self, position: int) -> int:
            return position

        @property
        def fingerprint(self) -> str:
            raise RuntimeError("not yet")

    class Anything:
        def __getattr__(self, name: str) -> Any:
            return self

        def __getitem__(self, position: int) -> int:
            return position

    unknown: list[Any] = [Odd(), Anything(), [1, 2], {}, None, 3, "text", Masked([1, 2]), Subset(Odd(), [1])]  # type: ignore[arg-type]
    for dataset in unknown:
        assert fingerprint_of(dataset) is None
        assert not has_wrapped_mixture(dataset)

    class Known(Odd):
        fingerprint = "known"

    known: Any = Known()
    assert fingerprint_of(Masked(known)) == "known"
    ordered = list(range(1_000_000))
    assert fingerprint_of(Subset(known, ordered)) != fingerprint_of(Subset(known, ordered[::-1]))


def test_what_was_read_is_no_part_of_a_fingerprint(tmp_path: Path) -> None:
    one = stoker.pack(stored(tmp_path / "one"), 12)
    mixture = stoker.mix({"one": (one, 0.5), "other": ([{"tokens": np.arange(12), "labels": np.arange(12)}] * 9, 0.5)})
    dataset: Any = Masked(mixture)
    before = fingerprint_of(dataset)
    assert before == mixture.fingerprint
    with stoker.sample_context(0, epoch=2):
        rows_of(mixture)
    assert fingerprint_of(dataset) == before


def test_a_mixture_inside_a_wrapper_is_found() -> None:
    mixture: Any = mixed()
    assert not has_wrapped_mixture(mixture)  # a loader sees to that one itself
    wrappers: list[Any] = [Masked(mixture), Subset(mixture, [1]), ConcatDataset([packed(), Masked(mixture)])]
    for dataset in wrappers:
        assert has_wrapped_mixture(dataset)
    assert not has_wrapped_mixture(Masked(packed()))
    assert "shuffle" in SHUFFLED_MIXTURE


def test_a_state_of_other_data_is_refused(tmp_path: Path) -> None:
    one, other = (stoker.pack(stored(tmp_path / str(first), first), 12) for first in (0, 500))
    state = stoker.DataLoader(Masked(one), batch_size=4, shuffle=True, seed=1).state_dict()
    stoker.DataLoader(Masked(one), batch_size=4, shuffle=True, seed=1).load_state_dict(state)
    stoker.DataLoader(one, batch_size=4, shuffle=True, seed=1).load_state_dict(state)
    with pytest.raises(StateMismatch, match="dataset"):
        stoker.DataLoader(Masked(other), batch_size=4, shuffle=True, seed=1).load_state_dict(state)


def test_a_shuffled_wrapper_of_a_mixture_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=re.escape(SHUFFLED_MIXTURE)):
        stoker.DataLoader(Masked(mixed()), batch_size=4, shuffle=True)


def loaders_of(dataset: Any, **options: Any) -> None:
    """Make a loader, read it, and make loaders from it, as trainers do."""
    loader = stoker.DataLoader(dataset, batch_size=4, seed=1, **options)
    list(loader)
    stoker.DataLoader(dataset, batch_sampler=loader.batch_sampler)
    loader.adapted(batch_size=2)


@pytest.mark.parametrize("kind", ["pack", "wrapped", "several"])
def test_an_unshuffled_pack_is_warned_of_once(kind: str) -> None:
    pack = packed()
    dataset: Any = {"pack": pack, "wrapped": Masked(pack), "several": ConcatDataset([pack, pack])}[kind]
    for options in ({}, {"shuffle": False}):
        with pytest.warns(UserWarning, match=re.escape(SORTED_ROWS)) as caught:
            loaders_of(dataset, **options)
        assert len(caught) == 1
    for meant in ({"shuffle": True}, {"order": "sequential"}, {"order": "window"}):
        loaders_of(dataset, **meant)  # warnings are errors
    stoker.DataLoader(dataset, batch_size=4, sampler=list(range(len(dataset)))[::-1])
    assert "shuffle=True" in SORTED_ROWS
    assert "order='sequential'" in SORTED_ROWS


def test_rows_in_an_order_that_was_chosen_are_not_warned_of() -> None:
    subset: Any = Subset(packed(), range(3))
    for dataset in (mixed(), subset, stoker.pack(documents(), 12, strategy="concat")):
        loaders_of(dataset)  # warnings are errors
