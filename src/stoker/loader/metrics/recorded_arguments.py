"""A loader's arguments as plain values, for records."""

from __future__ import annotations

from typing import Any
from weakref import ref

NAMES = (
    "batch_size",
    "num_workers",
    "num_threads",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "in_order",
    "drop_last",
    "timeout",
)
"""Attributes that are arguments, and plain."""


class RecordedArguments:
    """Tells a loader's arguments as they are now, or as they were last when it is gone. Does not keep it."""

    def __init__(self, loader: Any) -> None:
        self._loader = ref(loader)
        self._last: dict[str, Any] = {}

    def __call__(self) -> dict[str, Any]:
        """Return the arguments."""
        loader = self._loader()
        if loader is not None:
            self._last = _settings_of(loader)
        return dict(self._last)


def _settings_of(loader: Any) -> dict[str, Any]:
    told = {name: getattr(loader, name, None) for name in NAMES}
    plan = loader._schedule.order
    context = loader.multiprocessing_context
    return told | {
        "dataset": type(loader.dataset).__name__,
        "order": type(plan).__name__.lower() if loader.plan is not None else "stream" if loader._is_stream else "own",
        "device": None if loader.device is None else str(loader.device),
        "start_method": None if context is None else context.get_start_method(),
        "is_iterable": loader._is_stream,
        "shard": loader.shard,
        "collate_fn": getattr(loader._own_collate, "__qualname__", None),
    }
