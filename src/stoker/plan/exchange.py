"""Mix the lengths within packed rows, by letting rows exchange parts that are equally long.

Best fit puts items of one length side by side, so that rows are made of similar documents. Two rows stay equally full
if they exchange parts of the same total length; a row with padding may also take a slightly longer part. That gives as
many rows, each with other items.

Sections are first split into pieces of 1, 2, 4, ... rows. Then, in each of `ROUNDS` rounds, a random half of every
piece's slots is chosen; among pieces of the same number of rows and the same window, sorted by the total length of
their halves, neighbors exchange their halves.

Shapes: K sections, L slots, P pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.plan.mixing import GOLDEN, mix
from stoker.plan.packing import starts_of

Indices = NDArray[np.int64]

MOST_SLOTS = 1 << 16
"""Slots that splitting sections may lead to. More would not mix better, and cost memory and cache in every batch."""

LOWEST_BITS = 7
"""A section is split into pieces down to this many powers of two below the largest; what is left stays together."""

MOST_MIXED = 1 << 20
"""Slots that are mixed at a time, so that many windows take no more memory than one."""

ROUNDS = 48
"""Rounds of exchanges: as many as it takes until few rows are more alike than by chance."""

_MASKS = 64
"""Random bits in a word: each bit is the mask of one round."""

_BITS = 63
"""Bits of a positive int64."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchanged:
    """Sections of equal rows: the pieces of the given sections, after the exchange.

    Section `s` has `num_rows[s]` rows and `num_slots[s]` slots, which follow those of the section before. Each of them
    is one of the given slots, `slots`, from its row `offsets` on.
    """

    num_rows: Indices
    num_slots: Indices
    slots: Indices
    offsets: Indices


def exchange(num_rows: Indices, num_slots: Indices, lengths: Indices, windows: Indices, *, length: int) -> Exchanged:
    """Return sections whose rows hold items of different lengths, as far as no row gets more padding than it had room.

    Section `s` of K has `num_rows[s]` rows of `num_slots[s]` items each; `lengths` [L] has the lengths of the items,
    section after section. `windows[s]` ascends; only rows of one window exchange items. Sections of one full item stay
    as they are. Every item is in one row, as before, and rows stay in their window. A pure function of its arguments.
    """
    parts = []
    slot_starts = starts_of(num_slots)
    for first, last in _chunks(num_slots, windows):
        begin, end = int(slot_starts[first]), int(slot_starts[last])
        part = _Pieces(num_rows[first:last], num_slots[first:last], lengths[begin:end], windows[first:last], length)
        part.mix(begin)
        parts.append((part, begin))
    if not parts:
        nothing = np.zeros(0, np.int64)
        return Exchanged(nothing, nothing, nothing, nothing)
    tables = [part.exchanged(begin) for part, begin in parts]
    return Exchanged(
        *(np.concatenate([getattr(table, name) for table in tables]) for name in Exchanged.__dataclass_fields__)
    )


def _chunks(num_slots: Indices, windows: Indices) -> Iterator[tuple[int, int]]:
    """Yield ranges of sections: whole windows, with at most `MOST_MIXED` slots if there are several."""
    begins = np.concatenate([np.flatnonzero(np.diff(windows, prepend=-1)), [len(windows)]])
    sizes = starts_of(num_slots)[begins]
    first = 0
    while first < len(begins) - 1:
        last = max(first + 1, int(sizes.searchsorted(int(sizes[first]) + MOST_MIXED, "right")) - 1)
        yield int(begins[first]), int(begins[last])
        first = last


class _Pieces:
    """Sections split into pieces of 1, 2, 4, ... rows. Pieces of one *kind* (window and size) may exchange slots."""

    def __init__(self, num_rows: Indices, num_slots: Indices, lengths: Indices, windows: Indices, length: int) -> None:
        slot_starts = starts_of(num_slots)
        is_full = lengths[slot_starts[:-1]] == length  # [K]: full rows have a fixed order
        section, self._num_rows, offsets = _split(num_rows, num_slots, is_full)
        # [L of the pieces]: each slot's piece, the given slot it is, and from which row of the section on
        nums = num_slots[section]
        starts = starts_of(nums)
        piece = np.repeat(np.arange(len(section)), nums)
        self._slots: Indices = np.arange(int(starts[-1])) + np.repeat(slot_starts[section] - starts[:-1], nums)
        self._offsets: Indices = offsets[piece]
        self._piece = piece
        self._lengths = lengths[self._slots].astype(np.float64)  # bincount adds floats; exact below 2**53
        self._room = length - np.bincount(piece, self._lengths, minlength=len(section)).astype(np.int64)
        window = windows[section]
        kinds = np.lexsort((is_full[section], self._num_rows, window))
        # Every section of full items is a kind of its own, so that it never exchanges anything.
        is_new = (np.diff(window[kinds], prepend=-1) != 0) | (np.diff(self._num_rows[kinds], prepend=-1) != 0)
        is_new |= np.diff(is_full[section][kinds], prepend=False)
        self._kind = np.empty(len(section), np.int64)
        """[P]: pieces with the same number may exchange slots."""
        self._kind[kinds] = np.cumsum(is_new) - 1
        self._length = length

    def mix(self, begin: int) -> None:
        """Exchange random halves of rows that are as long as each other, in many rounds."""
        num_slots, num_pieces = len(self._slots), len(self._num_rows)
        if num_pieces < 2:
            return
        number = np.arange(begin, begin + num_slots, dtype=np.uint64)
        piece, room, kind = self._piece, self._room, self._kind
        # Pieces of one section are neighbors and alike: shuffled, so that neighbors by size are of different sections.
        place = np.empty(num_pieces, np.int64)
        of_place = np.argsort(mix(np.arange(begin, begin + num_pieces, dtype=np.uint64)))
        place[of_place] = np.arange(num_pieces)
        # The sort key is one number made of kind, size and place, in this order of bits. No two are equal, so every
        # machine and NumPy version sorts them alike, whatever algorithm it uses.
        place_bits, size_bits = num_pieces.bit_length(), (2 * self._length).bit_length()
        fits = int(kind.max()).bit_length() + size_bits + place_bits <= _BITS
        key = (kind << (size_bits + place_bits)) + place
        chances = (mix(np.arange(num_pieces + ROUNDS, dtype=np.uint64)) >> np.uint64(48)).astype(np.int64)
        numbers = np.arange(num_pieces - 1)
        words = number
        for at in range(ROUNDS):
            if not at % _MASKS:
                words = mix((number << np.uint64(8)) + np.uint64(at // _MASKS) * np.uint64(GOLDEN))
                columns = np.ascontiguousarray(words.view(np.uint8).reshape(-1, 8).T)
            is_taken = (columns[at % _MASKS // 8] & np.uint8(1 << at % 8)) != 0
            sizes = np.bincount(piece, self._lengths * is_taken, minlength=num_pieces).astype(np.int64)
            # A row with room may take more than it gives: otherwise most halves would meet one of the same lengths.
            wanted = sizes + ((chances[at : at + num_pieces] * (room + 1)) >> 16)
            if fits:
                order = of_place[np.sort(key + (wanted << place_bits)) & ((1 << place_bits) - 1)]
            else:
                order = np.lexsort((place, wanted, kind))
            size, rooms = sizes[order], room[order]
            more = np.diff(size)
            may = (more <= rooms[:-1]) & (rooms[1:] >= -more) & (size[:-1] > 0)
            may &= np.diff(kind[order]) == 0
            # In a run of neighbors that may all exchange, the first does so with the second, the third with the fourth
            nth = numbers - np.maximum.accumulate(np.where(may, -1, numbers))
            chosen = np.flatnonzero(may & ((nth & 1) == 1))
            one, other, more = order[chosen], order[chosen + 1], more[chosen]
            moves = np.zeros(num_pieces, np.int64)
            moves[one], moves[other] = other - one, one - other
            room[one] -= more
            room[other] += more
            piece += moves[piece] * is_taken  # by arithmetic: indexing by a random mask is slow

    def exchanged(self, begin: int) -> Exchanged:
        """Return the pieces as sections; `begin` is the number of the first slot given."""
        order = np.argsort(self._piece, kind="stable")
        return Exchanged(
            num_rows=self._num_rows,
            num_slots=np.bincount(self._piece, minlength=len(self._num_rows)),
            slots=self._slots[order] + begin,
            offsets=self._offsets[order],
        )


def _split(num_rows: Indices, num_slots: Indices, is_full: NDArray[np.bool_]) -> tuple[Indices, Indices, Indices]:
    """Return the pieces of sections: the section of each [P], its number of rows, and its first row in the section.

    The largest pieces are as small as `MOST_SLOTS` allows.
    """
    free_rows = np.where(is_full, 0, num_rows)
    most = max(MOST_SLOTS, int(num_slots.sum()))
    largest, highest = 1, int(free_rows.max())
    while largest < highest and int(num_slots @ _num_pieces(free_rows, largest)) > most:
        largest *= 2
    return _pieces(num_rows, free_rows, largest)


def _num_pieces(num_rows: Indices, largest: int) -> Indices:
    """Return [K]: into how many pieces sections are split, with pieces of at most `largest` rows."""
    nums = num_rows // largest
    size = largest // 2
    while size and size << LOWEST_BITS >= largest:
        nums += (num_rows // size) & 1
        size //= 2
    if size:
        nums += num_rows % (2 * size) > 0
    return nums


def _pieces(num_rows: Indices, free_rows: Indices, largest: int) -> tuple[Indices, Indices, Indices]:
    """Return what `_split` does: `largest`-sized pieces, then one per lower bit of the rows left, then the rest."""
    sections: list[Indices] = []
    sizes: list[Indices] = []
    firsts: list[Indices] = []
    done = np.zeros_like(num_rows)
    size, numbers = largest, np.arange(len(num_rows))
    while size and size << LOWEST_BITS >= largest:
        nums = free_rows // largest if size == largest else (free_rows // size) & 1
        section = np.repeat(numbers, nums)
        nth = np.arange(len(section)) - np.repeat(starts_of(nums)[:-1], nums)
        sections.append(section)
        sizes.append(np.full(len(section), size))
        firsts.append(done[section] + nth * size)
        done += nums * size
        size //= 2
    rest = np.flatnonzero(num_rows > done)
    sections.append(rest)
    sizes.append((num_rows - done)[rest])
    firsts.append(done[rest])
    section, rows, first = np.concatenate(sections), np.concatenate(sizes), np.concatenate(firsts)
    order = np.lexsort((first, section))
    return section[order], rows[order], first[order]
