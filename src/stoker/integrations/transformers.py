"""The Transformers Trainer, and those of TRL: it is given our loader as it is, and checkpoints have the loader's state.

The Trainer resumes by counting: it divides its number of optimizer steps by those of an epoch, and skips the rest. That
holds for the same batch size and number of processes only. A `stoker.DataLoader` says where it was instead, and the
Trainer's numbers of epochs and steps follow from that.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import has_length

from stoker.errors import ArgumentError, StateMismatch
from stoker.integrations.accelerate import PreparedLoader, is_ours
from stoker.loader import DataLoader
from stoker.loader.progress import readable
from stoker.trainers import redirect

_original: dict[str, Callable[..., Any]] = {}


def install(module: ModuleType) -> None:
    """Let the Trainer ask our loader where it is, and save what it says."""
    missing = [name for name in _HOOKS if not hasattr(module.Trainer, name)]
    if missing:
        warnings.warn(
            f"this version of transformers has no Trainer.{missing[0]}, so checkpoints of the Trainer have no state of "
            "a stoker.DataLoader, and a resume is exact for the same batch size and number of processes only\n"
            "hint: use a version of transformers that is tested, such as 5.23",
            stacklevel=2,
        )
        return
    for name, hook in _HOOKS.items():
        _original[name] = redirect(getattr(module.Trainer, name), partial(_called, name, hook))


def _called(name: str, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    call = inspect.signature(_original[name]).bind(*args, **kwargs)
    call.apply_defaults()
    return hook(call.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a loader goes on, in batches of this run."""

    epoch: int
    done: int
    """Batches of the epoch that are behind us, rounded down to whole optimizer steps."""
    left: int | None
    """Batches of the epoch that are to come; None if nobody knows."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """One call of `train`: its loader, and where it began."""

    loader: DataLoader[Any]
    num_batches: int | None
    """Of a whole epoch; None if nobody knows."""
    accumulation: int
    place: _Place | None = None

    @property
    def per_epoch(self) -> int:
        """Optimizer steps of a whole epoch."""
        assert self.num_batches is not None
        return max(1, ceil(self.num_batches / self.accumulation))


def _train(call: dict[str, Any]) -> Any:
    call["self"]._stoker_checkpoint = call["resume_from_checkpoint"]
    return _original["_inner_training_loop"](**call)


def _set_initial_training_values(call: dict[str, Any]) -> Any:
    """Return the Trainer's numbers of epochs and steps, counted from the place of the loader."""
    trainer, args, loader = call["self"], call["args"], call["dataloader"]
    trainer._stoker_run = None
    if not is_ours(loader):
        return _original["set_initial_training_values"](**call)
    _take_over(trainer, loader)
    values = _original["set_initial_training_values"](**call)
    num_batches = len(loader) if has_length(loader) else None
    if loader.plan is not None:
        num_batches = loader.plan.steps_in(loader.plan.origin.epoch + 1)
    run = trainer._stoker_run = _Run(
        loader=loader, num_batches=num_batches, accumulation=args.gradient_accumulation_steps
    )
    shift = _begin(trainer, run, getattr(trainer, "_stoker_checkpoint", None))
    if num_batches is None:
        return values
    num_train_epochs, _, num_examples, num_train_samples, batch_size, _, max_steps = values
    if args.max_steps > 0:
        num_train_epochs = ceil((max_steps - shift) / run.per_epoch)
    else:
        max_steps = ceil(args.num_train_epochs * run.per_epoch) + shift
    return num_train_epochs, run.per_epoch, num_examples, num_train_samples, batch_size, num_batches, max_steps


def _init_training_state(call: dict[str, Any]) -> Any:
    trainer, checkpoint = call["self"], call["resume_from_checkpoint"]
    run = trainer._stoker_run
    if run is not None and not hasattr(trainer, "_stoker_checkpoint") and _begin(trainer, run, checkpoint):
        raise ArgumentError(
            "the batch size or number of processes has changed since the checkpoint, and the Trainer has counted its "
            "steps already, because stoker was imported in the middle of trainer.train()",
            hint="import stoker at the top of the script",
        )
    counted = _original["_init_training_state"](**call)
    return counted if run is None or run.place is None else (run.place.epoch, run.place.done)


def _begin(trainer: Any, run: _Run, checkpoint: str | None) -> int:
    """Load the state of a checkpoint; return how many more optimizer steps were taken until now than now are counted.

    None are, unless the batch size or number of processes has changed.
    """
    global_step = 0
    if checkpoint is not None:
        global_step = TrainerState.load_from_json(str(Path(checkpoint, "trainer_state.json"))).global_step
        if global_step and not trainer.args.ignore_data_skip:
            _load(trainer, run.loader, checkpoint)
    if run.loader.is_resumed:
        run.place = _place_of(run)
    if run.place is None or run.place.left is None:
        return 0
    return global_step - (run.place.epoch + 1) * run.per_epoch + ceil(run.place.left / run.accumulation)


def _run_epoch(call: dict[str, Any]) -> Any:
    """Run an epoch of as many batches as are to come, which decides when its last optimizer step is due."""
    run, epoch = call["self"]._stoker_run, call["epoch"]
    if run is not None:
        place, plan = run.place, run.loader.plan
        num_batches = None if plan is None else plan.num_steps(epoch)
        if place is not None and epoch == place.epoch:
            num_batches = None if place.left is None else place.done + place.left
        if num_batches is not None:
            call["steps_in_epoch"] = num_batches
            call["num_update_steps_per_epoch"] = ceil(num_batches / run.accumulation)
    return _original["_run_epoch"](**call)


def _save_checkpoint(call: dict[str, Any]) -> Any:
    trainer = call["self"]
    run = getattr(trainer, "_stoker_run", None)
    if run is not None:
        folder = Path(trainer._get_output_dir(trial=call["trial"]), f"checkpoint-{trainer.state.global_step}")
        folder.mkdir(parents=True, exist_ok=True)
        path = _path(folder, trainer.args.process_index)
        beside = path.with_suffix(".part")
        torch.save({"num_processes": trainer.args.world_size, "loader": run.loader.state_dict()}, beside)
        os.replace(beside, path)
    return _original["_save_checkpoint"](**call)


def _evaluation_loop(call: dict[str, Any]) -> Any:
    if is_ours(call["dataloader"]):
        _take_over(call["self"], call["dataloader"])
    return _original["evaluation_loop"](**call)


_HOOKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "_inner_training_loop": _train,
    "set_initial_training_values": _set_initial_training_values,
    "_init_training_state": _init_training_state,
    "_run_epoch": _run_epoch,
    "_save_checkpoint": _save_checkpoint,
    "evaluation_loop": _evaluation_loop,
}
"""Methods of the Trainer, and what is called instead, with all arguments by name."""


def _take_over(trainer: Any, loader: DataLoader[Any]) -> None:
    """Prepare a loader for the Trainer's processes, and give it the Trainer's seed if it has none of its own."""
    args = trainer.args
    if loader.seed is None and loader.generator is None and loader.plan is not None:
        shown = loader.batch_sampler
        loader.adapt(seed=args.seed if args.data_seed is None else args.data_seed)
        if isinstance(loader, PreparedLoader):
            loader.__dict__["batch_sampler"] = shown  # Accelerate's own
    trainer.accelerator.prepare(loader)


def _path(folder: str | Path, process: int) -> Path:
    return Path(folder, f"stoker_{process}.pt")


def _load(trainer: Any, loader: DataLoader[Any], checkpoint: str) -> None:
    """Load the state of a checkpoint, which may have been saved by another number of processes."""
    own = _path(checkpoint, trainer.args.process_index)
    path = own if own.exists() else _path(checkpoint, 0)
    if not path.exists():
        warnings.warn(
            f"{checkpoint} has no state of a stoker.DataLoader, so the batches before it are counted, which is exact "
            "only if they came from this loader, with the same seed, batch size and number of processes",
            stacklevel=2,
        )
        return
    saved = torch.load(path, weights_only=True)
    state, num_processes = saved["loader"], trainer.args.world_size
    if state.get("kind") == "sampler" and saved["num_processes"] != num_processes:
        raise StateMismatch({"num_processes": (saved["num_processes"], num_processes)})
    loader.load_state_dict(state)


def _place_of(run: _Run) -> _Place:
    """Return where a loader that has loaded a state goes on."""
    state, plan, left = readable(run.loader.state_dict()), run.loader.plan, None
    if plan is not None:
        assert run.num_batches is not None
        steps = range(state["step"], plan.first_step(state["epoch"]) + plan.steps_in(state["epoch"]))
        left = sum(not plan.is_skipped(step) for step in steps) - len(state["ahead"])
        done = run.num_batches - left
    elif state["kind"] == "sampler":
        done = state["num_batches"]
    else:
        place = state["place"]
        parts = [place] if state["sharing"] == "whole" else place["parts"].values()
        done = sum(part["steps"] for part in parts)
    if left is None and run.num_batches is not None:
        left = max(0, run.num_batches - done)
    return _Place(epoch=state["epoch"], done=done // run.accumulation * run.accumulation, left=left)
