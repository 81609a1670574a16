"""The images that a preparation reads: identified by names, sizes and times, and cut into pieces.

Contents are not hashed, as a million photographs would be read twice. An image counts as unchanged if its name, its
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

from stoker.errors import StaleSource
from stoker.prepare.pieces import key_of
from stoker.source.images.columns import ImageColumn
from stoker.source.images.image_files import ImageFiles
from stoker.source.images.image_storage import EncodedImage, ImageSource
from stoker.source.images.names import printable
from stoker.source.images.stored import StoredImages
from stoker.source.images.tar_shards import TarShards

CODE = "1"
"""Version of the code that turns images into shards. Raised whenever the same image would give other bytes."""

_MAX_GROUP = 4
_GUESSED_BYTES = 100 << 10
"""Assumed size of an image if nothing is known about it."""

_NUM_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePiece:
    """A range of images that is one job."""

    start: int
    stop: int
    num_bytes: int
    key: str

    def describe(self) -> str:
        """Return which piece it is, for messages."""
        return f"the piece of images {self.start:,} to {self.stop - 1:,}"


class ImageInputs:
    """Images with sizes and times, to detect changes."""

    def __init__(self, images: ImageSource, source: Any) -> None:
        self.images = images
        self._source = source
        self.sizes, self.times = self._stamps()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_bytes(self) -> int:
        """Size of all image files; estimated where it is unknown before they are read."""
        return int(self.sizes.sum())

    def _stamps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the size of each image, and the time of the file it is in."""
        images, count = self.images, len(self.images)
        if isinstance(images, ImageFiles):
            found = np.empty((count, 2), np.int64)

            def look(begin: int) -> None:
                for position in range(begin, min(begin + 1024, count)):
                    found[position] = _stamp(images.path(position))

            with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="stoker-stat") as threads:
                for _ in threads.map(look, range(0, count, 1024)):
                    pass
            return found[:, 0].copy(), found[:, 1].copy()
        if isinstance(images, TarShards):
            return images.sizes, _newest(images.files, count)
        if isinstance(images, StoredImages):
            sizes = images.store.lengths(images.column, np.arange(count))
            return sizes, np.zeros(count, np.int64)
        if isinstance(images, ImageColumn) and images.files:
            num_bytes = sum(file.size_bytes for file in images.files)
            return np.full(count, max(1, num_bytes // max(1, count))), _newest(images.files, count)
        return np.full(count, _GUESSED_BYTES), np.zeros(count, np.int64)

    def name(self, position: int) -> bytes:
        """Return the name of an image, independent of the location of its source."""
        within = getattr(self.images, "within", None)
        found: bytes = within(position) if within is not None else self.images.name(position).encode()
        return found

    def _mark(self, position: int) -> bytes:
        """Return what identifies an image without reading it: its name, or in a table its row number."""
        return str(position).encode() if isinstance(self.images, ImageColumn) else self.name(position)

    def read(self, position: int) -> EncodedImage:
        """Return an image, after checking that its file has not changed."""
        data = self.images.read(position)
        if isinstance(self.images, ImageFiles):
            found = _stamp(self.images.path(position))
            if found != (int(self.sizes[position]), int(self.times[position])) or found[0] != len(data):
                raise StaleSource(self.images.name(position), what="it changed since the preparation began")
        return data

    def to_meta(self) -> list[dict[str, Any]]:
        """Return the origin of the images as kept in the manifest."""
        files = getattr(self.images, "files", ())
        if files:
            return [{"path": printable(os.fsencode(file.path)), "num_bytes": file.size_bytes} for file in files]
        is_path = isinstance(self._source, (str, os.PathLike))
        path = printable(os.fsencode(os.path.abspath(self._source))) if is_path else type(self._source).__name__
        return [{"path": path, "num_bytes": self.num_bytes}]

    @cached_property
    def digest(self) -> str:
        """Digest that changes with the images and labels."""
        return key_of(self._digest(0, len(self)), self.images.classes)

    @cached_property
    def _whole(self) -> str:
        # single files are compared one by one; archives and tables change as a whole
        return "" if isinstance(self.images, ImageFiles) else self.images.fingerprint

    def _digest(self, start: int, stop: int) -> str:
        import xxhash

        digest = xxhash.xxh3_128()
        for position in range(start, stop):
            mark = self._mark(position)
            digest.update(len(mark).to_bytes(8, "little") + mark)
        digest.update(np.stack([self.sizes[start:stop], self.times[start:stop]]).tobytes())
        labels = self.images.labels
        if labels is not None:
            digest.update(f"{labels.dtype.str} {labels.shape[1:]}".encode())
            digest.update(np.ascontiguousarray(labels[start:stop]).tobytes())
        digest.update(self._whole.encode())
        return str(digest.hexdigest())

    def pieces(self, piece_bytes: int, *more: Any) -> list[ImagePiece]:
        """Return the pieces of about `piece_bytes`, in order; `more` is also part of their keys.

        A key is made of names, sizes, times and labels, and does not depend on the pieces before it. Pieces that are
        equal in all of these are numbered.
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
            found.append(ImagePiece(start=start, stop=stop, num_bytes=num_bytes, key=key))
        return found

    def _cut(self, piece_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of groups. Where one ends depends only on the name and size of the next image.

        So an image that is added, changed or removed changes the groups around it, and not all that follow: the hash
        of a name, scaled by the size of its file, begins a group about every `piece_bytes`.
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


def _stamp(path: bytes) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, -1  # reading it raises the error
    return found.st_size, found.st_mtime_ns


def _newest(files: Sequence[Any], count: int) -> NDArray[np.int64]:
    return np.full(count, max(file.mtime_ns for file in files))
