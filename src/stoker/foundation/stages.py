"""Time spent on transforms, as marked by datasets.

Reading and transforming happen in one call of `__getitem__`, so a loader cannot measure them separately. A dataset that
marks its transforms lets `loader.stats()` and the doctor say which of the two is slow.
"""

from __future__ import annotations

import threading
from time import perf_counter
from types import TracebackType


class _TransformClock(threading.local):
    """Seconds that this thread has spent on transforms."""

    seconds = 0.0
    depth = 0


watch = _TransformClock()


class transforming:  # noqa: N801  # used as `with stoker.transforming():`
    """Count the time of the block as transforming, not reading. Nested blocks count once.

    >>> with transforming():
    ...     pixels = [value / 255 for value in (0, 128, 255)]
    """

    __slots__ = ("_began",)

    def __enter__(self) -> None:
        watch.depth += 1
        self._began = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        watch.depth -= 1
        if not watch.depth:
            watch.seconds += perf_counter() - self._began
