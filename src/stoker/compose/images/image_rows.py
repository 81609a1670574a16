"""Batches of images: each image is decoded straight into its row, or left as a file for the device to decode.

Shapes: B rows, C channels, H x W pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stoker import native
from stoker.batch import explain, plain_collate
from stoker.batch.encoded import Encoded
from stoker.errors import BatchError
from stoker.source.protocols import Empty
from stoker.transform.image.jpeg_decoding import is_plain_jpeg
from stoker.transform.image.orientation import UPRIGHT
from stoker.transform.image.view import View

if TYPE_CHECKING:
    from stoker.compose.images.image_dataset import Images


class UndecodedImage(NamedTuple):
    """An image that the device is to decode, and which part of it."""

    data: NDArray[np.uint8]
    position: int
    size: tuple[int, int]
    """Width and height."""
    view: View


class ImageRowWriter:
    """Writes a batch of images of one size: pixels [B, C, H, W] or [B, H, W, C], by the layout, and labels.

    `num_files` of the rows, spread evenly, keep their files undecoded, if the device can decode them.
    """

    def __init__(self, images: Images, num_samples: int, empty: Empty, *, num_files: int = 0) -> None:
        self._images, self._empty = images, empty
        self._num_samples, self._num_files = num_samples, num_files
        assert images.pipeline.size is not None
        size, (channels, dtype) = images.pipeline.size, images.pixels
        if images.layout == "nchw":
            self._pixels = empty((num_samples, channels, *size), dtype)
            self._rows = self._pixels.transpose(0, 2, 3, 1)
        else:
            self._rows = empty((num_samples, *size, channels), dtype)
            self._pixels = self._rows.transpose(0, 3, 1, 2)
        self._labels = BatchLabels(images.labels, num_samples, empty)
        self._files: list[UndecodedImage | None] = [None] * num_samples if num_files else []

    def write(self, row: int, position: int) -> None:
        """Decode the image at `position` into its row, or keep its file."""
        position = self._images.checked(position)
        self._labels.write(row, position)
        if self._files and self._is_for_file(row):
            self._write_file(row, position)
        else:
            self._images.found(position, self._rows[row])

    def batch(self) -> Any:
        """Return the pixels, or pixels and files, with the labels."""
        is_last = self._images.layout == "nhwc"
        kept = [(row, file) for row, file in enumerate(self._files) if file is not None]
        return self._labels.joined(self._encoded(kept, is_last) if kept else self._rows if is_last else self._pixels)

    def _is_for_file(self, row: int) -> bool:
        # as in drawing a line: num_files of num_samples rows, evenly spread
        num_files, num_samples = self._num_files, self._num_samples
        return (row + 1) * num_files // num_samples > row * num_files // num_samples

    def _write_file(self, row: int, position: int) -> None:
        """Keep the file of an image, or decode it if the device cannot."""
        self._files[row] = None
        images = self._images
        data, drawing = images.pictures.read(position), images.drawing(position)
        header = native.jpeg_header(data)
        if (
            header is not None
            and is_plain_jpeg(header)
            and (header.orientation == UPRIGHT or not images.decoding["apply_exif_orientation"])
            and header.adobe_transform != 0  # plain RGB, which nvJPEG would take for YCbCr
            and header.has_end
            and header.width * header.height <= images.decoding["max_pixels"]
        ):
            view = drawing.view(header.width, header.height)
            if not drawing.left:
                size = header.width, header.height
                self._files[row] = UndecodedImage(np.frombuffer(data, np.uint8), position, size, view)
                return
        images.decoded(data, position, drawing, self._rows[row])

    def _encoded(self, kept: list[tuple[int, UndecodedImage]], is_last: bool) -> Encoded:
        """Return the batch with its files, one after the other, in memory of the batch."""
        files = [file for _, file in kept]
        offsets = self._filled([0, *np.cumsum([len(file.data) for file in files]).tolist()], np.int64)
        data = self._empty((int(offsets[-1]),), np.uint8)
        for file, start, stop in zip(files, offsets[:-1].tolist(), offsets[1:].tolist()):
            data[start:stop] = file.data
        return Encoded(
            self._pixels,
            data,
            offsets,
            self._filled([row for row, _ in kept], np.int64),
            [file.position for file in files],
            self._filled([file.size for file in files], np.int64),
            self._filled([file.view.region for file in files], np.int64),
            self._filled([file.view.box for file in files], np.float64),
            self._filled([file.view.flips for file in files], np.bool_),
            is_channels_last=is_last,
        )

    def _filled(self, values: Any, dtype: Any) -> NDArray[Any]:
        found = np.array(values, dtype)
        array = self._empty(found.shape, dtype)
        array[...] = found
        return array


class LooseImageWriter:
    """Collects images whose size is only known once they are decoded, then collates them."""

    def __init__(self, images: Images, num_samples: int, empty: Empty) -> None:
        self._images = images
        self._labels = BatchLabels(images.labels, num_samples, empty)
        self._collected: list[Any] = [None] * num_samples
        self._positions = [0] * num_samples

    def write(self, row: int, position: int) -> None:
        """Read the image at `position`."""
        position = self._images.checked(position)
        self._labels.write(row, position)
        self._positions[row] = position
        self._collected[row] = self._images.arranged(self._images.found(position))

    def batch(self) -> Any:
        """Return the collated images with the labels; raise `BatchError` if their sizes differ."""
        shapes = {tuple(image.shape) for image in self._collected if hasattr(image, "shape")}
        if len(shapes) > 1:
            some = ", ".join(map(str, sorted(shapes)[:3]))
            raise BatchError(
                f"images of different sizes cannot be collated: {some}{', ...' if len(shapes) > 3 else ''}\n"
                "hint: let the transforms end in one size: stoker.transform.RandomResizedCrop(224), or Resize(256) and "
                "CenterCrop(224), or Resize((height, width)); otherwise load with batch_size=None, or pass a collate_fn"
            )
        try:
            image = plain_collate()(self._collected)
        except Exception as error:
            explain(error, self._collected, lambda row: self._images.describe(self._positions[row]))
            raise
        if self._images.layout == "channels_last" and isinstance(self._collected[0], np.ndarray) and image.dim() == 4:
            image = image.contiguous(memory_format=torch.channels_last)
        return self._labels.joined(image)


class BatchLabels:
    """The labels of a batch, with the dtype of the dataset's labels; or none."""

    def __init__(self, known: NDArray[Any] | None, num_samples: int, empty: Empty) -> None:
        self._known = known
        self._found = None if known is None else empty((num_samples, *known.shape[1:]), known.dtype)

    def write(self, row: int, position: int) -> None:
        """Write the label of the image at `position`."""
        if self._known is not None and self._found is not None:
            self._found[row] = self._known[position]

    def joined(self, image: Any) -> Any:
        """Return the images of a batch with their labels, or alone if there are none."""
        if self._found is None:
            return image
        from stoker.compose.images.image_dataset import LabeledImage

        return LabeledImage(image, self._found)
