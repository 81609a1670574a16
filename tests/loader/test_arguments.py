"""The list of arguments is the only one: signature, attributes and stats follow from it."""

from __future__ import annotations

import inspect
import json
from dataclasses import MISSING
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker import DataLoader
from stoker.errors import ArgumentError
from stoker.loader.arguments import ARGUMENTS, Arguments, to_plain
from tests.loader.datasets import Numbers

SIGNATURE = {
    name: parameter for name, parameter in inspect.signature(DataLoader.__init__).parameters.items() if name != "self"
}
NOT_RECORDED = {
    "order": "stats record the order that results",
    "multiprocessing_context": "recorded as start_method",
    "rank": "a field of Stats",
    "num_ranks": "a field of Stats",
}


def test_the_list_has_every_argument_of_the_signature_with_its_default() -> None:
    listed = {one.name: inspect.Parameter.empty if one.default is MISSING else one.default for one in ARGUMENTS}
    signature = {name: parameter.default for name, parameter in SIGNATURE.items()}
    assert listed == signature, "loader/arguments.py and DataLoader.__init__ list different arguments or defaults"


@pytest.mark.parametrize("name", [one.name for one in ARGUMENTS])
def test_every_argument_is_an_attribute_of_the_loader(name: str) -> None:
    assert hasattr(DataLoader(Numbers(8)), name)


def test_stats_record_every_argument() -> None:
    loader = DataLoader(Numbers(8))
    config = loader.stats().config
    assert {one.name for one in ARGUMENTS} - set(config) == set(NOT_RECORDED) - {"order"}
    assert {one.name for one in ARGUMENTS if one.metadata["record"] is None} == set(NOT_RECORDED)
    assert config["order"] == "sequential"


def test_stats_record_arguments_as_plain_data() -> None:
    loader = DataLoader(
        Numbers(8),
        batch_size=2,
        shuffle=True,
        seed=3,
        skip=[(1, 2)],
        tail="drop",
        to={"x": torch.float16},
        on_error=stoker.Policy("skip"),
        worker_init_fn=print,
        generator=torch.Generator(),
        mesh={"dp": 1},
    )
    config = loader.stats().config
    assert json.loads(json.dumps(config)) == config | {"skip": [[1, 2]]}
    found = {name: config[name] for name in ("shuffle", "seed", "tail", "to", "on_error", "worker_init_fn", "mesh")}
    assert found == {
        "shuffle": True,
        "seed": 3,
        "tail": "drop",
        "to": {"x": "torch.float16"},
        "on_error": "skip",
        "worker_init_fn": "print",
        "mesh": {"dp": 1},
    }
    assert (config["order"], config["generator"], config["dataset"]) == ("shuffle", "Generator", "Numbers")
    assert (config["sampler"], config["batch_sampler"]) == (None, None)  # the loader's own are no arguments


def test_a_users_own_sampler_is_recorded_by_its_class() -> None:
    sampler = torch.utils.data.SequentialSampler(range(8))
    assert DataLoader(Numbers(8), sampler=sampler).stats().config["sampler"] == "SequentialSampler"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.5), 0.5),
        (torch.device("cpu"), "cpu"),
        (torch.int8, "torch.int8"),
        ((1, [None, "a"]), [1, [None, "a"]]),
        ({torch.uint8: torch.float16}, {"torch.uint8": "torch.float16"}),
        (Numbers, "Numbers"),
        (Numbers(1), "Numbers"),
    ],
)
def test_values_become_plain_data(value: Any, plain: Any) -> None:
    assert to_plain(value) == plain


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", True),
        ("num_workers", "many"),
        ("num_threads", -1),
        ("num_threads", 1.5),
        ("prefetch_factor", "many"),
        ("seed", 1.5),
        ("tail", "half"),
        ("shard", "all"),
    ],
)
def test_an_argument_is_checked_where_it_is_listed(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        Arguments(dataset=Numbers(8), **{name: value})
