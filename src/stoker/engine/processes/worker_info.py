"""Who a worker is, as the user's code sees it through `torch.utils.data.get_worker_info()`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from stoker.foundation import torch_private


class Info(torch_private.WorkerInfo):
    """torch's WorkerInfo, with a note of whether anyone looked at it."""

    def __init__(self, **told: Any) -> None:
        torch_told = torch_private.WorkerInfo(**told)
        names = [name for name in ("rng", "worker_method") if hasattr(torch_told, name)]
        object.__setattr__(self, "_told", told | {name: getattr(torch_told, name) for name in names})
        object.__setattr__(self, "_has_looked", False)

    def __getattribute__(self, name: str) -> Any:
        told = object.__getattribute__(self, "_told")
        if name not in told:
            return object.__getattribute__(self, name)
        object.__setattr__(self, "_has_looked", True)
        return told[name]


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
        info._told["id"] = worker


def has_looked() -> bool:
    """Return whether the user's code has looked at which worker it runs in."""
    info = torch_private.worker_info()
    return not isinstance(info, Info) or bool(info._has_looked)
