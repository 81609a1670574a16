"""A loader that is built again from the parts of another one, as trainers do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from stoker.errors import ArgumentError
from stoker.loader.arguments import Arguments
from stoker.loader.order.planned_sampler import PlannedPositions
from stoker.loader.order.schedule import Schedule

_INNER = ("sampler", "batch_sampler", "_sampler", "_batch_sampler", "dataset")
"""Attributes in which samplers hold the one they wrap."""
_DEEPEST = 4


def take_over(given: Arguments) -> tuple[Arguments, Schedule | None]:
    """Return the arguments with the order, tail, share and skips of the loader that the sampler was taken from.

    And that loader's schedule: None, and the arguments as they are, unless the sampler is our own, from a loader of the
    same dataset. A `DistributedSampler` around it shares our order out among ranks. Any other wrapper is a sampler of
    the user's.
    """
    sampler = given.sampler
    batch_size, drop_last = given.batch_size, given.drop_last
    if type(given.batch_sampler) is BatchSampler:
        sampler = given.batch_sampler.sampler
        batch_size, drop_last = given.batch_sampler.batch_size, given.batch_sampler.drop_last
    positions = sampler
    if isinstance(sampler, DistributedSampler) and not isinstance(sampler, PlannedPositions):
        positions = planned_inside(sampler)
    if not isinstance(positions, PlannedPositions) or positions.schedule.dataset is not given.dataset:
        return given, None
    schedule = positions.schedule
    rank, num_ranks = schedule.rank, schedule.num_ranks
    if positions is not sampler and sampler.num_replicas > 1:
        if schedule.placement.is_set:
            raise ArgumentError(
                f"{describe_class(sampler)} would share out a loader that already reads only the part of rank {rank} "
                f"of {num_ranks}: most samples would never be read",
                hint="leave out distributed=, rank=, num_ranks= and mesh= and let the trainer set the rank, or keep "
                "them and turn off the trainer's sampler (Trainer(use_distributed_sampler=False) in Lightning)",
            )
        rank, num_ranks = int(sampler.rank), int(sampler.num_replicas)
    arguments = replace(
        given,
        sampler=None,
        batch_sampler=None,
        shuffle=None,
        order=schedule.order,
        rank=rank,
        num_ranks=num_ranks,
        distributed=False,
        batch_size=batch_size,
        drop_last=drop_last,
        tail=None if drop_last or (given.tail or schedule.tail) == "drop" else given.tail or schedule.tail,
        skip=given.skip or schedule.skip,
    )
    return arguments, schedule


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
