"""Ctrl-C that comes as several signals is one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SAME_SECONDS = 1.0
"""Interrupts that follow the first one within this time are the same: `timeout` sends one to a process and one to its
group, and hands are quicker than results are written.
"""


@contextmanager
def steady_interrupts() -> Iterator[None]:
    """Let one Ctrl-C be one `KeyboardInterrupt` in this block, so that what was measured by then can be told in peace.

    Another one, a second later, ends that too. Nothing changes where somebody handles interrupts already.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    last = float("-inf")

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SAME_SECONDS:
            last = now
            signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
