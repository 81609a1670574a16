"""Which rank this is, and of how many."""

from __future__ import annotations

import os

from stoker.errors import ArgumentError
from stoker.foundation import machine

LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH", "PMI_RANK", "PMI_SIZE"),
)
"""Launchers and the environment variables that they set, in the order in which they are looked up."""


NOT_LAUNCHED = "torch.distributed is not initialized and none of these is set: " + ", ".join(
    f"{rank}/{num_ranks} ({launcher})" for launcher, rank, num_ranks in LAUNCHERS
)
"""Where a rank was looked for, for the error message."""

LOCAL = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Environment variables with the number of ranks on this machine."""


def resolved_ranks(rank: int | None, num_ranks: int | None, *, distributed: bool) -> tuple[int, int]:
    """Return (rank, num_ranks) from the arguments, torch.distributed or the launcher's environment."""
    if distributed:
        found = launched_ranks("distributed=True")
        # both may be given where a loader is made again from its attributes: then they agree
        if (rank, num_ranks) not in ((None, None), found):
            raise ArgumentError(
                f"distributed=True reads the rank from torch.distributed or the launcher, but rank={rank} and "
                f"num_ranks={num_ranks} were passed, too",
                hint="pass either distributed=True or both rank and num_ranks",
            )
        if found is None:
            raise ArgumentError(
                f"distributed=True, but {NOT_LAUNCHED}",
                hint="call torch.distributed.init_process_group first, start with torchrun, or pass rank and num_ranks",
            )
        rank, num_ranks = found
    elif rank is None and num_ranks is None:
        return 0, 1
    if rank is None or num_ranks is None:
        raise ArgumentError(
            f"rank and num_ranks must be passed together, got rank={rank} and num_ranks={num_ranks}",
            hint="pass both, or distributed=True to read them from torch.distributed or the launcher",
        )
    if not 0 <= rank < num_ranks:
        raise ArgumentError(
            f"rank must be from 0 to num_ranks - 1, got rank={rank} and num_ranks={num_ranks}",
            hint="pass the rank of this process, counted from 0, and the number of all of them",
        )
    return rank, num_ranks


def share_of_cores() -> int:
    """Return how many cores this rank may use: those of this process, shared with the other ranks of the machine.

    A launcher that gives each rank cores of its own has done that already.
    """
    num_cores = machine.num_cores()
    has_all = len(machine.usable_cores()) >= (os.cpu_count() or 1)
    num_ranks = next((os.environ[name] for name in LOCAL if os.environ.get(name, "").isdigit()), "1")
    return max(1, num_cores // max(1, int(num_ranks))) if has_all else num_cores


def launched_ranks(need: str) -> tuple[int, int] | None:
    """Return (global rank, world size) from torch.distributed or the launcher's environment; None where neither is set.

    `need` is the argument that asks for them, for the error message.
    """
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    for _, rank, num_ranks in LAUNCHERS:
        if rank in os.environ and num_ranks in os.environ:
            values = os.environ[rank], os.environ[num_ranks]
            try:
                return int(values[0]), int(values[1])
            except ValueError:
                raise ArgumentError(
                    f"{need}: {rank}={values[0]!r} and {num_ranks}={values[1]!r} are not numbers",
                    hint="start the program with the launcher, or pass the rank yourself",
                ) from None
    return None
