"""Unusable input: an error that names it, or an entry in the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoker.errors import BadLine, DamagedFile, DataError
from stoker.prepare.document_batch import NO_COLUMN, NO_FIELD, NOT_JSON, NOT_UTF8
from stoker.prepare.inputs import Input

MAX_ENTRIES = 200
"""Maximum number of detailed entries of one piece. The counts by reason include all."""

LEDGER = "skipped.jsonl"


class SkipCounts:
    """What was left out of one piece."""

    def __init__(self) -> None:
        self.count = 0
        self._reasons: Counter[str] = Counter()
        self._entries: list[dict[str, Any]] = []

    def add(self, kind: str, entry: dict[str, Any]) -> None:
        """Count one, and keep its entry unless there are too many."""
        self.count += 1
        self._reasons[kind] += 1
        if len(self._entries) < MAX_ENTRIES:
            self._entries.append(entry)

    def to_notes(self) -> dict[str, Any]:
        """Return what is recorded with the piece."""
        return {"count": self.count, "reasons": dict(sorted(self._reasons.items())), "entries": self._entries}


class Skips(SkipCounts):
    """Documents left out of one piece; or, if that is not allowed, the error for the first one."""

    def __init__(self, inputs: tuple[Input, ...], *, raises: bool) -> None:
        super().__init__()
        self._inputs, self.raises = inputs, raises
        self.is_truncated = False
        """Whether a compressed file ended early or was damaged in the middle."""

    def note(self, kind: str, reason: str, *, number: int = 0, **where: int | None) -> None:
        """Skip part of input `number`: a document, or the rest of a row group or file.

        `kind` is the reason in a few words, the same for all of its kind; `where` is a byte, line, row or part.
        """
        if self.raises:
            raise _error(self._inputs[number].name, kind, reason, where)
        place = {name: value for name, value in where.items() if value is not None}
        # the input's number instead of its path: a piece does not depend on the location of its inputs
        self.add(kind, {"input": number, **place, "kind": kind, "reason": reason})

    def note_truncated(self, error: DamagedFile, *, number: int = 0) -> None:
        """Skip the rest of a file that cannot be decompressed any further."""
        if self.raises:
            raise error
        self.is_truncated = True
        self.note("damaged file", str(error).partition("\n")[0].removeprefix(f"{error.path} "), number=number)


def ledger_entries(pieces: Iterable[tuple[tuple[Input, ...], Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the entries of the ledger, from the inputs and skips of each piece."""
    for inputs, skipped in pieces:
        entries = skipped["entries"]
        for entry in entries:
            rest = dict(entry)
            yield {"file": inputs[rest.pop("input")].name, **rest}
        if skipped["count"] > len(entries):
            yield {"file": inputs[-1].name, "more": skipped["count"] - len(entries), "reasons": skipped["reasons"]}


def image_ledger_entries(notes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of the ledger of images, from the notes of each piece."""
    found: list[dict[str, Any]] = []
    for skipped in (noted["skipped"] for noted in notes):
        found.extend(skipped["entries"])
        if skipped["count"] > len(skipped["entries"]):
            found.append({"more": skipped["count"] - len(skipped["entries"]), "reasons": skipped["reasons"]})
    return found


def _error(path: str, kind: str, reason: str, where: Mapping[str, int | None]) -> DataError:
    line, offset = where.get("line"), where.get("byte")
    if kind in (NOT_JSON, NOT_UTF8) and "line" in where and offset is not None:
        return BadLine(path, line=line, offset=offset, reason=reason)
    if line is not None and offset is not None:
        place = f"line {line} (byte {offset}) of "
    else:
        known = {name.replace("_", " "): value for name, value in where.items() if value is not None}
        place = "".join(f"{name} {value} of " for name, value in known.items())
    is_misnamed = kind in (NO_COLUMN, NO_FIELD)
    next_step = "name the one with the text: --text-column NAME (text_column= in Python)" if is_misnamed else "fix it"
    return DataError(
        f"{place}{path} cannot be used: {reason}\n"
        f"hint: {next_step}; or skip such input and list it in the ledger: --on-error skip (on_error='skip' in Python)"
    )
