"""Records of measurements as files: one JSON object, which says of what format it is; tables as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from stoker.engine.stats import Plain
from stoker.errors import ArgumentError
from stoker.lab.watch.whole_file import whole_or_not

R = TypeVar("R", bound=Plain)

VERSION = 1
"""The newest that is understood."""


def save_record(record: Plain, path: str | Path) -> None:
    """Write a record to a JSON file, whole or not at all."""
    whole_or_not(path, json.dumps(record.as_dict(), indent=1, allow_nan=False) + "\n")


def load_record(kind: type[R], path: str | Path, *, format_name: str, what: str, hint: str) -> R:
    """Return what `save_record` wrote of a record of this kind; refuse other files.

    `what` is what the file should have been, in words, and `hint` says what writes one.
    """
    try:
        values = json.loads(Path(path).read_text())
        if not isinstance(values, dict) or values.get("format") != format_name or values.get("version", 0) > VERSION:
            raise ValueError("it is of another kind, or of a newer version")
        return kind.from_dict(values)
    except (ValueError, TypeError, AttributeError, KeyError) as error:  # what is no text is a `ValueError`, too
        raise ArgumentError(f"{path} is not {what}: {error}", hint=hint) from None


def csv_of(rows: Iterable[dict[str, Any]]) -> str:
    """Return rows, which have the same columns, as a table with a line of their names; nothing if there are none."""
    listed = list(rows)
    text = io.StringIO()
    if listed:
        writer = csv.DictWriter(text, list(listed[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)
    return text.getvalue()
