"""What is in a step: the inverse of finding, for packs, mixtures and plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.errors import StateError

DOCUMENTS = [np.arange(1, 3 + 7 * n % 40) for n in range(80)]


def loaders(seed: int, batch_size: int, num_ranks: int) -> list[stoker.DataLoader[Any]]:
    packed = stoker.pack(DOCUMENTS, length=32, seed=seed)
    other = stoker.pack(DOCUMENTS[::2], length=32)
    mixture = stoker.mix({"a": (packed, 2), "b": (other, 1)}, seed=seed, stop="all_exhausted")
    shuffled: dict[str, Any] = {"batch_size": batch_size, "num_ranks": num_ranks, "rank": 0}
    return [
        stoker.DataLoader(packed, shuffle=True, seed=seed, **shuffled),
        stoker.DataLoader(mixture, **shuffled),
        stoker.DataLoader(list(range(50)), shuffle=True, seed=seed, **shuffled),
    ]


@given(seed=st.integers(0, 99), batch_size=st.integers(1, 4), num_ranks=st.integers(1, 3), step=st.integers(0, 40))
def test_whatever_is_in_a_step_is_found_there(seed: int, batch_size: int, num_ranks: int, step: int) -> None:
    for loader in loaders(seed, batch_size, num_ranks):
        plan = loader.plan
        assert plan is not None
        contents = loader.contents(step)
        rows = {(content.rank, content.row) for content in contents}
        assert len(rows) == sum(len(plan.recipe(step, rank, num_ranks).positions) for rank in range(num_ranks))
        for content in contents:
            if content.is_padding:
                continue
            number = content.position if content.document is None else content.document
            places = loader.find(number, content.epoch, source=content.source)
            found = [(place.step, place.rank, place.row, place.columns) for place in places]
            assert (step, content.rank, content.row, content.columns) in found


def test_contents_are_what_the_batches_hold_in_later_epochs() -> None:
    for loader in loaders(3, 4, 1)[:2]:
        step = 0
        for _ in range(2):
            for batch in loader:
                for content in loader.contents(step):
                    assert content.document is not None and content.columns is not None
                    of = DOCUMENTS[::2] if content.source == "b" else DOCUMENTS
                    tokens = batch["tokens"][content.row, content.columns]
                    part = of[content.document][content.offset : content.offset + len(content.columns)]
                    assert tokens.tolist() == part.tolist()
                step += 1


def test_without_a_plan_nothing_is_known_of_a_step() -> None:
    with pytest.raises(StateError, match="only without a sampler or stream"):
        stoker.DataLoader(list(range(4)), sampler=[1, 2]).contents(0)
