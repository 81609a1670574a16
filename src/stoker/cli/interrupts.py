"""Ctrl-C that comes as several signals is one."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

SAME_SECONDS = 1.0
"""Interrupts that follow the first one within this time are the same: `timeout` sends one to a process and one to its
group, and hands are quicker than results are written.
"""


def steady_interrupts() -> None:
    """Let one Ctrl-C be one `KeyboardInterrupt` from now on, so that what was measured by then can be told in peace.

    Another one, a second later, ends that too. For whoever owns the process: it stays so. Nothing changes where
    somebody handles interrupts already.
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
