"""Finalizers that run even if Ctrl-C interrupts them.

When an object is collected, Python calls its finalizer, and a signal handler that raises (Ctrl-C) can interrupt that
call at any point, also before our first line. Python then reports "Exception ignored in ...", and what it was
to free stays. A `Finalizer` therefore stays in a list until it has run to its end, and `run_interrupted` runs what is
left: before resources of the same kind are made again, and when the interpreter exits.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Any

_waiting: dict[int, Finalizer] = {}
"""Finalizers that have not run to their end."""


class Finalizer:
    """Calls `function(*arguments)` once `owner` is collected, like `weakref.finalize`; again if it is interrupted.

    `function` must be one that may be called a second time after it was interrupted.
    """

    def __init__(self, owner: Any, function: Callable[..., Any], *arguments: Any) -> None:
        self._call: tuple[Callable[..., Any], tuple[Any, ...]] | None = (function, arguments)
        self._owner = weakref.ref(owner)
        self._is_running = False
        _waiting[id(self)] = self
        self._collected = weakref.finalize(owner, self)

    @property
    def alive(self) -> bool:
        """Whether it has neither run nor been detached."""
        return self._call is not None

    @property
    def is_overdue(self) -> bool:
        """Whether the owner is gone, but the call was interrupted. One that another thread is at is not overdue."""
        return self._owner() is None and self._call is not None and not self._is_running

    def __call__(self) -> None:
        """Run now, if it has not run yet."""
        call = self._call
        if call is None:
            return
        function, arguments = call
        try:
            self._is_running = True
            function(*arguments)
        except Exception:
            self.detach()
            raise
        except BaseException:  # Ctrl-C: nobody would call this a second time
            function(*arguments)
            self.detach()
            raise
        finally:
            self._is_running = False
        self.detach()

    def detach(self) -> None:
        """Never run."""
        self._call = None
        _waiting.pop(id(self), None)
        self._collected.detach()


@atexit.register
def run_interrupted() -> None:
    """Run the finalizers that an interrupt has kept from running."""
    for finalizer in list(_waiting.values()):
        if finalizer.is_overdue:
            finalizer()
