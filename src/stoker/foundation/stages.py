"""Which part of a sample's time is reading, and which is transforming: what a dataset tells of itself, if it likes.

Reading and transforming happen in one call of `__getitem__`, so that nobody outside can tell them apart. A dataset of
yours that marks its transforms lets `loader.stats()` and the doctor say which of the two is slow.
"""

from __future__ import annotations

import threading
from time import perf_counter
from types import TracebackType


class _TransformClock(threading.local):
    """How long this thread has been transforming, since it began."""

    seconds = 0.0
    depth = 0


watch = _TransformClock()


class transforming:  # noqa: N801  # used as `with stoker.transforming():`
    """Marks what is done in its block as transforming, and not reading. Blocks inside count as part of the outer one.

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
