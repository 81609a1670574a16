"""The Transformers Trainer and those of TRL: they get our loader as it is, and their checkpoints have its state.

The Trainer resumes by counting: it divides its number of optimizer steps by those of an epoch, and skips the rest. That
holds for the same batch size and number of processes only. A `stoker.DataLoader` says where it was instead, and the
Trainer's numbers of epochs and steps follow from that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import trainer_pt_utils
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import has_length

from stoker.errors import ArgumentError, StateError, StateMismatch
from stoker.integrations.accelerate import write_state
from stoker.integrations.loaders import is_ours
from stoker.loader import DataLoader
from stoker.loader.state.progress import readable
from stoker.trainers import named_arguments, redirect

_original: dict[str, Callable[..., Any]] = {}


def install(module: ModuleType) -> None:
    """Redirect the Trainer's methods that count steps, and that save and load checkpoints."""
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
        _original[name] = redirect(getattr(module.Trainer, name), partial(_call, name, hook))


def _call(name: str, hook: Callable[[dict[str, Any]], Any], *args: Any, **kwargs: Any) -> Any:
    """Call `hook` in the place of the Trainer's method, with the arguments by name."""
    return hook(named_arguments(_original[name], args, kwargs))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResumePoint:
    """Where a loader continues, in batches of this run."""

    epoch: int
    num_done: int
    """Batches of the epoch before this place."""
    num_left: int | None
    """Batches of the epoch after it; None if unknown."""


@dataclass(slots=True, kw_only=True)
class _TrainingRun:
    """One call of `train`: its loader, where it began, and how many optimizer steps it will take."""

    loader: DataLoader[Any]
    num_batches: int | None
    """Batches of a whole epoch; None if unknown."""
    accumulation: int
    place: _ResumePoint | None = None
    """Where the loader continued, if not at the beginning."""
    num_epochs: int = 0
    num_steps: int = 0
    """Optimizer steps up to the end of the last epoch."""
    num_unused: int = 0
    """Optimizer steps that were planned and will not be taken, because a callback has ended epochs early."""
    drawn: tuple[int, dict[str, Any] | StateError] | None = None
    """The global step and the loader's state before the batches were drawn that came last."""

    @property
    def per_epoch(self) -> int:
        """Optimizer steps of a whole epoch."""
        assert self.num_batches is not None
        return max(1, ceil(self.num_batches / self.accumulation))

    def count(self, args: Any, global_step: int) -> tuple[int, int]:
        """Return the number of epochs and of optimizer steps in all, those before `global_step` included."""
        place = self.place or _ResumePoint(epoch=0, num_done=0, num_left=None)
        if args.max_steps > 0:
            max_steps, num_epochs, total = args.max_steps, place.epoch, global_step + self.num_unused
            while total < max_steps:
                total += self._steps_in(num_epochs, place)
                num_epochs += 1
            self.num_steps = total
        else:
            num_epochs = ceil(args.num_train_epochs)
            self.num_steps = self.steps_until(num_epochs, global_step, place) + self.num_unused
            left_out = num_epochs * self.per_epoch - ceil(args.num_train_epochs * self.per_epoch)
            max_steps = self.num_steps - left_out
        self.num_epochs = num_epochs
        is_complete = self.place is not None and global_step >= max_steps
        return place.epoch if is_complete else num_epochs, max_steps

    def steps_until(self, num_epochs: int, global_step: int, place: _ResumePoint) -> int:
        """Return the number of optimizer steps after so many epochs, for a run that is at `place`."""
        plan, epochs = self.loader.plan, range(place.epoch, num_epochs)
        if len(epochs) > 1 and (plan is None or not plan.skip):
            return global_step + self._steps_in(place.epoch, place) + (len(epochs) - 1) * self.per_epoch
        return global_step + sum(self._steps_in(epoch, place) for epoch in epochs)

    def _steps_in(self, epoch: int, place: _ResumePoint) -> int:
        """Return the number of optimizer steps in what is left of an epoch."""
        if epoch == place.epoch and place.num_left is not None:
            return ceil(place.num_left / self.accumulation)
        plan = self.loader.plan
        if plan is None or not plan.skip:
            return self.per_epoch
        return ceil(plan.num_steps(epoch) / self.accumulation)


def _train(call: dict[str, Any]) -> Any:
    call["self"]._stoker_checkpoint = call["resume_from_checkpoint"]
    return _original["_inner_training_loop"](**call)


def _set_initial_training_values(call: dict[str, Any]) -> Any:
    """Return the Trainer's numbers of epochs and steps, counted from the place of the loader."""
    trainer, args, loader = call["self"], call["args"], call["dataloader"]
    trainer._stoker_run = None
    if not is_ours(loader):
        return _original["set_initial_training_values"](**call)
    if trainer.get_sp_size() > 1:
        raise ArgumentError(
            "sequence parallelism of DeepSpeed cuts the batches of its ranks by a loader of its own, which a "
            "stoker.DataLoader does not support",
            hint="use context parallelism, ParallelismConfig(cp_size=...), or torch's DataLoader",
        )
    _check_order(trainer, loader)
    _take_over(trainer, loader)
    values = _original["set_initial_training_values"](**call)
    num_batches = len(loader) if has_length(loader) else None
    if loader.plan is not None:
        num_batches = loader.plan.steps_in(loader.plan.origin.epoch + 1)
    run = trainer._stoker_run = _TrainingRun(
        loader=loader, num_batches=num_batches, accumulation=args.gradient_accumulation_steps
    )
    global_step = _load_place(trainer, run, getattr(trainer, "_stoker_checkpoint", None))
    if num_batches is None:
        return values
    _, _, num_examples, num_train_samples, batch_size, _, _ = values
    num_train_epochs, max_steps = run.count(args, global_step)
    return num_train_epochs, run.per_epoch, num_examples, num_train_samples, batch_size, num_batches, max_steps


def _check_order(trainer: Any, loader: DataLoader[Any]) -> None:
    """Refuse our order where a trainer of TRL groups its batches by prompt, as for GRPO."""
    own = (kind for kind in type(trainer).__mro__ if "get_train_dataloader" in vars(kind))
    kind = next((kind for kind in own if kind.__module__.startswith("trl.")), None)
    if kind is not None and loader._is_planned:
        raise ArgumentError(
            f"{kind.__name__} needs each prompt several times in a row, in batches of its own size, but this loader "
            "gives each sample once: rewards of different prompts would be compared with each other",
            hint="leave get_train_dataloader to TRL, or give the loader TRL's order: "
            "sampler=trainer._get_train_sampler() and batch_size=per_device_train_batch_size * steps_per_generation",
        )


def _init_training_state(call: dict[str, Any]) -> Any:
    trainer, checkpoint = call["self"], call["resume_from_checkpoint"]
    run = trainer._stoker_run
    if run is not None and not hasattr(trainer, "_stoker_checkpoint"):
        global_step, counted = _load_place(trainer, run, checkpoint), (call["num_train_epochs"], call["max_steps"])
        if run.num_batches is not None and run.count(trainer.args, global_step) != counted:
            raise ArgumentError(
                "the batch size or number of processes has changed since the checkpoint, and the Trainer has counted "
                "its steps already, because stoker was imported in the middle of trainer.train()",
                hint="import stoker at the top of the script",
            )
    counted = _original["_init_training_state"](**call)
    return counted if run is None or run.place is None else (run.place.epoch, run.place.num_done)


def _load_place(trainer: Any, run: _TrainingRun, checkpoint: str | None) -> int:
    """Load the state of a checkpoint, if there is one; return the optimizer steps before the place it gives."""
    global_step, place = 0, None
    skips = checkpoint is not None and not trainer.args.ignore_data_skip
    if checkpoint is not None:
        global_step = TrainerState.load_from_json(str(Path(checkpoint, "trainer_state.json"))).global_step
        if global_step and skips:
            place = _load(trainer, run, checkpoint)
    if place is None and run.loader.is_resumed:  # by the user
        place = _place_of(run, run.loader.state_dict())
    if place is None:
        return 0  # the Trainer counts, as without us
    run.place = replace(place, num_done=place.num_done // run.accumulation * run.accumulation if skips else 0)
    return global_step


def _run_epoch(call: dict[str, Any]) -> Any:
    """Run an epoch of as many batches as are to come, which decides when its last optimizer step is due."""
    trainer, epoch = call["self"], call["epoch"]
    run = getattr(trainer, "_stoker_run", None)
    if run is None:
        return _original["_run_epoch"](**call)
    plan, place = run.loader.plan, run.place if run.place is not None and run.place.epoch == epoch else None
    num_batches = None if plan is None else plan.num_steps(epoch)
    if place is not None:
        num_batches = None if place.num_left is None else place.num_done + place.num_left
    if num_batches is not None:
        call["steps_in_epoch"] = num_batches
        call["num_update_steps_per_epoch"] = ceil(num_batches / run.accumulation)
    result = _original["_run_epoch"](**call)
    control = trainer.control
    is_left_early = (
        control.should_epoch_stop or control.should_training_stop or (place is not None and not place.num_left)
    )
    if run.num_batches is not None and not is_left_early and not run.loader.end_of_dataloader:
        warnings.warn(
            f"epoch {epoch} has more batches than the {call['steps_in_epoch']} that the Trainer counted, so the last "
            "ones were not trained on\n"
            "hint: the length of an iterable dataset that is split across workers is an estimate; pass "
            "num_workers=1, or no length and max_steps=",
            stacklevel=2,
        )
    return result


def _get_batch_samples(call: dict[str, Any]) -> Any:
    """Note where the loader is before the batches of an optimizer step are drawn."""
    trainer = call["self"]
    run = getattr(trainer, "_stoker_run", None)
    if run is not None:
        state: dict[str, Any] | StateError
        try:
            state = run.loader.state_dict()
        except StateError as error:
            if trainer.args.save_strategy != "no":
                raise  # now, and not at the first checkpoint
            state = error
        run.drawn = trainer.state.global_step, state
    return _original["get_batch_samples"](**call)


def _save_checkpoint(call: dict[str, Any]) -> Any:
    trainer = call["self"]
    run = getattr(trainer, "_stoker_run", None)
    if run is not None:
        folder = Path(trainer._get_output_dir(trial=call["trial"]), f"checkpoint-{trainer.state.global_step}")
        folder.mkdir(parents=True, exist_ok=True)
        path, num_processes = _path(folder, trainer.args.process_index), trainer.args.world_size
        write_state({"num_processes": num_processes} | _loader_state(trainer, run), path)
        if trainer.args.process_index == 0:
            for other in folder.glob("stoker_*.pt"):  # of an earlier run, when there were more
                if int(other.stem.rpartition("_")[2]) >= num_processes:
                    other.unlink(missing_ok=True)
    return _original["_save_checkpoint"](**call)


def _loader_state(trainer: Any, run: _TrainingRun) -> dict[str, Any]:
    """Return what a checkpoint has of the loader: the place of the weights, which batches may be ahead of."""
    global_step, ends_epoch = trainer.state.global_step, trainer.control.should_epoch_stop
    if run.drawn is not None and run.drawn[0] == global_step:
        state, ends_epoch = run.drawn[1], False  # in the middle of an optimizer step, such as after SIGTERM
        if isinstance(state, StateError):
            raise state
    else:
        state = run.loader.state_dict()
    place = _place_of(run, state)
    ends_epoch = ends_epoch and place.num_done > 0
    num_unused = 0
    if run.num_batches is not None:
        following = _next_epoch(run, place) if ends_epoch else place
        num_unused = run.num_steps - run.steps_until(run.num_epochs, global_step, following)
    return {"loader": state, "ends_epoch": ends_epoch, "num_unused": num_unused}


def _evaluation_loop(call: dict[str, Any]) -> Any:
    if is_ours(call["dataloader"]):
        _take_over(call["self"], call["dataloader"])
    return _original["evaluation_loop"](**call)


_HOOKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "_inner_training_loop": _train,
    "set_initial_training_values": _set_initial_training_values,
    "_init_training_state": _init_training_state,
    "_run_epoch": _run_epoch,
    "get_batch_samples": _get_batch_samples,
    "_save_checkpoint": _save_checkpoint,
    "evaluation_loop": _evaluation_loop,
}
"""Methods of the Trainer, and what is called instead, with all arguments by name."""


def _take_over(trainer: Any, loader: DataLoader[Any]) -> None:
    """Prepare a loader for the Trainer's processes, and give it the Trainer's seed if it has none."""
    args, schedule = trainer.args, loader._schedule
    trainer.accelerator.prepare(loader)
    has_seed = schedule.drawn_seed is not None and not schedule.is_seed_drawn
    if loader._is_planned and loader.generator is None and not has_seed:
        shown = loader.batch_sampler
        loader.adapt(seed=args.seed if args.data_seed is None else args.data_seed)
        loader.__dict__["batch_sampler"] = shown  # Accelerate's own


def _path(folder: str | Path, process: int) -> Path:
    return Path(folder, f"stoker_{process}.pt")


def _load(trainer: Any, run: _TrainingRun, checkpoint: str) -> _ResumePoint | None:
    """Load the state of a checkpoint, which may have been saved by another number of processes."""
    own = _path(checkpoint, trainer.args.process_index)
    path = own if own.exists() else _path(checkpoint, 0)
    if not path.exists():
        warnings.warn(
            f"{checkpoint} has no state of a stoker.DataLoader, so the batches before it are counted, which is exact "
            "only if they came from this loader, with the same seed, batch size and number of processes",
            stacklevel=2,
        )
        return None
    with getattr(trainer_pt_utils, "safe_globals", nullcontext)():  # NumPy's arrays, in the state of a user's dataset
        saved = torch.load(path, weights_only=True)
    state, num_processes = saved["loader"], trainer.args.world_size
    if state.get("kind") == "sampler" and saved["num_processes"] != num_processes:
        raise StateMismatch({"num_processes": (saved["num_processes"], num_processes)})
    run.loader.load_state_dict(state)
    run.num_unused = saved["num_unused"]
    place = _place_of(run, run.loader.state_dict())
    if saved["ends_epoch"]:
        run.loader.set_epoch(place.epoch + 1)
        return _next_epoch(run, place)
    return place


def _next_epoch(run: _TrainingRun, place: _ResumePoint) -> _ResumePoint:
    plan, epoch = run.loader.plan, place.epoch + 1
    return _ResumePoint(epoch=epoch, num_done=0, num_left=run.num_batches if plan is None else plan.num_steps(epoch))


def _place_of(run: _TrainingRun, state: dict[str, Any]) -> _ResumePoint:
    """Return where a state is that the loader has, or has loaded."""
    state, loader, plan = readable(state), run.loader, run.loader.plan
    epoch = state["epoch"]
    if plan is not None:
        steps = range(state["step"], plan.first_step(epoch) + plan.steps_in(epoch))
        left = sum(not plan.is_skipped(step) for step in steps) if plan.skip else len(steps)
        left -= len(state["ahead"])
        num_skipped = plan.steps_in(epoch) - plan.num_steps(epoch)
        return _ResumePoint(
            epoch=epoch, num_done=plan.steps_in(plan.origin.epoch + 1) - num_skipped - left, num_left=left
        )
    size, drops_last = loader.batch_size, bool(loader.drop_last)
    num_batches, num_samples, length = 0, 0, None
    if state["kind"] == "sampler":
        num_batches, num_samples, length = state["num_batches"], state["num_samples"], state["sampler_length"]
    elif state["sharing"] == "whole":
        num_batches, num_samples = state["place"]["steps"], state["place"]["samples"]
        length = len(loader.dataset) if has_length(loader.dataset) else None  # type: ignore[arg-type]
        size = None if size is None else size * loader.num_ranks
    else:
        parts = state["place"]["parts"].values()
        num_batches, num_samples = sum(part["steps"] for part in parts), sum(part["samples"] for part in parts)
    if run.num_batches is None:
        return _ResumePoint(epoch=epoch, num_done=num_batches, num_left=None)
    if size is not None and length is not None:  # which may have been cut into batches of another size
        left = (length - num_samples) // size if drops_last else ceil((length - num_samples) / size)
        return _ResumePoint(epoch=epoch, num_done=run.num_batches - left, num_left=left)
    done = num_batches if size is None else num_samples // size
    return _ResumePoint(epoch=epoch, num_done=done, num_left=max(0, run.num_batches - done))
