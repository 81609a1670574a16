"""A loader that is built again from the parts of another one, as trainers do."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DistributedSampler

from stoker.errors import ArgumentError
from stoker.loader.order.planned_sampler import PlannedPositions
from stoker.loader.order.schedule import Schedule

_INNER = ("sampler", "batch_sampler", "_sampler", "_batch_sampler", "dataset")
"""Attributes in which samplers hold the one they wrap."""
_DEEPEST = 4


class Rebuilt(NamedTuple):
    """What the sampler of a new loader says about the loader it was taken from."""

    schedule: Schedule
    rank: int
    num_ranks: int
    batch_size: int | None
    """That of a batch sampler; None if there is none."""
    drops_last: bool | None


def rebuilt(dataset: Any, sampler: Any, batch_sampler: Any) -> Rebuilt | None:
    """Return what is known if the sampler is our own, from a loader of the same dataset; None for every other one.

    A `DistributedSampler` around it shares our order out among ranks. Any other wrapper is a sampler of the user's.
    """
    batch_size = drops_last = None
    if type(batch_sampler) is BatchSampler:
        sampler, batch_size, drops_last = batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
    positions = sampler
    if isinstance(sampler, DistributedSampler) and not isinstance(sampler, PlannedPositions):
        positions = planned_inside(sampler)
    if not isinstance(positions, PlannedPositions) or positions.schedule.dataset is not dataset:
        return None
    schedule = positions.schedule
    if positions is sampler or sampler.num_replicas == 1:
        return Rebuilt(schedule, schedule.rank, schedule.num_ranks, batch_size, drops_last)
    if schedule.is_shared_out:
        raise ArgumentError(
            f"{describe_class(sampler)} would share out a loader that already reads only the part of rank "
            f"{schedule.rank} of {schedule.num_ranks}: most samples would never be read",
            hint="leave out distributed=, rank=, num_ranks= and mesh= and let the trainer set the rank, or keep them "
            "and turn off the trainer's sampler (Trainer(use_distributed_sampler=False) in Lightning)",
        )
    return Rebuilt(schedule, int(sampler.rank), int(sampler.num_replicas), batch_size, drops_last)


def planned_inside(sampler: Any) -> PlannedPositions | None:
    """Return our sampler inside others, if it is there."""
    for _ in range(_DEEPEST):
        if sampler is None or isinstance(sampler, PlannedPositions):
            return sampler
        inner = (vars(sampler).get(name) for name in _INNER) if hasattr(sampler, "__dict__") else ()
        sampler = next((part for part in inner if part is not None), None)
    return None


def describe_class(value: Any) -> str:
    """Return the class of an object with its module, which names the tool that it comes from."""
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
