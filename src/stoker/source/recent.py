"""Thread-safe cache of the most recent values, bounded in bytes."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Cache of the most recently used values, up to `capacity_bytes`, and always the latest one.

    One thread makes a value while others wait for it. A forked child starts with an empty cache, because its parent's
    locks may be held by threads that it does not have.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._caches: dict[int, _ProcessCache[K, V]] = {}

    def get(self, key: K, make: Callable[[], tuple[V, int]]) -> V:
        """Return the value of `key`, calling `make`, which returns the value and its size, if it is not cached."""
        cache = self._caches.get(os.getpid())
        if cache is None:
            # race: several threads may do this; all use the one that was set first
            cache = self._caches.setdefault(os.getpid(), _ProcessCache(self._capacity_bytes))
            for process in set(self._caches) - {os.getpid()}:
                self._caches.pop(process, None)
        return cache.get(key, make)


class _ProcessCache(Generic[K, V]):
    """The cache of one process."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = Lock()
        self._turns: dict[K, Lock] = {}

    def get(self, key: K, make: Callable[[], tuple[V, int]]) -> V:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
            turn = self._turns.setdefault(key, Lock())
        with turn:
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key][0]
            try:
                value, num_bytes = make()
                with self._lock:
                    self._keep(key, value, num_bytes)
                return value
            finally:
                with self._lock:
                    self._turns.pop(key, None)

    def _keep(self, key: K, value: V, num_bytes: int) -> None:
        if key in self._kept:  # made twice: it was dropped while another thread waited
            return
        self._kept[key] = value, num_bytes
        self._num_bytes += num_bytes
        while self._num_bytes > self._capacity_bytes and len(self._kept) > 1:
            _, (_, dropped_bytes) = self._kept.popitem(last=False)
            self._num_bytes -= dropped_bytes
