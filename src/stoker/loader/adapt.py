"""Change the arguments of a loader between two iterations, as trainers do that give it its rank or cut its batches."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import BatchSampler

from stoker.errors import ArgumentError
from stoker.loader.checks import length_of
from stoker.loader.order.schedule import Schedule
from stoker.loader.sharing.ranks import resolved_ranks
from stoker.plan import Layout, Order, Tail, order_named

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader


def adapt_loader(
    loader: DataLoader[Any],
    *,
    rank: int | None = None,
    num_ranks: int | None = None,
    batch_size: int | None = None,
    order: str | Order | None = None,
    tail: Tail | None = None,
    layout: Layout | None = None,
    seed: int | None = None,
    shard: Literal["auto"] | None = None,
    sampler: Any = None,
    batch_sampler: Any = None,
    device: str | int | torch.device | None = None,
) -> None:
    """Change arguments of a loader. See `DataLoader.adapt`."""
    state = None if loader._resume is None else loader.state_dict()
    schedule = loader._schedule
    changed = _changed_schedule(
        schedule, rank=rank, num_ranks=num_ranks, batch_size=batch_size, order=order, tail=tail, layout=layout
    )
    if seed is not None and loader.seed is None:
        changed.drawn_seed, changed.is_seed_drawn = seed, False
    elif changed.num_ranks > schedule.num_ranks == 1 and schedule.is_seed_drawn and schedule.generator is None:
        changed.drawn_seed = None  # each rank has drawn its own, and they have to agree
    changed.follow(None, changed.drawn_seed)
    if loader._is_planned:
        changed.planned(length_of(schedule.dataset), seed=0)  # refuses what cannot be a plan
    vars(schedule).update(vars(changed))  # the sampler has this very object
    # torch forbids to assign these to a loader that is made
    attributes = loader.__dict__
    attributes.update(rank=schedule.rank, num_ranks=schedule.num_ranks)
    attributes.update(order=loader.order if order is None else order, tail=tail or loader.tail)
    attributes.update(shard=shard or loader.shard)
    if device is not None:
        from stoker.deliver import checked_device

        loader._device, attributes["device"] = checked_device(device), device
    if batch_size is not None and loader.batch_size is not None:
        attributes["batch_size"] = batch_size
    if tail is not None:
        attributes["drop_last"] = tail == "drop" and loader.batch_size is not None
    if loader._is_planned:
        loader._set_planned_sampler()
    elif batch_sampler is not None:
        attributes.update(batch_sampler=batch_sampler, batch_size=None, drop_last=False)
    elif sampler is not None:
        attributes["sampler"] = sampler
        if loader.batch_size is not None:
            attributes["batch_sampler"] = BatchSampler(sampler, loader.batch_size, loader.drop_last)
    loader._processes = loader._progress = loader._resume = None
    loader.counters.rank, loader.counters.num_ranks = schedule.rank, schedule.num_ranks
    if state is not None:
        loader.load_state_dict(state)


def _changed_schedule(
    schedule: Schedule,
    *,
    rank: int | None,
    num_ranks: int | None,
    batch_size: int | None,
    order: str | Order | None,
    tail: Tail | None,
    layout: Layout | None,
) -> Schedule:
    """Return a copy of a schedule with other terms. `ArgumentError` if it would be shared out a second time."""
    placement = schedule.placement
    if (num_ranks or 1) > 1 and placement.is_set and (rank, num_ranks) != (placement.rank, placement.num_ranks):
        raise ArgumentError(
            f"this loader already reads only the part of rank {placement.rank} of {placement.num_ranks}, and would be "
            f"shared out a second time, as rank {rank} of {num_ranks}",
            hint="leave out distributed=, rank=, num_ranks= and mesh= where a trainer sets the rank",
        )
    changed = copy(schedule)
    if rank is not None or num_ranks is not None:
        rank, num_ranks = resolved_ranks(rank, num_ranks, distributed=False)
        changed.placement = replace(placement, rank=rank, num_ranks=num_ranks)
    changed.batch_size = batch_size or schedule.batch_size
    changed.tail, changed.layout = tail or schedule.tail, layout or schedule.layout
    changed.order = schedule.order if order is None else order_named(order)
    return changed
