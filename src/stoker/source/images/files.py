"""Pictures that are files, each by itself: those of a folder, or of a list."""

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
from stoker.source.images.labels import Labels, digest_of
from stoker.source.images.listing import Listing
from stoker.source.images.names import Names, printable

MAX_BYTES = 2**31
"""Decoders count bytes in 32 bits."""

_NUM_PROBES = 64

# Without O_NONBLOCK to open a pipe is to wait for whoever writes to it.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@final
class ImageFiles:
    """Pictures that are files. Nothing is open between two reads; for any number of threads; pickles as its names.

    What is read is what is there now. A file that is gone is `StaleSource`; one that was replaced since it was listed
    is read as it is: nothing but its name was ever looked at.
    """

    def __init__(self, listing: Listing, labels: Labels) -> None:
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
            raise StaleSource(printable(path), what="it is gone, or a link that leads nowhere") from error
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise BadImage(printable(path), reason=f"it cannot be read: {error.strerror or error}") from error

    def name(self, position: int, /) -> str:
        """Return the path of the file at `position`."""
        return printable(self._listing.path(position))

    def within(self, position: int) -> bytes:
        """Return the path of the file at `position` below the folder."""
        return self._listing.within(position)

    def path(self, position: int) -> bytes:
        """Return the path of the file at `position`, as it is."""
        return self._listing.path(position)

    @cached_property
    def fingerprint(self) -> str:
        """What tells these files from others: their names below the folder, their labels, the sizes of some of them.

        To look at the size of each would cost as much as the listing, or more.
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
        return digest_of(arrays, Labels(self.labels, self.classes))


def listing_of(paths: Sequence[str | os.PathLike[str]]) -> Listing:
    """Return files in the order in which they are given, whether they are there or not."""
    encoded = [os.fsencode(os.path.abspath(path)) for path in paths]
    parted = [os.path.split(path) for path in encoded]
    root = os.path.commonpath({folder for folder, _ in parted})
    numbers: dict[bytes, int] = {}
    folder_of = np.fromiter((numbers.setdefault(folder, len(numbers)) for folder, _ in parted), np.int32, len(parted))
    within = [os.path.relpath(folder, root) for folder in numbers]
    folders = Names.of(b"" if one == b"." else one + b"/" for one in within)
    return Listing(root, folders, folder_of, Names.of(name for _, name in parted))


def too_large(name: str, num_bytes: int) -> BadImage:
    """Return the error for a picture that no decoder takes."""
    return BadImage(name, reason=f"it has {num_bytes / 2**30:.1f} GiB, and a picture may have less than 2 GiB")


def _content(handle: int, path: bytes) -> bytes:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        raise BadImage(printable(path), reason="it is not a regular file")
    if found.st_size >= MAX_BYTES:
        raise too_large(printable(path), found.st_size)
    data = os.read(handle, found.st_size)
    while len(data) < found.st_size:  # a signal came between, or the file was cut short just now
        more = os.read(handle, found.st_size - len(data))
        if not more:
            break
        data += more
    return data
