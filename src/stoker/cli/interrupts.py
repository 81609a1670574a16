"""Merge the several signals of one Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

SAME_SECONDS = 1.0
"""Interrupts within this time of the first count as the same: `timeout` signals both a process and its group, and
users press Ctrl-C again while results are being written.
"""


def steady_interrupts() -> None:
    """Turn one Ctrl-C into one `KeyboardInterrupt` from now on, so that results so far can be printed.

    Another Ctrl-C, a second later, interrupts that too. The handler stays installed. Does nothing if another handler is
    already installed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    last = float("-inf")

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SAME_SECONDS:
            last = now
            signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
