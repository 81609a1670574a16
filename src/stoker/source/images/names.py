"""Millions of file names in one array of bytes instead of an object each; and their natural order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

_ZERO, _NINE = ord("0"), ord("9")


@final
class Names:
    """Byte strings, concatenated in one array, with their ends. Pickles as two arrays."""

    __slots__ = ("blob", "ends")

    def __init__(self, blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self.blob, self.ends = blob, ends

    @classmethod
    def of(cls, names: Iterable[bytes]) -> Names:
        """Return these names."""
        listed = list(names)
        lengths = np.fromiter(map(len, listed), np.int64, len(listed))
        return cls(np.frombuffer(b"".join(listed), np.uint8), np.cumsum(lengths, dtype=np.int64))

    def __getstate__(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        return self.blob, self.ends

    def __setstate__(self, state: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> None:
        self.blob, self.ends = state

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, position: int) -> bytes:
        begin = int(self.ends[position - 1]) if position else 0
        return self.blob[begin : int(self.ends[position])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        whole, begin = self.blob.tobytes(), 0
        for end in self.ends.tolist():
            yield whole[begin:end]
            begin = end


def natural_order(names: Sequence[bytes]) -> list[int]:
    """Return the indices of the names in natural order: `img2` before `img10`, otherwise by bytes.

    Numbers are compared by value, and come before any other character; names that differ only in leading zeros are
    compared by bytes.
    """
    return sorted(range(len(names)), key=natural_keys(names).__getitem__)


def natural_keys(names: Sequence[bytes]) -> list[bytes]:
    """Return byte strings whose order is the natural order of the names.

    Each number loses its leading zeros, and is preceded by a zero byte, which no name contains, and its number of
    digits: `img10` becomes `img`, 0, 2, `10`.
    """
    joined = Names.of(names)
    blob, ends = joined.blob, joined.ends
    is_digit = (blob >= _ZERO) & (blob <= _NINE)
    if not is_digit.any():
        return list(names)
    # A run of digits ends at the end of its name.
    is_last = np.zeros(len(blob), np.bool_)
    is_last[ends[ends > 0] - 1] = True
    before = np.zeros(len(blob), np.bool_)
    before[1:] = is_digit[:-1] & ~is_last[:-1]
    first = np.flatnonzero(is_digit & ~before)
    behind = np.ones(len(blob), np.bool_)
    behind[:-1] = ~is_digit[1:]
    last = np.flatnonzero(is_digit & (behind | is_last))
    # First significant digit of each run: the first that is not a zero, or the last one.
    counts_from = np.minimum(_next_true(is_digit & (blob != _ZERO), first), last)
    copies = np.ones(len(blob), np.int64)
    steps = np.zeros(len(blob) + 1, np.int64)
    steps[first] = 1
    steps[counts_from] -= 1
    copies[np.cumsum(steps[:-1]) > 0] = 0  # leading zeros
    copies[counts_from] = 3
    keys = np.repeat(blob, copies)
    places = np.cumsum(copies)
    keys[places[counts_from] - 3] = 0
    keys[places[counts_from] - 2] = np.minimum(255, last - counts_from + 1)
    stops = np.zeros(len(ends), np.int64)
    stops[ends > 0] = places[ends[ends > 0] - 1]
    found = list(Names(keys, stops))
    if (counts_from > first).any():  # then two keys may be equal: append the names
        found = [b"\0\0".join(pair) for pair in zip(found, names)]
    return found


def _next_true(flags: NDArray[np.bool_], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each place the next index whose flag is set, or the number of flags if there is none."""
    found = np.append(np.flatnonzero(flags), len(flags))
    return found[np.searchsorted(found, places)]


def printable(name: bytes) -> str:
    """Return a name as printable text on one line, with other bytes escaped."""
    text = name.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
