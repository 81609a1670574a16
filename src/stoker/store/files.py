"""The shards of a store in address space: mapped when first needed, checked when first read, gathered from at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, DamagedBlock, DamagedFile, DataError, StaleSource
from stoker.foundation.file_watch import FileWatch
from stoker.native import ArrayParts
from stoker.store.checksums import BLOCK_BYTES, checksum, num_blocks_in
from stoker.store.column import OFFSETS
from stoker.store.header import Header
from stoker.store.manifest import Manifest, Shard, read_manifest
from stoker.store.positions import Positions, in_range
from stoker.store.shard import CHECKSUMS, arrays_of, block_at, checked_header, columns_in, opened
from stoker.store.space import Space

BLOCK_SHIFT = BLOCK_BYTES.bit_length() - 1
BOTH_SEEN = 0x0101
MAX_ITEM_BYTES = 1 << 30
"""NumPy has no items of 2 GiB or more."""


class Places:
    """Positions, seen to be in range, and where they are."""

    __slots__ = ("shards", "within")

    def __init__(self, shards: NDArray[np.int64], within: NDArray[np.int64]) -> None:
        self.shards, self.within = shards, within


_NOWHERE: Any = None
_open_files: WeakSet[Files] = WeakSet()


def _unlock_all() -> None:
    """Another thread may have held a lock when this process was forked; here it is nobody's."""
    for files in list(_open_files):
        files._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_all)


class Files:
    """The shards in address space. Knows where each array's elements are, counted from the beginning of the space."""

    def __init__(self, path: Path, manifest: Manifest, *, is_checked: bool) -> None:
        self._path, self._manifest, self._is_checked = path, manifest, is_checked
        shards = manifest.shards
        self.starts = _starts([shard.num_samples for shard in shards])
        self.num_samples = int(self.starts[-1])
        self.value_starts = {
            name: _starts([shard.values[name] for shard in shards])
            for name, column in manifest.columns.items()
            if column.is_ragged
        }
        self._bases = _starts([-(-shard.num_bytes // BLOCK_BYTES) * BLOCK_BYTES for shard in shards])
        self._lock = threading.Lock()
        self.watch = FileWatch()
        """Notices shards that change while they are mapped."""
        self._is_mapped = np.zeros(len(shards), np.bool_)
        self._all_mapped = not shards
        self._sums: dict[int, NDArray[np.uint64]] = {}
        self._headers: dict[int, Any] = {}
        self._windows: dict[tuple[str, int], NDArray[Any]] = {}
        first = arrays_of(manifest.columns, 0, dict.fromkeys(self.value_starts, 0))
        self._elements = {name: np.zeros(len(shards), np.int64) for name in first}
        """Which element of the space each shard's array begins with, known once the shard is mapped."""
        self._num_unseen = dict.fromkeys(first, len(shards))
        """How many blocks of each array were not checked yet; a shard that is not mapped yet counts as one."""
        self._dtypes = {name: np.dtype(dtype).newbyteorder("<") for name, (dtype, _) in first.items()}

        self._space = _NOWHERE
        self._seen: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """For each block of the space whether it was checked."""
        self._pairs: NDArray[np.uint16] = np.zeros(0, "<u2")
        """The same, each together with the one behind it."""
        self._is_vast = 2 * int(self._bases[-1]) > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        """Whether the store may not fit into memory, so that blocks that were read once are not there for ever."""
        _open_files.add(self)

    # ------------------------------------------------------------ which

    def rows(self, positions: Positions) -> Places:
        """Return where samples are."""
        numbers = in_range(positions, self.num_samples, what=str(self._path))
        if len(self.starts) == 2:
            return Places(np.zeros(len(numbers), np.int64), numbers)
        shards = self.starts.searchsorted(numbers, "right") - 1
        return Places(shards, numbers - self.starts[shards])

    # ------------------------------------------------------------ what

    def fixed(self, name: str, rows: Places, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return a fixed column's values."""
        column = self._manifest.columns[name]
        size = column.value_bytes // column.numpy.itemsize
        self._map(rows.shards)
        shape = (len(rows.within), *column.shape)
        if out is not None and out.shape != shape:
            raise ArgumentError(f"out has the shape {out.shape}, the values {shape}", hint="pass an array that fits")
        if out is not None and not _fits(column.dtype, out.dtype):
            raise ArgumentError(
                f"out is of {out.dtype}, which cannot hold every {column.dtype}", hint="pass an array of a wider type"
            )
        if not size or not len(rows.within):
            return out if out is not None else np.empty(shape, column.dtype)
        found = self.gathered(name, self._elements[name][rows.shards] + rows.within * size, size).reshape(shape)
        if out is None:
            return found
        np.copyto(out, found, casting="same_kind")
        return out

    def bounds(self, name: str, rows: Places) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where a ragged column's samples begin in their shards, and how many values they have."""
        self._map(rows.shards)
        offsets = name + OFFSETS
        pairs = self.gathered(offsets, self._elements[offsets][rows.shards] + rows.within, 2)
        begins, lengths = pairs[:, 0].astype(np.int64), (pairs[:, 1] - pairs[:, 0]).astype(np.int64)
        nums = self._num_values(name)[rows.shards]
        # Compared and not subtracted: the difference of two offsets that are far out may look like a length.
        is_bad = (begins < 0) | (pairs[:, 1] < begins) | (pairs[:, 1] > nums)
        if is_bad.any():
            bad = int(np.flatnonzero(is_bad)[0])
            path = self._path / self._manifest.shards[int(rows.shards[bad])].file
            raise DamagedFile(
                path,
                what=f"has offsets that cannot be: sample {int(rows.within[bad])} of {name!r} begins at "
                f"{int(pairs[bad, 0])} and ends at {int(pairs[bad, 1])} of {int(nums[bad])} values",
                hint="copy the file again, or prepare the store anew",
            )
        return begins, lengths

    def not_text(self, name: str, rows: Places, at: int) -> DamagedFile:
        """Return the error for a sample that is not text."""
        path = self._path / self._manifest.shards[int(rows.shards[at])].file
        what = f"is wrong in sample {int(rows.within[at])}: its {name!r} is not UTF-8"
        return DamagedFile(path, what=what, hint="make the store anew, with the column as bytes if it is not text")

    def _num_values(self, name: str) -> NDArray[np.int64]:
        return np.diff(self.value_starts[name])

    def ragged(self, name: str, rows: Places) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return a ragged column's values, one sample after the other, and the number of each."""
        column = self._manifest.columns[name]
        begins, lengths = self.bounds(name, rows)
        size = column.value_bytes // column.numpy.itemsize
        counts = lengths * size
        values = np.empty(int(counts.sum()), column.dtype)
        if values.size:
            elements = self._elements[name][rows.shards] + begins * size
            is_there = counts > 0
            self._see(elements[is_there], counts[is_there], column.numpy.itemsize)
            whole = self._space.array(column.numpy, (self._space.num_bytes // column.numpy.itemsize,))
            at = 0
            for element, count in zip(elements.tolist(), counts.tolist()):
                values[at : at + count] = whole[element : element + count]
                at += count
            self.watch.check()
        return values.reshape(int(lengths.sum()), *column.shape), lengths

    def gathered(self, name: str, elements: NDArray[np.int64], size: int) -> NDArray[Any]:
        """Return so many consecutive elements from each of these on, as a fresh array with a row for each."""
        dtype, num_rows = self._dtypes[name], len(elements)
        if not num_rows:  # perhaps nothing is mapped yet
            return np.empty((0, size), dtype)
        self.seen_alike(name, elements, size)
        if size * dtype.itemsize > MAX_ITEM_BYTES:
            whole = self._space.array(dtype, (self._space.num_bytes // dtype.itemsize,))
            rows: NDArray[Any] = np.stack([whole[element : element + size] for element in elements.tolist()])
            self.watch.check()
            return rows
        rows = self._window(name, size)[elements]
        self.watch.check()
        return np.ndarray((num_rows, size), dtype, rows)

    def flat(self, name: str) -> NDArray[Any]:
        """Return the space as one array of a column's type, once something is mapped. Read only what was `seen`."""
        flat = self._windows.get((name, 0))
        if flat is None:
            dtype = self._dtypes[name]
            flat = self._space.array(dtype, (self._space.num_bytes // dtype.itemsize,))
            self._windows[name, 0] = flat
        return flat

    def parts(self, name: str, starts: NDArray[np.int64]) -> ArrayParts | None:
        """Return where an array's elements lie, for functions in C, which look themselves at what was seen.

        `starts` tells what each shard begins with. None while not all is mapped, or if blocks may have to be read anew.
        """
        if not self._all_mapped or self._is_vast or self._space is _NOWHERE:
            return None
        seen = self._seen if self._is_checked else None
        return ArrayParts(self.flat(name), starts, self._elements[name], seen, BLOCK_SHIFT)

    def seen(self, name: str, elements: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """See to it that so many elements from each of these on, at least one, were checked. They are mapped."""
        self.watch.check()
        if not (self._num_unseen[name] or self._is_vast):
            return
        item_bytes = self._dtypes[name].itemsize
        if not self._is_vast and elements.size and int(sizes.max()) * item_bytes <= BLOCK_BYTES:
            # What is no longer than a block is in two at most. Once they were seen this is all that checking costs.
            shift = BLOCK_SHIFT - item_bytes.bit_length() + 1
            lasts = elements + sizes
            lasts -= 1
            lasts >>= shift
            if (self._seen.take(elements >> shift) & self._seen.take(lasts)).all():
                return
        self._see(elements, sizes, item_bytes)

    def seen_alike(self, name: str, elements: NDArray[np.int64], size: int) -> None:
        """See to the same where all have one size, as quickly as can be."""
        self.watch.check()
        if self._num_unseen[name] or self._is_vast:
            self._see(elements, size, self._dtypes[name].itemsize)

    def run(self, name: str, shard: int, first: int, size: int) -> NDArray[Any]:
        """Return some consecutive elements of a shard's array as they are in memory, mapped and checked."""
        elements = self.element_of(name, np.array([shard])) + first
        if not size:
            return np.empty(0, self._dtypes[name])
        self.seen(name, elements, np.array([size]))
        return self.flat(name)[int(elements[0]) : int(elements[0]) + size]

    def _window(self, name: str, size: int) -> NDArray[Any]:
        """Return the space as an array of all stretches of `size` elements, so that one index gathers any of them."""
        window = self._windows.get((name, size))
        if window is None:
            item_bytes = self._dtypes[name].itemsize
            num_elements = self._space.num_bytes // item_bytes
            # A stretch is one item of that many bytes: what is copied as a whole is copied quickest.
            dtype = np.dtype((np.void, size * item_bytes))
            window = self._space.array(dtype, (max(0, num_elements - size + 1),), strides=(item_bytes,))
            self._windows[name, size] = window
        return window

    # ------------------------------------------------------------ mapped and seen

    def element_of(self, name: str, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where a column's values begin in shards, which are mapped now."""
        self._map(shards)
        return self._elements[name][shards]

    @property
    def all_mapped(self) -> bool:
        """Whether nothing is left to be mapped."""
        return self._all_mapped

    def elements(self, name: str) -> NDArray[np.int64]:
        """Return which element of the space each shard's array begins with, once all are mapped."""
        return self._elements[name]

    def _map(self, shards: NDArray[np.int64]) -> None:
        """See to it that shards are mapped."""
        if self._all_mapped or self._is_mapped[shards].all():
            return
        with self._lock:
            if self._space is _NOWHERE:  # reserved when it is first needed: opening stays cheap
                self._space = self._reserved()
            for number in sorted(set(shards[~self._is_mapped[shards]].tolist())):  # np.unique imports for 70 ms
                self._map_one(number)
            self._all_mapped = bool(self._is_mapped.all())

    def _reserved(self) -> Space:
        """Return the space for all shards, and begin to keep what was seen of it."""
        num_blocks = int(self._bases[-1]) >> BLOCK_SHIFT
        try:
            space = Space(int(self._bases[-1]))
            self._seen = np.zeros(num_blocks + 1, np.bool_)
        except (OSError, MemoryError):
            for shard in self._manifest.shards:  # one that is not as big as the manifest says is the likelier reason
                self._opened(shard, lambda _: None)
            raise
        self._pairs = np.ndarray((num_blocks,), "<u2", self._seen, strides=(1,))
        return space

    def _opened(self, shard: Shard, do: Callable[[int], None]) -> Header:
        """Return the header of a shard's file, after `do` was called with its descriptor."""
        path = self._path / shard.file
        try:
            descriptor = opened(path)
            try:
                header = checked_header(path, descriptor, shard, self._manifest.columns)
                do(descriptor)
            finally:
                os.close(descriptor)
        except DamagedFile as error:
            if self._was_replaced():
                raise StaleSource(self._path, what="the store was prepared anew meanwhile") from error
            raise
        return header

    def _was_replaced(self) -> bool:
        try:
            return read_manifest(self._path).fingerprint() != self._manifest.fingerprint()
        except (DataError, OSError):
            return False

    def _map_one(self, number: int) -> None:
        shard = self._manifest.shards[number]
        base = int(self._bases[number])

        def map_it(descriptor: int) -> None:
            self._space.map_file(descriptor, base, shard.num_bytes)
            self.watch.add(self._path / shard.file, os.fstat(descriptor))

        header = self._opened(shard, map_it)
        for name, elements in self._elements.items():
            elements[number] = (base + header.arrays[name].begin) // self._dtypes[name].itemsize
        sums = header.arrays[CHECKSUMS]
        first = (base + sums.begin) // 8
        self._sums[number] = self._space.array("<u8", (self._space.num_bytes // 8,))[first : first + sums.shape[0]]
        self._headers[number] = header
        for name in self._elements:
            extent = header.arrays[name]
            begin, end = extent.begin - shard.body, extent.begin + extent.num_bytes - shard.body
            self._num_unseen[name] += (num_blocks_in(end) - begin // BLOCK_BYTES if end > begin else 0) - 1
        # Headers have no checksums; that of the next shard is what lies behind the last block of this one.
        self._seen[base >> BLOCK_SHIFT : (base + shard.body) >> BLOCK_SHIFT] = True
        self._seen[int(self._bases[number + 1]) >> BLOCK_SHIFT] = True
        self._is_mapped[number] = True  # last: another thread may be looking

    def _see(self, elements: NDArray[np.int64], sizes: NDArray[np.int64] | int, item_bytes: int) -> None:
        """See to it that what is about to be read was checked; ask for what may have to come from the disk."""
        if not (self._is_checked or self._is_vast) or not elements.size:
            return
        if not self._is_vast and isinstance(sizes, int) and sizes * item_bytes <= BLOCK_BYTES:
            # What begins in a block ends in it or in the next. Once both were seen this is all that checking costs.
            shift = BLOCK_SHIFT - item_bytes.bit_length() + 1
            if self._pairs[elements >> shift].min() == BOTH_SEEN:
                return
        begins = elements * item_bytes
        ends = begins + (sizes * item_bytes - 1)
        first, last = begins >> BLOCK_SHIFT, ends >> BLOCK_SHIFT
        if self._is_vast:
            self._will_need(first, last)
        if not self._is_checked:
            return
        seen = self._seen
        if seen[first].all() and seen[last].all():
            long = np.flatnonzero(last - first > 1)
            if not long.size or all(seen[first[at] : last[at] + 1].all() for at in long):
                return
        touched = {block for a, b in zip(first.tolist(), last.tolist()) for block in range(a, b + 1)}
        blocks = np.array(sorted(touched))
        blocks = blocks[~seen[blocks]]
        if blocks.size and not self._is_vast:  # another thread may have seen the last of them meanwhile
            self._will_need(blocks, blocks)
        for block in blocks.tolist():
            self._check(block)

    def _will_need(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        """Ask for blocks in joined, ascending stretches, so that the disk reads them at once and not one by one."""
        order = np.argsort(first)
        first, last = first[order], np.maximum.accumulate(last[order])
        is_new = np.ones(len(first), np.bool_)
        is_new[1:] = first[1:] > last[:-1] + 1
        stops = np.append(np.flatnonzero(is_new)[1:], len(first)) - 1
        for begin, end in zip(first[is_new].tolist(), last[stops].tolist()):
            self._space.will_need(begin << BLOCK_SHIFT, (end + 1) << BLOCK_SHIFT)

    def _check(self, block: int) -> None:
        number = int(np.searchsorted(self._bases, block << BLOCK_SHIFT, "right")) - 1
        shard = self._manifest.shards[number]
        within = block - ((int(self._bases[number]) + shard.body) >> BLOCK_SHIFT)
        if within < 0:
            return  # the header and the checksums were checked when the shard was mapped
        begin, end = block_at(shard, within)
        base = int(self._bases[number])
        data = self._space.array(np.uint8, (self._space.num_bytes,))[base + begin : base + end]
        found, expected = checksum(data), int(self._sums[number][within])
        if found != expected:
            self.watch.check_now()
            names = columns_in(self._headers[number], begin, end)
            raise DamagedBlock(self._path / shard.file, block=within, columns=names, expected=expected, found=found)
        with self._lock:
            if not self._seen[block]:
                self._seen[block] = True
                for name in columns_in(self._headers[number], begin, end):
                    self._num_unseen[name] -= 1


def _fits(given: Any, taking: np.dtype[Any]) -> bool:
    """Return whether values may be put into another type: whole numbers as they are, others rounded."""
    return np.can_cast(given, taking, "safe" if taking.kind in "iu" else "same_kind")


def _starts(counts: Sequence[int]) -> NDArray[np.int64]:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(np.array(counts, np.int64), out=starts[1:])
    return starts
