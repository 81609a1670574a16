"""Pictures checked before a run: each is decoded from its first byte to its last, by all cores.

JPEG is decoded at an eighth of its size where it can be: that reads every coefficient, and damage shows in those.
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
from stoker.transform.image.view import View

if TYPE_CHECKING:
    from stoker.source.images import Pictures

EMPTY, NO_PICTURE, CUT_SHORT, DAMAGED, TOO_LARGE, UNREADABLE = (
    "empty",
    "no picture",
    "cut short",
    "damaged",
    "too large",
    "cannot be read",
)

HUGE_PIXELS = 50_000_000
"""From here on a picture is worth a word: it takes a second, and 150 MB."""

PIECE = 32
"""Pictures in one job: a second of large ones, so that the bar moves, and enough that handing over costs nothing."""

SCALE = 8
"""The smallest that libjpeg decodes to: 1 in 8 pixels."""

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
"""What names of each kind end in. Of other kinds nothing is said."""


class BadPicture(NamedTuple):
    """A picture that cannot be used."""

    path: str
    kind: str
    """In a word or two: "empty", "no picture", "cut short", "damaged", "too large" or "cannot be read"."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCheck:
    """What was found in a set of pictures."""

    num_pictures: int
    num_bytes: int
    formats: dict[str, int]
    """How many there are of each kind, such as JPEG, the most frequent first. Bad ones are not in it."""
    bad: list[BadPicture] = field(default_factory=list)
    """In the order of the pictures."""
    odd: dict[str, list[str]] = field(default_factory=dict)
    """Good ones that are worth knowing about, by what is odd about them."""

    @property
    def is_sound(self) -> bool:
        """Whether every picture can be decoded."""
        return not self.bad

    def bad_by_kind(self) -> dict[str, int]:
        """Return how many bad ones there are of each kind, the most frequent first."""
        return dict(Counter(bad.kind for bad in self.bad).most_common())


class _Seen(NamedTuple):
    """What came of one picture."""

    num_bytes: int
    format: str | None
    bad: BadPicture | None
    odd: list[str]


def check_images(
    source: Any,
    *,
    num_workers: int | None = None,
    max_pixels: int = MAX_PIXELS,
    watch: Callable[[int, int, int], None] | None = None,
    **options: Any,
) -> ImageCheck:
    """Return which pictures of a folder, or of whatever else `stoker.images` takes, cannot be decoded, and why.

    A picture is bad if it is empty, no picture, cut short, damaged anywhere, larger than `max_pixels`, or cannot be
    read. Some decoders make do with half a picture; this does not. It takes as many worker processes as there are
    cores, or `num_workers`; with 0 it is done here. `watch` is told how many pictures and bytes are done, and how many
    pictures there are. Other `options` say how to open the source, as for `stoker.images`.
    """
    from stoker.source.images import open_pictures

    if num_workers is not None and (isinstance(num_workers, bool) or num_workers < 0):
        raise ArgumentError(f"num_workers={num_workers} is not a number of processes", hint="0 does it in this one")
    pictures = open_pictures(source, **{"cache": False, "labels": False, **options})
    jobs = [range(begin, min(begin + PIECE, len(pictures))) for begin in range(0, len(pictures), PIECE)]
    if num_workers is None:
        num_workers = min(machine.num_cores(), len(jobs)) if len(jobs) > 1 else 0
    seen: dict[int, list[_Seen]] = {}
    done, told = [0, 0], [0, 0]

    def tell(counts: Sequence[int]) -> None:
        # A job that was just handed in is neither in work nor done yet: what was told once stays.
        told[:] = max(told[0], done[0] + counts[0]), max(told[1], done[1] + counts[2])
        if watch is not None:
            watch(told[0], told[1], len(pictures))

    check = _Check(pictures, max_pixels)
    with WorkerPool(check, num_workers=num_workers, described=_described, watch=tell) as crew:
        for number, found in crew.results(jobs):
            seen[number] = found
            done[0] += len(found)
            done[1] += sum(one.num_bytes for one in found)
            tell((0, 0, 0))
    return _gathered([one for number in range(len(jobs)) for one in seen[number]], pictures)


class _Check:
    """The work on a stretch of pictures."""

    def __init__(self, pictures: Pictures, max_pixels: int) -> None:
        self._pictures, self._max_pixels = pictures, max_pixels

    def __call__(self, positions: range, counts: Cell) -> list[_Seen]:
        found = []
        for position in positions:
            found.append(self._seen(position))
            counts[0] += 1
            counts[2] += found[-1].num_bytes
        return found

    def _seen(self, position: int) -> _Seen:
        name = self._pictures.name(position)
        try:
            data = self._pictures.read(position)
        except (OSError, DataError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
            return _Seen(0, None, BadPicture(name, UNREADABLE, reason), [])
        header = native.jpeg_header(data)
        try:
            if header is None:
                self._decode_numbers(data, name)
            else:
                decode(data, _eighth, name=name, max_pixels=self._max_pixels)
            kind, odd = _told(data, header, name)
        except BadImage as error:
            kind = _kind(error, data, header, self._max_pixels)
            return _Seen(len(data), None, BadPicture(name, kind, error.reason), [])
        return _Seen(len(data), kind, None, odd)

    def _decode_numbers(self, data: Any, name: str) -> None:
        """Decode a picture, in the mode that keeps its numbers if they have no range that others know."""
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
    whole = (0, 0, width, height)
    return View(whole, tuple(map(float, whole)), (max(1, height // SCALE), max(1, width // SCALE)))  # type: ignore[arg-type]


def _one_pixel(width: int, height: int) -> View:
    """Return a view that costs nothing: other kinds are decoded whole, whatever is then made of them."""
    del width, height
    return View((0, 0, 1, 1), (0.0, 0.0, 1.0, 1.0), (1, 1))


def _kind(error: BadImage, data: Any, header: native.JpegHeader | None, max_pixels: int) -> str:
    from PIL import Image, UnidentifiedImageError

    if not len(data):
        return EMPTY
    if isinstance(error.__cause__, UnidentifiedImageError):
        return NO_PICTURE
    if header is not None and header.width * header.height > max_pixels:
        return TOO_LARGE
    if isinstance(error.__cause__, Image.DecompressionBombError) or "max_pixels" in error.reason:
        return TOO_LARGE
    is_cut = header is not None and not header.has_end
    said = error.reason.lower()
    return CUT_SHORT if is_cut or "truncated" in said or "premature end" in said else DAMAGED


def _told(data: Any, header: native.JpegHeader | None, name: str) -> tuple[str, list[str]]:
    """Return what kind of file a good picture is, and what is odd about it."""
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


def _gathered(seen: list[_Seen], pictures: Pictures) -> ImageCheck:
    odd: dict[str, list[str]] = {}
    for position, one in enumerate(seen):
        for what in one.odd:
            odd.setdefault(what, []).append(pictures.name(position))
    return ImageCheck(
        num_pictures=len(seen),
        num_bytes=sum(one.num_bytes for one in seen),
        formats=dict(Counter(one.format for one in seen if one.format is not None).most_common()),
        bad=[one.bad for one in seen if one.bad is not None],
        odd=dict(sorted(odd.items(), key=lambda entry: -len(entry[1]))),
    )


def _described(positions: range) -> str:
    return f"pictures {positions.start} to {positions.stop - 1}"
