"""The pictures that a preparation reads: known by names, sizes and times, and cut into pieces.

Contents are not hashed: a million photographs would be read twice. A picture is taken for the same if its name, its
size and the time of its file are.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, StaleSource
from stoker.prepare.pieces import key_of
from stoker.source.images.columns import ColumnPictures
from stoker.source.images.files import PictureFiles
from stoker.source.images.names import printable
from stoker.source.images.protocols import Encoded, Pictures
from stoker.source.images.stored import StoredPictures
from stoker.source.images.tar_shards import TarShards

CODE = "1"
"""The version of what turns pictures into shards. It is raised whenever the same picture would give other bytes."""

_MIN_PIECE_BYTES, _MAX_PIECE_BYTES = 4 << 20, 64 << 20
_NUM_PIECES = 64
_MAX_GROUP = 4
_GUESSED_BYTES = 100 << 10
"""A picture of whose size nothing is known."""

_NUM_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturePiece:
    """Pictures that are prepared in one go, whoever does it."""

    start: int
    stop: int
    num_bytes: int
    key: str

    def described(self) -> str:
        """Return which piece it is, for people."""
        return f"the piece of pictures {self.start:,} to {self.stop - 1:,}"


class Stock:
    """Pictures with what tells that they have changed."""

    def __init__(self, pictures: Pictures, source: Any) -> None:
        self.pictures = pictures
        self._source = source
        self.sizes, self.times = self._stamps()

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def num_bytes(self) -> int:
        """Of all pictures, as they lie there; guessed where that cannot be known before they are read."""
        return int(self.sizes.sum())

    def _stamps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the size of each picture, and the time of the file it is in."""
        pictures, count = self.pictures, len(self.pictures)
        if isinstance(pictures, PictureFiles):
            found = np.empty((count, 2), np.int64)

            def look(begin: int) -> None:
                for position in range(begin, min(begin + 1024, count)):
                    found[position] = _stamp(pictures.path(position))

            with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="stoker-stat") as threads:
                for _ in threads.map(look, range(0, count, 1024)):
                    pass
            return found[:, 0].copy(), found[:, 1].copy()
        if isinstance(pictures, TarShards):
            return pictures.sizes, _newest(pictures.files, count)
        if isinstance(pictures, StoredPictures):
            sizes = pictures.store.lengths(pictures.column, np.arange(count))
            return sizes, np.zeros(count, np.int64)
        if isinstance(pictures, ColumnPictures) and pictures.files:
            num_bytes = sum(file.size_bytes for file in pictures.files)
            return np.full(count, max(1, num_bytes // max(1, count))), _newest(pictures.files, count)
        return np.full(count, _GUESSED_BYTES), np.zeros(count, np.int64)

    def name(self, position: int) -> bytes:
        """Return what a picture is called, wherever its source lies."""
        within = getattr(self.pictures, "within", None)
        found: bytes = within(position) if within is not None else self.pictures.name(position).encode()
        return found

    def _mark(self, position: int) -> bytes:
        """Return what tells a picture from its neighbours without reading it: in a table, the number of its row."""
        return str(position).encode() if isinstance(self.pictures, ColumnPictures) else self.name(position)

    def read(self, position: int) -> Encoded:
        """Return a picture, after checking that it is the one that was found."""
        data = self.pictures.read(position)
        if isinstance(self.pictures, PictureFiles):
            found = _stamp(self.pictures.path(position))
            if found != (int(self.sizes[position]), int(self.times[position])) or found[0] != len(data):
                raise StaleSource(self.pictures.name(position), what="it was written to since the preparation began")
        return data

    def inputs(self) -> list[dict[str, Any]]:
        """Return what a manifest keeps of where the pictures came from."""
        files = getattr(self.pictures, "files", ())
        if files:
            return [{"path": printable(os.fsencode(file.path)), "num_bytes": file.size_bytes} for file in files]
        is_path = isinstance(self._source, (str, os.PathLike))
        path = printable(os.fsencode(os.path.abspath(self._source))) if is_path else type(self._source).__name__
        return [{"path": path, "num_bytes": self.num_bytes}]

    @cached_property
    def digest(self) -> str:
        """What tells these pictures and labels from others, or from themselves as they were before."""
        return key_of(self._digest(0, len(self)), self.pictures.classes)

    @cached_property
    def _whole(self) -> str:
        # of files each by itself is known; archives and tables change as a whole
        return "" if isinstance(self.pictures, PictureFiles) else self.pictures.fingerprint

    def _digest(self, start: int, stop: int) -> str:
        import xxhash

        digest = xxhash.xxh3_128()
        for position in range(start, stop):
            mark = self._mark(position)
            digest.update(len(mark).to_bytes(8, "little") + mark)
        digest.update(np.stack([self.sizes[start:stop], self.times[start:stop]]).tobytes())
        labels = self.pictures.labels
        if labels is not None:
            digest.update(f"{labels.dtype.str} {labels.shape[1:]}".encode())
            digest.update(np.ascontiguousarray(labels[start:stop]).tobytes())
        digest.update(self._whole.encode())
        return str(digest.hexdigest())

    def pieces(self, piece_bytes: int, *more: Any) -> list[PicturePiece]:
        """Return the pictures cut into pieces of about so many bytes, in order; `more` also decides about their keys.

        A key is made of names, sizes, times and labels, and does not change with the pieces before it. Pieces that are
        equal in all of this are told apart by a number.
        """
        count: Counter[str] = Counter()
        found = []
        for start, stop in self._cut(piece_bytes):
            parts = [CODE, *more, self._digest(start, stop)]
            key = key_of(*parts)
            count[key] += 1
            if count[key] > 1:
                key = key_of(*parts, count[key])
            num_bytes = int(self.sizes[start:stop].sum())
            found.append(PicturePiece(start=start, stop=stop, num_bytes=num_bytes, key=key))
        return found

    def _cut(self, piece_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield the borders of groups. Where one ends is decided by the name and the size of the next picture alone.

        So a picture that is added, changed or removed changes the groups around it, and not all that follow.
        """
        import xxhash

        start = weight = 0
        for position, size in enumerate(self.sizes.tolist()):
            own = max(4096, size)
            begins = xxhash.xxh3_64_intdigest(self._mark(position)) * piece_bytes < own << 64
            if position > start and (begins or weight + own > _MAX_GROUP * piece_bytes):
                yield start, position
                start, weight = position, 0
            weight += own
        if len(self) > start:
            yield start, len(self)


def fitting_piece_bytes(num_bytes: int) -> int:
    """Return how large pieces are where nobody says so: a power of two that gives some dozens of pieces."""
    share = num_bytes // _NUM_PIECES
    return max(_MIN_PIECE_BYTES, min(_MAX_PIECE_BYTES, 1 << max(0, share - 1).bit_length()))


def _stamp(path: bytes) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, -1  # whoever reads it tells why
    return found.st_size, found.st_mtime_ns


def _newest(files: Sequence[Any], count: int) -> NDArray[np.int64]:
    return np.full(count, max(file.mtime_ns for file in files))


def checked_piece_bytes(asked: int | None) -> int | None:
    """Return a size of pieces, if it can be one."""
    if asked is not None and asked < 1:
        raise ArgumentError(f"piece_bytes={asked} is not positive", hint="pass a size, such as 64 << 20")
    return asked
