"""The shards of a store in one address space: mapped on first use, verified on first read, read with one gather.

All shards lie one after the other in a reserved range of addresses (`space.py`), each at a multiple of the block size.
So one NumPy array over the space reaches the values of all shards, and any number of samples is one gather. `_seen`
records for each block of the space whether its checksum was verified.
"""

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
from stoker.foundation.positions import Positions, in_range
from stoker.native import ArrayParts
from stoker.store.checksums import BLOCK_BYTES, checksum, num_blocks_in
from stoker.store.column import OFFSETS
from stoker.store.header import Header
from stoker.store.manifest import Manifest, Shard, read_manifest
from stoker.store.shard import CHECKSUMS, arrays_of, block_at, checked_header, columns_in, opened
from stoker.store.space import AddressSpace

BLOCK_SHIFT = BLOCK_BYTES.bit_length() - 1
BOTH_SEEN = 0x0101
MAX_ITEM_BYTES = 1 << 30
"""NumPy does not support items of 2 GiB or more."""


class SampleLocations:
    """Shard and number within the shard of samples that are known to be in range."""

    __slots__ = ("shards", "within")

    def __init__(self, shards: NDArray[np.int64], within: NDArray[np.int64]) -> None:
        self.shards, self.within = shards, within


_NOWHERE: Any = None
_open_files: WeakSet[MappedShards] = WeakSet()


def _unlock_all() -> None:
    """Replace locks after a fork: one held by another thread of the parent would never be released."""
    for files in list(_open_files):
        files._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_all)


class MappedShards:
    """The shards in one address space. `_elements` are the first elements of arrays, counted from its beginning."""

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
        """Detects shards that change while they are mapped."""
        self._is_mapped = np.zeros(len(shards), np.bool_)
        self._all_mapped = not shards
        self._sums: dict[int, NDArray[np.uint64]] = {}
        self._headers: dict[int, Any] = {}
        self._windows: dict[tuple[str, int], NDArray[Any]] = {}
        first = arrays_of(manifest.columns, 0, dict.fromkeys(self.value_starts, 0))
        self._elements = {name: np.zeros(len(shards), np.int64) for name in first}
        """For each array, its first element in each shard, known once the shard is mapped."""
        self._num_unseen = dict.fromkeys(first, len(shards))
        """Number of unverified blocks of each array; a shard that is not mapped counts as one."""
        self._dtypes = {name: np.dtype(dtype).newbyteorder("<") for name, (dtype, _) in first.items()}

        self._space = _NOWHERE
        self._seen: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """For each block of the space, whether it was verified."""
        self._pairs: NDArray[np.uint16] = np.zeros(0, "<u2")
        """The same as overlapping pairs: one lookup covers a block and the next one."""
        self._is_vast = 2 * int(self._bases[-1]) > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        """Whether the store may not fit into memory, so that blocks may be evicted after they were read."""
        _open_files.add(self)

    # ------------------------------------------------------------ which

    def rows(self, positions: Positions) -> SampleLocations:
        """Return the locations of samples."""
        numbers = in_range(positions, self.num_samples, what=str(self._path))
        if len(self.starts) == 2:
            return SampleLocations(np.zeros(len(numbers), np.int64), numbers)
        shards = self.starts.searchsorted(numbers, "right") - 1
        return SampleLocations(shards, numbers - self.starts[shards])

    # ------------------------------------------------------------ what

    def fixed(self, name: str, rows: SampleLocations, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return a fixed column's values."""
        column = self._manifest.columns[name]
        size = column.value_bytes // column.numpy.itemsize
        self._map(rows.shards)
        shape = (len(rows.within), *column.shape)
        if out is not None and out.shape != shape:
            raise ArgumentError(f"out must have shape {shape}, got {out.shape}", hint="pass an array of this shape")
        if out is not None and not _fits(column.dtype, out.dtype):
            raise ArgumentError(
                f"out is {out.dtype}, which cannot represent every {column.dtype}", hint="pass a wider dtype"
            )
        if not size or not len(rows.within):
            return out if out is not None else np.empty(shape, column.dtype)
        found = self.gathered(name, self._elements[name][rows.shards] + rows.within * size, size).reshape(shape)
        if out is None:
            return found
        np.copyto(out, found, casting="same_kind")
        return out

    def bounds(self, name: str, rows: SampleLocations) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offsets of a ragged column's samples in their shards, and their numbers of values."""
        self._map(rows.shards)
        offsets = name + OFFSETS
        pairs = self.gathered(offsets, self._elements[offsets][rows.shards] + rows.within, 2)
        begins, lengths = pairs[:, 0].astype(np.int64), (pairs[:, 1] - pairs[:, 0]).astype(np.int64)
        nums = self._num_values(name)[rows.shards]
        # Compared, not subtracted: the difference of two corrupt offsets could overflow and look like a length.
        is_bad = (begins < 0) | (pairs[:, 1] < begins) | (pairs[:, 1] > nums)
        if is_bad.any():
            bad = int(np.flatnonzero(is_bad)[0])
            path = self._path / self._manifest.shards[int(rows.shards[bad])].file
            raise DamagedFile(
                path,
                what=f"has invalid offsets: sample {int(rows.within[bad])} of {name!r} begins at "
                f"{int(pairs[bad, 0])} and ends at {int(pairs[bad, 1])} of {int(nums[bad])} values",
                hint="copy the file again, or prepare the store again",
            )
        return begins, lengths

    def not_text(self, name: str, rows: SampleLocations, at: int) -> DamagedFile:
        """Return the error for a sample that is not text."""
        path = self._path / self._manifest.shards[int(rows.shards[at])].file
        what = f"is damaged in sample {int(rows.within[at])}: its {name!r} is not UTF-8"
        return DamagedFile(path, what=what, hint="write the store again, with the column as bytes if it is not text")

    def _num_values(self, name: str) -> NDArray[np.int64]:
        return np.diff(self.value_starts[name])

    def ragged(self, name: str, rows: SampleLocations) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return a ragged column's values, concatenated, and the number of values of each sample."""
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
        """Return `size` consecutive elements from each of `elements`, as a new array with one row each."""
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
        """Return the space as one array of a column's dtype, once something is mapped. Read only what was `seen`."""
        flat = self._windows.get((name, 0))
        if flat is None:
            dtype = self._dtypes[name]
            flat = self._space.array(dtype, (self._space.num_bytes // dtype.itemsize,))
            self._windows[name, 0] = flat
        return flat

    def parts(self, name: str, starts: NDArray[np.int64]) -> ArrayParts | None:
        """Return the locations of an array's elements, for functions in C, which check themselves what was verified.

        `starts` is the number of the first element of each shard. None unless all shards are mapped and fit in memory.
        """
        if not self._all_mapped or self._is_vast or self._space is _NOWHERE:
            return None
        seen = self._seen if self._is_checked else None
        return ArrayParts(self.flat(name), starts, self._elements[name], seen, BLOCK_SHIFT)

    def seen(self, name: str, elements: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Verify the blocks of `sizes` elements (at least 1) from each of `elements`, which are mapped."""
        self.watch.check()
        if not (self._num_unseen[name] or self._is_vast):
            return
        item_bytes = self._dtypes[name].itemsize
        if not self._is_vast and elements.size and int(sizes.max()) * item_bytes <= BLOCK_BYTES:
            # A range no longer than a block touches two blocks at most. Once they are verified, this is the whole cost.
            shift = BLOCK_SHIFT - item_bytes.bit_length() + 1
            lasts = elements + sizes
            lasts -= 1
            lasts >>= shift
            if (self._seen.take(elements >> shift) & self._seen.take(lasts)).all():
                return
        self._see(elements, sizes, item_bytes)

    def seen_alike(self, name: str, elements: NDArray[np.int64], size: int) -> None:
        """Like `seen`, for ranges of one size, which is faster."""
        self.watch.check()
        if self._num_unseen[name] or self._is_vast:
            self._see(elements, size, self._dtypes[name].itemsize)

    def run(self, name: str, shard: int, first: int, size: int) -> NDArray[Any]:
        """Return a view of consecutive elements of a shard's array, mapped and verified."""
        elements = self.element_of(name, np.array([shard])) + first
        if not size:
            return np.empty(0, self._dtypes[name])
        self.seen(name, elements, np.array([size]))
        return self.flat(name)[int(elements[0]) : int(elements[0]) + size]

    def _window(self, name: str, size: int) -> NDArray[Any]:
        """Return the space as an array of all windows of `size` elements, so that one index gathers any of them."""
        window = self._windows.get((name, size))
        if window is None:
            item_bytes = self._dtypes[name].itemsize
            num_elements = self._space.num_bytes // item_bytes
            # A window is one item of that many bytes, because NumPy copies whole items fastest.
            dtype = np.dtype((np.void, size * item_bytes))
            window = self._space.array(dtype, (max(0, num_elements - size + 1),), strides=(item_bytes,))
            self._windows[name, size] = window
        return window

    # ------------------------------------------------------------ mapped and seen

    def element_of(self, name: str, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first element of a column in shards, which are mapped if necessary."""
        self._map(shards)
        return self._elements[name][shards]

    @property
    def all_mapped(self) -> bool:
        """Whether all shards are mapped."""
        return self._all_mapped

    def elements(self, name: str) -> NDArray[np.int64]:
        """Return the first element of an array in each shard, once all are mapped."""
        return self._elements[name]

    def _map(self, shards: NDArray[np.int64]) -> None:
        """Map shards that are not mapped yet."""
        if self._all_mapped or self._is_mapped[shards].all():
            return
        with self._lock:
            if self._space is _NOWHERE:  # reserved when it is first needed: opening stays cheap
                self._space = self._reserved()
            for number in sorted(
                set(shards[~self._is_mapped[shards]].tolist())
            ):  # not np.unique, whose imports take 70 ms
                self._map_one(number)
            self._all_mapped = bool(self._is_mapped.all())

    def _reserved(self) -> AddressSpace:
        """Reserve the space for all shards, and the record of what was verified."""
        num_blocks = int(self._bases[-1]) >> BLOCK_SHIFT
        try:
            space = AddressSpace(int(self._bases[-1]))
            self._seen = np.zeros(num_blocks + 1, np.bool_)
        except (OSError, MemoryError):
            for shard in self._manifest.shards:  # more likely, a file does not have the size in the manifest
                self._opened(shard, lambda _: None)
            raise
        self._pairs = np.ndarray((num_blocks,), "<u2", self._seen, strides=(1,))
        return space

    def _opened(self, shard: Shard, do: Callable[[int], None]) -> Header:
        """Return the header of a shard's file, after calling `do` with its descriptor."""
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
                raise StaleSource(self._path, what="the store was prepared again meanwhile") from error
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
        # Headers count as verified, here and after the last block: `checked_header` compared their digest.
        self._seen[base >> BLOCK_SHIFT : (base + shard.body) >> BLOCK_SHIFT] = True
        self._seen[int(self._bases[number + 1]) >> BLOCK_SHIFT] = True
        self._is_mapped[number] = True  # last, because other threads read it without the lock

    def _see(self, elements: NDArray[np.int64], sizes: NDArray[np.int64] | int, item_bytes: int) -> None:
        """Verify what is about to be read, and prefetch what may have to come from disk."""
        if not (self._is_checked or self._is_vast) or not elements.size:
            return
        if not self._is_vast and isinstance(sizes, int) and sizes * item_bytes <= BLOCK_BYTES:
            # A range ends in its first block or in the next one. Once both are verified, this is the whole cost.
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
        if blocks.size and not self._is_vast:  # may be empty by now: another thread may have verified them
            self._will_need(blocks, blocks)
        for block in blocks.tolist():
            self._check(block)

    def _will_need(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        """Prefetch blocks in merged, ascending ranges, so that the disk reads them together."""
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
            return  # header and checksums were verified when the shard was mapped
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
    """Return whether values may be written to another dtype: integers exactly, floats rounded."""
    return np.can_cast(given, taking, "safe" if taking.kind in "iu" else "same_kind")


def _starts(counts: Sequence[int]) -> NDArray[np.int64]:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(np.array(counts, np.int64), out=starts[1:])
    return starts
