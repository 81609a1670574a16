"""Items into rows of a fixed length, by best fit, from how many items there are of each length.

Which items are put together depends on their lengths alone, and items of one length are alike: so what is packed are
counts, and what comes out are *groups* of equal rows. The cost grows with the number of different lengths, not items.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.plan.mixing import GOLDEN, mix

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Which lengths stand together in which rows.

    Group `g` has the rows `row_starts[g]` to `row_starts[g + 1]`, each made of its entries, `entry_starts[g]` to
    `entry_starts[g + 1]`, by decreasing length. The items of one length are told apart by their *rank*, from 0 on: row
    `j` of a group takes those from `ranks + j * copies` to before `ranks + (j + 1) * copies`.
    """

    length: int
    row_starts: Indices
    entry_starts: Indices
    lengths: Indices
    """Of each entry: how long its items are."""
    copies: Indices
    """Of each entry: how many of them are in a row."""
    ranks: Indices
    """Of each entry: the first rank that the group takes."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return int(self.row_starts[-1])

    @property
    def num_groups(self) -> int:
        """How many kinds of rows there are, or fewer: two groups may be of one kind."""
        return len(self.row_starts) - 1


def best_fit(counts: NDArray[np.integer], length: int) -> Packing:
    """Return rows of `length` for `counts[l]` items of each length `l`, by best fit, the longest first.

    Each item goes into the row in which it leaves least room, and into a new one if it fits into none: as many rows as
    one gets item by item. A pure function of the counts.
    """
    if length < 1:
        raise ArgumentError(f"length={length} is not positive", hint="pass the number of tokens of a row")
    counts = np.asarray(counts)
    found = np.flatnonzero(counts)
    if counts.ndim != 1 or (found.size and (found[0] == 0 or found[-1] > length or counts.min() < 0)):
        raise ArgumentError(
            f"the counts are not those of items of 1 to {length}",
            hint="pass counts[l], the number of items of length l",
        )
    tree = _Tree()
    open_rows: dict[int, list[tuple[int, int, int]]] = {}
    """By the room that is left: a node, the first of its rows that are meant, and how many."""
    rooms: list[int] = []
    """The same, ascending."""
    closed: list[tuple[int, int, int]] = []
    for size, count in zip(found[::-1].tolist(), counts[found[::-1]].tolist()):
        items = count
        while items:
            # The best fit is the least room, and what that leaves is better still, until no more fits in.
            at = bisect_left(rooms, size)
            if at < len(rooms):
                room = rooms[at]
                rows = open_rows[room]
                copies = min(room // size, items)
                node, first, num_rows = rows.pop()
                taken = min(num_rows, items // copies)
                if taken < num_rows:
                    rows.append((node, first + taken, num_rows - taken))
                elif not rows:
                    del rooms[at], open_rows[room]
            else:
                room, node, first = length, 0, 0
                copies = min(room // size, items)
                taken = items // copies
            node = tree.add(node, first, size, copies, count - items)
            items -= taken * copies
            room -= copies * size
            if not room:
                closed.append((node, 0, taken))
            elif room in open_rows:
                open_rows[room].append((node, 0, taken))
            else:
                open_rows[room] = [(node, 0, taken)]
                insort(rooms, room)
    for room in rooms:
        closed.extend(open_rows[room])
    return tree.packing(closed, length)


def rotations(windows: Indices, lengths: Indices, counts: Indices, *, key: int) -> Indices:
    """Return by how much the ranks of some classes of items are moved on: a hash of their window and length, by `key`.

    With another key the same rows hold other items of the same lengths, and all of them still, at no cost.
    """
    words = windows.astype(np.uint64)
    words *= np.uint64(GOLDEN)
    words += np.uint64(key)
    mix(words)
    words += lengths.astype(np.uint64)
    mix(words)
    words %= counts.astype(np.uint64)
    return words.view(np.int64)


class _Tree:
    """What was put into rows: a node for each step, below the one that put into the same rows before.

    A node's rows are some of its parent's, one after the other, from its `first` on.
    """

    def __init__(self) -> None:
        self._nodes: list[tuple[int, int, int, int, int]] = [(0, 0, 0, 0, 0)]

    def add(self, parent: int, first: int, size: int, copies: int, rank: int) -> int:
        """Add a node: items of `size`, from `rank` on, into rows of the parent's from `first` on."""
        self._nodes.append((parent, first, size, copies, rank))
        return len(self._nodes) - 1

    def packing(self, groups: list[tuple[int, int, int]], length: int) -> Packing:
        """Return the rows of these groups with all that is in them: each is followed up to the root."""
        parents, firsts, sizes, copies, ranks = np.array(self._nodes, np.int64).T
        nodes, offsets, nums = np.array(groups, np.int64).reshape(-1, 3).T
        numbers = np.arange(len(nodes))
        levels: list[tuple[Indices, Indices, Indices]] = []
        while nodes.size:
            levels.append((numbers, nodes, ranks[nodes] + offsets * copies[nodes]))
            offsets = offsets + firsts[nodes]
            nodes = parents[nodes]
            goes_on = nodes > 0
            numbers, nodes, offsets = numbers[goes_on], nodes[goes_on], offsets[goes_on]
        levels.reverse()  # what is next to the root came first, and is longest
        nothing = np.zeros(0, np.int64)
        group_of, node_of, rank_of = (
            np.concatenate([nothing, *(level[part] for level in levels)]) for part in range(3)
        )
        in_order = np.argsort(group_of, kind="stable")
        node_of = node_of[in_order]
        return Packing(
            length=length,
            row_starts=starts_of(nums),
            entry_starts=starts_of(np.bincount(group_of, minlength=len(groups))),
            lengths=sizes[node_of],
            copies=copies[node_of],
            ranks=rank_of[in_order],
        )


def starts_of(counts: NDArray[np.integer]) -> Indices:
    """Return where each of some stretches begins that lie one after the other, and where the last one ends."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
