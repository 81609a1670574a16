"""The work on one piece of pictures: read, made smaller if so asked, and written into shards."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from stoker import native
from stoker.errors import ArgumentError, BadImage, DataError, MissingExtra, StaleSource
from stoker.prepare.images_stock import PicturePiece, Stock
from stoker.prepare.settings import OnError
from stoker.prepare.skips import MAX_ENTRIES
from stoker.prepare.worker_pool import Cell
from stoker.source.images.names import printable
from stoker.source.images.stored import IMAGE, LABEL, NAME
from stoker.store import Build, Column
from stoker.transform.image.decoding import decode
from stoker.transform.image.forms import pillow
from stoker.transform.image.jpeg_decoding import is_plain_jpeg
from stoker.transform.image.orientation import UPRIGHT, is_turned
from stoker.transform.image.pillow_decoding import size_of
from stoker.transform.image.view import View

WIDTH, HEIGHT = "width", "height"

QUALITY = 90
MAX_SIDE = 65500
"""What JPEG can have."""

# Decoded at a half, a quarter or an eighth where twice the pixels of the result are left: the antialiased resize then
# sees nothing of it, and large photographs take half the time.
_SHRINK = 2.0

EMPTY, GONE, BAD = "empty", "cannot be read", "cannot be decoded"

_GREY = ("1", "L", "LA", "La", "I", "F")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """All that decides what is in the store, but for the pictures and their labels."""

    max_side: int | None = None
    """The longer side has at most so many pixels."""
    short_side: int | None = None
    """The shorter side has at most so many pixels."""
    quality: int | None = None
    """Of JPEG, 1 to 100; None where pictures stay as they are."""
    encoder: str | None = None
    """Who makes JPEG; None where pictures stay as they are."""
    on_error: OnError = "raise"
    apply_exif_orientation: bool = True
    """Pictures are put upright when they are made smaller, and when they are read."""
    piece_bytes: int

    def __post_init__(self) -> None:
        for name in ("max_side", "short_side"):
            side = getattr(self, name)
            if side is not None and not 1 <= side <= MAX_SIDE:
                raise ArgumentError(f"{name}={side} is no number of pixels", hint=f"pass 1 to {MAX_SIDE:,}")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ArgumentError(f"quality={self.quality} is not known", hint="pass 1 to 100; 90 is good")
        if self.on_error not in get_args(OnError):
            raise ArgumentError(f"on_error={self.on_error!r} is not known", hint="pass one of raise, skip")

    @property
    def is_smaller(self) -> bool:
        """Whether pictures are made smaller, and not kept as they are."""
        return self.max_side is not None or self.short_side is not None

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height that a picture of this size gets. It is never enlarged."""
        shares = [1.0]
        if self.max_side is not None:
            shares.append(self.max_side / max(width, height))
        if self.short_side is not None:
            shares.append(self.short_side / min(width, height))
        share = min(shares)
        return max(1, round(width * share)), max(1, round(height * share))

    def to_meta(self) -> dict[str, Any]:
        """Return what a manifest keeps of it. Older ones do not tell of turning, for it was always done."""
        kept = asdict(self)
        if self.apply_exif_orientation:
            del kept["apply_exif_orientation"]
        return kept

    def to_key(self) -> list[Any]:
        """Return what decides about the bytes of a picture."""
        turned = [] if self.apply_exif_orientation else ["as stored"]
        return [self.max_side, self.short_side, self.quality, self.encoder, *turned]


class Made(NamedTuple):
    """What became of a picture."""

    data: Any
    width: int
    height: int
    """Of the upright picture."""
    is_new: bool
    """It was encoded anew."""


def columns_for(labels: NDArray[Any] | None) -> dict[str, Column]:
    """Return the columns of a store of pictures with such labels."""
    columns = {IMAGE: Column.blob()}
    if labels is not None:
        columns[LABEL] = Column.fixed(labels.dtype, labels.shape[1:])
    return columns | {NAME: Column.blob(), WIDTH: Column.fixed("int32"), HEIGHT: Column.fixed("int32")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageWork:
    """Makes pieces of a store of pictures; the same piece in the same way whoever calls."""

    build: Build
    settings: ImageSettings
    stock: Stock

    def __call__(self, piece: PicturePiece, cell: Cell) -> dict[str, Any]:
        """Write the shards of a piece and return its notes."""
        stock, labels = self.stock, self.stock.pictures.labels
        reasons: Counter[str] = Counter()
        entries: list[dict[str, str]] = []
        counts = {"pictures": 0, "new": 0, "source_bytes": 0, "image_bytes": 0}
        num_read = 0
        with self.build.piece(piece.key) as writer:
            for position in range(piece.start, piece.stop):
                try:
                    data = stock.read(position)
                    made = made_of(data, self.settings, stock.pictures.name(position))
                except (BadImage, StaleSource) as error:
                    has_changed = isinstance(error, StaleSource) and not _is_gone(error)
                    if self.settings.on_error == "raise" or has_changed:
                        raise
                    kind, reason = _told(error)
                    reasons[kind] += 1
                    if len(entries) < MAX_ENTRIES:
                        entries.append({"file": printable(stock.name(position)), "kind": kind, "reason": reason})
                    continue
                row = {IMAGE: made.data, NAME: stock.name(position), WIDTH: made.width, HEIGHT: made.height}
                if labels is not None:
                    row[LABEL] = labels[position]
                writer.append(row)
                counts["pictures"] += 1
                counts["new"] += made.is_new
                counts["source_bytes"] += len(data)
                counts["image_bytes"] += len(made.data)
                num_read += int(stock.sizes[position])
                cell[:] = (counts["pictures"], counts["image_bytes"], num_read)
            skipped = {"count": reasons.total(), "reasons": dict(sorted(reasons.items())), "entries": entries}
            writer.notes.update(counts, skipped=skipped)
        return writer.notes


def made_of(data: Any, settings: ImageSettings, name: str) -> Made:
    """Return what a picture becomes. `BadImage` if it is none.

    As they are, pictures are not decoded, but for a JPEG file without an end: that one is likely cut short.
    """
    applies = settings.apply_exif_orientation
    header = native.jpeg_header(data)
    if header is not None and not applies:
        header = header._replace(orientation=UPRIGHT)
    is_plain = header is not None and is_plain_jpeg(header)
    if header is not None:
        width, height, mode = header.width, header.height, "L" if header.num_components == 1 else "RGB"
        if is_turned(header.orientation):
            width, height = height, width
    else:
        width, height, mode = _looked_at(data, name, applies)
    size = settings.size(width, height)
    if header is not None and not header.has_end:
        decode(data, name=name)
    is_whole = size == (width, height) and is_plain and header is not None and header.orientation == UPRIGHT
    if not settings.is_smaller or is_whole:
        return Made(bytes(data) if isinstance(data, memoryview) else data, width, height, False)

    def view_of(found_width: int, found_height: int) -> View:
        new_width, new_height = settings.size(found_width, found_height)
        region = (0, 0, found_width, found_height)
        return View(region, (0.0, 0.0, float(found_width), float(found_height)), (new_height, new_width))

    if max(size) > MAX_SIDE:
        raise BadImage(
            name,
            reason=f"it would have {max(size):,} pixels in a row, and JPEG has {MAX_SIDE:,} at most: limit max_side",
        )
    pixels = decode(
        data,
        view_of,
        mode=mode,
        name=name,
        shrink=_SHRINK,
        apply_exif_orientation=applies,
        on_narrowed=_warn_of_bits,
    )
    assert settings.quality is not None
    return Made(encoded(pixels, settings.quality), pixels.shape[1], pixels.shape[0], True)


def encoded(pixels: NDArray[np.uint8], quality: int) -> bytes:
    """Return pixels [H, W, 3 or 1] as a JPEG file, its colours at half the resolution (4:2:0)."""
    if encoder() == "simplejpeg":
        import simplejpeg  # type: ignore[import-untyped]

        colours = ("GRAY", "Gray") if pixels.shape[2] == 1 else ("RGB", "420")
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, colours[0], colours[1], fastdct=False)
        return bytes(data)
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
    image.save(file, "JPEG", quality=quality, **({} if pixels.shape[2] == 1 else {"subsampling": 2}))
    return file.getvalue()


@cache
def encoder() -> Literal["simplejpeg", "pillow"]:
    """Return who makes JPEG here."""
    try:
        import simplejpeg  # noqa: F401
    except ImportError:
        try:
            import PIL  # noqa: F401
        except ImportError as error:
            raise MissingExtra("Pillow", extra="images", need="making pictures smaller") from error
        return "pillow"
    return "simplejpeg"


def _warn_of_bits(bits: str) -> None:
    warnings.warn(
        f"there are pictures with {bits}, and those that are made smaller become JPEG files, which have 8\n"
        "hint: prepare them without max_side and short_side: then files stay as they are",
        stacklevel=2,
    )


def _looked_at(data: Any, name: str, apply_exif_orientation: bool) -> tuple[int, int, str]:
    """Return width, height and mode of a picture that is no JPEG, as it will be read, without decoding it."""
    try:
        with pillow().open(io.BytesIO(data)) as image:
            width, height = size_of(image, apply_exif_orientation=apply_exif_orientation)
            mode = "L" if image.mode in _GREY or image.mode.startswith("I;16") else "RGB"
            return width, height, mode
    except (OSError, ValueError, SyntaxError, pillow().DecompressionBombError):
        # tells what is wrong with it
        height, width, _ = decode(data, name=name, apply_exif_orientation=apply_exif_orientation).shape
        return width, height, "RGB"


def _is_gone(error: StaleSource) -> bool:
    return isinstance(error.__cause__, FileNotFoundError)


def _told(error: DataError) -> tuple[str, str]:
    if isinstance(error, StaleSource):
        return GONE, "it is gone"
    assert isinstance(error, BadImage)
    if isinstance(error.__cause__, OSError) and error.reason.startswith("it cannot be read"):
        return GONE, error.reason
    return (EMPTY if error.reason == "it is empty" else BAD), error.reason
