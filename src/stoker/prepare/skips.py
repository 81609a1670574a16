"""What becomes of input that cannot be used: an error that names it, or an entry in the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stoker.errors import BadLine, DamagedFile, DataError
from stoker.prepare.batch import NO_COLUMN, NO_FIELD, NOT_JSON, NOT_UTF8
from stoker.prepare.inputs import Input

MAX_ENTRIES = 200
"""Entries that a piece keeps in detail. The counts by reason are of all."""

LEDGER = "skipped.jsonl"


class Skips:
    """What was left out of one piece; or, where nothing may be, the error on the first of it."""

    def __init__(self, inputs: tuple[Input, ...], *, raises: bool) -> None:
        self._inputs, self.raises = inputs, raises
        self.count = 0
        self.has_cut = False
        """A compressed file has ended early, or gone wrong, in the middle."""
        self._reasons: Counter[str] = Counter()
        self._entries: list[dict[str, Any]] = []

    def note(self, kind: str, reason: str, *, number: int = 0, **where: int | None) -> None:
        """Leave something out of input `number`: a document, or what is left of a row group or file.

        `kind` is the reason in a few words, the same for all of its kind; `where` names byte, line, row or part.
        """
        if self.raises:
            raise _error(self._inputs[number].name, kind, reason, where)
        self.count += 1
        self._reasons[kind] += 1
        if len(self._entries) < MAX_ENTRIES:
            place = {name: value for name, value in where.items() if value is not None}
            # the input's number and not its path: a piece is the same wherever its inputs lie
            self._entries.append({"input": number, **place, "kind": kind, "reason": reason})

    def note_cut(self, error: DamagedFile, *, number: int = 0) -> None:
        """Leave out what is left of a file that cannot be unpacked any further."""
        if self.raises:
            raise error
        self.has_cut = True
        self.note("damaged file", str(error).partition("\n")[0].removeprefix(f"{error.path} "), number=number)

    def to_notes(self) -> dict[str, Any]:
        """Return what is kept with the piece."""
        return {"count": self.count, "reasons": dict(sorted(self._reasons.items())), "entries": self._entries}


def ledger(pieces: Iterable[tuple[tuple[Input, ...], Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the entries of the ledger, from the inputs and notes of each piece."""
    for inputs, notes in pieces:
        entries = notes["entries"]
        for entry in entries:
            told = dict(entry)
            yield {"file": inputs[told.pop("input")].name, **told}
        if notes["count"] > len(entries):
            yield {"file": inputs[-1].name, "more": notes["count"] - len(entries), "reasons": notes["reasons"]}


def _error(path: str, kind: str, reason: str, where: Mapping[str, int | None]) -> DataError:
    line, offset = where.get("line"), where.get("byte")
    if kind in (NOT_JSON, NOT_UTF8) and "line" in where and offset is not None:
        return BadLine(path, line=line, offset=offset, reason=reason)
    if line is not None and offset is not None:
        place = f"line {line} (byte {offset}) of "
    else:
        told = {name.replace("_", " "): value for name, value in where.items() if value is not None}
        place = "".join(f"{name} {value} of " for name, value in told.items())
    is_misnamed = kind in (NO_COLUMN, NO_FIELD)
    what_next = "name the one with the text: --text-column NAME (text_column= in Python)" if is_misnamed else "mend it"
    return DataError(
        f"{place}{path} cannot be used: {reason}\n"
        f"hint: {what_next}; or leave such out, to be listed in the ledger: --on-error skip (on_error='skip' in Python)"
    )
