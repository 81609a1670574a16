"""Runs of the Transformers Trainer and of TRL's trainers that record what they train on, stop, and go on."""

from __future__ import annotations

import hashlib
import json
import os
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError, StateError
from tests.integrations.launch import kill_this_process, launch

SEED = 42
"""The Trainer's, if it is given none."""
ARGUMENTS: dict[str, Any] = {
    "num_train_epochs": 2,
    "save_strategy": "no",
    "learning_rate": 0.01,
    "report_to": [],
    "disable_tqdm": True,
    "use_cpu": True,
    "dataloader_pin_memory": False,
    "logging_steps": 1,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
}
"""Arguments of all trainers here."""
SAVING = {"save_strategy": "steps", "save_steps": 2}


class Stopped(Exception):
    """Ends a run, as a crash does."""


class Records:
    """Writes down what a trainer trains on, and stops or kills it where its case says so."""

    case: dict[str, Any]
    num_batches = 0

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        if self.num_batches == self.case.get("kill_at"):
            _wait_for_all_ranks(self.case)
            kill_this_process()
        if self.num_batches == self.case.get("stop_at"):
            raise Stopped
        self.num_batches += 1
        rows = inputs["input_ids"].tolist()
        loss = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        state = self.state  # type: ignore[attr-defined]
        with _log_of(self.case).open("a") as log:
            log.write(json.dumps([state.global_step, int(state.epoch or 0), rows]) + "\n")
        return loss


def _log_of(case: dict[str, Any]) -> Path:
    return Path(case["folder"], f"batches_{case.get('run', 0)}_{os.environ['RANK']}.jsonl")


def _wait_for_all_ranks(case: dict[str, Any]) -> None:
    """Come back when all ranks are here, so that none is killed while another one saves."""
    folder, run = Path(case["folder"]), case["run"]
    Path(folder, f"arrived_{run}_{os.environ['RANK']}").touch()
    while len(list(folder.glob(f"arrived_{run}_*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.002)


def train_one(trainer_of: Callable[[dict[str, Any]], Any], case: dict[str, Any]) -> dict[str, Any]:
    """Run on each rank: train, and return how it went."""
    if os.environ["WORLD_SIZE"] == "1":
        os.environ.pop("LOCAL_RANK", None)  # without torch.distributed
    Path(case["folder"]).mkdir(parents=True, exist_ok=True)
    trainer = trainer_of(case)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer.train(resume_from_checkpoint=case.get("resume"))
        except Stopped:
            pass
        except (ArgumentError, StateError) as error:
            return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    logs = trainer.state.log_history
    return {
        "global_step": trainer.state.global_step,
        "max_steps": trainer.state.max_steps,
        "epoch": trainer.state.epoch,
        "weights": weights_of(trainer.model),
        "rates": [entry["learning_rate"] for entry in logs if "learning_rate" in entry],
        "logged": [entry["loss"] for entry in logs if "loss" in entry],
        "warnings": [str(warning.message) for warning in caught if "stoker" in str(warning.message)],
    }


def weights_of(model: Any) -> str:
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(weights).hexdigest()


def trained_on(folder: Path) -> list[list[list[int]]]:
    """Return the rows of each epoch that the weights are made of, those of all ranks in the order of the ranks.

    What a run has done behind its last checkpoint is lost, and does not count.
    """
    runs: dict[str, list[list[Any]]] = {}
    for path in sorted(folder.glob("batches_*.jsonl")):
        runs.setdefault(path.stem.split("_")[1], []).append(list(map(json.loads, path.read_text().splitlines())))
    kept: list[tuple[int, int, list[Any]]] = []
    for _, ranks in sorted(runs.items()):
        kept = [step for step in kept if step[0] < ranks[0][0][0]]
        for parts in zip(*ranks, strict=True):
            kept.append((parts[0][0], parts[0][1], sum((rows for *_, rows in parts), [])))
    epochs: dict[int, list[list[int]]] = {}
    for _, epoch, rows in kept:
        epochs.setdefault(epoch, []).extend(rows)
    return [epochs[epoch] for epoch in sorted(epochs)]


def stages(loader: str, *changes: dict[str, Any], **common: Any) -> list[dict[str, Any]]:
    """Return the stages of a case: what they have in common, and what each has of its own."""
    args = SAVING | common.pop("args", {})
    return [{"loader": loader, **common, **change, "args": args | change.get("args", {})} for change in changes]


def in_stages(
    train_all: Callable[..., Any], folder: Path, cases: dict[str, list[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """Run all cases, each in stages, in as few launches as possible; return what each stage came to.

    Every stage after the first goes on from the last checkpoint, unless it says otherwise.
    """
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for number in range(max(map(len, cases.values()))):
        for num_ranks in (1, 2):
            wanted = {
                name: {"folder": str(folder / name), "run": number, "resume": bool(number) or None} | stages[number]
                for name, stages in cases.items()
                if number < len(stages) and stages[number].get("num_ranks", 1) == num_ranks
            }
            if wanted:
                ranks = launch(train_all, list(wanted.values()), num_ranks=num_ranks)
                for name, *came in zip(wanted, *ranks, strict=True):
                    assert len({str(result.get("weights")) for result in came}) == 1, name
                    results[name].append(came[0])
    return results


def whole_of(case: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the run that does not stop, and what it is known by: checkpoints and who prepares change nothing."""
    args = {name: value for name, value in case[0]["args"].items() if not name.startswith("save")}
    if args.get("load_best_model_at_end"):
        args = case[0]["args"]
    own = ("stop_at", "saves_in_step", "is_prepared")
    run = {name: value for name, value in case[0].items() if name not in own} | {"args": args}
    return "whole " + hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:8], [run]
