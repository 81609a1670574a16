"""What was made last, kept for those who ask again: a cache for several threads, bounded in bytes."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The values that were asked for last, up to `capacity_bytes` of them, and always the latest one.

    A value is made by one thread while others that ask for it wait. A forked child begins with nothing: its parent's
    locks may be held by threads that it does not have.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._shelves: dict[int, _Shelf[K, V]] = {}

    def get(self, key: K, make: Callable[[], tuple[V, int]]) -> V:
        """Return the value of `key`, made now if it is not here; `make` returns it and the bytes it takes."""
        shelf = self._shelves.get(os.getpid())
        if shelf is None:
            # another thread may do the same; all of them take the one that came first
            shelf = self._shelves.setdefault(os.getpid(), _Shelf(self._capacity_bytes))
            for process in set(self._shelves) - {os.getpid()}:
                self._shelves.pop(process, None)
        return shelf.get(key, make)


class _Shelf(Generic[K, V]):
    """The values of one process."""

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
        if key in self._kept:  # made twice, when it was dropped between two turns
            return
        self._kept[key] = value, num_bytes
        self._num_bytes += num_bytes
        while self._num_bytes > self._capacity_bytes and len(self._kept) > 1:
            _, (_, dropped_bytes) = self._kept.popitem(last=False)
            self._num_bytes -= dropped_bytes
