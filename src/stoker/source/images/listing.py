"""The pictures in a folder: listed by several threads, put in natural order, and kept for the next start.

A listing holds for as long as no folder in it has changed: a file that comes, goes or is renamed changes the times of
the folder it is in. So a later start looks at the folders and not at the files.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.source.images.listing_cache import ArrayCache, Found
from stoker.source.images.names import Names, natural_keys, natural_order, printable

EXTENSIONS = ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm")
"""What a picture's name ends in, in small or capital letters."""

OTHERS = ("avif", "heic", "heif", "hif", "jxl", "jp2")
"""The same of pictures that cannot be read everywhere."""

# Local disks answer at once, and Python lists one folder at a time; a network answers late, and many at a time.
_NUM_THREADS = 8

FRESH_SECONDS = 2.0
"""A folder that changed this shortly before it was listed may have changed again within the same tick of its clock."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Pictures below one folder, in order."""

    root: bytes
    """Absolute."""
    folders: Names
    """Where there are pictures, below the root: `""` for itself, or `"cats/"`."""
    folder_of: NDArray[np.int32]
    """For each picture the number of its folder."""
    names: Names
    empty: tuple[bytes, ...] = ()
    """Sub-folders of the root that have no pictures, nor have those in them."""
    passed_over: tuple[tuple[str, int, str], ...] = ()
    """Endings of `OTHERS` that were not asked for: each with how many files there are, and the first of them."""

    def __len__(self) -> int:
        return len(self.names)

    def within(self, position: int) -> bytes:
        """Return the path of a picture below the root."""
        return self.folders[int(self.folder_of[position])] + self.names[position]

    def path(self, position: int) -> bytes:
        """Return the path of a picture."""
        return os.path.join(self.root, self.within(position))


class _Folder(NamedTuple):
    """A folder that was looked into."""

    within: bytes
    status: tuple[int, int, int]
    """Inode, and when its content and the folder itself last changed."""
    names: list[bytes]
    others: list[bytes]
    """Files that end in one of `OTHERS`, which was not asked for."""


def listed(root: str, extensions: Sequence[str], keeper: ArrayCache) -> Listing:
    """Return the pictures in a folder and below it.

    Hidden files and folders are left out, and so is what does not end in one of `extensions`. Links are followed, but
    not back into a folder that leads to them. A folder's own pictures come before those of the folders in it, and
    each of them in natural order. What cannot be looked into is an `OSError` that names it.
    """
    place = os.fsencode(os.path.abspath(root))
    key = (b"listing 2", os.path.realpath(place), place, ",".join(extensions))
    found = keeper.load(*key)
    if found is not None and _is_fresh(place, found):
        return _unpacked(place, found)
    begin = time.time()
    folders = _Walk(place, extensions).folders()
    listing = _ordered(place, folders)
    arrays: dict[str, NDArray[Any]] = {
        "folders": listing.folders.blob,
        "folder_ends": listing.folders.ends,
        "folder_of": listing.folder_of,
        "names": listing.names.blob,
        "name_ends": listing.names.ends,
    }
    looked_into = Names.of(folder.within for folder in folders)
    about = {"begin_ns": int(begin * 1e9), "passed_over": listing.passed_over}
    arrays |= {"looked_into": looked_into.blob, "looked_into_ends": looked_into.ends}
    arrays["status"] = np.array([folder.status for folder in folders], np.int64).reshape(-1, 3)
    keeper.save(*key, about=about, arrays=arrays)
    return listing


def _ordered(root: bytes, folders: Sequence[_Folder]) -> Listing:
    holding = [folder for folder in folders if folder.names]
    # Path by path: a folder comes before those in it, and one name is compared with another and not with a "/".
    parts = [folder.within.rstrip(b"/").split(b"/") for folder in holding]
    keys = {name: key for names in [sorted({part for path in parts for part in path})]
            for name, key in zip(names, natural_keys(names))}  # fmt: skip
    order = sorted(range(len(holding)), key=lambda number: [keys[part] for part in parts[number]])
    holding = [holding[number] for number in order]
    names = [folder.names[number] for folder in holding for number in natural_order(folder.names)]
    folder_of = np.repeat(np.arange(len(holding), dtype=np.int32), [len(folder.names) for folder in holding])
    return Listing(
        root,
        Names.of(folder.within for folder in holding),
        folder_of,
        Names.of(names),
        _empty((folder.within for folder in folders), (folder.within for folder in holding)),
        _passed_over(folders),
    )


def _empty(looked_into: Iterable[bytes], holding: Iterable[bytes]) -> tuple[bytes, ...]:
    found = {within.partition(b"/")[0] for within in looked_into} - {within.partition(b"/")[0] for within in holding}
    return tuple(sorted(found - {b"", b"__MACOSX"}))  # what unpacking a zip file from a Mac leaves behind


def _passed_over(folders: Iterable[_Folder]) -> tuple[tuple[str, int, str], ...]:
    by_ending: dict[str, list[bytes]] = {}
    for folder in folders:
        for name in folder.others:
            ending = os.fsdecode(name.lower().rpartition(b".")[2])
            by_ending.setdefault(ending, []).append(folder.within + name)
    return tuple((ending, len(names), printable(min(names))) for ending, names in sorted(by_ending.items()))


def _is_fresh(root: bytes, found: Found) -> bool:
    """Whether no folder has changed since a listing was made."""
    try:
        known: NDArray[np.int64] = found.arrays["status"]
        if int(known[:, 1:].max()) > found.about["begin_ns"] - int(FRESH_SECONDS * 1e9):
            return False
        looked_into = Names(found.arrays["looked_into"], found.arrays["looked_into_ends"])
        paths = [os.path.join(root, within) for within in looked_into]
        if len(paths) < 64:
            status = [_status(os.stat(path)) for path in paths]
        else:
            with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="stoker-list") as threads:
                status = list(threads.map(lambda path: _status(os.stat(path)), paths, chunksize=64))
    except OSError:
        return False
    return bool((known == np.array(status, np.int64)).all())


def _unpacked(root: bytes, found: Found) -> Listing:
    arrays = found.arrays
    folders = Names(arrays["folders"], arrays["folder_ends"])
    return Listing(
        root,
        folders,
        arrays["folder_of"],
        Names(arrays["names"], arrays["name_ends"]),
        _empty(Names(arrays["looked_into"], arrays["looked_into_ends"]), folders),
        tuple((ending, number, first) for ending, number, first in found.about["passed_over"]),
    )


def _status(found: os.stat_result) -> tuple[int, int, int]:
    # The time of the content can be set to anything (`rsync -a` does), the other one cannot.
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


class _Walk:
    """A folder and all below it on their way through several threads."""

    def __init__(self, root: bytes, extensions: Sequence[str]) -> None:
        self._root = root
        self._endings = tuple(f".{extension.lower().lstrip('.')}".encode() for extension in extensions)
        self._others = tuple(f".{extension}".encode() for extension in OTHERS)
        self._waiting: deque[tuple[bytes, tuple[Any, ...]]] = deque([(b"", ())])
        self._num_open = 1
        """Folders that wait or are being looked into."""
        self._found: list[_Folder] = []
        self._failure: BaseException | None = None
        self._change = threading.Condition()

    def folders(self) -> list[_Folder]:
        """Look into all of them."""
        threads = [threading.Thread(target=self._run, name="stoker-list") for _ in range(_NUM_THREADS - 1)]
        self._look(*self._waiting.popleft())  # most folders of pictures hold nothing but pictures
        if self._num_open:
            for thread in threads:
                thread.start()
            try:
                self._run()
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                for thread in threads:
                    thread.join()
        if self._failure is not None:
            raise self._failure
        return self._found

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._waiting and self._num_open and self._failure is None:
                    self._change.wait()
                if not self._waiting or self._failure is not None:
                    return
                folder = self._waiting.popleft()
            try:
                self._look(*folder)
            except Exception as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._change:
            self._failure = self._failure or error
            self._change.notify_all()

    def _look(self, within: bytes, above: tuple[Any, ...]) -> None:
        """Look into one folder; `above` are the identities of those that lead to it."""
        path = os.path.join(self._root, within)
        names: list[bytes] = []
        others: list[bytes] = []
        inner: list[bytes] = []
        try:
            status = os.stat(path)
            identity = (status.st_dev, status.st_ino)
            if identity not in above:  # a link to a folder above would lead round and round
                with os.scandir(path) as entries:
                    for entry in entries:
                        name = entry.name
                        if name.startswith(b"."):
                            continue
                        if _is_folder(entry):
                            inner.append(within + name + b"/")
                        # a link to nothing, or to itself, is taken, too: reading it tells what is missing
                        elif name.lower().endswith(self._endings) and (entry.is_symlink() or entry.is_file()):
                            names.append(name)
                        elif name.lower().endswith(self._others):
                            others.append(name)
        except OSError as error:
            where = error.filename if isinstance(error.filename, bytes) else path
            told = OSError(error.errno, f"{error.strerror}, while pictures were listed", printable(where))
            told.add_note("hint: give leave to read it, or move it away; a listing without it would be incomplete")
            raise told from error
        with self._change:
            self._found.append(_Folder(within, _status(status), names, others))
            self._waiting.extend((one, (*above, identity)) for one in inner)
            self._num_open += len(inner) - 1
            if inner or not self._num_open:
                self._change.notify_all()


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link that leads to itself leads to no folder
            return False
        raise


def readable_extensions() -> tuple[str, ...]:
    """Return the endings of pictures that can be read here: some are of formats that not every Pillow has."""
    try:
        import PIL.features
        import PIL.Image
    except ImportError:
        return EXTENSIONS
    found = list(EXTENSIONS)
    has_avif = "pillow_avif" in sys.modules  # the plugin for older ones
    with suppress(ValueError):  # they do not know the word
        has_avif = has_avif or PIL.features.check_module("avif")
    if has_avif:
        found.append("avif")
    if "HEIF" in PIL.Image.OPEN or find_spec("pillow_heif") is not None:
        found += ("heic", "heif", "hif")
    return tuple(found)


def how_to_read(ending: str) -> str:
    """Return what makes a picture of `OTHERS` one that can be read."""
    if ending == "avif":
        return "Pillow reads .avif from version 11.3 on (pip install -U pillow)"
    if ending in ("heic", "heif", "hif"):
        return f"Pillow reads .{ending} with pillow-heif (pip install pillow-heif)"
    return f"convert .{ending} to another format"


def checked_extensions(extensions: Sequence[str]) -> tuple[str, ...]:
    """Return extensions as they are compared: small letters, without a dot."""
    found = [extensions] if isinstance(extensions, str) else list(extensions)
    if not found or not all(isinstance(one, str) and one.strip(".") for one in found):
        raise ArgumentError(f"extensions={extensions!r} names none", hint="pass some, such as ('jpg', 'png')")
    return tuple(sorted({one.lower().lstrip(".") for one in found}))
