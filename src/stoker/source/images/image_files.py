"""Images that are files of a folder or a list."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import BadImage, StaleSource
from stoker.source.images.labels import ImageLabels, digest_of
from stoker.source.images.listing import Listing
from stoker.source.images.names import Names, printable

MAX_BYTES = 2**31
"""Decoders count bytes with 32 bits."""

_NUM_PROBES = 64

# O_NONBLOCK: opening a pipe would otherwise block until it has a writer.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@final
class ImageFiles:
    """Images that are files. No file is open between reads; thread-safe; pickles as its names.

    A missing file raises `StaleSource`; a file that was replaced after listing is read as it is now, because only its
    name is recorded.
    """

    def __init__(self, listing: Listing, labels: ImageLabels) -> None:
        self._listing = listing
        self.labels, self.classes = labels.values, labels.classes

    def __repr__(self) -> str:
        return f"ImageFiles({printable(self._listing.root)!r}, {len(self):,} files)"

    def __len__(self) -> int:
        return len(self._listing)

    def read(self, position: int, /) -> bytes:
        """Return the content of the file at `position`."""
        path = self._listing.path(position)
        try:
            handle = os.open(path, _FLAGS)
            try:
                return _content(handle, path)
            finally:
                os.close(handle)
        except FileNotFoundError as error:
            raise StaleSource(printable(path), what="it is gone, or a broken link") from error
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise BadImage(printable(path), reason=f"it cannot be read: {error.strerror or error}") from error

    def name(self, position: int, /) -> str:
        """Return the path of the file at `position`."""
        return printable(self._listing.path(position))

    def within(self, position: int) -> bytes:
        """Return the path of the file at `position`, relative to the folder."""
        return self._listing.within(position)

    def path(self, position: int) -> bytes:
        """Return the path of the file at `position`, as bytes."""
        return self._listing.path(position)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of these files: their relative paths, their labels, and the sizes of some of them.

        Reading the size of each would take as long as listing them, or longer.
        """
        listing = self._listing
        sizes = []
        for position in np.unique(np.linspace(0, len(self) - 1, min(_NUM_PROBES, len(self)), dtype=np.int64)).tolist():
            try:
                sizes.append(os.stat(listing.path(position)).st_size)
            except OSError:
                sizes.append(-1)
        arrays: list[NDArray[Any]] = [listing.folders.blob, listing.folders.ends, listing.folder_of]
        arrays += [listing.names.blob, listing.names.ends, np.array(sizes, np.int64)]
        return digest_of(arrays, ImageLabels(self.labels, self.classes))


def listing_of(paths: Sequence[str | os.PathLike[str]]) -> Listing:
    """Return files in the given order, whether they exist or not."""
    encoded = [os.fsencode(os.path.abspath(path)) for path in paths]
    parted = [os.path.split(path) for path in encoded]
    root = os.path.commonpath({folder for folder, _ in parted})
    numbers: dict[bytes, int] = {}
    folder_of = np.fromiter((numbers.setdefault(folder, len(numbers)) for folder, _ in parted), np.int32, len(parted))
    within = [os.path.relpath(folder, root) for folder in numbers]
    folders = Names.of(b"" if one == b"." else one + b"/" for one in within)
    return Listing(root, folders, folder_of, Names.of(name for _, name in parted))


def too_large(name: str, num_bytes: int) -> BadImage:
    """Return the error for an image too large for decoders."""
    return BadImage(name, reason=f"it has {num_bytes / 2**30:.1f} GiB, but images must be smaller than 2 GiB")


def _content(handle: int, path: bytes) -> bytes:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        raise BadImage(printable(path), reason="it is not a regular file")
    if found.st_size >= MAX_BYTES:
        raise too_large(printable(path), found.st_size)
    data = os.read(handle, found.st_size)
    while len(data) < found.st_size:  # interrupted by a signal, or the file was truncated just now
        more = os.read(handle, found.st_size - len(data))
        if not more:
            break
        data += more
    return data
