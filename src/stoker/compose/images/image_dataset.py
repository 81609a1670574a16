"""Images as a dataset: read, decoded as far as needed, cropped and resized, straight into the batch."""

from __future__ import annotations

import copy
import hashlib
import operator
import warnings
from difflib import get_close_matches
from functools import partial
from inspect import signature
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from stoker.compose.images.image_rows import ImageRowWriter, LooseImageWriter
from stoker.errors import ArgumentError, PositionError
from stoker.foundation.randomness import rng_of
from stoker.foundation.stages import transforming
from stoker.source.images import EncodedImage, ImageSource, open_images
from stoker.source.protocols import Empty
from stoker.transform.image.decoding import MAX_PIXELS, MODES, Data
from stoker.transform.image.forms import as_array, is_image, is_picture
from stoker.transform.image.geometry import Geometric, Transform
from stoker.transform.image.pipeline import Drawing, Pipeline
from stoker.transform.image.uniforms import uniforms

Layout = Literal["nchw", "nhwc", "channels_last"]
Decode = Literal["cpu", "device", "auto"]
Mode = Literal["RGB", "L", "I;16", "I", "F"]


class LabeledImage(NamedTuple):
    """An image and its label; in a batch, all images and all labels."""

    image: Any
    label: Any


def images(
    path: Any,
    *,
    transform: Any = None,
    labels: Any = None,
    decode: Decode = "cpu",
    layout: Layout = "nchw",
    mode: Mode = "RGB",
    apply_exif_orientation: bool | None = None,
    exact: bool = False,
    max_pixels: int = MAX_PIXELS,
    in_trainer: bool = False,
    **opening: Any,
) -> Images:
    """Return the images at `path` as a dataset.

    A sample is `LabeledImage(image, label)`, or the image alone where there are no labels. The image is uint8, unless
    `mode` says otherwise; the loader converts and normalizes it (`to=`, `normalize=`) after the copy to the device.

    Args:
        path: a folder, with a sub-folder for each class or without; a list of files or (file, label) pairs; WebDataset
            tar archives; Parquet or Hugging Face datasets with a column of images; a store made by
            `stoker prepare images`.
        transform: one, or a list: those in `stoker.transform`, which have torchvision's names and arguments, and any
            others (torchvision, albumentations, functions), which get a PIL image. Use Stoker's for what determines the
            size of an image: only then is no more decoded than needed, straight into the batch.
        labels: a table (.csv, .parquet), a mapping or a list; False for none. By default those found at `path`.
        decode: "cpu"; "device", where workers only read and the GPU decodes (JPEG); or "auto", which splits the work
            so that training waits for neither.
        layout: of a batch: "nchw" is [B, C, H, W], "nhwc" is [B, H, W, C], "channels_last" has the shape of the first
            and the memory of the second, which convolutions on GPUs like best.
        mode: "RGB", or "L" for gray, with 8 bits; an image that has more is scaled, with a warning. "I;16" (uint16),
            "I" (int32) and "F" (float32) are for images of one channel, such as depth maps and scans: the numbers in
            the file, not scaled.
        apply_exif_orientation: False leaves images as they are stored, for boxes and masks that were made that way. By
            default they are turned upright, or as set in `stoker prepare images`.
        exact: Pillow's pixels, bit for bit; slower. See `stoker.transform.image.decoding.decode`.
        max_pixels: larger images are refused, as decompression bombs. Except for plain JPEG, Pillow's own limit holds
            too.
        in_trainer: let `num_threads` of a loader without workers run in the training process. By default they run in
            one worker process, because decoding threads compete with the training loop for the GIL.
        opening: more about where images and labels are:
            classes, the names of all classes in the order of their numbers, by default those found, in natural order;
            columns=(file, label), the columns of the table `labels`, where they are ambiguous;
            column, that of the images in Parquet, or their extension in archives;
            label, that of the labels: a column, an extension or a field of JSON;
            split, of a Hugging Face dataset;
            extensions, of the image files in a folder; by default those that can be read here, with AVIF and HEIC where
            Pillow supports them;
            allow_empty, True for a class for each sub-folder, even without images in it;
            cache, the folder where lists of files are cached, False for none.
    """
    if unknown := sorted(opening.keys() - signature(open_images).parameters.keys()):
        known = (signature(images).parameters.keys() | signature(open_images).parameters.keys()) - {"opening"}
        close = get_close_matches(unknown[0], known, n=1, cutoff=0.75)
        hint = f"did you mean {close[0]}=?" if close else "help(stoker.images) lists them all"
        raise TypeError(f"stoker.images() has no argument {unknown[0]!r}\nhint: {hint}")
    pictures = open_images(path, labels=labels, **opening)
    return Images(
        pictures,
        transform=transform,
        decode=decode,
        layout=layout,
        mode=mode,
        apply_exif_orientation=apply_exif_orientation,
        exact=exact,
        max_pixels=max_pixels,
        in_trainer=in_trainer,
    )


class Images:
    """Images addressed by position, with transforms. Made by `stoker.images`.

    Safe to read from any thread and process. The random crop and all other random choices for an image depend on (seed,
    epoch, position) alone, and on the number of the draw where a sampler may give a position several times; not on the
    engine, the decoder, the layout or `exact`.
    """

    def __init__(
        self,
        pictures: ImageSource,
        *,
        transform: Any = None,
        decode: Decode = "cpu",
        layout: Layout = "nchw",
        mode: Mode = "RGB",
        apply_exif_orientation: bool | None = None,
        exact: bool = False,
        max_pixels: int = MAX_PIXELS,
        in_trainer: bool = False,
    ) -> None:
        _check_one_of("decode", decode, get_args(Decode))
        _check_one_of("layout", layout, get_args(Layout))
        _check_one_of("mode", mode, tuple(MODES))
        if isinstance(max_pixels, bool) or not isinstance(max_pixels, int) or max_pixels < 1:
            raise ArgumentError(f"max_pixels={max_pixels!r} is not a positive integer", hint="pass 1 or more")
        self.pictures = pictures
        self.pipeline = Pipeline(transform)
        self.decode, self.layout, self.mode = decode, layout, mode
        self.prefers_process = not in_trainer
        """Whether threads that read it should run in a process of their own, if the loader has no workers."""
        prepared: bool = getattr(pictures, "apply_exif_orientation", True)
        if apply_exif_orientation not in (None, prepared) and getattr(pictures, "is_reencoded", False):
            raise ArgumentError(
                f"apply_exif_orientation={apply_exif_orientation}, but images of this store were resized with "
                f"apply_exif_orientation={prepared}, and their orientation is lost",
                hint=f"leave it out, or prepare the store with apply_exif_orientation={apply_exif_orientation}",
            )
        self.decoding: dict[str, Any] = {
            "mode": mode,
            "exact": exact,
            "max_pixels": max_pixels,
            "apply_exif_orientation": prepared if apply_exif_orientation is None else apply_exif_orientation,
            "on_narrowed": partial(_warn_of_bits, mode),
        }
        """Options of `decode`."""
        self.pixels = MODES[mode]
        """Number of channels, and dtype."""
        for step in self.pipeline.tail if self.pixels.is_deep else ():
            if isinstance(step, Transform) and not isinstance(step, Geometric):
                raise ArgumentError(
                    f"{type(step).__name__} changes 8-bit colors, and mode={mode!r} has other values",
                    hint="leave it out, or pass your own function: it gets a PIL image of that mode",
                )
        self.leaves_files = decode != "cpu" and self._reason_against_files() is None
        """Whether rows of a batch may stay files, for the device to decode."""
        if decode == "device" and (reason := self._reason_against_files()) is not None:
            raise ArgumentError(
                f"decode='device' is not possible here: {reason}",
                hint="use decode='cpu'; or end the transforms with RandomResizedCrop, RandomCrop, CenterCrop or "
                "Resize((height, width)), and do the rest on the device, after the loader",
            )
        self._labels = pictures.labels
        self._classes = pictures.classes

    # ---------------------------------------------------------------- properties

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def labels(self) -> NDArray[Any] | None:
        """The class number of each image, or its values in a table; None without labels."""
        return self._labels

    @property
    def targets(self) -> list[Any]:
        """The labels as a list, by torchvision's name."""
        return [] if self._labels is None else self._labels.tolist()

    @property
    def samples(self) -> list[tuple[str, Any]]:
        """(path or name, label) of each image, by torchvision's name."""
        names = (self.pictures.name(position) for position in range(len(self)))
        return list(zip(names, self.targets or [None] * len(self)))

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes, by number, if labels are classes."""
        return self._classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The numbers of the classes by their names."""
        return {name: number for number, name in enumerate(self._classes or ())}

    @property
    def fingerprint(self) -> str:
        """A hash that identifies these images."""
        return self.pictures.fingerprint

    def describe(self, position: int) -> str:
        """Return the path or name of the image at `position`."""
        return self.pictures.name(self.checked(position))

    def __repr__(self) -> str:
        number = len(self._classes or ())
        classes = f", {number} class{'es' if number > 1 else ''}" if number else ""
        return f"Images({len(self):,} images{classes}, transform={self.pipeline!r})"

    def subset(self, positions: Any) -> Images:
        """Return the images at `positions`, in that order, with the same transforms and classes."""
        chosen = copy.copy(self)
        chosen.pictures = ImageSubset(self.pictures, positions)
        chosen._labels = chosen.pictures.labels
        return chosen

    # ---------------------------------------------------------------- samples

    def __getitem__(self, position: int) -> Any:
        """Return the sample at `position`."""
        position = self.checked(position)
        image = self.arranged(self.found(position))
        return image if self._labels is None else LabeledImage(image, self.label(position))

    def drawing(self, position: int) -> Drawing:
        """Return the random choices for the sample that is being read: its crop, its flips, its colors."""
        return self.pipeline.drawing(uniforms(rng_of(position)), exact=self.decoding["exact"])

    def found(self, position: int, out: NDArray[Any] | None = None) -> Any:
        """Return pixels [H, W, C] of the image at `position`, or whatever the last transform returns.

        Pixels are written to `out`, if given.
        """
        return self.decoded(self.pictures.read(position), position, self.drawing(position), out)

    def decoded(self, data: Data, position: int, drawing: Drawing, out: NDArray[Any] | None = None) -> Any:
        """Do what `found` does, for a file that was read and whose random choices were made."""
        pictures = self.pictures
        with transforming():
            return self.pipeline.picture(data, drawing, out=out, name=lambda: pictures.name(position), **self.decoding)

    def arranged(self, found: Any) -> Any:
        """Return an image in the layout; tensors and objects of unknown types as they are."""
        if is_image(found):
            found = as_array(found)
        if not is_picture(found):
            return found
        if found.ndim == 2:
            found = found[:, :, None]
        if self.layout == "nhwc":
            return found
        turned = found.transpose(2, 0, 1)
        return turned if self.layout == "channels_last" else np.ascontiguousarray(turned)

    def label(self, position: int) -> Any:
        """Return the label of the image at `position`: a number, or an array of several."""
        assert self._labels is not None
        label = self._labels[position]
        return label.item() if label.ndim == 0 else label

    def checked(self, position: Any) -> int:
        """Return a position counted from the beginning, or raise `PositionError`."""
        number, length = operator.index(position), len(self.pictures)
        if number < 0:
            number += length
        if not 0 <= number < length:
            raise PositionError(position, length=length, what="the images")
        return number

    # ---------------------------------------------------------------- batches

    def open_batch(self, num_samples: int, empty: Empty, hint: float | None) -> ImageRowWriter | LooseImageWriter:
        """Return the writer of one batch, which decodes images straight into their rows of its memory.

        Where their size is only known once they are decoded, they are collected and collated at the end. With
        decode="auto", `hint` is the share of images that is left to the device: the loader measures it.
        """
        if self.pipeline.size is None or not self.pipeline.is_ours:
            return LooseImageWriter(self, num_samples, empty)
        share = (1.0 if self.decode == "device" else hint or 0.0) if self.leaves_files else 0.0
        return ImageRowWriter(self, num_samples, empty, num_files=round(share * num_samples))

    def _reason_against_files(self) -> str | None:
        """Return why the device cannot decode these images; None if it can."""
        pipeline = self.pipeline
        if self.decoding["exact"]:
            return "exact=True needs Pillow, which does not run there"
        if self.pixels.is_deep:
            return f"mode={self.mode!r} needs {self.pixels.dtype}, and the device decodes 8 bits"
        if pipeline.tail:
            return f"{pipeline.tail[0]!r} changes pixels before the device has decoded them"
        if pipeline.size is None:
            return "images have different sizes, and a batch on the device has one size"
        return None


def _warn_of_bits(mode: str, bits: str) -> None:
    # the same text for every such image, so that Python shows it once per process
    hint = "mode='I;16' keeps all of them, as uint16" if bits == "16 bits" else "Pillow reads only 8 bits of colors"
    warnings.warn(f"there are images with {bits}, of which mode={mode!r} keeps 8\nhint: {hint}", stacklevel=2)


def _check_one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ArgumentError(f"unknown {name}={value!r}", hint=f"choose one of {', '.join(known)}")


class ImageSubset:
    """The images at some positions of a source, in the order of these."""

    def __init__(self, pictures: ImageSource, positions: Any) -> None:
        numbers = np.asarray(positions)
        if numbers.dtype == np.bool_ and numbers.shape == (len(pictures),):
            numbers = np.flatnonzero(numbers)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise ArgumentError(
                f"positions must be integers in one dimension, got {numbers.dtype} in {numbers.ndim}",
                hint="pass a list of positions, or a bool for each image",
            )
        self._positions: NDArray[np.int64] = numbers.astype(np.int64)
        outside = self._positions[(self._positions < 0) | (self._positions >= len(pictures))]
        if outside.size:
            raise PositionError(int(outside[0]), length=len(pictures), what="the images")
        self._pictures = pictures
        self.classes: list[str] | None = pictures.classes
        self.labels: NDArray[Any] | None = None if pictures.labels is None else pictures.labels[self._positions]

    @property
    def fingerprint(self) -> str:
        """A hash that identifies these images."""
        chosen = hashlib.blake2b(self._positions.tobytes(), digest_size=8).hexdigest()
        return f"{self._pictures.fingerprint}, of these {chosen}"

    def __len__(self) -> int:
        return len(self._positions)

    def read(self, position: int, /) -> EncodedImage:
        """Return the encoded file of the image at `position`."""
        return self._pictures.read(int(self._positions[position]))

    def name(self, position: int, /) -> str:
        """Return the path or name of the image at `position`."""
        return self._pictures.name(int(self._positions[position]))
