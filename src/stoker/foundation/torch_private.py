"""Every private name of torch that Stoker relies on, in one place: check this file first when a new torch comes out.

Two places have their own: `stoker.DataLoader` uses attributes of torch's `DataLoader`, which it derives from, and
`stoker.lab.watch.hook` patches torch's loaders while torch may still be importing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data._utils.worker as _worker
from torch._C._autograd import _profiler_enabled as is_profiling
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.pin_memory import pin_memory as _pin_memory
from torch.utils.data._utils.worker import WorkerInfo

__all__ = [
    "WorkerInfo",
    "default_collate_fn_map",
    "is_profiling",
    "numpy_seed",
    "pin_memory",
    "rebuild_tensor_v3",
    "set_worker_info",
    "untyped_storage",
    "worker_info",
]


def worker_info() -> Any:
    """Return what `torch.utils.data.get_worker_info()` returns in this process, without its checks."""
    return _worker._worker_info


def set_worker_info(info: Any) -> None:
    """Set what `torch.utils.data.get_worker_info()` returns in this process."""
    _worker._worker_info = info


def numpy_seed(base_seed: int, worker: int) -> Any:
    """Return the seed that torch's loader gives NumPy in a worker."""
    return _worker._generate_state(base_seed, worker)  # type: ignore[no-untyped-call]


def pin_memory(batch: Any) -> Any:
    """Return a batch with its tensors in pinned memory, as torch's loader does it."""
    return _pin_memory(batch)  # type: ignore[no-untyped-call]


def untyped_storage(storage: torch.TypedStorage) -> torch.UntypedStorage:
    """Return the bytes below a typed storage, without its deprecation warning."""
    found: torch.UntypedStorage = storage._untyped_storage
    return found


rebuild_tensor_v3: Callable[..., Any] = torch._utils._rebuild_tensor_v3
"""How tensors of dtypes without a typed storage are unpickled."""
