"""One walker of nested batches."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.foundation import trees


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Sample:
    image: Any
    label: Any = field(default=None)


class Named(dict[str, Any]):
    """A dict with an attribute."""

    name = ""


class Fixed(Mapping[str, Any]):
    """A mapping that cannot be changed, nor made from a dict."""

    def __init__(self, one: Any, two: Any) -> None:
        self._held = {"one": one, "two": two}

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return 2


def nested(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text(max_size=2) | st.integers(0, 3), inner, max_size=3)
            | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(OrderedDict)
            | st.builds(Pair, inner, inner)
            | st.builds(Sample, inner, inner)
        ),
        max_leaves=12,
    )


@given(nested(st.integers() | st.text(max_size=3) | st.none()))
def test_a_batch_rebuilt_from_its_parts_is_the_same_batch(tree: Any) -> None:
    again = trees.map_leaves(lambda leaf: leaf, tree)
    assert again == tree
    assert type(again) is type(tree)


@given(nested(st.integers()))
def test_leaves_come_in_the_order_in_which_they_are_replaced(tree: Any) -> None:
    count = iter(range(1000))
    numbered = trees.map_leaves(lambda leaf: next(count), tree)
    assert list(trees.leaves(numbered)) == list(range(len(list(trees.leaves(tree)))))


@given(nested(st.integers()))
def test_items_are_children_with_their_names(tree: Any) -> None:
    entries, inside = trees.items(tree), trees.children(tree)
    if inside is None:
        assert entries is None
    else:
        assert entries is not None
        assert [value for _, value in entries] == list(inside)


def test_the_original_is_left_as_it_was() -> None:
    tree = Named(a=[1, 2])
    tree.name = "train"
    again = trees.map_leaves(lambda leaf: leaf + 1, tree)
    assert tree == {"a": [1, 2]}
    assert again == {"a": [2, 3]}
    assert type(again) is Named
    assert again.name == "train"


def test_mappings_that_cannot_be_copied_become_dicts() -> None:
    assert trees.rebuild(Fixed(1, 2), [3, 4]) == {"one": 3, "two": 4}
    assert trees.rebuild(MappingProxyType({"a": 1}), [2]) == MappingProxyType({"a": 2})
    assert trees.rebuild(UserDict(a=1), [2]) == UserDict(a=2)


def test_a_leaf_cannot_be_rebuilt() -> None:
    with pytest.raises(TypeError, match="expected a container, got str"):
        trees.rebuild("text", [])


def test_tensors_arrays_and_classes_are_leaves() -> None:
    for leaf in (torch.zeros(2), np.zeros(2), "text", b"bytes", Sample, 3, None):
        assert trees.children(leaf) is None


def test_the_bytes_of_a_batch_are_those_of_its_tensors_arrays_and_strings() -> None:
    batch = {"x": torch.zeros(3, dtype=torch.int16), "y": [np.zeros(5), "four"], "z": Pair(7, np.float32(1))}
    assert trees.num_bytes(batch) == 6 + 40 + 4 + 4


def test_a_batch_that_contains_itself_has_an_end() -> None:
    batch: list[Any] = [1]
    batch.append(batch)
    assert set(trees.leaves(batch)) == {1}
