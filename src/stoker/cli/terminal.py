"""How the command line treats its terminal, or the pipe or file in its place."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

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


class Trimmed:
    """A text stream without trailing spaces: tables are padded with them, which only a terminal needs."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._held = ""
        """Spaces held back: they are trailing unless more text follows."""

    def write(self, text: str) -> int:
        """Write text without trailing spaces."""
        whole = re.sub(r" +(?=\n)", "", self._held + text)
        kept = whole.rstrip(" ")
        self._held = whole[len(kept) :]
        self._stream.write(kept)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush, including spaces held back: a flush in mid-line should show all of it."""
        if self._held:
            self._stream.write(self._held)
            self._held = ""
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def trim_when_piped() -> Iterator[None]:
    """Strip trailing spaces from stdout and stderr in this block, unless they are terminals."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream if _is_terminal(stream) else Trimmed(stream) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, Trimmed):
                stream.flush()
        sys.stdout, sys.stderr = before


def _is_terminal(stream: Any) -> bool:
    return stream is None or stream.isatty()
