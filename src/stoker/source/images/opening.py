"""One way to open pictures, wherever they lie."""

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
from stoker.source.images.files import ImageFiles, listing_of
from stoker.source.images.labels import Labels, checked_classes, columns_of_no_table, given_labels, labels_of, numbered
from stoker.source.images.listing import Listing, checked_extensions, how_to_read, listed, readable_extensions
from stoker.source.images.listing_cache import ArrayCache, Cache
from stoker.source.images.names import printable
from stoker.source.images.protocols import ImageSource
from stoker.source.images.stored import of_store
from stoker.source.images.tar_shards import TarShards, Wanted, archives_at, indexed, labels_in
from stoker.source.known_file import files_within, has_pattern
from stoker.store import open_store
from stoker.store.build import UNFINISHED
from stoker.store.manifest import FILE, FORMAT

_PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")

_NUM_NAMED = 5

_TRAINING = (b"train", b"training")
_HELD_OUT = (b"val", b"valid", b"validation", b"dev", b"test", b"testing")

_CAN_BE_OPENED = """pictures can be
  a folder, with a sub-folder for each class or without
  a list of files, or of (file, label) pairs
  .tar archives (WebDataset): one, a pattern such as "shards/{000..012}.tar", a folder or a list of them
  .parquet files with a column of pictures, or a folder from datasets.save_to_disk (Hugging Face)
  a store that `stoker prepare images` has made"""


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
    """Return the pictures at `path`, encoded as they lie there, addressed by position.

    `path` is a folder, a list of files or of (file, label) pairs, WebDataset's tar archives, Parquet, a folder of
    Hugging Face's, or a store. A folder is read in natural order (`img2` before `img10`, and so are its classes), a
    list in its own. In a folder, files are pictures if they end in one of `extensions` and are not hidden; what they
    are in truth shows when they are decoded. By default these are the endings of what can be read here, and others of
    pictures (AVIF, HEIC) are warned of.

    `labels=None` takes those that are there: the sub-folders of a folder as classes, `.cls` or the field "label" of
    `.json` in archives, the column of labels in tables. False takes none, True insists. Others are given by a table
    (.csv, .tsv, .parquet; `columns` names those of files and labels), a mapping from file to label, or a list in the
    order of the pictures. Names become classes, in natural order or as `classes` lists them; numbers stay numbers.
    A sub-folder without pictures is an error, for without it all classes after it would have other numbers. It is a
    class with `allow_empty=True`, or if `classes` lists it, and none if `classes` does not.

    `column` is where the pictures of a table are, or their extension in archives, where it is not plain; `label` the
    same of labels. `split` chooses one of Hugging Face's. Listings and indexes are kept for the next start in the
    user's cache folder, or in the folder `cache`; False keeps none.
    """
    if classes is not None:
        classes = checked_classes(classes)
    if columns is not None and (labels is None or isinstance(labels, bool)):
        raise columns_of_no_table()
    opening = _Opening(
        labels=labels, classes=classes, columns=columns, column=column, label=label, split=split,
        extensions=checked_extensions(readable_extensions() if extensions is None else extensions),
        tells_of_others=extensions is None, allow_empty=allow_empty, keeper=ArrayCache(cache),
    )  # fmt: skip
    return opening.opened(path)


class _Opening:
    """What was asked for, beside the path."""

    def __init__(
        self, *, labels: Any, classes: Sequence[str] | None, columns: Sequence[str] | None, column: str | None,
        label: str | None, split: str | None, extensions: tuple[str, ...], tells_of_others: bool, allow_empty: bool,
        keeper: ArrayCache,
    ) -> None:  # fmt: skip
        self._tells_of_others, self._allow_empty = tells_of_others, allow_empty
        self._labels, self._classes, self._columns, self._column = labels, classes, columns, column
        self._label, self._split, self._extensions, self._keeper = label, split, extensions, keeper
        self._has_own = labels is None or labels is True
        """The labels are those that are there."""

    def opened(self, path: Any) -> ImageSource:
        if isinstance(path, (str, os.PathLike)):
            return self._at(path)
        if tables.is_live(path):
            return self._of_table(tables.of_live, path)
        if hasattr(path, "read") and hasattr(path, "name") and hasattr(path, "__len__"):
            found: ImageSource = path  # a source of somebody's own
            return found
        if isinstance(path, Iterable) and not isinstance(path, (bytes, Mapping)):
            return self._of_list(list(path))
        raise ArgumentError(f"{reprlib.repr(path)} holds no pictures that are known", hint=_CAN_BE_OPENED)

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
                f"{where} is compressed, and pictures in it cannot be read at any position",
                hint="unpack it to a plain .tar; pictures are compressed already",
            )
        if where.exists():
            raise ArgumentError(f"{where} is a file that holds no pictures that are known", hint=_CAN_BE_OPENED)
        if has_pattern(path):
            raise ArgumentError(
                f"{path} is a pattern, and only .tar, .parquet and .arrow files are found by patterns",
                hint="pass the folder, or a list: sorted(glob.glob(...))",
            )
        raise FileNotFoundError(f"there is nothing at {where}\nhint: {_CAN_BE_OPENED}")

    def _in_folder(self, folder: Path) -> ImageSource:
        if _is_store(folder):
            store = open_store(folder)
            found = of_store(store, column=self._column, label=self._label, has_labels=self._has_own)
            return self._labelled(found, str(folder))
        if is_saved_dataset(folder):
            return self._of_table(tables.of_arrow, folder, split=self._split)
        listing = listed(os.fspath(folder), self._extensions, self._keeper)
        if len(listing):
            if self._tells_of_others and listing.passed_over:
                self._warn_of_others(listing, printable(listing.root))
            self._check_is_for_files(f"{folder} is a folder of files")
            return self._of_listing(listing, printable(listing.root))
        for suffixes, open_them in (((".tar",), self._of_archives), ((".parquet", ".pq"), self._of_parquet)):
            files = files_within(folder, suffixes)
            if files:
                return open_them(files)
        raise ArgumentError(
            f"{folder} holds no pictures: no file in it or below ends in {', '.join(self._extensions)}"
            + "".join(f"; passed over: {told}" for told in _others_told(listing)),
            hint="; ".join(how_to_read(ending) for ending, _, _ in listing.passed_over)
            or "check the path; extensions=... takes files with other endings",
        )

    def _of_parquet(self, files: Sequence[Path]) -> ImageSource:
        return self._of_table(tables.of_parquet, files)

    def _of_listing(self, listing: Listing, owner: str) -> ImageSource:
        labels = Labels()
        if self._has_own:
            labels = self._sub_folders(listing, owner)
        elif self._labels is not False:
            labels = self._given(len(listing), lambda: map(listing.within, range(len(listing))), owner)
        return ImageFiles(listing, labels)

    def _check_is_for_files(self, what: str) -> None:
        """Raise if something was asked for that files each by itself do not have."""
        asked = {"column": self._column, "label": self._label, "split": self._split}
        for name, value in asked.items():
            if value is not None:
                raise ArgumentError(
                    f"{name}={value!r} is for archives, tables and stores, and {what}",
                    hint=f"leave {name}= out; labels of files are given by labels=",
                )

    def _warn_of_others(self, listing: Listing, owner: str) -> None:
        hints = dict.fromkeys(how_to_read(ending) for ending, _, _ in listing.passed_over)
        warnings.warn(
            f"in {owner}, pictures are passed over: {'; '.join(_others_told(listing))}\n"
            f"hint: {'; '.join(hints)}; extensions=[...] says which files are wanted",
            stacklevel=2,
        )

    def _check_empty(self, listing: Listing, owner: str) -> None:
        """Raise if a sub-folder has no pictures, and nobody has said what it is."""
        if not listing.empty or self._allow_empty or self._classes is not None:
            return
        names = ", ".join(map(printable, listing.empty[:_NUM_NAMED]))
        more = ", ..." if len(listing.empty) > _NUM_NAMED else ""
        raise ArgumentError(
            f"{owner} has sub-folders without pictures: {names}{more}; if they are classes, leaving them out would "
            "give others other numbers" + "".join(f"; passed over: {told}" for told in _others_told(listing)),
            hint="allow_empty=True (--allow-empty) makes classes of them; classes=[...] says which sub-folders are "
            "classes, such as those of the training data",
        )

    def _sub_folders(self, listing: Listing, owner: str) -> Labels:
        """Return the sub-folders as classes, if there are any."""
        firsts = [folder.partition(b"/")[0] for folder in listing.folders]
        num_loose = int((listing.folder_of == firsts.index(b"")).sum()) if b"" in firsts else 0
        if num_loose == len(listing):
            if self._labels is True or self._classes is not None:
                raise ArgumentError(
                    f"{owner} has no sub-folders with pictures, which would be the classes",
                    hint="pass labels= as a table, a mapping or a list; or leave it out for pictures without labels",
                )
            return Labels()
        if num_loose:
            at = int(np.flatnonzero(listing.folder_of == firsts.index(b""))[0])
            raise ArgumentError(
                f"{owner} holds pictures itself ({num_loose:,}, such as {printable(listing.names[at])}) and in "
                f"sub-folders ({len(listing) - num_loose:,}), so it is not clear what their classes are",
                hint="pass labels=False for all pictures without labels, or move the ones that have no class",
            )
        self._check_empty(listing, owner)
        known = [] if self._classes is not None else [os.fsdecode(name) for name in listing.empty]
        by_folder = numbered([os.fsdecode(first) for first in firsts] + known, self._classes)
        assert by_folder.values is not None
        if self._classes is None and by_folder.classes is not None:
            _check_against_training(listing.root, by_folder.classes)
        return Labels(by_folder.values[: len(firsts)][listing.folder_of], by_folder.classes)

    def _of_list(self, given: list[Any]) -> ImageSource:
        if not given:
            raise ArgumentError("the list of pictures is empty", hint="pass at least one; did a glob match nothing?")
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
                    hint="pass a list of paths, or of (path, label) pairs; bytes can be opened in Parquet files or "
                    "Hugging Face datasets",
                )
        endings = {os.path.splitext(os.fspath(path))[1].lower() for path in paths[:1]}
        if not all(pairs) and endings == {".tar"}:
            return self._of_archives(paths)
        if not all(pairs) and endings <= {".parquet", ".pq"}:
            return self._of_table(tables.of_parquet, paths)
        self._check_is_for_files("this is a list of files")
        listing = listing_of(paths)
        if all(pairs) and self._has_own:
            return ImageFiles(listing, labels_of([one[1] for one in given], self._classes))
        if self._has_own:
            if self._labels is True:
                raise ArgumentError("a list of files has no labels", hint="pass (file, label) pairs, or labels=[...]")
            return ImageFiles(listing, Labels())
        return self._of_listing(listing, "the list")

    def _of_archives(self, paths: Any) -> ImageSource:
        files = archives_at(paths)
        wanted = Wanted(self._extensions, self._column, self._label, self._has_own)
        indexes = indexed(files, wanted, self._keeper)
        labels = labels_in(indexes, files, wanted, self._classes) if self._has_own else Labels()
        found = TarShards(files, indexes, labels)
        if not len(found):
            where = f"{files[0].path}{' and the others' if len(files) > 1 else ''}"
            if self._column is not None:
                raise ArgumentError(
                    f"there are no members that end in .{self._column.lstrip('.')} in {where}",
                    hint=f"column= is the extension of pictures; without it, they are {', '.join(self._extensions)}",
                )
            raise ArgumentError(
                f"there are no pictures in {where}",
                hint=f"members end in {', '.join(self._extensions)}; pass extensions= or column= for others",
            )
        return self._labelled(found, str(paths))

    def _of_table(self, open_it: Any, path: Any, **more: Any) -> ImageSource:
        found = open_it(
            path, column=self._column, label=self._label, has_labels=self._has_own, classes=self._classes, **more
        )
        if not len(found):
            raise ArgumentError(f"there are no rows in {found!r}", hint="check the path, and what has written it")
        return self._labelled(found, repr(found))

    def _labelled(self, found: Any, owner: str) -> ImageSource:
        """Return pictures with the labels that were given for them."""
        if self._labels is True and found.labels is None:
            raise ArgumentError(f"{owner} has no labels", hint="name them with label=, or pass labels=")
        if not self._has_own and self._labels is not False:
            labels = self._given(len(found), lambda: map(found.within, range(len(found))), owner)
            found.labels, found.classes = labels
        pictures: ImageSource = found
        return pictures

    def _given(self, num_pictures: int, within: Any, owner: str) -> Labels:
        return given_labels(
            self._labels, num_pictures, within, columns=self._columns, classes=self._classes, owner=owner
        )


def _others_told(listing: Listing) -> list[str]:
    """Return in words which pictures were passed over."""
    return [
        f"{number:,} .{ending} file{'' if number == 1 else 's'}, such as {first}"
        for ending, number, first in listing.passed_over
    ]


def _check_against_training(root: bytes, classes: list[str]) -> None:
    """Warn if a folder of validation has other classes than that of training beside it."""
    if os.path.basename(root).lower() not in _HELD_OUT:
        return
    with suppress(OSError):
        beside = os.path.dirname(root)
        for training in (os.path.join(beside, name) for name in os.listdir(beside) if name.lower() in _TRAINING):
            names = [name for name in os.listdir(training) if not name.startswith(b".")]
            names = [name for name in names if os.path.isdir(os.path.join(training, name))]
            theirs = numbered([os.fsdecode(name) for name in names]).classes or []
            if theirs and theirs[: len(classes)] != classes:
                first = next(pair for pair in zip_longest(classes, theirs) if pair[0] != pair[1])
                warnings.warn(
                    f"the classes of {printable(root)} are not those of {printable(training)}, and have other "
                    f"numbers: number {classes.index(str(first[0]))} is {first[0]!r} here and {first[1]!r} there\n"
                    "hint: pass classes=train.classes, where train is what stoker.images made of the training data",
                    stacklevel=2,
                )


def _is_store(folder: Path) -> bool:
    """Whether a store is there, finished or not; other programs have a file of that name too."""
    try:
        with open(folder / FILE, "rb") as file:
            return FORMAT.encode() in file.read(4096)
    except OSError:
        return (folder / UNFINISHED).is_dir()
