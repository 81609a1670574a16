"""Errors for the result codes of the C functions."""

from __future__ import annotations

from stoker.errors import ArgumentError
from stoker.native.structures import declarations

_FAULTS = {
    "NO_MEMORY": ("there is no memory", ""),
    "OVERLAP": ("an output shares memory with an input", "pass arrays of their own"),
    "BAD_STARTS": ("row_starts of row {row} decrease, or exceed the number of spans", "they ascend up to len(sizes)"),
    "BAD_ROW": ("row {row} is written to a row that the outputs do not have", "rows are numbered from 0"),
    "BAD_SPAN": ("row {row} has a span outside the values", "elements and sizes count values of flat"),
    "TOO_LONG": ("the spans of row {row} are longer than a row", "make the rows longer, or the spans fewer"),
    "TOO_MANY": ("row {row} has more spans than cu_seqlens has room for", "it needs one more than spans and padding"),
    "BAD_WEIGHT": ("the weights are negative, or their sum is not the period", "they count the slots of each source"),
    "BAD_OFFSETS": (
        "cu_seqlens of row {row} do not go from 0 up to the length",
        "cu_seqlens repeats the length up to its end",
    ),
    "BAD_BOX": ("the box is not inside the image", "it is left, top, right and bottom, in pixels"),
}
"""Message and hint by the names in native.h. The other codes are handled by the callers."""

try:
    CODES = {name: code for code, name in enumerate(declarations().faults)}
except OSError:  # unreadable sources: the library is not loaded either
    CODES = {}
NO_ROOM, BAD_JPEG = CODES.get("NO_ROOM"), CODES.get("BAD_JPEG")


class JpegFault(Exception):
    """A JPEG file is damaged, or of a kind the native decoder does not support. The message is libjpeg's own."""


def raise_fault(found: int) -> None:
    """Raise the error for what a function of the library returned: `row << 4 | code`."""
    row, code = found >> 4, found & 15
    what, hint = _FAULTS[declarations().faults[code]]
    if code == CODES["NO_MEMORY"]:
        raise MemoryError(what)
    raise ArgumentError(what.format(row=row), hint=hint)
