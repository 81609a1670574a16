"""What the integrations have in common: which loaders they handle, and which share a trainer may give one."""

from __future__ import annotations

from typing import Any

from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from stoker.errors import ArgumentError
from stoker.loader import DataLoader


def is_ours(loader: Any) -> bool:
    """Return whether a loader is a `stoker.DataLoader`, and not over torch's DataPipes, which it leaves to torch."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterDataPipe | MapDataPipe)


def has_share(loader: DataLoader[Any]) -> bool:
    """Return whether the user has given a loader its rank, or a mesh."""
    return loader.num_ranks > 1 or loader.mesh is not None


def check_share(loader: DataLoader[Any], rank: int, num_ranks: int, *, tool: str, instead: str) -> None:
    """Refuse a loader to which its user has given another share than `tool` would. `instead` is the other way out."""
    if has_share(loader) and (loader.rank, loader.num_ranks) != (rank, num_ranks):
        raise ArgumentError(
            f"this loader already reads the share of rank {loader.rank} of {loader.num_ranks}, and {tool} expects that "
            f"of rank {rank} of {num_ranks}",
            hint=f"leave out distributed=, rank=, num_ranks= and mesh=, because {tool} sets the rank; {instead}",
        )
