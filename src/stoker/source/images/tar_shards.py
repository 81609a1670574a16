"""Images in tar archives, in the layout of WebDataset: indexed once, then read at any position."""

from __future__ import annotations

import glob
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, DamagedFile, StaleSource
from stoker.source.images import listing
from stoker.source.images.image_files import MAX_BYTES, too_large
from stoker.source.images.labels import ImageLabels, digest_of, parsed
from stoker.source.images.listing_cache import ArrayCache
from stoker.source.images.names import Names, natural_order, printable
from stoker.source.images.tar_members import TarMember, TarReader, members
from stoker.source.known_file import KnownFile, fingerprint_of, known_file
from stoker.source.mapped_files import MappedFiles

_NUM_THREADS = 8
_MAX_LABEL_BYTES = 16 << 20

_PLAIN = ("cls", "cls.txt", "label", "label.txt")
"""TarMembers that are only a label."""


class TarFields(NamedTuple):
    """Which members of a sample are its image and label."""

    extensions: tuple[str, ...]
    column: str | None
    """Extension of the image; None: the first one of `extensions`."""
    label: str | None
    """Extension, or field of a JSON member, with the label; None: the usual ones."""
    has_labels: bool


class TarIndex(NamedTuple):
    """The images of one archive."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    names: Names
    """Names of the members."""
    labels: Names | None
    """Text of the labels; JSON if they are from JSON."""


@final
class TarShards:
    """Images in tar archives, memory-mapped. Thread-safe; pickles as paths, offsets and names.

    A sample is a run of members with the same key: the name up to the first dot after the last slash. Its image is the
    first member with an image extension; samples without one are skipped. An archive that changed since it was indexed
    raises `StaleSource`.
    """

    def __init__(self, files: Sequence[KnownFile], indexes: Sequence[TarIndex], labels: ImageLabels) -> None:
        self._files = MappedFiles(files)
        counts = [len(index.sizes) for index in indexes]
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._offsets = np.concatenate([index.offsets for index in indexes])
        self.sizes = np.concatenate([index.sizes for index in indexes])
        """Sizes of the images, in bytes."""
        self._names = joined([index.names for index in indexes])
        self.labels, self.classes = labels.values, labels.classes

    def __repr__(self) -> str:
        return f"TarShards({len(self._files.files):,} archives, {len(self):,} images)"

    def __len__(self) -> int:
        return len(self.sizes)

    def _shard(self, position: int) -> int:
        return int(self._ends.searchsorted(position, "right"))

    def read(self, position: int, /) -> NDArray[np.uint8]:
        """Return the content of the member at `position`, as a view of the memory map."""
        begin, size = int(self._offsets[position]), int(self.sizes[position])
        if size >= MAX_BYTES:
            raise too_large(self.name(position), size)
        return self._files[self._shard(position)].content[begin : begin + size]

    def name(self, position: int, /) -> str:
        """Return the archive and the member at `position`."""
        path = os.fsencode(self._files.files[self._shard(position)].path)
        return f"{printable(path)}: {printable(self._names[position])}"

    def within(self, position: int) -> bytes:
        """Return the name of the member at `position`."""
        return self._names[position]

    @property
    def files(self) -> tuple[KnownFile, ...]:
        """The archives."""
        return self._files.files

    @cached_property
    def fingerprint(self) -> str:
        """Identity of these images: names, sizes and ends of the archives, members and labels."""
        archives = np.frombuffer(fingerprint_of(self._files.files).encode(), np.uint8)
        arrays = [archives, self._offsets, self.sizes, self._names.blob, self._names.ends]
        return digest_of(arrays, ImageLabels(self.labels, self.classes))


def joined(parts: Sequence[Names]) -> Names:
    """Concatenate names."""
    shifts = np.cumsum([0, *(len(part.blob) for part in parts)])
    ends = [part.ends + shift for part, shift in zip(parts, shifts.tolist())]
    return Names(np.concatenate([part.blob for part in parts]), np.concatenate(ends))


def archives_at(paths: str | os.PathLike[str] | Iterable[Any]) -> list[KnownFile]:
    """Return the archives for paths, patterns (`*`, `?`) and ranges (`{000..012}`), each in natural order."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found: list[KnownFile] = []
    for one in given:
        for path in _expand_braces(os.fspath(one)):
            if glob.has_magic(path) and not os.path.exists(path):
                matches = glob.glob(path, recursive=True)
                if not matches:
                    raise FileNotFoundError(f"the pattern {path} matches no file")
                order = natural_order([os.fsencode(match) for match in matches])
                found.extend(known_file(matches[number]) for number in order)
            else:
                found.append(known_file(path))
    return found


_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}")


def _expand_braces(pattern: str) -> list[str]:
    """Expand ranges and choices in braces."""
    match = _RANGE.search(pattern)
    if match is None or os.path.exists(pattern):
        return [pattern]
    if match[3] is not None:
        middles = match[3].split(",")
    else:
        first, last = int(match[1]), int(match[2])
        width = len(match[1]) if match[1].startswith("0") or len(match[1]) == len(match[2]) else 0
        step = 1 if last >= first else -1
        middles = [str(number).zfill(width) for number in range(first, last + step, step)]
    before, behind = pattern[: match.start()], pattern[match.end() :]
    return [before + middle + one for middle in middles for one in _expand_braces(behind)]


def indexed(files: Sequence[KnownFile], wanted: TarFields, cache: ArrayCache) -> list[TarIndex]:
    """Return the index of each archive, from the cache if the archive has not changed."""
    if len(files) == 1:
        return [_indexed(files[0], wanted, cache)]
    with ThreadPoolExecutor(min(_NUM_THREADS, len(files)), thread_name_prefix="stoker-index") as threads:
        try:
            return list(threads.map(lambda file: _indexed(file, wanted, cache), files))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def labels_in(
    indexes: Sequence[TarIndex], files: Sequence[KnownFile], wanted: TarFields, classes: Sequence[str] | None
) -> ImageLabels:
    """Return the labels in the archives: either all of the images have one, or none."""
    has = [index.labels is not None for index in indexes if len(index.sizes)]
    if not any(has):
        if wanted.label is not None:
            raise ArgumentError(
                f"{files[0].path} has no label {wanted.label!r}",
                hint="pass the extension of the member, such as 'cls', or the field of the JSON member with the label",
            )
        return ImageLabels()
    if not all(has):
        number = next(at for at, index in enumerate(indexes) if len(index.sizes) and index.labels is None)
        raise ArgumentError(
            f"{files[number].path} has no labels, but other archives do", hint="pass labels=False to ignore labels"
        )
    texts = [text.decode("utf-8", "surrogateescape") for index in indexes if index.labels for text in index.labels]
    return parsed(texts, classes)


def _indexed(file: KnownFile, wanted: TarFields, cache: ArrayCache) -> TarIndex:
    place = os.path.realpath(os.fsencode(file.path))
    # A copy may keep size and mtime of the file it replaces (`rsync -a`), but not its inode and ctime.
    status, begin = os.stat(file.path), time.time()
    about = [file.size_bytes, file.mtime_ns, status.st_ino, status.st_ctime_ns]
    key = (b"archive", place, json.dumps(wanted))
    found = cache.load(*key)
    if found is not None and found.about == about:
        arrays = found.arrays
        labels = Names(arrays["labels"], arrays["label_ends"]) if "labels" in arrays else None
        return TarIndex(arrays["offsets"], arrays["sizes"], Names(arrays["names"], arrays["name_ends"]), labels)
    index = _build_index(file, wanted)
    arrays = {
        "offsets": index.offsets,
        "sizes": index.sizes,
        "names": index.names.blob,
        "name_ends": index.names.ends,
    }
    if index.labels is not None:
        arrays |= {"labels": index.labels.blob, "label_ends": index.labels.ends}
    if max(file.mtime_ns, status.st_ctime_ns) <= (begin - listing.FRESH_SECONDS) * 1e9:
        cache.save(*key, about=about, arrays=arrays)
    return index


def _build_index(file: KnownFile, wanted: TarFields) -> TarIndex:
    """Index an archive by reading its headers."""
    images: list[TarMember] = []
    labels: list[bytes | None] = []
    with file.open() as opened:
        reading = TarReader(file, opened.fileno())
        samples = _SampleCollector(reading, wanted)
        for member in members(reading):
            samples.add(member)
        samples.end()
        images, labels = samples.images, samples.labels
        file.check(os.fstat(opened.fileno()))
    lacking = [picture.name for picture, label in zip(images, labels) if label is None]
    kept: Names | None = None
    if not lacking and images:
        kept = Names.of(label or b"" for label in labels)
    elif len(lacking) < len(images):
        raise ArgumentError(
            f"{file.path} has no label for {len(lacking):,} of its {len(images):,} images, "
            f"the first of them {printable(lacking[0])}",
            hint="pass labels=False to ignore labels, or label= for the member or field with the label",
        )
    return TarIndex(
        np.array([picture.offset for picture in images], np.int64),
        np.array([picture.size for picture in images], np.int64),
        Names.of(picture.name for picture in images),
        kept,
    )


class _SampleCollector:
    """TarMembers put together to samples."""

    def __init__(self, reading: TarReader, wanted: TarFields) -> None:
        self._reading, self._wanted = reading, wanted
        self._endings = tuple(extension.encode() for extension in wanted.extensions)
        self._column = None if wanted.column is None else wanted.column.lower().lstrip(".").encode()
        self._label = None if wanted.label is None else wanted.label.lower().lstrip(".").encode()
        self._plain = frozenset(name.encode() for name in _PLAIN)
        self._key: bytes | None = None
        self._picture: TarMember | None = None
        self._found: bytes | None = None
        self.images: list[TarMember] = []
        self.labels: list[bytes | None] = []

    def add(self, member: TarMember) -> None:
        folder, slash, base = member.name.rpartition(b"/")
        stem, dot, extension = base.partition(b".")
        if not dot or not stem or (base.startswith(b"__") and base.endswith(b"__")):
            return  # without an extension, hidden, or about the archive: not part of a sample
        key = folder + slash + stem
        if key != self._key:
            self.end()
            self._key = key
        extension = extension.lower()
        is_picture = (
            extension.rpartition(b".")[2] in self._endings if self._column is None else extension == self._column
        )
        if is_picture and self._picture is None:
            self._picture = member
        elif self._wanted.has_labels and self._found is None:
            self._found = self._label_in(member, extension)

    def end(self) -> None:
        """End the sample."""
        if self._picture is not None:
            self.images.append(self._picture)
            self.labels.append(self._found)
        self._key = self._picture = self._found = None

    def _label_in(self, member: TarMember, extension: bytes) -> bytes | None:
        if extension == self._label or (self._label is None and extension in self._plain):
            content = self._content(member).strip()
            if extension.rpartition(b".")[2] == b"json" and content.startswith(b"{"):
                raise ArgumentError(
                    f"label={self._wanted.label!r} is a complete JSON object in {self._reading.file.path}, as in "
                    f"{printable(member.name)}",
                    hint="pass its field with the label, such as label='label'",
                )
            return content or None
        if extension.rpartition(b".")[2] != b"json":
            return None
        try:
            value = json.loads(self._content(member))
        except (ValueError, RecursionError) as error:
            raise DamagedFile(
                self._reading.file.path, what=f"contains {printable(member.name)}, which is not JSON: {error}"
            ) from error
        for field in (self._wanted.label or "label").split("."):
            value = value.get(field) if isinstance(value, dict) else None
        if value is None or value == "" or isinstance(value, (dict, list)):
            return None
        return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass")

    def _content(self, member: TarMember) -> bytes:
        if member.size > _MAX_LABEL_BYTES:
            raise DamagedFile(self._reading.file.path, what=f"contains {printable(member.name)}, too large for a label")
        content = self._reading.at(member.offset, member.size)
        if len(content) < member.size:
            raise StaleSource(self._reading.file.path, what="it became shorter while it was indexed")
        return content
