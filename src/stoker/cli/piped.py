"""Clean up output that goes to a pipe or a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
