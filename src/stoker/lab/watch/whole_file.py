"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

STREAMS = ("/dev/std", "/dev/fd/", "/proc/")
"""What lies here is somebody's open file, who would not see another one in its place."""


def whole_or_not(path: str | Path, text: str) -> None:
    """Write a file, whole or not at all: what was there before stays until the new one is complete.

    A link goes on pointing where it did. What is no file, such as `/dev/stdout` or a pipe, is written to as it is: a
    file in its place would be the end of it.
    """
    path = Path(path).absolute()
    if (path.exists() and not path.is_file()) or str(path).startswith(STREAMS):
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # a full disk does not say where, and nobody knows the other
        raise
    finally:
        beside.unlink(missing_ok=True)
