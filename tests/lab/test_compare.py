"""Loaders side by side on one dataset."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from stoker.errors import ArgumentError
from stoker.lab.trial import contenders
from stoker.lab.trial.compare import compare, ratio
from stoker.lab.trial.contenders import CONTENDERS, LoaderArguments, Unsuited
from stoker.lab.trial.rounds import Spread
from stoker.lab.trial.sweep import Sweep
from stoker.lab.trial.trial import OK, Trial
from stoker.lab.trial.trial_child import digest_of_batch
from tests.lab import torch_loaders

pytestmark = pytest.mark.timed


@pytest.mark.slow
def test_torchs_and_our_loader_are_compared_and_the_others_are_reported() -> None:
    sweep = compare(
        torch_loaders.make_dataset,
        batch_size=4,
        workers=[1],
        threads=2,
        collate=torch_loaders.collate,
        only=["torch", "stoker"],
        seconds=0.1,
        num_rounds=1,
    )
    results = {result.config["contender"]: result for result in sweep.results()}
    assert list(results) == ["torch", "stoker", "stoker, 2 threads"]
    for result in results.values():
        assert (result.error, result.num_ok) == (None, 1)
        assert result.mean("memory_bytes") is not None
    assert results["stoker, 2 threads"].found["num_threads"] == 2
    assert {trial.digest for trial in sweep.trials} == {sweep.trials[0].digest}, "all got the same samples"
    assert sweep.notes == []
    assert ratio(sweep, results["torch"].config) == Spread(mean=1.0, deviation=None, num=1)
    ours = ratio(sweep, results["stoker"].config)
    assert ours is not None and ours.mean > 0
    assert Sweep.from_dict(sweep.as_dict()) == sweep


def test_peers_that_are_not_installed_are_left_out_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    is_there = find_spec
    monkeypatch.setattr(
        contenders, "find_spec", lambda name: None if name in ("torchdata", "spdl", "grain") else is_there(name)
    )
    sweep = compare(torch_loaders.make_stream, batch_size=4, workers=[0], seconds=0.06, num_rounds=1)
    assert [result.config["contender"] for result in sweep.results()] == ["torch", "stoker"]
    assert sweep.notes == [
        "StatefulDataLoader is not installed; to include it: pip install torchdata",
        "SPDL, processes is not installed; to include it: pip install spdl",
        "SPDL, threads is not installed; to include it: pip install spdl",
        "Grain is not installed; to include it: pip install grain",
    ]


@pytest.mark.slow
def test_all_peers_that_are_installed_take_part() -> None:
    """torchdata's is, for tests; `make bench` installs the others."""
    installed = [name for name, contender in CONTENDERS.items() if contender.is_installed]
    assert {"torch", "StatefulDataLoader", "stoker"} <= set(installed)
    sweep = compare(torch_loaders.make_dataset, batch_size=4, workers=[1], seconds=0.2, num_rounds=1)
    assert [(result.config["contender"], result.error) for result in sweep.results()] == [
        (name, None) for name in installed
    ]
    stream = compare(torch_loaders.make_stream, batch_size=4, workers=[1], seconds=0.2, num_rounds=1)
    assert [result.config["contender"] for result in stream.results()] == ["torch", "StatefulDataLoader", "stoker"]
    is_left_out = "SPDL reads samples by position, and this dataset is a stream: skipped" in stream.notes
    assert is_left_out == ("SPDL, processes" in installed)


def test_a_dataset_that_is_random_cannot_be_checked_and_that_is_said() -> None:
    sweep = compare(
        torch_loaders.make_random_dataset, batch_size=4, workers=[0], only=["torch"], seconds=0.06, num_rounds=2
    )
    assert sweep.notes == ["the dataset is random, so it was not checked that all loaders load the same samples"]


def trial(contender: str, number: int, samples: int, digest: str = "a", outcome: str = OK) -> Trial:
    config = {"contender": contender, "num_workers": 2}
    return Trial(config=config, number=number, outcome=outcome, seconds=1.0, num_samples=samples, digest=digest)


def test_ratios_are_taken_inside_a_round() -> None:
    """Twice as fast in each round, though the machine was three times as fast in the second."""
    sweep = Sweep(
        trials=[trial("torch", 0, 100), trial("stoker", 0, 200), trial("stoker", 1, 600), trial("torch", 1, 300)]
    )
    assert ratio(sweep, {"contender": "stoker", "num_workers": 2}) == Spread(mean=2.0, deviation=0.0, num=2)
    assert ratio(sweep, {"contender": "stoker", "num_workers": 4}) is None


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match="there is no loader 'pytroch'\nhint: choose among 'torch', 'StatefulDataLoader'"
    ):
        compare(torch_loaders.make_dataset, only=["pytroch"])
    with pytest.raises(ArgumentError, match="workers must not be empty"):
        compare(torch_loaders.make_dataset, workers=[])
    with pytest.raises(ArgumentError, match="does not name a function that makes a dataset"):
        compare("dataset")
    with pytest.raises(ArgumentError, match="has no 'collaet'\nhint: did you mean `collate`?"):
        compare(torch_loaders.make_dataset, collate="tests.lab.torch_loaders:collaet", seconds=0.1)


def test_what_reads_by_position_is_unsuited_to_a_stream() -> None:
    stream = LoaderArguments(dataset=torch_loaders.Stream(), batch_size=4, num_workers=2)
    for name in ("SPDL, processes", "SPDL, threads", "Grain"):
        with pytest.raises(Unsuited, match="reads samples by position, and this dataset is a stream"):
            CONTENDERS[name].make(stream)
    inline = LoaderArguments(dataset=torch_loaders.make_dataset(), batch_size=4, num_workers=0)
    with pytest.raises(Unsuited, match="SPDL cannot load without workers"):
        CONTENDERS["SPDL, threads"].make(inline)


def test_a_digest_is_that_of_the_numbers_wherever_they_lie() -> None:
    image, label = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([1, 2, 3])
    batches: list[Any] = [
        {"image": torch.from_numpy(image), "label": torch.from_numpy(label)},
        {"label": label, "image": image},
    ]
    assert digest_of_batch(batches[0]) == digest_of_batch(batches[1])
    assert digest_of_batch([image, label]) == digest_of_batch((torch.from_numpy(image), label))
    assert digest_of_batch(image) != digest_of_batch(image + 1)
    assert digest_of_batch(["a", None]) != digest_of_batch(["b", None])
    assert digest_of_batch(torch.zeros(3, dtype=torch.bfloat16)) == digest_of_batch(torch.zeros(3))
