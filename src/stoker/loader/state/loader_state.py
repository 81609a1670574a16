"""Save and load the state of a loader: where it is, and what identifies its data and order."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from stoker.compose.wrapped_datasets import fingerprint_of
from stoker.errors import ArgumentError, StateError, StateMismatch, StateUnreadable, StokerError
from stoker.loader.order.rebuilt_loader import describe_class
from stoker.loader.state.dataset_state import load_own_state
from stoker.loader.state.growth import next_epoch
from stoker.loader.state.plan_progress import PlanProgress
from stoker.loader.state.progress import Progress, check_sums, checksums, enclosed, readable
from stoker.source.protocols import has_grown_from, saves_order

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader


def new_progress(loader: DataLoader[Any], epoch: int) -> Progress:
    """Return the beginning of an epoch, of whichever kind the loader's data and sampler need."""
    schedule = loader._schedule
    in_order = loader.in_order or not loader._has_workers
    if loader._is_planned:
        plan = schedule.plan_for(epoch)
        return PlanProgress(plan, epoch, rank=schedule.rank, num_ranks=schedule.num_ranks, in_order=in_order)
    if loader._is_stream:
        from stoker.loader.state.stream_progress import StreamProgress

        return StreamProgress(
            loader.dataset, epoch, loader._stream_setting, is_here=not loader.num_workers, in_order=loader.in_order
        )
    from stoker.loader.state.sampler_progress import SamplerProgress

    is_own_batching = loader.batch_sampler is not None and loader.batch_size is None
    return SamplerProgress(
        loader.batch_sampler if is_own_batching else loader.sampler,
        epoch,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        is_batched=loader._auto_collation,
        in_order=in_order,
    )


def save_state(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the state of a loader: what was yielded, not what is prefetched."""
    if loader._is_foreign:
        raise StateError(
            "torch's DataPipes do not know where they are\nhint: use a dataset, or a stream with state_dict()"
        )
    schedule = loader._schedule
    progress = loader._progress = loader._progress or new_progress(loader, schedule.next_epoch)
    state = progress.state()
    state["seed"] = schedule.seed
    state |= _identity(schedule.dataset) | schedule.placement.state()
    state["chosen_epoch"] = loader._chosen_epoch
    state["served"], state["skipped"] = loader.ledger.num_served, loader.ledger.num_skipped
    if loader._is_planned and saves_order(schedule.dataset):
        assert isinstance(progress, PlanProgress)
        state["mixture"] = schedule.dataset.state(progress.epoch, progress.ordinal)
    if (dataset := _stateful_dataset(loader)) is not None:
        if loader._reads_ahead:
            warnings.warn(
                f"the state of {describe_class(dataset)} is not saved: samples are read ahead, so its state_dict() "
                "is not that of what was yielded\n"
                "hint: draw random numbers from stoker.rng(), which is exact without a state; or read samples when "
                "they are asked for (num_workers=0, num_threads=0, no device=)",
                stacklevel=3,
            )
        else:
            state["dataset_state"] = deepcopy(dataset.state_dict())
    state["checksums"] = checksums(state)
    state = enclosed(state)
    name = _name_of_rank(loader, state)
    return state if name is None else state | {name: (state,)}


def load_state(loader: DataLoader[Any], state: dict[str, Any], *, grown: bool) -> None:
    """Let the next iteration of a loader go on where `state` was taken; refuse it if data, order or seed differ.

    A state that is refused changes nothing.
    """
    state = readable(state)
    name = _name_of_rank(loader, state)
    if name in state:
        state = readable(state[name][0])
    schedule = loader._schedule
    schedule.placement.check_state(state)
    dataset = schedule.dataset
    has_grown = _check_identity(loader, state, grown=grown)
    before = schedule.following
    if loader._is_planned and saves_order(loader.dataset):
        # as it was when the state was taken, or changed from there on
        schedule.dataset = _resumed_order(loader.dataset, state)
        loader._processes = None
    if loader._is_stream or state["seed"] != schedule.drawn_seed:
        loader._processes = None  # persistent workers have the seed, and the place in a stream, they had
    schedule.follow(None, state["seed"])
    try:
        progress = new_progress(loader, 0)
        if has_grown:
            assert isinstance(progress, PlanProgress)
            state = next_epoch(state, progress)
        progress = progress.resumed(state)
        check_sums(progress, state)
        progress.take_up()
        stateful = _stateful_dataset(loader)
        if "dataset_state" in state and stateful is not None:
            load_own_state(stateful, deepcopy(state["dataset_state"]))
    except Exception as error:
        schedule.dataset = dataset
        schedule.follow(*before)
        is_ours = isinstance(error, StokerError) and not isinstance(error, ArgumentError)
        if is_ours or isinstance(error, OSError | MemoryError):
            raise
        raise StateUnreadable(f"its fields do not fit together ({error})") from error
    loader._progress = loader._resume = progress
    loader._num_to_skip = 0
    schedule.next_epoch, schedule.is_seed_drawn = progress.epoch, False
    if isinstance(progress, PlanProgress):
        schedule.follow(progress.plan, state["seed"])
    loader._chosen_epoch = state.get("chosen_epoch")
    if loader._chosen_epoch is not None:
        loader._set_epoch_of_parts(loader._chosen_epoch)
    loader.ledger.num_served, loader.ledger.num_skipped = state.get("served", 0), state.get("skipped", 0)


def _identity(dataset: Any) -> dict[str, Any]:
    """Return what identifies a dataset."""
    try:
        length = len(dataset)
    except (TypeError, ValueError, OverflowError):
        length = None
    return {"dataset": fingerprint_of(dataset), "dataset_length": length}


def _check_identity(loader: DataLoader[Any], state: dict[str, Any], *, grown: bool) -> bool:
    """Raise `StateMismatch` unless the state is of this kind of loader, seed and data; return whether the data grew."""
    schedule = loader._schedule
    saves_own_order = loader._is_planned and saves_order(loader.dataset)
    kind = "plan" if loader._is_planned else "stream" if loader._is_stream else "sampler"
    differences: dict[str, tuple[Any, Any]] = {}
    if state["kind"] != kind:
        differences["kind"] = (state["kind"], kind)
    if loader.seed is not None and state["seed"] != loader.seed:
        differences["seed"] = (state["seed"], loader.seed)
    # a dataset that saves its order compares its parts itself
    for name, identity in () if saves_own_order else _identity(schedule.dataset).items():
        if None not in (state.get(name), identity) and state[name] != identity:
            differences[name] = (state[name], identity)
    if "dataset" in differences:
        from stoker.compose.packs.packed import differing_versions

        versions = differing_versions(*differences["dataset"])
        if versions is not None:  # the same documents, put into other rows by another version of stoker
            differences = {"version of the packing of documents": versions, **differences}
            del differences["dataset"]
    if "mixture" in state and not saves_own_order:
        differences["mixture"] = (list(state["mixture"].get("counts", ())), None)
    has_grown = (
        grown
        and loader._is_planned
        and set(differences) <= {"dataset", "dataset_length"}
        and "dataset" in differences
        and has_grown_from(schedule.dataset, state["dataset"])
    )
    if differences and not has_grown:
        raise StateMismatch(differences)
    return has_grown


def _resumed_order(dataset: Any, state: dict[str, Any]) -> Any:
    resumed = dataset.resumed(state.get("mixture"))
    if state.get("ahead") and resumed.has_changed_since(state["mixture"]):
        raise StateError(
            "the state was taken with in_order=False while later batches had overtaken earlier ones, "
            "so the mixture can only go on as it was\n"
            "hint: resume as before, or save states with in_order=True"
        )
    return resumed


def _stateful_dataset(loader: DataLoader[Any]) -> Any:
    """Return the dataset if it is map-style and has a state, as those written for torchdata may have; else None."""
    dataset: Any = loader._schedule.dataset
    names = ("state_dict", "load_state_dict")
    has_state = all(callable(getattr(dataset, name, None)) for name in names)
    return dataset if has_state and not loader._is_stream else None


def _name_of_rank(loader: DataLoader[Any], state: dict[str, Any]) -> str | None:
    """Return the name under which a state that fits this rank alone is in it a second time, as one entry.

    torch.distributed.checkpoint keeps one value for each name, so that of what only this rank has the name must be
    its own. None for states that all ranks may load.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    placement = loader._schedule.placement
    rank, num_ranks = placement.rank, placement.num_ranks
    is_in_order = (loader.in_order or not loader._has_workers) and "dataset_state" not in state
    if num_ranks > 1 or placement.mesh is not None:
        is_shared = is_in_order and (state["kind"] != "stream" or state["sharing"] == "whole")
    else:  # each rank may have data, a sampler or a seed of its own
        is_shared = is_in_order and loader._is_planned and loader.seed is not None
        rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if is_shared:
        return None
    return f"rank_{rank}_of_{num_ranks}" if num_ranks > 1 else None
