"""TRL's SFTTrainer drives our loader: what it trains on, and how it goes on after it was killed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import default_collate
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import stoker
from stoker.errors import ArgumentError
from tests.integrations.launch import launch
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
    whole_of,
)

LENGTH = 22
PADDING, EOS = 0, 1
SPECIAL = ["<pad>", "<eos>", "<unk>"]
TEXTS = [" ".join([f"w{number}"] * (2 + number % 5)) for number in range(LENGTH)]


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of words, made here: nothing is downloaded."""
    words = {word: number for number, word in enumerate(SPECIAL + [f"w{number}" for number in range(LENGTH)])}
    model = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def tiny_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=128, n_embd=8, n_layer=1, n_head=2))


DOCUMENTS = [np.full(size, 3 + number) for number, size in enumerate([5, 9, 3, 7, 6, 8, 4, 10, 2, 11] * 3)]


def named_for_the_model(rows: list[Any]) -> dict[str, torch.Tensor]:
    batch = default_collate(rows)
    labels = batch["labels"]  # are shifted already
    return {
        "input_ids": batch["tokens"],
        "position_ids": batch["positions"].long(),
        "labels": labels,
        "shift_labels": labels,
    }


DATASETS: dict[str, dict[str, Any]] = {
    "texts": {},
    "packed by trl": {"packing": True, "max_length": 16},
    "without padding": {"padding_free": True, "max_length": None},
    "streamed": {"max_steps": 22},
    "packed by stoker": {"dataset_kwargs": {"skip_prepare_dataset": True}},
}
"""What the trainer is trained on, and its arguments for it."""


class Recorder(Records, SFTTrainer):  # type: ignore[misc]
    """Has the loader of its case."""

    def get_train_dataloader(self) -> Any:
        own = {"dataset": stoker.pack(DOCUMENTS, length=16), "collate_fn": named_for_the_model}
        trls = {"dataset": self.train_dataset, "collate_fn": self.data_collator}
        data = own if self.case["loader"] == "packed by stoker" else trls
        options = {"shuffle": self.case["loader"] != "streamed"} | self.case.get("options", {})
        return stoker.DataLoader(**data, batch_size=2, **options)


def trainer_of(case: dict[str, Any]) -> Recorder:
    settings = ARGUMENTS | {"bf16": False} | DATASETS[case["loader"]] | case.get("args", {})
    texts = Dataset.from_dict({"text": TEXTS})
    if case["loader"] == "streamed":
        texts = texts.to_iterable_dataset(num_shards=3).shuffle(seed=1, buffer_size=8)
    trainer = Recorder(
        tiny_model(), SFTConfig(case["folder"], **settings), train_dataset=texts, processing_class=tokenizer()
    )
    trainer.case = case
    return trainer


def train_all(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [train_one(trainer_of, case) for case in cases]


def plain_epochs(folder: str, names: list[str]) -> dict[str, list[list[int]]]:
    """Return the tokens of two epochs of the plain loop, without a trainer."""
    found: dict[str, list[list[int]]] = {}
    for name in names:
        options = {} if name == "streamed" else {"seed": SEED}
        loader = trainer_of({"folder": folder, "loader": name, "options": options}).get_train_dataloader()
        found[name] = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            found[name].append(tokens_of(row for batch in loader for row in batch["input_ids"].tolist()))
    return found


def tokens_of(rows: Iterable[list[int]]) -> list[int]:
    """Return the tokens of some rows, without padding: how much there is depends on the batch."""
    return [token for row in rows for token in row if token != PADDING]


# ---------------------------------------------------------------- runs that stop and go on

STOPPED: dict[str, list[dict[str, Any]]] = {
    **{name: stages(name, {"stop_at": 5}, {}, args={"save_steps": 1}) for name in DATASETS},
    "twice": stages("texts", {"stop_at": 9}, {"stop_at": 6}, {}),
    "at a boundary": stages("texts", {"stop_at": 13}, {}, args={"save_strategy": "epoch"}),
    "accumulated, by workers": stages(
        "texts", {"stop_at": 9}, {}, args={"gradient_accumulation_steps": 2}, options={"num_workers": 2}
    ),
    "two ranks": stages("texts", {"stop_at": 4}, {}, num_ranks=2),
    "two ranks, packed by stoker": stages("packed by stoker", {"stop_at": 4}, {}, num_ranks=2),
    "two ranks made one and back": stages(
        "texts", {"num_ranks": 2, "stop_at": 2}, {"stop_at": 2}, {"num_ranks": 2}, args={"save_steps": 1}
    ),
}
WHOLE = {name: whole_of(case) for name, case in STOPPED.items() if "made one" not in name}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, launcher: None) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]]
    [found] = launch(plain_epochs, str(tmp_path_factory.mktemp("plain")), list(DATASETS), num_ranks=1)
    return found


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, launcher: None) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trl")
    return folder, in_stages(train_all, folder, STOPPED | dict(WHOLE.values()))


def test_the_plain_loop_gives_every_token_once_an_epoch(plain: dict[str, Any]) -> None:
    texts = Counter(token for text in TEXTS for token in [*tokenizer()(text)["input_ids"], EOS])
    documents = Counter(token for document in DOCUMENTS for token in document.tolist())
    for name, epochs in plain.items():
        assert epochs[0] != epochs[1]
        assert list(map(Counter, epochs)) == [documents if name == "packed by stoker" else texts] * 2, name


@pytest.mark.parametrize("name", STOPPED)
def test_the_trainer_is_trained_on_what_the_plain_loop_gives(
    name: str, stopped: tuple[Path, dict[str, Any]], plain: dict[str, Any]
) -> None:
    folder, results = stopped
    last = results[name][-1]
    assert "error" not in last, last["trace"]
    assert last["warnings"] == []
    epochs = [tokens_of(epoch) for epoch in trained_on(folder / name)]
    wanted = plain[STOPPED[name][0]["loader"]]
    if name == "streamed":  # without a length, the Trainer's count of epochs is a guess
        epochs, wanted = [sum(epochs, [])], [sum(wanted, [])]
    for got, expected in zip(epochs, wanted, strict=True):
        assert got[: len(expected)] == expected
        # what fills up the last batch of two ranks
        assert set(got[len(expected) :]) <= set(expected if "two ranks" in name else ())


@pytest.mark.parametrize("name", WHOLE)
def test_a_run_that_stops_and_goes_on_equals_one_that_does_not(name: str, stopped: tuple[Path, dict[str, Any]]) -> None:
    folder, results = stopped
    uninterrupted, _ = WHOLE[name]
    assert results[name][-1] == results[uninterrupted][0]  # weights and losses to the bit, rates and numbers of steps
    assert trained_on(folder / name) == trained_on(folder / uninterrupted)


def train(case: dict[str, Any]) -> dict[str, Any]:
    return train_one(trainer_of, case)


def test_a_run_that_is_killed_twice_is_trained_on_what_one_that_is_not_has(
    tmp_path: Path, stopped: tuple[Path, dict[str, Any]]
) -> None:
    case = {"loader": "texts", "folder": str(tmp_path), "args": SAVING | {"save_steps": 1}}
    for run, kill_at in enumerate([3, 2]):
        launch(train, case | {"run": run, "resume": bool(run) or None, "kill_at": kill_at}, killed=True)
    ranks = launch(train, case | {"run": 2, "resume": True})
    folder, results = stopped
    uninterrupted, _ = WHOLE["two ranks"]
    assert ranks == results[uninterrupted] * 2
    assert trained_on(tmp_path) == trained_on(folder / uninterrupted)


# ---------------------------------------------------------------- without a class of one's own


def in_two_lines(folder: str) -> Any:
    """Train with a trainer of TRL's as it is, and resume it, with the lines of the guide."""
    seen: list[Any] = []
    for resume in (False, True):
        trainer = SFTTrainer(
            tiny_model(),
            SFTConfig(folder, **ARGUMENTS | {"bf16": False, "save_strategy": "steps", "save_steps": 4}),
            train_dataset=Dataset.from_dict({"text": TEXTS}),
            processing_class=tokenizer(),
        )
        loader = stoker.DataLoader(trainer.train_dataset, 4, shuffle=True, collate_fn=trainer.data_collator)
        trainer.get_train_dataloader = lambda own=loader: own
        step = trainer.training_step
        batches: list[list[list[int]]] = []

        def recorded(model: Any, inputs: Any, *rest: Any, step: Any = step, batches: Any = batches) -> Any:
            if len(batches) == 5:
                raise Stopped
            batches.append(inputs["input_ids"].tolist())
            return step(model, inputs, *rest)

        trainer.training_step = recorded
        with suppress(Stopped):
            trainer.train(resume_from_checkpoint=resume or None)
        seen.append(batches)
    return [seen, trainer.state.global_step]


def test_two_lines_are_enough(tmp_path: Path, plain: dict[str, Any]) -> None:
    [[(first, second), global_step]] = launch(in_two_lines, str(tmp_path), num_ranks=1)
    got = tokens_of(row for batch in first[:4] + second for row in batch)
    assert got == (plain["texts"][0] + plain["texts"][1])[: len(got)]
    assert global_step == 9


# ---------------------------------------------------------------- trainers that need an order of their own


def groups_of_prompts(name: str, folder: str) -> Any:
    """Return what becomes of our own order, and batches in TRL's order, from our loader and from TRL's."""
    settings = {name: value for name, value in ARGUMENTS.items() if name != "learning_rate"}
    trainer = getattr(trl, f"{name}Trainer")(
        tiny_model(),
        reward_funcs=lambda completions, **columns: [0.0 for _ in completions],
        args=getattr(trl, f"{name}Config")(
            folder,
            **settings | {"bf16": False, "num_generations": 2, "max_completion_length": 2, "max_steps": 2, "beta": 0.0},
        ),
        train_dataset=Dataset.from_dict({"prompt": TEXTS}),
        processing_class=tokenizer(),
    )
    theirs = [[sample["prompt"] for sample in batch] for batch in trainer.get_train_dataloader()]
    data = {"dataset": trainer.train_dataset, "collate_fn": trainer.data_collator}
    loader = stoker.DataLoader(**data, batch_size=4, shuffle=True)
    trainer.get_train_dataloader = lambda: loader
    with pytest.raises(ArgumentError) as caught:
        trainer.train()
    size = trainer._train_batch_size * trainer.args.steps_per_generation
    loader = stoker.DataLoader(**data, batch_size=size, sampler=trainer._get_train_sampler())
    ours = [[sample["prompt"] for sample in batch] for batch in trainer.accelerator.prepare(loader)]
    trainer.train()
    return [str(caught.value), theirs, ours, trainer.state.global_step]


@pytest.mark.parametrize(("name", "num_ranks"), [("GRPO", 2), ("RLOO", 1)])
def test_trainers_that_compare_answers_to_a_prompt_need_its_groups(tmp_path: Path, name: str, num_ranks: int) -> None:
    for message, theirs, ours, global_step in launch(groups_of_prompts, name, str(tmp_path), num_ranks=num_ranks):
        expected = rf"(?s){name}Trainer needs .*hint: .*sampler=trainer\._get_train_sampler\(\)"
        assert re.search(expected, message), message
        assert ours == theirs
        assert global_step == 2
