"""What `torch.utils.data.get_worker_info()` returns in a worker."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from stoker.foundation import torch_private


class Info(torch_private.WorkerInfo):
    """torch's WorkerInfo, with a note of whether anyone looked at it."""

    def __init__(self, **fields: Any) -> None:
        torch_info = torch_private.WorkerInfo(**fields)
        names = [name for name in ("rng", "worker_method") if hasattr(torch_info, name)]
        object.__setattr__(self, "_fields", fields | {name: getattr(torch_info, name) for name in names})
        object.__setattr__(self, "_has_looked", False)

    def __getattribute__(self, name: str) -> Any:
        fields = object.__getattribute__(self, "_fields")
        if name not in fields:
            return object.__getattribute__(self, name)
        object.__setattr__(self, "_has_looked", True)
        return fields[name]


def become(worker: int, num_workers: int, *, seed: int, dataset: Any) -> None:
    """Be worker `worker`, with the seeds torch's loader gives it: `seed` is that of all workers together."""
    own = (seed + worker) & (2**63 - 1)
    random.seed(own)
    torch.manual_seed(own)
    np.random.seed(torch_private.numpy_seed(seed, worker))
    torch_private.set_worker_info(Info(id=worker, num_workers=num_workers, seed=own, dataset=dataset))


def act_as(worker: int) -> None:
    """Let the user's code in this worker see `worker` as its number: after a resume another one may take its turn."""
    info = torch_private.worker_info()
    if isinstance(info, Info):
        info._fields["id"] = worker


def has_looked() -> bool:
    """Return whether the user's code has looked at which worker it runs in."""
    info = torch_private.worker_info()
    return not isinstance(info, Info) or bool(info._has_looked)
