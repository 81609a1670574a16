"""Save and load records of measurements: one JSON object, which names its format; tables as CSV."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from stoker.engine.stats import Plain
from stoker.errors import ArgumentError

R = TypeVar("R", bound=Plain)

VERSION = 1
"""The newest version supported."""


def save_record(record: Plain, path: str | Path) -> None:
    """Write a record to a JSON file, atomically."""
    write_atomically(path, json.dumps(record.as_dict(), indent=1, allow_nan=False) + "\n")


def load_record(kind: type[R], path: str | Path, *, format_name: str, what: str, hint: str) -> R:
    """Return a record of this kind that `save_record` wrote; refuse other files.

    `what` is what the file should be, in words, and `hint` says what writes one.
    """
    try:
        values = json.loads(Path(path).read_text())
        if not isinstance(values, dict) or values.get("format") != format_name or values.get("version", 0) > VERSION:
            raise ValueError("it is another kind of file, or of a newer version")
        return kind.from_dict(values)
    except (ValueError, TypeError, AttributeError, KeyError) as error:  # a binary file raises a `ValueError`, too
        raise ArgumentError(f"{path} is not {what}: {error}", hint=hint) from None


def csv_of(rows: Iterable[dict[str, Any]]) -> str:
    """Return rows with the same columns as a table with a header; nothing if there are no rows."""
    listed = list(rows)
    text = io.StringIO()
    if listed:
        writer = csv.DictWriter(text, list(listed[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)
    return text.getvalue()


STREAMS = ("/dev/std", "/dev/fd/", "/proc/")
"""Paths here are open files of a process, which would not see a replacement."""


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file atomically: an existing file stays until the new one is complete.

    A link keeps pointing where it did. Anything that is not a regular file, such as `/dev/stdout` or a pipe, is written
    to directly: a file in its place would end it.
    """
    path = Path(path).absolute()
    if (path.exists() and not path.is_file()) or str(path).startswith(STREAMS):
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        error.filename, error.filename2 = (
            str(path),
            None,
        )  # a full disk names no file, others the temporary one
        raise
    finally:
        temporary.unlink(missing_ok=True)
