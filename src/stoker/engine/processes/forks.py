"""Batches in the hands of a forked child.

A child that the trainer's code forks has the batches that the trainer held just then, in the same memory. The trainer
may let go of them, but their slots must not be used again while the child may be looking. Nothing tells a parent when
a child is done with something; but a pipe, whose one end only the child has, tells when it has ended or become another
program.
"""

from __future__ import annotations

import gc
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet, finalize


class Guard:
    """Knows whether a forked child still has the memory it was born with."""

    def __init__(self, descriptor: int) -> None:
        self._poll = select.poll()
        if descriptor >= 0:
            self._poll.register(descriptor, select.POLLIN)
            finalize(self, os.close, descriptor)

    @property
    def is_over(self) -> bool:
        """Whether the child is gone."""
        return bool(self._poll.poll(0))


class Sharer(Protocol):
    """An owner of memory that a fork may share."""

    def is_concerned(self) -> bool:
        """Whether anyone uses that memory now."""
        ...

    def guard(self, guard: Guard) -> None:
        """Leave what is used now as it is until the guard is over."""
        ...


class _ForkingThread(threading.local):
    pipe: tuple[int, int] | None = None
    is_worker: bool = False


_local = _ForkingThread()
_sharers: WeakSet[Any] = WeakSet()


def watch(sharer: Sharer) -> None:
    """Ask `sharer` before every fork, as long as it lives."""
    _sharers.add(sharer)


@contextmanager
def forking_a_worker() -> Iterator[None]:
    """Fork a worker of ours: it does not collect the trainer's garbage.

    What is on an accelerator crashes a child that lets go of it, and looking through all objects would copy the pages
    they are on.
    """
    previous, _local.is_worker = _local.is_worker, True
    try:
        yield
    finally:
        _local.is_worker = previous


def _before() -> None:
    if any(sharer.is_concerned() for sharer in list(_sharers)):
        try:
            _local.pipe = os.pipe()
        except OSError:
            _local.pipe = (-1, -1)  # no descriptors left: what is shared now is never used again


def _after_in_parent() -> None:
    if _local.pipe is not None:
        (reading, writing), _local.pipe = _local.pipe, None
        if writing >= 0:
            os.close(writing)
        guard = Guard(reading)
        for sharer in list(_sharers):
            if sharer.is_concerned():
                sharer.guard(guard)


def _after_in_child() -> None:
    if _local.is_worker:
        gc.freeze()
    if _local.pipe is not None:
        # the other end stays open until this process ends, or becomes another program
        if _local.pipe[0] >= 0:
            os.close(_local.pipe[0])
        _local.pipe = None


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
