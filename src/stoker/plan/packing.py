"""Best-fit packing of items into rows of a fixed length, from the number of items of each length.

Which items share a row depends on their lengths alone, and items of one length are interchangeable. So the algorithm
packs counts, and returns *groups* of equal rows. Its cost grows with the number of different lengths, not of items.

Shapes: G groups, E entries (one length in one group), N nodes of the search.
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
    """Which lengths share which rows.

    Group `g` has the rows `row_starts[g]` to `row_starts[g + 1]`, each made of the entries `entry_starts[g]` to
    `entry_starts[g + 1]`, by decreasing length. Items of one length are numbered by their *rank*, from 0 on: row `j` of
    a group takes ranks `ranks + j * copies` to before `ranks + (j + 1) * copies`.
    """

    length: int
    row_starts: Indices
    """[G + 1]"""
    entry_starts: Indices
    """[G + 1]"""
    lengths: Indices
    """[E]: the length of an entry's items."""
    copies: Indices
    """[E]: how many of them are in a row."""
    ranks: Indices
    """[E]: the first rank that the group takes."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.row_starts[-1])

    @property
    def num_groups(self) -> int:
        """Number of groups. Two groups may have equal rows."""
        return len(self.row_starts) - 1


def best_fit(counts: NDArray[np.integer], length: int) -> Packing:
    """Pack `counts[l]` items of each length `l` into rows of `length`, by best fit, the longest items first.

    Each item goes into the row where it leaves the least room, or into a new row if it fits into none. The number of
    rows is that of packing item by item. A pure function of the counts.
    """
    if length < 1:
        raise ArgumentError(f"length must be at least 1, got {length}", hint="pass the number of tokens of a row")
    counts = np.asarray(counts)
    found = np.flatnonzero(counts)
    if counts.ndim != 1 or (found.size and (found[0] == 0 or found[-1] > length or counts.min() < 0)):
        raise ArgumentError(
            f"counts must be those of items of length 1 to {length}",
            hint="pass counts[l], the number of items of length l",
        )
    tree = _Tree()
    open_rows: dict[int, list[tuple[int, int, int]]] = {}
    """By the room that is left: (node, first of the node's rows that are meant, how many rows)."""
    rooms: list[int] = []
    """The keys of `open_rows`, ascending."""
    closed: list[tuple[int, int, int]] = []
    for size, count in zip(found[::-1].tolist(), counts[found[::-1]].tolist()):
        items = count
        while items:
            # The best fit is the row with the least room. What is left of it is an even better fit for the next item of
            # this length, so a row takes as many copies as fit, and all rows of a group are filled at once.
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
    """Return by how much the ranks in classes of items are rotated: a hash of window, length and `key`, below the
    count.

    With another key the rows hold other items of the same lengths, still each item once, at no cost.
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
    """The steps of the packing. A node is one step: items of one length put into rows that hold what its ancestors say.

    A node's rows are consecutive rows of its parent, from `first` on. The root's rows are empty.
    """

    def __init__(self) -> None:
        self._nodes: list[tuple[int, int, int, int, int]] = [(0, 0, 0, 0, 0)]
        """(parent, first, size, copies, rank)"""

    def add(self, parent: int, first: int, size: int, copies: int, rank: int) -> int:
        """Add a node: items of `size`, from `rank` on, into rows of the parent's from `first` on."""
        self._nodes.append((parent, first, size, copies, rank))
        return len(self._nodes) - 1

    def packing(self, groups: list[tuple[int, int, int]], length: int) -> Packing:
        """Return the content of these groups of rows, (node, first, number), by following each node up to the root."""
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
        levels.reverse()  # the root's children were packed first, and are the longest items
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
    """Return [n + 1]: where each of `counts` [n] consecutive stretches begins, and where the last one ends."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
