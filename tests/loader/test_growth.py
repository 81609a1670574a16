"""A run that moves on to a corpus that has grown: between two epochs, and only if asked to."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker import prepare
from stoker.errors import StateError, StateMismatch
from tests.prepare.corpora import write_jsonl

FIRST = [f"document {number} " * (1 + number % 7) for number in range(60)]
MORE = [f"another {number} " * 3 for number in range(25)]


def made(folder: Path, files: dict[str, list[str]]) -> Any:
    for name, texts in files.items():
        write_jsonl(folder / name, texts)
    prepare.tokens(folder, out=folder / "store", tokenizer="bytes", workers=0, piece_bytes=1 << 20)
    return stoker.open(folder / "store")


DATASETS: dict[str, Any] = {
    "rows of tokens": lambda store: store.tokens(length=32),
    "packed rows": lambda store: stoker.pack(store, length=128),
}


def loader_of(dataset: Any, **options: Any) -> Any:
    return stoker.DataLoader(dataset, **{"batch_size": 4, "shuffle": True, "seed": 5, **options})


def tokens_in(batches: Any) -> Counter[tuple[int, ...]]:
    return Counter(tuple(row) for batch in batches for row in batch["tokens"].tolist())


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("is_finished", [True, False], ids=["finished", "last batch seen"])
def test_the_next_epoch_is_one_of_all_there_is(
    tmp_path: Path, kind: str, is_finished: bool, caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_of(DATASETS[kind](made(tmp_path, {"a.jsonl": FIRST[:30], "b.jsonl": FIRST[30:]})))
    list(loader)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    if is_finished:
        assert next(batches, None) is None
    state = json.loads(json.dumps(loader.state_dict()))
    num_before = len(loader.dataset)
    dataset = DATASETS[kind](made(tmp_path, {"c.jsonl": MORE}))
    assert len(dataset) > num_before
    again = loader_of(dataset)
    with pytest.raises(StateMismatch, match="dataset"):
        again.load_state_dict(state)
    with caplog.at_level(logging.WARNING, "stoker"):
        again.load_state_dict(state, grown=True)
    assert f"from {num_before:,} to {len(dataset):,} samples; epoch 2 begins with all of them" in caplog.text
    third = list(again)
    fresh = loader_of(dataset)
    fresh.set_epoch(2)
    assert [batch["tokens"].tolist() for batch in third] == [batch["tokens"].tolist() for batch in fresh]
    assert sum(tokens_in(third).values()) == len(dataset)
    # a state from there on is one of the grown corpus, in the middle of an epoch too
    resumed = loader_of(dataset, batch_size=3)
    batches = iter(again)
    seen = [next(batches) for _ in range(2)]
    resumed.load_state_dict(again.state_dict())
    rest = list(resumed)
    assert tokens_in(seen) + tokens_in(rest) == tokens_in(loader_at(dataset, 3))


def loader_at(dataset: Any, epoch: int) -> Any:
    loader = loader_of(dataset)
    loader.set_epoch(epoch)
    return loader


def test_in_the_middle_of_an_epoch_it_is_refused(tmp_path: Path) -> None:
    loader = loader_of(made(tmp_path, {"a.jsonl": FIRST}).tokens(length=32))
    next(iter(loader))
    state = loader.state_dict()
    grown = loader_of(made(tmp_path, {"b.jsonl": MORE}).tokens(length=32))
    with pytest.raises(StateError, match=r"in the middle of epoch 0 \(4 of .*only between two epochs"):
        grown.load_state_dict(state, grown=True)
    list(grown)  # as if nothing had happened


@pytest.mark.parametrize("files", [{"a.jsonl": MORE}, {"a.jsonl": [*FIRST, *MORE]}, {"0.jsonl": MORE}], ids=str)
def test_a_corpus_that_was_changed_otherwise_is_refused(tmp_path: Path, files: dict[str, list[str]]) -> None:
    loader = loader_of(made(tmp_path, {"a.jsonl": FIRST}).tokens(length=32))
    list(loader)
    state = loader.state_dict()
    changed = loader_of(made(tmp_path, files).tokens(length=32))
    with pytest.raises(StateMismatch, match="dataset"):
        changed.load_state_dict(state, grown=True)


def test_another_seed_or_way_to_cut_is_refused_all_the_same(tmp_path: Path) -> None:
    loader = loader_of(made(tmp_path, {"a.jsonl": FIRST}).tokens(length=32))
    list(loader)
    state = loader.state_dict()
    store = made(tmp_path, {"b.jsonl": MORE})
    with pytest.raises(StateMismatch, match="seed"):
        loader_of(store.tokens(length=32), seed=6).load_state_dict(state, grown=True)
    with pytest.raises(StateMismatch, match="dataset"):
        loader_of(store.tokens(length=16)).load_state_dict(state, grown=True)


def test_a_corpus_as_it_was_is_resumed_as_ever(tmp_path: Path) -> None:
    dataset = made(tmp_path, {"a.jsonl": FIRST}).tokens(length=32)
    loader, again = loader_of(dataset), loader_of(dataset)
    batches = iter(loader)
    next(batches)
    again.load_state_dict(loader.state_dict(), grown=True)
    assert [batch["tokens"].tolist() for batch in again] == [batch["tokens"].tolist() for batch in batches]
