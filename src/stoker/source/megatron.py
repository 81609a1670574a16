"""Megatron-LM's indexed datasets: tokens in a `.bin` file, offsets of sequences and documents in an `.idx` file.


The `.idx` file, little-endian and packed: magic (9 bytes), version (uint64, 1), code of the dtype (uint8), number of
sequences S and number of document offsets D (uint64 each); then the lengths of the sequences (int32, S of them),
their offsets in the `.bin` file, in bytes (int64, S), and the first sequence of each document and one past the last
(int64, D). Multimodal data has a mode for each sequence (int8, S) after that.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex, final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, DamagedFile
from stoker.foundation.positions import position_in, positions_in
from stoker.source.flat_values import FlatTokens, FlatValues, ValueFile
from stoker.source.known_file import KnownFile, fingerprint_of, known_file, single_path
from stoker.source.mapped_files import MappedFiles

MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


class _MegatronIndex(NamedTuple):
    """Header of an `.idx` file, checked against the sizes of both files."""

    file: KnownFile
    num_sequences: int
    num_offsets: int


@final
class Megatron(FlatTokens):
    """The sequences of a Megatron-LM dataset as samples, memory-mapped: arrays of tokens of different lengths.

    `path` is the `.bin` file, the `.idx` file, or their common prefix. `tokens(length)` returns crops of the tokens,
    across documents or within them, for training.

    Opening reads the header of the `.idx` file and a few of its entries. The entry of a sequence is checked when it is
    read: an invalid index raises `DamagedFile`, and never causes a read outside the data. A file that changed since it
    was opened raises `StaleSource`. Thread-safe; pickles as its paths; works after a fork and in spawned processes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        data_path, index_path = pair_of(path)
        data, file = known_file(data_path), known_file(index_path)
        index, dtype = _read_head(file)
        if data.size_bytes % dtype.itemsize:
            raise DamagedFile(data.path, what=f"has {data.size_bytes} bytes, not a multiple of {dtype} tokens")
        self._set(index, FlatValues([ValueFile(data, 0, data.size_bytes // dtype.itemsize)], dtype))
        self._check_ends()

    def _set(self, index: _MegatronIndex, values: FlatValues) -> None:
        self._index, self._values = index, values
        self._files = MappedFiles([index.file])
        self._offsets: NDArray[np.int64] | None = None

    def __getstate__(self) -> tuple[_MegatronIndex, FlatValues]:
        return self._index, self._values

    def __setstate__(self, state: tuple[_MegatronIndex, FlatValues]) -> None:
        self._set(*state)

    def __repr__(self) -> str:
        return f"Megatron({str(self._data.path)!r})"

    @property
    def num_documents(self) -> int:
        """The number of documents, each of one or several sequences."""
        return max(0, self._index.num_offsets - 1)

    @property
    def fingerprint(self) -> str:
        """Digest of the names, sizes and ends of the files."""
        return fingerprint_of([self._data, self._index.file])

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the offsets of documents `first` to `last` (inclusive), in tokens; after the last one, the end."""
        if not 0 <= first <= last <= self.num_documents:
            raise ArgumentError(
                f"documents {first} to {last} are not in {self!r}, which has {self.num_documents}",
                hint="offsets are numbered from 0 to the number of documents",
            )
        if not self.num_documents:
            return np.zeros(1, dtype=np.int64)
        sequences = self._documents()[first : last + 1].astype(np.int64)
        if sequences.min() < 0 or sequences.max() > self._index.num_sequences or np.any(np.diff(sequences) < 0):
            raise self._damaged(f"documents {first} to {last} begin at sequences that are out of order or not there")
        offsets = np.full(len(sequences), self.num_values, dtype=np.int64)
        is_inside = sequences < self._index.num_sequences
        begins, _ = self._places(sequences[is_inside])
        offsets[is_inside] = begins
        if np.any(np.diff(offsets) < 0):
            raise self._damaged(f"the sequences of documents {first} to {last} do not lie one after the other")
        return offsets

    borders = offsets  # an earlier name, which users' wrappers may call

    def bounds(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offsets of documents, in tokens, and their lengths. All must exist."""
        if documents.size and not (int(documents.min()) >= 0 and int(documents.max()) < self.num_documents):
            raise ArgumentError(
                f"not all of these documents are in {self!r}, which has {self.num_documents}",
                hint="documents are numbered from 0",
            )
        begins = self._begins_of(documents)
        sizes = self._begins_of(documents + 1) - begins
        if np.any(sizes < 0):
            raise self._damaged(f"document {int(documents[np.argmin(sizes)])} ends before it begins")
        return begins, sizes

    def _begins_of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the offsets of documents; that after the last one is the end."""
        sequences = self._documents()[documents].astype(np.int64)
        if sequences.size and (sequences.min() < 0 or sequences.max() > self._index.num_sequences):
            raise self._damaged("documents begin at sequences that are not there")
        begins = np.full(len(sequences), self.num_values, dtype=np.int64)
        is_inside = sequences < self._index.num_sequences
        begins[is_inside] = self._places(sequences[is_inside])[0]
        return begins

    def documents_at(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the documents of tokens. The first call reads all offsets."""
        if self._offsets is None:
            self._offsets = self.offsets(0, self.num_documents)
        return self._offsets.searchsorted(values, "right") - 1

    def spans(self, begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the memory of all tokens, and the elements in it of `sizes` tokens from each of `begins`."""
        if begins.size and not (int(begins.min()) >= 0 and int((begins + sizes).max()) <= self.num_values):
            raise ArgumentError(f"not all of these tokens are in {self!r}", hint="check their begins and sizes")
        return self._values.flat(), begins

    def __len__(self) -> int:
        """Return the number of sequences."""
        return self._index.num_sequences

    def __getitem__(self, position: SupportsIndex, /) -> NDArray[Any]:
        """Return the tokens of the sequence at `position`; negative positions count from the end."""
        return self.__getitems__([position_in(position, len(self), self)])[0]

    def __getitems__(self, positions: Sequence[SupportsIndex], /) -> list[NDArray[Any]]:
        """Return the tokens of the sequences at `positions`, in that order."""
        begins, lengths = self._places(positions_in(positions, len(self), self))
        return [self._values.read(begin, end) for begin, end in zip(begins.tolist(), (begins + lengths).tolist())]

    def describe(self, position: SupportsIndex) -> str:
        """Return the location of a sample: path, sequence and document, from 0."""
        sequence = position_in(position, len(self), self)
        where = f"{self._data.path}, sequence {sequence}"
        if self.num_documents:
            where += f", document {bisect_right(self._documents(), sequence) - 1}"
        return where

    @property
    def _data(self) -> KnownFile:
        return self._values.parts[0].file

    def _array(self, begin: int, count: int, dtype: str) -> NDArray[Any]:
        # not aligned, because the header has 34 bytes: only index it, which copies the result
        return np.ndarray((count,), dtype, self._files[0].content, begin)

    def _lengths(self) -> NDArray[np.int32]:
        return self._array(_HEADER.size, self._index.num_sequences, "<i4")

    def _pointers(self) -> NDArray[np.int64]:
        return self._array(_HEADER.size + 4 * self._index.num_sequences, self._index.num_sequences, "<i8")

    def _documents(self) -> NDArray[np.int64]:
        return self._array(_HEADER.size + 12 * self._index.num_sequences, self._index.num_offsets, "<i8")

    def _places(self, sequences: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offsets and lengths of sequences, in tokens, after checking that they are in the data."""
        lengths = self._lengths()[sequences].astype(np.int64)
        begins, rest = np.divmod(self._pointers()[sequences].astype(np.int64), self.dtype.itemsize)
        # in this order: with small lengths, the difference cannot overflow
        is_bad = (rest != 0) | (begins < 0) | (lengths < 0) | (begins > self.num_values - lengths)
        if is_bad.any():
            at = int(np.flatnonzero(is_bad)[0])
            raise self._damaged(
                f"sequence {int(sequences[at])} should have {int(lengths[at])} tokens from byte "
                f"{int(self._pointers()[sequences[at]])} on, and there are {self._data.size_bytes} bytes"
            )
        return begins, lengths

    def _check_ends(self) -> None:
        """Raise `DamagedFile` unless the first and last entries match the sizes."""
        num_sequences, num_offsets = self._index.num_sequences, self._index.num_offsets
        if num_offsets > 1 or (num_offsets and not num_sequences):
            first, last = int(self._documents()[0]), int(self._documents()[-1])
            if (first, last) != (0, num_sequences):
                raise self._damaged(f"its documents span sequences {first} to {last}, and there are {num_sequences}")
        end = 0
        if num_sequences:
            begins, lengths = self._places(np.array([0, num_sequences - 1]))
            end = int(begins[1] + lengths[1])
            if begins[0]:
                raise self._damaged(f"its first sequence begins at token {int(begins[0])}")
        if end != self.num_values:
            raise self._damaged(f"its sequences end at token {end}, and {self._data.path.name} has {self.num_values}")

    def _damaged(self, what: str) -> DamagedFile:
        return DamagedFile(
            self._index.file.path,
            what=f"does not fit its .bin file, or is damaged: {what}",
            hint="the two files belong together: copy both again, from one place",
        )


def pair_of(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return the paths of the `.bin` and the `.idx` file, given one of them or their prefix."""
    given = str(single_path(path, "Megatron"))
    prefix = given[:-4] if given.endswith((".bin", ".idx")) else given
    return Path(prefix + ".bin"), Path(prefix + ".idx")


def is_megatron(file: Path, head: bytes) -> bool:
    """Return whether a file is an index of Megatron-LM, or a `.bin` file next to one."""
    data, index = pair_of(file)
    if head.startswith(MAGIC):
        return True
    if data != file or not index.is_file():
        return False
    with index.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


def _read_head(file: KnownFile) -> tuple[_MegatronIndex, np.dtype[Any]]:
    head = file.head(_HEADER.size)
    if not head.startswith(MAGIC):
        found = f"its first bytes are {head[:9].hex(' ')}" if head else "it is empty"
        raise DamagedFile(
            file.path,
            what=f"is not an index of Megatron-LM: {found}",
            hint="an index of the older kind ('TNTIDX') has to be converted with Megatron-LM's own tools",
        )
    if len(head) < _HEADER.size:
        raise DamagedFile(file.path, what=f"is cut short: its head takes {_HEADER.size} bytes, and it has {len(head)}")
    _, version, code, num_sequences, num_offsets = _HEADER.unpack(head)
    if version != 1:
        raise DamagedFile(file.path, what=f"is an index of version {version}, and only 1 is known")
    if code in (6, 7):
        raise ArgumentError(
            f"{file.path} holds floating-point values (code {code}), which are not tokens",
            hint="save them as .npy, which stoker.open reads",
        )
    if code not in _DTYPES:
        raise DamagedFile(file.path, what=f"has an unknown code for its dtype: {code}")
    wanted = _HEADER.size + 12 * num_sequences + 8 * num_offsets
    if file.size_bytes not in (wanted, wanted + num_sequences):  # with a mode for each sequence
        raise DamagedFile(
            file.path,
            what=f"should have {wanted} bytes for {num_sequences} sequences and {num_offsets} document offsets, and "
            f"has {file.size_bytes}",
        )
    return _MegatronIndex(file, num_sequences, num_offsets), np.dtype(_DTYPES[code])
