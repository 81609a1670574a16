"""The Transformers Trainer drives our loader: what it trains on, and how it goes on after it was killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler, SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import stoker
from tests.integrations.launch import ROOT, SETTINGS, launch
from tests.integrations.trained import (
    ARGUMENTS,
    SAVING,
    SEED,
    Records,
    Stopped,
    in_stages,
    stages,
    train_one,
    trained_on,
    weights_of,
    whole_of,
)

LENGTH = 22
DOCUMENTS = [np.full(size, number) for number, size in enumerate([5, 9, 3, 7, 6, 8, 4, 10, 2, 11] * 3)]


# ---------------------------------------------------------------- data


def sample(number: int) -> dict[str, torch.Tensor]:
    tokens = torch.arange(number, number + 4)
    return {"input_ids": tokens, "labels": tokens}


class Samples(Dataset[Any]):
    """Sample i begins with token i."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> Any:
        if not 0 <= position < self.length:
            raise IndexError(position)
        return sample(position)


class Stream(IterableDataset[Any]):
    """The same samples, one after the other."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        return map(sample, range(self.length))


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.length


class Wrapped:
    """A user's wrapper of packed rows, which gives them the names that models expect."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __len__(self) -> int:
        return len(self.inside)

    def __getitem__(self, position: int) -> Any:
        tokens = torch.as_tensor(np.asarray(self.inside[position]["tokens"])).long()
        return {"input_ids": tokens, "labels": tokens}


def named_for_the_model(rows: list[Any]) -> dict[str, torch.Tensor]:
    """Collate packed rows."""
    tokens = torch.stack([torch.as_tensor(np.asarray(row["tokens"])).long() for row in rows])
    return {"input_ids": tokens, "labels": tokens}


class Batches(BatchSampler):
    """A user's own sampler of batches, without a state."""


def packed() -> Any:
    return stoker.pack(DOCUMENTS, length=16)


def mixed() -> Any:
    low, high = [sample(number) for number in range(40)], [sample(number) for number in range(60, 80)]
    return stoker.mix({"low": (low, 0.7), "high": (high, 0.3)}, stop=24, seed=5)


Make = Callable[..., Any]

LOADERS: dict[str, Make] = {
    "shuffled": lambda **o: stoker.DataLoader(Samples(), **{"batch_size": 4, "shuffle": True, **o}),
    "sequential": lambda **o: stoker.DataLoader(Samples(), **{"batch_size": 4, **o}),
    "dropping": lambda **o: stoker.DataLoader(Samples(), **{"batch_size": 4, "shuffle": True, "drop_last": True, **o}),
    "workers": lambda **o: stoker.DataLoader(
        Samples(), **{"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": True, **o}
    ),
    "threads": lambda **o: stoker.DataLoader(Samples(), **{"batch_size": 4, "shuffle": True, "num_threads": 2, **o}),
    "pack": lambda **o: stoker.DataLoader(
        packed(), **{"batch_size": 2, "shuffle": True, "collate_fn": named_for_the_model, **o}
    ),
    "wrapped pack": lambda **o: stoker.DataLoader(Wrapped(packed()), **{"batch_size": 2, "shuffle": True, **o}),
    "mixture": lambda **o: stoker.DataLoader(mixed(), **{"batch_size": 4, **o}),
    "stream": lambda **o: stoker.DataLoader(Stream(), **{"batch_size": 4, **o}),
    "sized stream": lambda **o: stoker.DataLoader(SizedStream(), **{"batch_size": 4, **o}),
    "shared stream": lambda **o: stoker.DataLoader(
        SizedStream(), **{"batch_size": 4, "num_workers": 2, "shard": "auto", **o}
    ),
    "random sampler": lambda **o: stoker.DataLoader(
        Samples(), **{"batch_size": 4, "sampler": RandomSampler(Samples()), **o}
    ),
    "own sampler": lambda **o: stoker.DataLoader(
        Samples(), **{"batch_size": 4, "sampler": SequentialSampler(Samples()), **o}
    ),
    "batch sampler": lambda **o: stoker.DataLoader(
        Samples(), batch_sampler=BatchSampler(RandomSampler(Samples()), 4, drop_last=False), **o
    ),
    "torch": lambda **o: torch.utils.data.DataLoader(Samples(), **{"batch_size": 4, "shuffle": True, **o}),
}


# ---------------------------------------------------------------- training


def tiny_model() -> GPT2LMHeadModel:
    """Return a model with random weights, and with dropout, so that random numbers matter."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=16, n_embd=8, n_layer=1, n_head=2))


class Recorder(Records, Trainer):  # type: ignore[misc]
    """A Trainer with a loader of the test's, which writes down what it trains on."""

    def get_train_dataloader(self) -> Any:
        loader = LOADERS[self.case["loader"]](**self.case.get("options", {}))
        return self.accelerator.prepare(loader) if self.case.get("is_prepared") else loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return LOADERS["sequential"]()


class EndsEpochs(TrainerCallback):  # type: ignore[misc]
    """Ends each epoch after so many optimizer steps."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_epoch_stop = state.global_step % self.num_steps == 0


class SavesInStep(TrainerCallback):  # type: ignore[misc]
    """Saves when the batches of an optimizer step are drawn and not trained on, as the Trainer does after SIGTERM."""

    def __init__(self, trainer: Trainer, global_step: int) -> None:
        self.trainer, self.global_step = trainer, global_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.global_step:
            self.trainer._save_checkpoint(self.trainer.model, trial=None)
            control.should_training_stop = True


def trainer_of(case: dict[str, Any], **others: Any) -> Recorder:
    settings = ARGUMENTS | case.get("args", {})
    trainer = Recorder(tiny_model(), TrainingArguments(case["folder"], **settings), eval_dataset=Samples(), **others)
    trainer.case = case
    if case.get("ends_epochs_after"):
        trainer.add_callback(EndsEpochs(case["ends_epochs_after"]))
    if case.get("saves_in_step"):
        trainer.add_callback(SavesInStep(trainer, case["saves_in_step"]))
    return trainer


def train(case: dict[str, Any]) -> dict[str, Any]:
    return train_one(trainer_of, case)


def train_all(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [train(case) for case in cases]


def plain_epochs(name: str, num_epochs: int, **options: Any) -> list[list[list[int]]]:
    """Return the rows of each epoch of the plain loop, without a trainer."""
    loader = LOADERS[name](**options)
    return [[row for batch in loader for row in batch["input_ids"].tolist()] for _ in range(num_epochs)]


# ---------------------------------------------------------------- runs that stop and go on


EACH_EPOCH = {"save_strategy": "epoch"}


STOPPED: dict[str, list[dict[str, Any]]] = {
    "unprepared": stages("shuffled", {"stop_at": 9}, {}),
    "prepared": stages("shuffled", {"stop_at": 9}, {}, is_prepared=True),
    "with a seed": stages("shuffled", {"stop_at": 9}, {}, options={"seed": 7}),
    "twice": stages("shuffled", {"stop_at": 9}, {"stop_at": 3}, {}),
    "twice in one epoch": stages("shuffled", {"stop_at": 3}, {"stop_at": 3}, {}, args={"save_steps": 1}),
    "at a boundary": stages("shuffled", {"stop_at": 8}, {}, args=EACH_EPOCH),
    "at a boundary, prepared": stages("shuffled", {"stop_at": 8}, {}, args=EACH_EPOCH, is_prepared=True),
    "at the last step of an epoch": stages("shuffled", {"stop_at": 7}, {}, args={"save_steps": 3}),
    "other workers": stages("shuffled", {"stop_at": 9}, {"options": {"num_workers": 2}}),
    "accumulated": stages("shuffled", {"stop_at": 9}, {}, args={"gradient_accumulation_steps": 2}),
    "accumulated unevenly": stages(
        "shuffled", {"stop_at": 11}, {}, args={"gradient_accumulation_steps": 4, "save_steps": 1}
    ),
    "limited": stages("shuffled", {"stop_at": 9}, {}, args={"max_steps": 14}),
    "weights alone": stages("shuffled", {"stop_at": 9}, {}, args={"save_only_model": True}),
    "skipping": stages("shuffled", {"stop_at": 9}, {}, options={"skip": [(2, 4)]}),
    "skipping, limited": stages("shuffled", {"stop_at": 9}, {}, options={"skip": [(2, 4)]}, args={"max_steps": 14}),
    "early ends": stages("shuffled", {"stop_at": 10}, {}, ends_epochs_after=4),
    "best model": stages(
        "shuffled",
        {"stop_at": 9},
        {},
        args={
            "eval_strategy": "steps",
            "eval_steps": 2,
            "load_best_model_at_end": True,
            "metric_for_best_model": "eval_loss",
        },
    ),
    "in the middle of a step": stages(
        "shuffled", {"saves_in_step": 4}, {}, args={"save_strategy": "no", "gradient_accumulation_steps": 2}
    ),
    "stream": stages("stream", {"stop_at": 9}, {}, args={"max_steps": 14}),
    "two ranks": stages("shuffled", {"stop_at": 4}, {}, num_ranks=2),
    "two ranks, prepared": stages("shuffled", {"stop_at": 4}, {}, num_ranks=2, is_prepared=True),
    "two ranks, accumulated unevenly": stages(
        "shuffled", {"stop_at": 5}, {}, num_ranks=2, args={"gradient_accumulation_steps": 2, "save_steps": 1}
    ),
    **{
        f"two ranks, {name}": stages(name, {"stop_at": 4}, {}, num_ranks=2)
        for name in ("wrapped pack", "mixture", "shared stream", "random sampler")
    },
    **{name: stages(name, {"stop_at": 9}, {}) for name in LOADERS if name not in ("shuffled", "stream", "torch")},
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, launcher: None) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trainer")
    return folder, in_stages(train_all, folder, STOPPED | dict(map(whole_of, STOPPED.values())))


@pytest.mark.parametrize("name", STOPPED)
def test_a_run_that_stops_and_goes_on_equals_one_that_does_not(name: str, stopped: tuple[Path, Any]) -> None:
    folder, results = stopped
    uninterrupted, _ = whole_of(STOPPED[name])
    last, whole = results[name][-1], results[uninterrupted][0]
    assert "error" not in whole, whole["trace"]
    assert "error" not in last, last["trace"]
    assert trained_on(folder / name) == trained_on(folder / uninterrupted)
    if name == "weights alone":
        assert last["global_step"] == whole["global_step"]
    else:
        assert last == whole  # weights and losses to the bit, rates and numbers of steps; and no warnings


PLANNED = ["shuffled", "sequential", "dropping", "workers", "threads", "pack", "wrapped pack", "mixture"]


@pytest.mark.parametrize("name", PLANNED)
def test_the_batches_are_those_of_the_plain_loop(name: str, stopped: tuple[Path, Any]) -> None:
    folder, _ = stopped
    epochs = trained_on(folder / whole_of(STOPPED.get(name, STOPPED["unprepared"]))[0])
    assert epochs == plain_epochs(name, 2, seed=SEED)
    assert epochs[0] != epochs[1] or name == "sequential"
    if name in ("shuffled", "workers", "threads"):
        assert [sorted(row[0] for row in epoch) for epoch in epochs] == [list(range(LENGTH))] * 2


@pytest.mark.parametrize("name", ["shuffled", "wrapped pack", "mixture"])
def test_the_batches_of_two_ranks_are_those_of_the_plain_loop(name: str, stopped: tuple[Path, Any]) -> None:
    folder, _ = stopped
    case = STOPPED["two ranks" if name == "shuffled" else f"two ranks, {name}"]
    size = 4 if name == "wrapped pack" else 8
    # processes get batches of one size, as Accelerate does it: the last ones are filled up
    expected = plain_epochs(name, 2, seed=SEED, batch_size=size, tail="pad")
    assert trained_on(folder / whole_of(case)[0]) == expected


# ---------------------------------------------------------------- runs that go on in another way

EACH_STEP = {"save_steps": 1}
CHANGED: dict[str, tuple[list[dict[str, Any]], int]] = {
    "larger batches": (stages("shuffled", {"stop_at": 3}, {"options": {"batch_size": 8}}, args=EACH_STEP), 8),
    "smaller batches": (stages("shuffled", {"stop_at": 3}, {"options": {"batch_size": 2}}, args=EACH_STEP), 19),
    "larger batches and back": (
        stages("shuffled", {"stop_at": 3}, {"options": {"batch_size": 8}, "stop_at": 1}, {}, args=EACH_STEP),
        3 + 1 + 1 + 6,
    ),
    "own sampler, larger batches": (
        stages("own sampler", {"stop_at": 3}, {"options": {"batch_size": 8}}, args=EACH_STEP),
        8,
    ),
    "sized stream, larger batches": (
        stages("sized stream", {"stop_at": 3}, {"options": {"batch_size": 8}}, args=EACH_STEP),
        8,
    ),
    "shared stream, smaller batches": (
        stages("shared stream", {"stop_at": 3}, {"options": {"batch_size": 2}}, args=EACH_STEP),
        19,
    ),
    "two ranks made one": (stages("shuffled", {"num_ranks": 2, "stop_at": 1}, {}, args=EACH_STEP), 1 + 4 + 6),
    "one rank made two": (stages("shuffled", {"stop_at": 3}, {"num_ranks": 2}, args=EACH_STEP), 3 + 2 + 3),
    "two ranks made one and back": (
        stages("shuffled", {"num_ranks": 2, "stop_at": 1}, {"stop_at": 2}, {"num_ranks": 2}, args=EACH_STEP),
        1 + 2 + 1 + 3,
    ),
    "two ranks made one, wrapped pack": (
        stages("wrapped pack", {"num_ranks": 2, "stop_at": 1}, {}, args=EACH_STEP),
        1 + 5 + 7,
    ),
    "accumulated": (
        stages("shuffled", {"stop_at": 3}, {"args": {"gradient_accumulation_steps": 2}}, args=EACH_STEP),
        3 + 2 + 3,
    ),
    "limited": (
        stages("shuffled", {"stop_at": 3}, {"options": {"batch_size": 8}}, args=EACH_STEP | {"max_steps": 8}),
        8,
    ),
    "more steps to skip": (
        stages("shuffled", {"stop_at": 3}, {"options": {"skip": [(3, 5)]}}, args=EACH_STEP),
        3 + 1 + 6,
    ),
}


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory, launcher: None) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("changed")
    return folder, in_stages(train_all, folder, {name: case for name, (case, _) in CHANGED.items()})


@pytest.mark.parametrize("name", CHANGED)
def test_another_batch_size_or_number_of_ranks_loses_and_repeats_nothing(
    name: str, changed: tuple[Path, dict[str, Any]]
) -> None:
    folder, results = changed
    case, num_steps = CHANGED[name]
    last = results[name][-1]
    assert "error" not in last, last["trace"]
    expected = plain_epochs(case[0]["loader"], 2, seed=SEED)
    if name == "more steps to skip":
        del expected[0][12:20]
    epochs = trained_on(folder / name)
    assert len(epochs) == 2
    for got, samples in zip(epochs, expected, strict=True):
        assert got[: len(samples)] == samples
        filled = got[len(samples) :]  # the last batch of two ranks, to the same size
        assert len(filled) < 8
        assert all(row in samples for row in filled)
    assert last["global_step"] == last["max_steps"] == num_steps
    assert last["epoch"] == 2
    assert last["warnings"] == []


KILLED = {"shuffled": 2, "workers": 1, "wrapped pack": 2}


@pytest.mark.parametrize("name", KILLED)
def test_a_run_that_is_killed_twice_is_trained_on_what_one_that_is_not_has(name: str, tmp_path: Path) -> None:
    num_ranks = KILLED[name]
    case: dict[str, Any] = {"loader": name, "args": SAVING | {"save_steps": 1}}
    for run, (kill_at, is_prepared) in enumerate([(4 // num_ranks, True), (3, False), (None, True)]):
        case |= {"folder": str(tmp_path / "killed"), "run": run, "kill_at": kill_at, "is_prepared": is_prepared}
        results = launch(train, case | {"resume": bool(run) or None}, num_ranks=num_ranks, killed=kill_at is not None)
    whole = launch(train, {"folder": str(tmp_path / "whole"), "loader": name}, num_ranks=num_ranks)
    assert results == whole
    assert trained_on(tmp_path / "killed") == trained_on(tmp_path / "whole")


# ---------------------------------------------------------------- checkpoints that have no state, or another one


def without_a_state(folder: str) -> Any:
    """Resume from a checkpoint without a state, and without skipping anything."""
    case = {"folder": f"{folder}/stopped", "loader": "shuffled", "args": SAVING, "stop_at": 3}
    train(case)
    checkpoint = Path(folder, "stopped", "checkpoint-2")
    again = train({**case, "stop_at": None, "run": 1, "resume": str(checkpoint), "args": {"ignore_data_skip": True}})
    states = list(checkpoint.glob("stoker_*"))
    for path in states:
        path.unlink()
    other = case | {"folder": f"{folder}/counted", "stop_at": None, "args": {}}
    return [again, train(other | {"resume": str(checkpoint)}), len(states)]


def test_without_a_state_batches_are_counted_and_there_is_a_warning(tmp_path: Path) -> None:
    [[again, counted, num_states]] = launch(without_a_state, str(tmp_path), num_ranks=1)
    assert num_states == 1
    plain = plain_epochs("shuffled", 2, seed=SEED)
    assert "has no state of a stoker.DataLoader" in counted["warnings"][0]
    assert counted["global_step"] == 12
    assert trained_on(tmp_path / "counted") == [plain[0][8:], plain[1]]
    # as the Trainer does it: the epoch begins again, and the run ends after as many steps
    assert again["global_step"] == again["max_steps"] == 12
    assert again["warnings"] == []
    log = [json.loads(line) for line in (tmp_path / "stopped" / "batches_1_0.jsonl").read_text().splitlines()]
    assert sum((rows for *_, rows in log), []) == plain[0] + plain[1][:16]


def saved_by_ranks(folder: str) -> list[str]:
    train({"folder": folder, "loader": "shuffled", "args": SAVING | {"max_steps": 2}})
    return sorted(path.name for path in Path(folder, "checkpoint-2").glob("stoker_*"))


def test_a_checkpoint_has_no_states_of_an_earlier_run_with_more_processes(tmp_path: Path) -> None:
    launch(saved_by_ranks, str(tmp_path))
    assert (tmp_path / "checkpoint-2" / "stoker_1.pt").exists()
    assert launch(saved_by_ranks, str(tmp_path), num_ranks=1) == [["stoker_0.pt"]]


def other_ranks_with_a_sampler(folder: str, resume: bool) -> Any:
    args = SAVING | {"max_steps": 2 if not resume else 4}
    return train({"folder": folder, "loader": "random sampler", "args": args, "resume": resume or None})


def test_a_users_own_sampler_cannot_be_resumed_on_another_number_of_ranks(tmp_path: Path) -> None:
    launch(other_ranks_with_a_sampler, str(tmp_path), False)
    [result] = launch(other_ranks_with_a_sampler, str(tmp_path), True, num_ranks=1)
    assert re.search("(?s)StateMismatch.*num_processes: the state has 2, this loader 1", result["error"])


# ---------------------------------------------------------------- other ways to train


def resumed_by_hand(folder: str) -> Any:
    loader = LOADERS["shuffled"](seed=7)
    batches = iter(loader)
    next(batches), next(batches)
    trainer = trainer_of({"folder": folder})
    again = LOADERS["shuffled"](seed=7)
    again.load_state_dict(loader.state_dict())
    trainer.get_train_dataloader = lambda: again  # type: ignore[method-assign]
    trainer.train()
    return [trainer.state.global_step, trainer.state.max_steps]


def test_a_loader_that_has_loaded_a_state_goes_on_where_that_was_taken(tmp_path: Path) -> None:
    assert launch(resumed_by_hand, str(tmp_path), num_ranks=1) == [[10, 10]]
    plain = plain_epochs("shuffled", 2, seed=7)
    assert trained_on(tmp_path) == [plain[0][8:], plain[1]]


def trained_again(folder: str) -> Any:
    """Train twice with one loader, the second time from the checkpoint in the middle of the first."""
    trainer = trainer_of({"folder": folder, "args": SAVING | {"save_steps": 4}})
    loader = LOADERS["workers"](seed=7)
    trainer.get_train_dataloader = lambda: loader  # type: ignore[method-assign]
    trainer.train()
    first = weights_of(trainer.model)
    trainer.case = trainer.case | {"run": 1}
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-4")
    second = weights_of(trainer.model)
    trainer.case = trainer.case | {"run": 2}
    trainer.args.num_train_epochs = 1
    trainer.train()
    return [first == second, trainer.state.global_step]


def test_one_loader_serves_several_calls_of_train(tmp_path: Path) -> None:
    assert launch(trained_again, str(tmp_path), num_ranks=1) == [[True, 6]]
    plain = plain_epochs("shuffled", 2, seed=7)
    runs = [
        [row for line in path.read_text().splitlines() for row in json.loads(line)[2]]
        for path in sorted(tmp_path.glob("batches_*"))
    ]
    assert runs == [plain[0] + plain[1], plain[0][16:] + plain[1], plain[0]]


def halved(folder: str) -> Any:
    """Train with batches that are halved until they fit into memory, and go on from there."""
    result = []
    for run in (0, 1):
        case = {"folder": folder, "run": run, "args": SAVING | {"auto_find_batch_size": True}}
        trainer: Any = trainer_of(case | {"stop_at": None if run else 4})
        trainer.get_train_dataloader = lambda own=trainer: LOADERS["shuffled"](batch_size=own._train_batch_size)
        step = trainer.training_step

        def limited(model: Any, inputs: Any, *rest: Any, step: Any = step) -> Any:
            if len(inputs["input_ids"]) > 2:
                raise RuntimeError("CUDA out of memory.")
            return step(model, inputs, *rest)

        trainer.training_step = limited
        with suppress(Stopped):
            trainer.train(resume_from_checkpoint=bool(run) or None)
        result.append(trainer.state.global_step)
    return result


def test_batches_that_are_halved_for_lack_of_memory_are_resumed(tmp_path: Path) -> None:
    assert launch(halved, str(tmp_path), num_ranks=1) == [[4, 22]]
    assert trained_on(tmp_path) == plain_epochs("shuffled", 2, seed=SEED)


def with_torchs_loader(folder: str) -> Any:
    case = {"folder": folder, "loader": "torch", "is_prepared": True, "args": SAVING}
    first = train(case | {"stop_at": 9})
    last = train(case | {"run": 1, "resume": True})
    whole = train(case | {"folder": folder + "/whole"})
    return [last == whole, len(list(Path(folder).rglob("stoker_*"))), first["warnings"]]


def test_torchs_loaders_are_left_alone(tmp_path: Path) -> None:
    assert launch(with_torchs_loader, str(tmp_path), num_ranks=1) == [[True, 0, []]]
    assert trained_on(tmp_path) == trained_on(tmp_path / "whole")


# ---------------------------------------------------------------- evaluation


def evaluated(folder: str, cases: list[Any]) -> Any:
    """Return of which samples the metrics are, twice evaluated and once predicted."""
    found = []
    for name, options, is_prepared in cases:
        seen: list[list[int]] = []

        def first_labels(prediction: Any, seen: list[list[int]] = seen) -> dict[str, float]:
            seen.append(prediction.label_ids[:, 0].tolist())
            return {}

        trainer: Any = trainer_of({"folder": folder}, compute_metrics=first_labels)
        loader = LOADERS[name](**options)
        if is_prepared:
            loader = trainer.accelerator.prepare(loader)
        trainer.get_eval_dataloader = lambda _=None, own=loader: own
        trainer.get_test_dataloader = lambda _, own=loader: own
        trainer.evaluate()
        workers = loader._processes
        trainer.evaluate()
        assert loader._processes is workers
        seen.append(trainer.predict(Samples()).label_ids[:, 0].tolist())
        found.append([seen[0], seen[1], seen[3]])
    return found


EVALUATED: list[tuple[str, dict[str, Any], bool]] = [
    ("sequential", {}, False),
    ("sequential", {}, True),
    ("sequential", {"num_workers": 1, "persistent_workers": True}, False),
    ("sized stream", {}, False),
    ("own sampler", {}, False),
    ("stream", {}, False),
]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_metrics_are_of_each_sample_once(num_ranks: int, tmp_path: Path) -> None:
    for rank in launch(evaluated, str(tmp_path), EVALUATED, num_ranks=num_ranks):
        for case, found in zip(EVALUATED, rank, strict=True):
            assert found == [list(range(LENGTH))] * 3, case


# ---------------------------------------------------------------- refused


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"args": {"accelerator_config": {"dispatch_batches": True}}}, "dispatch_batches=True.*leave it out"),
    ({"options": {"tail": "keep"}}, "tail='keep'.*leave out tail="),
    ({"options": {"rank": 1, "num_ranks": 4}}, "already reads the share of rank 1 of 4.*leave out distributed="),
    (
        {"loader": "shared stream", "options": {"in_order": False}, "args": SAVING},
        "in_order=False and several workers.*use in_order=True",
    ),
]


def test_what_the_trainer_cannot_have_is_refused_at_the_start(tmp_path: Path) -> None:
    cases = [{"folder": str(tmp_path / str(n)), "loader": "shuffled", **case} for n, (case, _) in enumerate(REFUSED)]
    for results in launch(train_all, cases):
        for (case, pattern), result in zip(REFUSED, results, strict=True):
            assert re.search(f"(?s){pattern}", result["error"]), case
    assert not list(tmp_path.rglob("*.jsonl"))


# ---------------------------------------------------------------- imports

LATE = """
import sys
from pathlib import Path
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Late(Trainer):
    def get_train_dataloader(self):
        import stoker
        samples = [{"input_ids": torch.tensor([i, i]), "labels": torch.tensor([i, i])} for i in range(22)]
        return stoker.DataLoader(samples, batch_size=4, shuffle=True)

    def training_step(self, model, inputs, *rest):
        seen.append(inputs["input_ids"][:, 0].tolist())
        return super().training_step(model, inputs, *rest)

seen = []
args = TrainingArguments(
    sys.argv[1], report_to=[], use_cpu=True, per_device_train_batch_size=4, disable_tqdm=True, max_steps=6
)
model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=16, n_embd=8, n_layer=1, n_head=2))
Late(model, args).train(resume_from_checkpoint=True)
print(seen)
"""
EARLY = """
import stoker
from transformers import Trainer
from stoker.trainers import _forwarded

assert Trainer._save_checkpoint.__code__ is _forwarded.__code__
"""


def test_stoker_may_be_imported_before_transformers_or_in_the_middle_of_training(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"cwd": ROOT, "env": os.environ | SETTINGS, "stdout": subprocess.PIPE, "text": True}
    early = subprocess.Popen([sys.executable, "-W", "ignore", "-c", EARLY], **settings)
    launch(train, {"folder": str(tmp_path), "loader": "shuffled", "args": SAVING, "stop_at": 2}, num_ranks=1)
    late = subprocess.run([sys.executable, "-W", "ignore", "-c", LATE, tmp_path], check=True, **settings)
    assert sum(json.loads(late.stdout.splitlines()[-1]), []) == [
        row[0] for row in plain_epochs("shuffled", 1, seed=SEED)[0][8:]
    ]
    early.communicate()
    assert early.returncode == 0
