"""Make one piece of a store of images: read the files, downscale them if requested, and write the shards."""

from __future__ import annotations

import io
import warnings
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from stoker import native
from stoker.errors import ArgumentError, BadImage, DataError, MissingExtra, StaleSource
from stoker.prepare.image_inputs import ImageInputs, ImagePiece
from stoker.prepare.settings import OnError, check_choice
from stoker.prepare.skips import SkipCounts
from stoker.prepare.worker_pool import Cell
from stoker.source.images.names import printable
from stoker.source.images.stored import IMAGE, LABEL, NAME
from stoker.store import Build, Column
from stoker.transform.image.decoding import decode
from stoker.transform.image.forms import pillow
from stoker.transform.image.jpeg_decoding import is_plain_jpeg
from stoker.transform.image.orientation import UPRIGHT, is_turned
from stoker.transform.image.pillow_decoding import size_of
from stoker.transform.image.view import View, whole

WIDTH, HEIGHT = "width", "height"

QUALITY = 90
MAX_SIDE = 65500
"""Maximum width and height of a JPEG file."""

# Decode at 1/2, 1/4 or 1/8 if twice the pixels of the result remain: invisible after the antialiased resize, and large
# photographs take half the time.
_SHRINK = 2.0

EMPTY, GONE, BAD = "empty", "cannot be read", "cannot be decoded"

_GRAY = ("1", "L", "LA", "La", "I", "F")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """Everything that determines a store of images, except the images and their labels."""

    max_side: int | None = None
    """Maximum pixels of the longer side."""
    short_side: int | None = None
    """Maximum pixels of the shorter side."""
    quality: int | None = None
    """JPEG quality, 1 to 100; None if files are copied."""
    encoder: str | None = None
    """Library that encodes JPEG; None if files are copied."""
    on_error: OnError = "raise"
    apply_exif_orientation: bool = True
    """Whether images are rotated upright when they are downscaled, and when they are read."""
    piece_bytes: int

    def __post_init__(self) -> None:
        for name in ("max_side", "short_side"):
            side = getattr(self, name)
            if side is not None and not 1 <= side <= MAX_SIDE:
                raise ArgumentError(f"{name} must be a number of pixels, got {side}", hint=f"pass 1 to {MAX_SIDE:,}")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ArgumentError(f"quality must be from 1 to 100, got {self.quality}", hint="90 is a good value")
        check_choice("on_error", self.on_error, get_args(OnError))

    @property
    def is_smaller(self) -> bool:
        """Whether images are downscaled rather than copied."""
        return self.max_side is not None or self.short_side is not None

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height of the result for an image of this size. It is never enlarged."""
        shares = [1.0]
        if self.max_side is not None:
            shares.append(self.max_side / max(width, height))
        if self.short_side is not None:
            shares.append(self.short_side / min(width, height))
        share = min(shares)
        return max(1, round(width * share)), max(1, round(height * share))

    def to_meta(self) -> dict[str, Any]:
        """Return the settings as kept in the manifest. Older ones lack the orientation: it was always applied."""
        kept = asdict(self)
        if self.apply_exif_orientation:
            del kept["apply_exif_orientation"]
        return kept

    def to_key(self) -> list[Any]:
        """Return the settings that determine the bytes of an image."""
        turned = [] if self.apply_exif_orientation else ["as stored"]
        return [self.max_side, self.short_side, self.quality, self.encoder, *turned]


class PreparedImage(NamedTuple):
    """An image as it goes into the store."""

    data: Any
    width: int
    height: int
    """Size of the upright image."""
    is_new: bool
    """Whether it was encoded again."""


def columns_for(labels: NDArray[Any] | None) -> dict[str, Column]:
    """Return the columns of a store of images with these labels."""
    columns = {IMAGE: Column.blob()}
    if labels is not None:
        columns[LABEL] = Column.fixed(labels.dtype, labels.shape[1:])
    return columns | {NAME: Column.blob(), WIDTH: Column.fixed("int32"), HEIGHT: Column.fixed("int32")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageWork:
    """Makes pieces of a store of images; the same piece gives the same bytes in every process."""

    build: Build
    settings: ImageSettings
    inputs: ImageInputs

    def __call__(self, piece: ImagePiece, cell: Cell) -> dict[str, Any]:
        """Write the shards of a piece and return its notes."""
        inputs, labels = self.inputs, self.inputs.images.labels
        skipped = SkipCounts()
        # these names are recorded in stores and must not change
        counts = {"pictures": 0, "new": 0, "source_bytes": 0, "image_bytes": 0}
        num_read = 0
        with self.build.piece(piece.key) as writer:
            for position in range(piece.start, piece.stop):
                try:
                    data = inputs.read(position)
                    made = prepare_image(data, self.settings, inputs.images.name(position))
                except (BadImage, StaleSource) as error:
                    has_changed = isinstance(error, StaleSource) and not _is_gone(error)
                    if self.settings.on_error == "raise" or has_changed:
                        raise
                    kind, reason = _reason(error)
                    skipped.add(kind, {"file": printable(inputs.name(position)), "kind": kind, "reason": reason})
                    continue
                row = {IMAGE: made.data, NAME: inputs.name(position), WIDTH: made.width, HEIGHT: made.height}
                if labels is not None:
                    row[LABEL] = labels[position]
                writer.append(row)
                counts["pictures"] += 1
                counts["new"] += made.is_new
                counts["source_bytes"] += len(data)
                counts["image_bytes"] += len(made.data)
                num_read += int(inputs.sizes[position])
                cell[:] = (counts["pictures"], 0, num_read)
            writer.notes.update(counts, skipped=skipped.to_notes())
        return writer.notes


def prepare_image(data: Any, settings: ImageSettings, name: str) -> PreparedImage:
    """Return an image as it goes into the store; raise `BadImage` if it cannot be decoded.

    Files that are copied are not decoded, except JPEG files without an end marker, which are likely truncated.
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
        width, height, mode = _read_size(data, name, applies)
    size = settings.size(width, height)
    if header is not None and not header.has_end:
        decode(data, name=name)
    is_whole = size == (width, height) and is_plain and header is not None and header.orientation == UPRIGHT
    if not settings.is_smaller or is_whole:
        return PreparedImage(bytes(data) if isinstance(data, memoryview) else data, width, height, False)

    def view_of(found_width: int, found_height: int) -> View:
        new_width, new_height = settings.size(found_width, found_height)
        return whole(found_width, found_height)._replace(size=(new_height, new_width))

    if max(size) > MAX_SIDE:
        raise BadImage(
            name,
            reason=f"its longer side would be {max(size):,} pixels, and JPEG allows {MAX_SIDE:,}: limit max_side",
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
    return PreparedImage(encode_jpeg(pixels, settings.quality), pixels.shape[1], pixels.shape[0], True)


def encode_jpeg(pixels: NDArray[np.uint8], quality: int) -> bytes:
    """Return pixels [H, W, 3 or 1] as a JPEG file, with colors at half the resolution (4:2:0)."""
    if jpeg_encoder() == "simplejpeg":
        import simplejpeg  # type: ignore[import-untyped]

        colors = ("GRAY", "Gray") if pixels.shape[2] == 1 else ("RGB", "420")
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, colors[0], colors[1], fastdct=False)
        return bytes(data)
    from PIL import Image

    file = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
    image.save(file, "JPEG", quality=quality, **({} if pixels.shape[2] == 1 else {"subsampling": 2}))
    return file.getvalue()


@cache
def jpeg_encoder() -> Literal["simplejpeg", "pillow"]:
    """Return the installed library that encodes JPEG."""
    try:
        import simplejpeg  # noqa: F401
    except ImportError:
        try:
            import PIL  # noqa: F401
        except ImportError as error:
            raise MissingExtra("Pillow", extra="images", need="downscaling images") from error
        return "pillow"
    return "simplejpeg"


def _warn_of_bits(bits: str) -> None:
    warnings.warn(
        f"some images have {bits}, and downscaled ones become JPEG files, which have 8\n"
        "hint: omit max_side and short_side: then files are copied",
        stacklevel=2,
    )


def _read_size(data: Any, name: str, apply_exif_orientation: bool) -> tuple[int, int, str]:
    """Return width, height and mode of an image other than JPEG, as it will be read, from its header."""
    try:
        with pillow().open(io.BytesIO(data)) as image:
            width, height = size_of(image, apply_exif_orientation=apply_exif_orientation)
            mode = "L" if image.mode in _GRAY or image.mode.startswith("I;16") else "RGB"
            return width, height, mode
    except (OSError, ValueError, SyntaxError, pillow().DecompressionBombError):
        # raises an error that says what is wrong
        height, width, _ = decode(data, name=name, apply_exif_orientation=apply_exif_orientation).shape
        return width, height, "RGB"


def _is_gone(error: StaleSource) -> bool:
    return isinstance(error.__cause__, FileNotFoundError)


def _reason(error: DataError) -> tuple[str, str]:
    if isinstance(error, StaleSource):
        return GONE, "it is gone"
    assert isinstance(error, BadImage)
    if isinstance(error.__cause__, OSError) and error.reason.startswith("it cannot be read"):
        return GONE, error.reason
    return (EMPTY if error.reason == "it is empty" else BAD), error.reason
