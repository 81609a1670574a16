"""Ray Train: `ray.train.torch.prepare_data_loader(loader)` keeps the loader and gives it its rank and device.

Ray builds a torch loader with a `DistributedSampler` from the dataset, and wraps it to copy batches a step ahead. A
`stoker.DataLoader` shares its own order and copies ahead by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from stoker.errors import ArgumentError
from stoker.integrations.loaders import check_share, has_share, is_ours
from stoker.loader.order.rebuilt_loader import describe_class
from stoker.trainers import named_arguments, redirect


def install(module: ModuleType) -> None:
    """Redirect the function that prepares loaders. Both versions of Ray Train have one; `module` is that of one."""
    originals: list[Callable[..., Any]] = []
    originals.append(redirect(module.prepare_data_loader, partial(_prepare, originals)))


def _prepare(originals: list[Callable[..., Any]], *args: Any, **kwargs: Any) -> Any:
    (original,) = originals
    call = named_arguments(original, args, kwargs)
    loader = call["data_loader"]
    if not is_ours(loader):
        return original(**call)
    import ray.train
    import ray.train.torch

    context = ray.train.get_context()
    changes: dict[str, Any] = {}
    if call["add_dist_sampler"] and context.get_world_size() > 1:
        changes = _share(loader, context.get_world_rank(), context.get_world_size())
    device = ray.train.torch.get_device() if call["move_to_device"] else None
    if device is not None and device.type != "cpu" and loader.device is None:
        changes["device"] = device
    return loader.adapted(**changes) if changes else loader


def _share(loader: Any, rank: int, num_ranks: int) -> dict[str, Any]:
    """Return the changes by which a loader reads the share of a rank."""
    switch = "pass add_dist_sampler=False to prepare_data_loader"
    if loader._is_stream and loader.shard is None:
        return {}  # as in Ray, the dataset itself has to see to it
    if not (loader._is_planned or loader._is_stream):
        has_own_batches = loader.batch_size is None and loader.batch_sampler is not None
        own = loader.batch_sampler if has_own_batches else loader.sampler
        if any(getattr(sampler, "num_replicas", 1) > 1 for sampler in (own, getattr(own, "sampler", None))):
            return {}
        raise ArgumentError(
            f"Ray Train would replace {describe_class(own)} by a DistributedSampler, which gives another order",
            hint=f"leave out the sampler and pass shuffle=True; or {switch}, if the sampler gives each rank its share",
        )
    check_share(loader, rank, num_ranks, tool="Ray Train", instead=f"or {switch}")
    return {} if has_share(loader) else {"rank": rank, "num_ranks": num_ranks}
