"""Open images: find out what is at a path, and attach the labels."""

from __future__ import annotations

import os
import reprlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import ArgumentError
from stoker.source.arrow_folder import is_saved_dataset
from stoker.source.images import columns as tables
from stoker.source.images.image_files import ImageFiles, listing_of
from stoker.source.images.image_storage import ImageSource
from stoker.source.images.labels import (
    ImageLabels,
    checked_classes,
    class_labels,
    columns_without_table,
    given_labels,
    labels_of,
)
from stoker.source.images.listing import Listing, checked_extensions, how_to_read, list_images, readable_extensions
from stoker.source.images.listing_cache import ArrayCache, Cache
from stoker.source.images.names import printable
from stoker.source.images.stored import of_store
from stoker.source.images.tar_shards import TarFields, TarShards, archives_at, indexed, labels_in
from stoker.source.known_file import files_within, has_pattern
from stoker.store import open_store
from stoker.store.build import UNFINISHED
from stoker.store.manifest import FILE, FORMAT

_PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")

_NUM_NAMED = 5

_TRAINING = (b"train", b"training")
_HELD_OUT = (b"val", b"valid", b"validation", b"dev", b"test", b"testing")

_CAN_BE_OPENED = """images can be
  a folder, with or without a subfolder for each class
  a list of files, or of (file, label) pairs
  .tar archives (WebDataset): one, a pattern such as "shards/{000..012}.tar", a folder or a list of them
  .parquet files with a column of images, or a folder from datasets.save_to_disk (Hugging Face)
  a store made by `stoker prepare images`"""


def open_images(
    path: Any,
    *,
    labels: Any = None,
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    column: str | None = None,
    label: str | None = None,
    split: str | None = None,
    extensions: Sequence[str] | None = None,
    allow_empty: bool = False,
    cache: Cache = True,
) -> ImageSource:
    """Return the images at `path`, encoded, addressed by position.

    `path` is a folder, a list of files or of (file, label) pairs, WebDataset tar archives, Parquet, a saved Hugging
    Face dataset, or a store. A folder and its classes are in natural order (`img2` before `img10`), a list keeps its
    order. In a folder, files with one of `extensions` that are not hidden are images; whether they really are shows
    when they are decoded. By default these are the extensions that can be read here; for other image files (AVIF, HEIC)
    there is a warning.

    `labels=None` uses existing ones: subfolders as classes, `.cls` or the field "label" of `.json` in archives, the
    label column of tables. False uses none, True requires them. Others are given as a table (.csv, .tsv, .parquet;
    `columns` are the names of its file and label columns), a mapping from file to label, or a list in the order of the
    images. Names become classes, in natural order or as listed in `classes`; numbers stay numbers. A subfolder without
    images is an error, because ignoring it would renumber the classes after it; with `allow_empty=True`, or if
    `classes` lists it, it is a class; if `classes` does not list it, it is ignored.

    `column` is the image column of a table, or the image extension in archives, if it is ambiguous; `label` the same
    for labels. `split` is a split of a Hugging Face dataset. Listings and indexes are cached in the user's cache
    folder, or in the folder `cache`; False disables this.
    """
    if classes is not None:
        classes = checked_classes(classes)
    if columns is not None and (labels is None or isinstance(labels, bool)):
        raise columns_without_table()
    opening = _ImageOpener(
        labels=labels, classes=classes, columns=columns, column=column, label=label, split=split,
        extensions=checked_extensions(readable_extensions() if extensions is None else extensions),
        warns_of_others=extensions is None, allow_empty=allow_empty, cache=ArrayCache(cache),
    )  # fmt: skip
    return opening.opened(path)


class _ImageOpener:
    """The options of `open_images`."""

    def __init__(
        self, *, labels: Any, classes: Sequence[str] | None, columns: Sequence[str] | None, column: str | None,
        label: str | None, split: str | None, extensions: tuple[str, ...], warns_of_others: bool, allow_empty: bool,
        cache: ArrayCache,
    ) -> None:  # fmt: skip
        self._warns_of_others, self._allow_empty = warns_of_others, allow_empty
        self._labels, self._classes, self._columns, self._column = labels, classes, columns, column
        self._label, self._split, self._extensions, self._cache = label, split, extensions, cache
        self._has_own = labels is None or labels is True
        """Use the existing labels."""

    def opened(self, path: Any) -> ImageSource:
        if isinstance(path, (str, os.PathLike)):
            return self._at(path)
        if tables.is_dataset(path):
            return self._of_table(tables.of_dataset, path)
        if hasattr(path, "read") and hasattr(path, "name") and hasattr(path, "__len__"):
            found: ImageSource = path  # the user's own source
            return found
        if isinstance(path, Iterable) and not isinstance(path, (bytes, Mapping)):
            return self._of_list(list(path))
        raise ArgumentError(f"{reprlib.repr(path)} is not a known source of images", hint=_CAN_BE_OPENED)

    def _at(self, path: str | os.PathLike[str]) -> ImageSource:
        where = Path(os.path.abspath(path))
        if where.is_dir():
            return self._in_folder(where)
        name = os.fspath(path).lower()
        if name.endswith(".tar"):
            return self._of_archives(path)
        if name.endswith((".parquet", ".pq")) and (where.exists() or has_pattern(path)):
            return self._of_table(tables.of_parquet, path)
        if name.endswith(".arrow") and (where.exists() or has_pattern(path)):
            return self._of_table(tables.of_arrow, path, split=self._split)
        if name.endswith(_PACKED) and where.exists():
            raise ArgumentError(
                f"{where} is compressed, so images in it cannot be read at any position",
                hint="decompress it to a plain .tar; images are compressed already",
            )
        if where.exists():
            raise ArgumentError(f"{where} is a file that is not a known source of images", hint=_CAN_BE_OPENED)
        if has_pattern(path):
            raise ArgumentError(
                f"{path} is a pattern, but patterns are only supported for .tar, .parquet and .arrow files",
                hint="pass the folder, or a list: sorted(glob.glob(...))",
            )
        raise FileNotFoundError(f"{where} does not exist\nhint: {_CAN_BE_OPENED}")

    def _in_folder(self, folder: Path) -> ImageSource:
        if _is_store(folder):
            store = open_store(folder)
            found = of_store(store, column=self._column, label=self._label, has_labels=self._has_own)
            return self._labeled(found, str(folder))
        if is_saved_dataset(folder):
            return self._of_table(tables.of_arrow, folder, split=self._split)
        listing = list_images(os.fspath(folder), self._extensions, self._cache)
        if len(listing):
            if self._warns_of_others and listing.skipped:
                self._warn_of_others(listing, printable(listing.root))
            self._check_options_of_files(f"{folder} is a folder of files")
            return self._of_listing(listing, printable(listing.root))
        for suffixes, open_them in (((".tar",), self._of_archives), ((".parquet", ".pq"), self._of_parquet)):
            files = files_within(folder, suffixes)
            if files:
                return open_them(files)
        raise ArgumentError(
            f"{folder} contains no images: no file in it or below ends in {', '.join(self._extensions)}"
            + "".join(f"; skipped: {others}" for others in _describe_skipped(listing)),
            hint="; ".join(how_to_read(ending) for ending, _, _ in listing.skipped)
            or "check the path; extensions=... includes files with other extensions",
        )

    def _of_parquet(self, files: Sequence[Path]) -> ImageSource:
        return self._of_table(tables.of_parquet, files)

    def _of_listing(self, listing: Listing, owner: str) -> ImageSource:
        labels = ImageLabels()
        if self._has_own:
            labels = self._sub_folders(listing, owner)
        elif self._labels is not False:
            labels = self._given(len(listing), lambda: map(listing.within, range(len(listing))), owner)
        return ImageFiles(listing, labels)

    def _check_options_of_files(self, what: str) -> None:
        """Raise `ArgumentError` for options that do not apply to single files."""
        given = {"column": self._column, "label": self._label, "split": self._split}
        for name, value in given.items():
            if value is not None:
                raise ArgumentError(
                    f"{name}={value!r} is only for archives, tables and stores, and {what}",
                    hint=f"omit {name}=; labels of files are passed as labels=",
                )

    def _warn_of_others(self, listing: Listing, owner: str) -> None:
        hints = dict.fromkeys(how_to_read(ending) for ending, _, _ in listing.skipped)
        warnings.warn(
            f"in {owner}, images are skipped: {'; '.join(_describe_skipped(listing))}\n"
            f"hint: {'; '.join(hints)}; extensions=[...] selects the files to use",
            stacklevel=2,
        )

    def _check_empty(self, listing: Listing, owner: str) -> None:
        """Raise `ArgumentError` for subfolders without images, unless allow_empty or classes say what they are."""
        if not listing.empty or self._allow_empty or self._classes is not None:
            return
        names = ", ".join(map(printable, listing.empty[:_NUM_NAMED]))
        more = ", ..." if len(listing.empty) > _NUM_NAMED else ""
        raise ArgumentError(
            f"{owner} has subfolders without images: {names}{more}; if they are classes, ignoring them would renumber "
            "the others" + "".join(f"; skipped: {others}" for others in _describe_skipped(listing)),
            hint="allow_empty=True (--allow-empty) makes them classes; classes=[...] lists the classes, such as those "
            "of the training data",
        )

    def _sub_folders(self, listing: Listing, owner: str) -> ImageLabels:
        """Return the subfolders as classes, if there are any."""
        firsts = [folder.partition(b"/")[0] for folder in listing.folders]
        num_loose = int((listing.folder_of == firsts.index(b"")).sum()) if b"" in firsts else 0
        if num_loose == len(listing):
            if self._labels is True or self._classes is not None:
                raise ArgumentError(
                    f"{owner} has no subfolders with images, which would be the classes",
                    hint="pass labels= as a table, a mapping or a list; or omit it for images without labels",
                )
            return ImageLabels()
        if num_loose:
            at = int(np.flatnonzero(listing.folder_of == firsts.index(b""))[0])
            raise ArgumentError(
                f"{owner} contains images itself ({num_loose:,}, such as {printable(listing.names[at])}) and in "
                f"subfolders ({len(listing) - num_loose:,}), so the classes are ambiguous",
                hint="pass labels=False to use all images without labels, or move the images that have no class",
            )
        self._check_empty(listing, owner)
        known = [] if self._classes is not None else [os.fsdecode(name) for name in listing.empty]
        by_folder = class_labels([os.fsdecode(first) for first in firsts] + known, self._classes)
        assert by_folder.values is not None
        if self._classes is None and by_folder.classes is not None:
            _check_against_training(listing.root, by_folder.classes)
        return ImageLabels(by_folder.values[: len(firsts)][listing.folder_of], by_folder.classes)

    def _of_list(self, given: list[Any]) -> ImageSource:
        if not given:
            raise ArgumentError("the list of images is empty", hint="pass at least one; did a glob match nothing?")
        pairs = [isinstance(one, (tuple, list)) and len(one) == 2 for one in given]
        if any(pairs) and not all(pairs):
            raise ArgumentError(
                "the list has both files and (file, label) pairs", hint="pass pairs for all of them, or for none"
            )
        paths = [one[0] for one in given] if all(pairs) else given
        for one in paths:
            if not isinstance(one, (str, os.PathLike)):
                raise ArgumentError(
                    f"{reprlib.repr(one)} is not a path",
                    hint="pass a list of paths, or of (path, label) pairs; bytes are supported in Parquet files or "
                    "Hugging Face datasets",
                )
        endings = {os.path.splitext(os.fspath(path))[1].lower() for path in paths[:1]}
        if not all(pairs) and endings == {".tar"}:
            return self._of_archives(paths)
        if not all(pairs) and endings <= {".parquet", ".pq"}:
            return self._of_table(tables.of_parquet, paths)
        self._check_options_of_files("this is a list of files")
        listing = listing_of(paths)
        if all(pairs) and self._has_own:
            return ImageFiles(listing, labels_of([one[1] for one in given], self._classes))
        if self._has_own:
            if self._labels is True:
                raise ArgumentError("a list of files has no labels", hint="pass (file, label) pairs, or labels=[...]")
            return ImageFiles(listing, ImageLabels())
        return self._of_listing(listing, "the list")

    def _of_archives(self, paths: Any) -> ImageSource:
        files = archives_at(paths)
        wanted = TarFields(self._extensions, self._column, self._label, self._has_own)
        indexes = indexed(files, wanted, self._cache)
        labels = labels_in(indexes, files, wanted, self._classes) if self._has_own else ImageLabels()
        found = TarShards(files, indexes, labels)
        if not len(found):
            where = f"{files[0].path}{' and the other archives' if len(files) > 1 else ''}"
            if self._column is not None:
                raise ArgumentError(
                    f"there are no members with extension .{self._column.lstrip('.')} in {where}",
                    hint=f"column= is the extension of the images; by default they are {', '.join(self._extensions)}",
                )
            raise ArgumentError(
                f"there are no images in {where}",
                hint=f"members end in {', '.join(self._extensions)}; pass extensions= or column= for others",
            )
        return self._labeled(found, str(paths))

    def _of_table(self, open_it: Any, path: Any, **more: Any) -> ImageSource:
        found = open_it(
            path, column=self._column, label=self._label, has_labels=self._has_own, classes=self._classes, **more
        )
        if not len(found):
            raise ArgumentError(f"there are no rows in {found!r}", hint="check the path")
        return self._labeled(found, repr(found))

    def _labeled(self, found: Any, owner: str) -> ImageSource:
        """Attach the labels that were passed."""
        if self._labels is True and found.labels is None:
            raise ArgumentError(f"{owner} has no labels", hint="pass label= or labels=")
        if not self._has_own and self._labels is not False:
            labels = self._given(len(found), lambda: map(found.within, range(len(found))), owner)
            found.labels, found.classes = labels
        images: ImageSource = found
        return images

    def _given(self, num_images: int, within: Any, owner: str) -> ImageLabels:
        return given_labels(self._labels, num_images, within, columns=self._columns, classes=self._classes, owner=owner)


def _describe_skipped(listing: Listing) -> list[str]:
    """Return which image files were skipped, by extension."""
    return [
        f"{number:,} .{ending} file{'' if number == 1 else 's'}, such as {first}"
        for ending, number, first in listing.skipped
    ]


def _check_against_training(root: bytes, classes: list[str]) -> None:
    """Warn if a validation folder has other classes than the training folder next to it."""
    if os.path.basename(root).lower() not in _HELD_OUT:
        return
    with suppress(OSError):
        parent = os.path.dirname(root)
        for training in (os.path.join(parent, name) for name in os.listdir(parent) if name.lower() in _TRAINING):
            names = [name for name in os.listdir(training) if not name.startswith(b".")]
            names = [name for name in names if os.path.isdir(os.path.join(training, name))]
            theirs = class_labels([os.fsdecode(name) for name in names]).classes or []
            if theirs and theirs[: len(classes)] != classes:
                first = next(pair for pair in zip_longest(classes, theirs) if pair[0] != pair[1])
                warnings.warn(
                    f"the classes of {printable(root)} differ from those of {printable(training)}, and so do their "
                    f"numbers: {classes.index(str(first[0]))} is {first[0]!r} here and {first[1]!r} there\n"
                    "hint: pass classes=train.classes, where train = stoker.images(...) of the training data",
                    stacklevel=2,
                )


def _is_store(folder: Path) -> bool:
    """Return whether a folder is a store, finished or not; other programs use the name manifest.json, too."""
    try:
        with open(folder / FILE, "rb") as file:
            return FORMAT.encode() in file.read(4096)
    except OSError:
        return (folder / UNFINISHED).is_dir()
