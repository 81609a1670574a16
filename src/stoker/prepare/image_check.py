"""Check images before a run: decode each from its first byte to its last, on all cores.

JPEG is decoded at an eighth of its size if possible: that reads every coefficient, and damage shows in those.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker import native
from stoker.errors import ArgumentError, BadImage, DataError
from stoker.foundation import machine
from stoker.prepare.worker_pool import Cell, WorkerPool
from stoker.transform.image.decoding import MAX_PIXELS, decode
from stoker.transform.image.pillow_decoding import png_depth
from stoker.transform.image.view import View, whole

if TYPE_CHECKING:
    from stoker.source.images import ImageSource

EMPTY, NOT_AN_IMAGE, TRUNCATED, DAMAGED, TOO_LARGE, UNREADABLE = (
    "empty",
    "not an image",
    "truncated",
    "damaged",
    "too large",
    "unreadable",
)

HUGE_PIXELS = 50_000_000
"""Images of this size are reported as huge: decoding one takes a second, and 150 MB."""

PIECE = 32
"""Images in one job: about a second of work if they are large, so that progress is visible, and low overhead."""

SCALE = 8
"""The smallest scale that libjpeg decodes at: 1/8."""

ENDINGS = {
    "JPEG": ("jpg", "jpeg", "jpe", "jfif"),
    "MPO": ("jpg", "jpeg", "jpe", "jfif", "mpo"),
    "PNG": ("png", "apng"),
    "WEBP": ("webp",),
    "GIF": ("gif",),
    "TIFF": ("tif", "tiff"),
    "BMP": ("bmp", "dib"),
    "PPM": ("ppm", "pgm", "pbm", "pnm", "pfm"),
}
"""File extensions of each format. Those of other formats are not checked."""


class UnusableImage(NamedTuple):
    """An image that cannot be used, and why."""

    path: str
    kind: str
    """"empty", "not an image", "truncated", "damaged", "too large" or "unreadable"."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCheck:
    """Result of a check of a set of images."""

    num_images: int
    num_bytes: int
    formats: dict[str, int]
    """Number of good images by format, such as JPEG, the most frequent first."""
    bad: list[UnusableImage] = field(default_factory=list)
    """Unusable images, in order."""
    odd: dict[str, list[str]] = field(default_factory=dict)
    """Names of good images with an unusual property, by property."""

    @property
    def is_sound(self) -> bool:
        """Whether every image can be decoded."""
        return not self.bad

    @property
    def num_pictures(self) -> int:
        """The earlier name of `num_images`."""
        return self.num_images

    def bad_by_kind(self) -> dict[str, int]:
        """Return the number of unusable images of each kind, the most frequent first."""
        return dict(Counter(bad.kind for bad in self.bad).most_common())


class _CheckedImage(NamedTuple):
    """Result of the check of one image."""

    num_bytes: int
    format: str | None
    bad: UnusableImage | None
    odd: list[str]


def check_images(
    source: Any,
    *,
    num_workers: int | None = None,
    max_pixels: int = MAX_PIXELS,
    watch: Callable[[int, int, int], None] | None = None,
    **options: Any,
) -> ImageCheck:
    """Decode every image of a folder, or of any other source of `stoker.images`, and report which cannot be used.

    Reports images that are empty, not images, truncated, damaged anywhere, larger than `max_pixels`, or unreadable;
    partial images, which some decoders accept, are errors. `num_workers` is the number of processes (default: one per
    core); 0 works in this one. `watch` is called with the number of images and bytes done, and the number of all
    images. Other `options` are those of `stoker.images`.
    """
    from stoker.source.images import open_images

    if num_workers is not None and (isinstance(num_workers, bool) or num_workers < 0):
        raise ArgumentError(f"num_workers must be a number of processes, got {num_workers}", hint="0 works in this one")
    images = open_images(source, **{"cache": False, "labels": False, **options})
    jobs = [range(begin, min(begin + PIECE, len(images))) for begin in range(0, len(images), PIECE)]
    if num_workers is None:
        num_workers = min(machine.num_cores(), len(jobs)) if len(jobs) > 1 else 0
    seen: dict[int, list[_CheckedImage]] = {}
    done, reported = [0, 0], [0, 0]

    def report(counts: Sequence[int]) -> None:
        # A job that just ended is neither running nor counted as done yet: never report less than before.
        reported[:] = max(reported[0], done[0] + counts[0]), max(reported[1], done[1] + counts[2])
        if watch is not None:
            watch(reported[0], reported[1], len(images))

    check = _Check(images, max_pixels)
    with WorkerPool(check, num_workers=num_workers, describe=_describe, watch=report) as pool:
        for number, found in pool.results(jobs):
            seen[number] = found
            done[0] += len(found)
            done[1] += sum(one.num_bytes for one in found)
            report((0, 0, 0))
    return _summary([one for number in range(len(jobs)) for one in seen[number]], images)


class _Check:
    """Checks a range of images."""

    def __init__(self, images: ImageSource, max_pixels: int) -> None:
        self._images, self._max_pixels = images, max_pixels

    def __call__(self, positions: range, counts: Cell) -> list[_CheckedImage]:
        found = []
        for position in positions:
            found.append(self._check(position))
            counts[0] += 1
            counts[2] += found[-1].num_bytes
        return found

    def _check(self, position: int) -> _CheckedImage:
        name = self._images.name(position)
        try:
            data = self._images.read(position)
        except (OSError, DataError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
            return _CheckedImage(0, None, UnusableImage(name, UNREADABLE, reason), [])
        header = native.jpeg_header(data)
        try:
            if header is None:
                self._decode_numbers(data, name)
            else:
                decode(data, _eighth, name=name, max_pixels=self._max_pixels)
            kind, odd = _format_and_oddities(data, header, name)
        except BadImage as error:
            kind = _kind(error, data, header, self._max_pixels)
            return _CheckedImage(len(data), None, UnusableImage(name, kind, error.reason), [])
        return _CheckedImage(len(data), kind, None, odd)

    def _decode_numbers(self, data: Any, name: str) -> None:
        """Decode an image, in a mode that keeps its values if their range is unknown."""
        try:
            decode(data, _one_pixel, name=name, max_pixels=self._max_pixels)
        except BadImage:
            try:
                decode(data, _one_pixel, mode="F", name=name, max_pixels=self._max_pixels)
            except BadImage:
                pass
            else:
                return
            raise


def _eighth(width: int, height: int) -> View:
    return whole(width, height)._replace(size=(max(1, height // SCALE), max(1, width // SCALE)))


def _one_pixel(width: int, height: int) -> View:
    """Return a minimal view: formats other than JPEG are always decoded completely."""
    del width, height
    return whole(1, 1)


def _kind(error: BadImage, data: Any, header: native.JpegHeader | None, max_pixels: int) -> str:
    from PIL import Image, UnidentifiedImageError

    if not len(data):
        return EMPTY
    if isinstance(error.__cause__, UnidentifiedImageError):
        return NOT_AN_IMAGE
    if header is not None and header.width * header.height > max_pixels:
        return TOO_LARGE
    if isinstance(error.__cause__, Image.DecompressionBombError) or "max_pixels" in error.reason:
        return TOO_LARGE
    is_cut = header is not None and not header.has_end
    said = error.reason.lower()
    return TRUNCATED if is_cut or "truncated" in said or "premature end" in said else DAMAGED


def _format_and_oddities(data: Any, header: native.JpegHeader | None, name: str) -> tuple[str, list[str]]:
    """Return the format of a good image, and its unusual properties."""
    from PIL import Image

    odd = []
    if header is not None:
        kind, num_pixels, orientation = "JPEG", header.width * header.height, header.orientation
        if header.num_components == 4:
            odd.append("CMYK")
    else:
        with Image.open(io.BytesIO(data)) as image:
            kind, num_pixels = image.format or "?", image.width * image.height
            orientation = image.getexif().get(0x0112, 1)
            if image.mode == "CMYK":
                odd.append("CMYK")
            if image.mode in ("I", "F") and kind not in ("PNG", "PPM"):
                odd.append("32-bit")
            elif image.mode.startswith("I") or (kind == "PNG" and png_depth(data) == 16):
                odd.append("16-bit")
            if getattr(image, "n_frames", 1) > 1:
                odd.append("several pages" if kind == "TIFF" else "animated")
    if orientation in range(2, 9):
        odd.append("turned by EXIF")
    if num_pixels >= HUGE_PIXELS:
        odd.append("huge")
    ending = PurePath(name).suffix.lower().lstrip(".")
    if ending and kind in ENDINGS and ending not in ENDINGS[kind] and _is_known(ending):
        odd.append(f"{kind} named .{ending}")
    return kind, odd


def _is_known(ending: str) -> bool:
    return any(ending in endings for endings in ENDINGS.values())


def _summary(seen: list[_CheckedImage], images: ImageSource) -> ImageCheck:
    odd: dict[str, list[str]] = {}
    for position, one in enumerate(seen):
        for what in one.odd:
            odd.setdefault(what, []).append(images.name(position))
    return ImageCheck(
        num_images=len(seen),
        num_bytes=sum(one.num_bytes for one in seen),
        formats=dict(Counter(one.format for one in seen if one.format is not None).most_common()),
        bad=[one.bad for one in seen if one.bad is not None],
        odd=dict(sorted(odd.items(), key=lambda entry: -len(entry[1]))),
    )


def _describe(positions: range) -> str:
    return f"images {positions.start} to {positions.stop - 1}"
