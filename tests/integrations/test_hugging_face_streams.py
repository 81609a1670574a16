"""Streams of Hugging Face datasets resume exactly, also where their own state does not have all of it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from datasets import Dataset, interleave_datasets

import stoker


def stream(first: int = 0) -> Any:
    return Dataset.from_dict({"number": list(range(first, first + 23))}).to_iterable_dataset(num_shards=3)


def doubled(batch: dict[str, list[int]]) -> dict[str, list[int]]:
    return {"number": [number for number in batch["number"] for _ in range(2)]}


def identical(table: Any) -> Any:
    return table


STREAMS: dict[str, Any] = {
    "plain": stream,
    "shuffled": lambda: stream().shuffle(seed=1, buffer_size=8),
    "shuffled and mapped": lambda: stream().shuffle(seed=1, buffer_size=8).map(doubled, batched=True, batch_size=5),
    "mapped in batches": lambda: stream().map(doubled, batched=True, batch_size=5),
    "mapped as tables": lambda: (
        stream().with_format("arrow").map(identical, batched=True, batch_size=5).with_format(None)
    ),
    "interleaved": lambda: interleave_datasets([stream(), stream(100).shuffle(seed=2, buffer_size=4)], seed=3),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_resumed_stream_goes_on_exactly(name: str) -> None:
    for num_ranks, epoch, num_batches, sets_epoch in product((1, 2), (0, 1), (1, 2), (False, True)):
        case = name, num_ranks, epoch, num_batches, sets_epoch
        options: dict[str, Any] = {"num_ranks": num_ranks, "rank": 0, "shard": "auto"} if num_ranks > 1 else {}

        def loader(options: dict[str, Any] = options) -> Any:
            return stoker.DataLoader(STREAMS[name](), batch_size=3, **options)

        def read(loader: Any, epoch: int, sets_epoch: bool = sets_epoch) -> list[list[int]]:
            if sets_epoch:
                loader.set_epoch(epoch)
            return [batch["number"].tolist() for batch in loader]

        first = loader()
        for before in range(epoch):
            read(first, before)
        if sets_epoch:
            first.set_epoch(epoch)
        batches = iter(first)
        for _ in range(num_batches):
            next(batches)
        state = first.state_dict()
        rest = [batch["number"].tolist() for batch in batches]
        again = loader()
        again.load_state_dict(state)
        assert [batch["number"].tolist() for batch in again] == rest, case
        assert read(again, epoch + 1) == read(first, epoch + 1), case


@pytest.mark.parametrize(("name", "options"), [("shuffled", {}), ("plain", {"persistent_workers": True})])
def test_workers_resume_it_exactly(name: str, options: dict[str, Any]) -> None:
    def loader() -> Any:
        return stoker.DataLoader(STREAMS[name](), batch_size=3, num_workers=2, **options)

    first = loader()
    list(first)
    batches = iter(first)
    next(batches), next(batches)
    state = first.state_dict()
    rest = [batch["number"].tolist() for batch in batches]
    again = loader()
    again.load_state_dict(state)
    for _ in range(2):
        assert [batch["number"].tolist() for batch in again] == rest
        rest = [batch["number"].tolist() for batch in first]
