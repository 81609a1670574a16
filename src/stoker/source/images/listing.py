"""List the images in a folder with several threads, sort them naturally, and cache the list for the next start.

A cached list is valid as long as no folder in it has changed: creating, deleting or renaming a file changes the times
of its folder. So a later start checks only the folders, not the files.
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
from stoker.source.images.listing_cache import ArrayCache, CachedArrays
from stoker.source.images.names import Names, natural_keys, natural_order, printable

EXTENSIONS = ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm")
"""Extensions of image files, in any case."""

OTHERS = ("avif", "heic", "heif", "hif", "jxl", "jp2")
"""Extensions of formats that need an optional library."""

# For network file systems, which have a high latency but answer many requests at once.
_NUM_THREADS = 8

FRESH_SECONDS = 2.0
"""A folder that changed this shortly before listing may change again without a new time stamp, so it is not cached."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Images below one folder, in order."""

    root: bytes
    """Absolute."""
    folders: Names
    """Folders with images, relative to the root: `""` for itself, or `"cats/"`."""
    folder_of: NDArray[np.int32]
    """For each image the number of its folder."""
    names: Names
    empty: tuple[bytes, ...] = ()
    """Subfolders of the root without images at any depth."""
    skipped: tuple[tuple[str, int, str], ...] = ()
    """Extensions of `OTHERS` that were not requested, each with the number of files and the first of them."""

    def __len__(self) -> int:
        return len(self.names)

    def within(self, position: int) -> bytes:
        """Return the path of an image relative to the root."""
        return self.folders[int(self.folder_of[position])] + self.names[position]

    def path(self, position: int) -> bytes:
        """Return the path of an image."""
        return os.path.join(self.root, self.within(position))


class _ListedFolder(NamedTuple):
    """The content of one folder."""

    within: bytes
    status: tuple[int, int, int]
    """Inode, mtime and ctime."""
    names: list[bytes]
    others: list[bytes]
    """Files with an extension of `OTHERS` that was not requested."""


def list_images(root: str, extensions: Sequence[str], cache: ArrayCache) -> Listing:
    """Return the images in a folder and below it.

    Hidden files and folders are skipped, and files without one of `extensions`. Links are followed, except back to a
    folder that contains them. The images of a folder come before those of its subfolders, each in natural order. A
    folder that cannot be read raises an `OSError` that names it.
    """
    place = os.fsencode(os.path.abspath(root))
    key = (b"listing 2", os.path.realpath(place), place, ",".join(extensions))
    found = cache.load(*key)
    if found is not None and _is_fresh(place, found):
        return _from_cache(place, found)
    begin = time.time()
    folders = _FolderWalk(place, extensions).folders()
    listing = _ordered(place, folders)
    arrays: dict[str, NDArray[Any]] = {
        "folders": listing.folders.blob,
        "folder_ends": listing.folders.ends,
        "folder_of": listing.folder_of,
        "names": listing.names.blob,
        "name_ends": listing.names.ends,
    }
    visited = Names.of(folder.within for folder in folders)
    about = {"begin_ns": int(begin * 1e9), "passed_over": listing.skipped}
    arrays |= {"looked_into": visited.blob, "looked_into_ends": visited.ends}
    arrays["status"] = np.array([folder.status for folder in folders], np.int64).reshape(-1, 3)
    cache.save(*key, about=about, arrays=arrays)
    return listing


def _ordered(root: bytes, folders: Sequence[_ListedFolder]) -> Listing:
    holding = [folder for folder in folders if folder.names]
    # By path components: a folder comes before its subfolders, and names are never compared with a "/".
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
        _skipped(folders),
    )


def _empty(visited: Iterable[bytes], holding: Iterable[bytes]) -> tuple[bytes, ...]:
    found = {within.partition(b"/")[0] for within in visited} - {within.partition(b"/")[0] for within in holding}
    return tuple(sorted(found - {b"", b"__MACOSX"}))  # left by zip files from macOS


def _skipped(folders: Iterable[_ListedFolder]) -> tuple[tuple[str, int, str], ...]:
    by_ending: dict[str, list[bytes]] = {}
    for folder in folders:
        for name in folder.others:
            ending = os.fsdecode(name.lower().rpartition(b".")[2])
            by_ending.setdefault(ending, []).append(folder.within + name)
    return tuple((ending, len(names), printable(min(names))) for ending, names in sorted(by_ending.items()))


def _is_fresh(root: bytes, found: CachedArrays) -> bool:
    """Return whether no folder has changed since it was listed."""
    try:
        known: NDArray[np.int64] = found.arrays["status"]
        if int(known[:, 1:].max()) > found.about["begin_ns"] - int(FRESH_SECONDS * 1e9):
            return False
        visited = Names(found.arrays["looked_into"], found.arrays["looked_into_ends"])
        paths = [os.path.join(root, within) for within in visited]
        if len(paths) < 64:
            status = [_status(os.stat(path)) for path in paths]
        else:
            with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="stoker-list") as threads:
                status = list(threads.map(lambda path: _status(os.stat(path)), paths, chunksize=64))
    except OSError:
        return False
    return bool((known == np.array(status, np.int64)).all())


def _from_cache(root: bytes, found: CachedArrays) -> Listing:
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
    # mtime can be set to anything (`rsync -a` does), ctime cannot.
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


class _FolderWalk:
    """Lists a folder and everything below it, with several threads."""

    def __init__(self, root: bytes, extensions: Sequence[str]) -> None:
        self._root = root
        self._endings = tuple(f".{extension.lower().lstrip('.')}".encode() for extension in extensions)
        self._others = tuple(f".{extension}".encode() for extension in OTHERS)
        self._waiting: deque[tuple[bytes, tuple[Any, ...]]] = deque([(b"", ())])
        self._num_open = 1
        """Folders that are waiting or being listed."""
        self._found: list[_ListedFolder] = []
        self._failure: BaseException | None = None
        self._change = threading.Condition()

    def folders(self) -> list[_ListedFolder]:
        """List all of them."""
        threads = [threading.Thread(target=self._run, name="stoker-list") for _ in range(_NUM_THREADS - 1)]
        self._list(*self._waiting.popleft())  # here first: most folders of images have no subfolders
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
                self._list(*folder)
            except Exception as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._change:
            self._failure = self._failure or error
            self._change.notify_all()

    def _list(self, within: bytes, above: tuple[Any, ...]) -> None:
        """List one folder; `above` are the identities of its parents."""
        path = os.path.join(self._root, within)
        names: list[bytes] = []
        others: list[bytes] = []
        inner: list[bytes] = []
        try:
            status = os.stat(path)
            identity = (status.st_dev, status.st_ino)
            if identity not in above:  # a link to a parent would never end
                with os.scandir(path) as entries:
                    for entry in entries:
                        name = entry.name
                        if name.startswith(b"."):
                            continue
                        if _is_folder(entry):
                            inner.append(within + name + b"/")
                        # also a broken link: reading it raises an error that names it
                        elif name.lower().endswith(self._endings) and (entry.is_symlink() or entry.is_file()):
                            names.append(name)
                        elif name.lower().endswith(self._others):
                            others.append(name)
        except OSError as error:
            where = error.filename if isinstance(error.filename, bytes) else path
            failure = OSError(error.errno, f"{error.strerror}, while listing images", printable(where))
            failure.add_note("hint: make it readable, or move it away; a list without it would be incomplete")
            raise failure from error
        with self._change:
            self._found.append(_ListedFolder(within, _status(status), names, others))
            self._waiting.extend((one, (*above, identity)) for one in inner)
            self._num_open += len(inner) - 1
            if inner or not self._num_open:
                self._change.notify_all()


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself is not a folder
            return False
        raise


def readable_extensions() -> tuple[str, ...]:
    """Return the extensions of images that can be read here: some formats need an optional library."""
    try:
        import PIL.features
        import PIL.Image
    except ImportError:
        return EXTENSIONS
    found = list(EXTENSIONS)
    has_avif = "pillow_avif" in sys.modules  # the plugin for older versions of Pillow
    with suppress(ValueError):  # older versions do not know this name
        has_avif = has_avif or PIL.features.check_module("avif")
    if has_avif:
        found.append("avif")
    if "HEIF" in PIL.Image.OPEN or find_spec("pillow_heif") is not None:
        found += ("heic", "heif", "hif")
    return tuple(found)


def how_to_read(ending: str) -> str:
    """Return a hint for an extension of `OTHERS`."""
    if ending == "avif":
        return "Pillow reads .avif from version 11.3 on (pip install -U pillow)"
    if ending in ("heic", "heif", "hif"):
        return f"Pillow reads .{ending} with pillow-heif (pip install pillow-heif)"
    return f"convert .{ending} to another format"


def checked_extensions(extensions: Sequence[str]) -> tuple[str, ...]:
    """Return extensions in lower case, without a dot."""
    found = [extensions] if isinstance(extensions, str) else list(extensions)
    if not found or not all(isinstance(one, str) and one.strip(".") for one in found):
        raise ArgumentError(f"extensions must not be empty, got {extensions!r}", hint="pass e.g. ('jpg', 'png')")
    return tuple(sorted({one.lower().lstrip(".") for one in found}))
