"""Output that another program reads, or a file holds."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Trimmed:
    """A text stream without spaces at the ends of lines: tables are padded with them, which only a terminal needs."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._held = ""
        """Spaces that are at the end of a line, unless something else follows."""

    def write(self, text: str) -> int:
        """Write what is no space at the end of a line."""
        whole = re.sub(r" +(?=\n)", "", self._held + text)
        kept = whole.rstrip(" ")
        self._held = whole[len(kept) :]
        self._stream.write(kept)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each of several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what was held back, too: who flushes in the middle of a line wants all of it to be seen."""
        if self._held:
            self._stream.write(self._held)
            self._held = ""
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def trimmed_where_piped() -> Iterator[None]:
    """Let output and errors have no spaces at the ends of lines in this block, each where it is no terminal."""
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
