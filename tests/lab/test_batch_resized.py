"""A batch made larger or smaller has the samples of the first one, again and again, in whatever they are nested."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ArgumentError
from stoker.lab.trial.batch_contents import num_samples_in, resize_batch, with_new_containers

Pair = namedtuple("Pair", ["image", "label"])


@dataclass(frozen=True)
class Rows:
    tokens: Any
    length: int


FORMS: dict[str, Callable[[Any], Any]] = {
    "array": lambda column: column,
    "tensor": torch.from_numpy,
    "fields": lambda column: [torch.from_numpy(column), column.tolist()],
    "named": lambda column: Pair(torch.from_numpy(column), column),
    "dict": lambda column: {"x": torch.from_numpy(column), "name": [str(one) for one in column], "scale": 2.0},
    "nested": lambda column: ({"x": {"y": column}}, torch.from_numpy(column)),
    "own dict": lambda column: UserDict(x=column),
    "dataclass": lambda column: Rows(column, 7),
    "samples": lambda column: [{"x": torch.full((3, 2), int(one))} for one in column],
    "detection": lambda column: (torch.from_numpy(column), [{"boxes": np.full((int(one), 4), one)} for one in column]),
}


@pytest.mark.parametrize("form", FORMS)
@given(num_samples=st.integers(4, 9), size=st.integers(1, 40))
def test_a_batch_of_any_form_repeats_its_samples(form: str, num_samples: int, size: int) -> None:
    batch = FORMS[form](np.arange(num_samples))
    expected = FORMS[form](np.arange(size) % num_samples)
    found = resize_batch(batch, num_samples=num_samples, size=size)
    assert repr(found) == repr(expected)
    assert type(found) is type(batch)
    assert num_samples_in(found, expected=size) == size


def test_what_is_taken_out_of_a_batch_is_there_the_next_time() -> None:
    batch = {"x": torch.zeros(2), "inner": {"y": [1, 2]}}
    again = with_new_containers(batch)
    again.pop("x")
    again["inner"]["y"].clear()
    assert batch["x"] is with_new_containers(batch)["x"], "the contents are the same"
    assert batch["inner"] == {"y": [1, 2]}


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"tokens": np.zeros((4, 8)), "starts": np.zeros(5)}, r"it contains an array of shape \(5,\)"),
        ({"tokens": np.zeros((4, 8)), "names": ["a", "b"]}, "it contains a list of 2"),
        ({"tokens": np.zeros((4, 8)), "graph": object()}, "the contents of object are unknown"),
        ({"scale": 3}, "it contains no tensor, array or list"),
    ],
)
def test_what_a_larger_batch_would_be_like_is_not_guessed(batch: Any, told: str) -> None:
    with pytest.raises(ArgumentError, match=f"cannot be made larger by repeating samples: {told}"):
        resize_batch(batch, num_samples=4, size=8)
