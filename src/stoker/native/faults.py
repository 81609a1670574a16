"""What the library found wrong, as errors."""

from __future__ import annotations

from stoker.errors import ArgumentError

# In the order of native.h. Those without words are for those who call.
_FAULTS = (
    ("", ""),
    ("there is no memory", ""),
    ("an output shares memory with an input", "pass arrays of their own"),
    ("the spans of row {row} go back, or beyond the spans there are", "row_starts ascend up to len(sizes)"),
    ("row {row} is to go where the outputs have no row", "rows are numbered from 0"),
    ("row {row} has a span that is not within the values", "elements and sizes count values of flat"),
    ("the spans of row {row} are longer than a row", "make the rows longer, or the spans fewer"),
    ("row {row} has more spans than cu_seqlens has room for", "it takes one more than spans, the padding counted"),
    ("the weights are negative, or their sum is not the period", "they say how many slots of the period each has"),
    ("the borders of row {row} do not go from 0 up to the length", "cu_seqlens repeats the length up to its end"),
    ("", ""),
    ("", ""),
    ("the box is not within the picture", "it is left, top, right and bottom, in pixels"),
)

NO_ROOM, UNFOUND = 10, 11
BAD_JPEG = 13


class JpegFault(Exception):
    """A JPEG file is damaged, or not of a kind that the native decoder takes. The message has libjpeg's own words."""


def raise_fault(found: int) -> None:
    """Raise the error for what a function of the library returned."""
    row, number = found >> 4, found & 15
    what, hint = _FAULTS[number]
    if number == 1:
        raise MemoryError(what)
    raise ArgumentError(what.format(row=row), hint=hint)
