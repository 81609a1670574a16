"""Pictures as a dataset: read, decoded as far as needed, cut, resized, straight into the batch."""

from __future__ import annotations

import copy
import operator
import warnings
from difflib import get_close_matches
from functools import partial
from inspect import signature
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from stoker.compose.images.image_rows import ImageRowWriter, LooseImageWriter
from stoker.compose.images.image_subset import ImageSubset
from stoker.errors import ArgumentError, PositionError
from stoker.foundation.randomness import rng_of
from stoker.foundation.stages import transforming
from stoker.source.images import ImageSource, open_images
from stoker.source.protocols import Empty
from stoker.transform.image.decoding import MAX_PIXELS, MODES, Data
from stoker.transform.image.forms import as_array, is_image, is_picture
from stoker.transform.image.geometry import Geometric, Transform
from stoker.transform.image.pipeline import Drawing, Pipeline
from stoker.transform.image.uniforms import uniforms

Layout = Literal["nchw", "nhwc", "channels_last"]
Decode = Literal["cpu", "device", "auto"]
Mode = Literal["RGB", "L", "I;16", "I", "F"]


class Picture(NamedTuple):
    """A picture and its label; of a batch, all pictures and all labels."""

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
    """Return the pictures at `path` as a dataset.

    A sample is `Picture(image, label)`, or the image alone where there are no labels. The image is uint8, unless `mode`
    says otherwise; widening and normalising are the loader's (`to=`, `normalize=`), after it was copied to the device.

    Args:
        path: a folder, with a sub-folder for each class or without; a list of files or (file, label) pairs; WebDataset
            tar archives; Parquet or Hugging Face datasets with a column of pictures; a store made by
            `stoker prepare images`.
        transform: one, or a list: those in `stoker.transform`, which have torchvision's names and arguments, and any
            others (torchvision, albumentations, functions), which get a PIL image. What decides the size of a picture
            should be ours: only then no more is decoded than is needed, straight into the batch.
        labels: a table (.csv, .parquet), a mapping or a list; False for none. By default those that are there.
        decode: "cpu"; "device", where workers only read and the GPU decodes (JPEG); or "auto", which shares the work
            out so that neither waits.
        layout: of a batch: "nchw" is [B, C, H, W], "nhwc" is [B, H, W, C], "channels_last" has the shape of the first
            and the memory of the second, which convolutions on GPUs like best.
        mode: "RGB", or "L" for grey, with 8 bits; a picture that has more is scaled, with a warning. "I;16" (uint16),
            "I" (int32) and "F" (float32) are for pictures of one channel, such as depth maps and scans: the numbers
            that are in the file, not scaled.
        apply_exif_orientation: False leaves pictures as they are stored, for boxes and masks that were made so. By
            default they are put upright, or as `stoker prepare images` was asked to.
        exact: Pillow's pixels, bit for bit; slower. See `stoker.transform.image.decoding.decode`.
        max_pixels: larger pictures are refused, as bombs. All but plain JPEG have to keep to Pillow's own limit, too.
        in_trainer: let `num_threads` of a loader without workers be threads of the trainer's own process. Otherwise
            they are those of one worker process, for decoding threads take the interpreter away from the trainer.
        opening: more about where pictures and labels are:
            classes, the names of all classes in the order of their numbers, by default those found, in natural order;
            columns=(file, label), those of the table that `labels` is, where they are not plain;
            column, that of the pictures in Parquet, or their extension in archives;
            label, that of the labels: a column, an extension or a field of JSON;
            split, of a Hugging Face dataset;
            extensions, of the files in a folder that are pictures; by default those that can be read here, with AVIF
            and HEIC where Pillow has them;
            allow_empty, True for a class of each sub-folder, also if there are no pictures in it;
            cache, the folder where lists of files are kept, False for none.
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
    """Pictures addressed by position, changed by transforms. `images()` makes one.

    Reading is safe from any thread and process. Which part of a picture is taken and what is done to it depends on
    (seed, epoch, position) alone, and on which draw it is where a sampler may give a position several times, whatever
    the engine, the decoder, the layout or `exact`.
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
            raise ArgumentError(f"max_pixels={max_pixels!r} is no number of pixels", hint="give 1 or more")
        self.pictures = pictures
        self.pipeline = Pipeline(transform)
        self.decode, self.layout, self.mode = decode, layout, mode
        self.prefers_process = not in_trainer
        """Threads that read it are to be in a process of their own, unless a loader has workers anyway."""
        prepared: bool = getattr(pictures, "apply_exif_orientation", True)
        if apply_exif_orientation not in (None, prepared) and getattr(pictures, "is_reencoded", False):
            raise ArgumentError(
                f"apply_exif_orientation={apply_exif_orientation}, but pictures of this store were made smaller with "
                f"apply_exif_orientation={prepared}, and no longer say how they were taken",
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
        """How many channels a picture has, and of which type its numbers are."""
        for step in self.pipeline.tail if self.pixels.is_deep else ():
            if isinstance(step, Transform) and not isinstance(step, Geometric):
                raise ArgumentError(
                    f"{type(step).__name__} changes colours of 8 bits, and mode={mode!r} has other numbers",
                    hint="leave it out, or pass a function of your own: it gets a PIL image of that mode",
                )
        self.leaves_files = decode != "cpu" and self._reason_against_files() is None
        """Some rows of a batch may stay files, for the device to decode."""
        if decode == "device" and (reason := self._reason_against_files()) is not None:
            raise ArgumentError(
                f"decode='device' cannot be: {reason}",
                hint="decode='cpu' can; or end the transforms with RandomResizedCrop, RandomCrop, CenterCrop or "
                "Resize((height, width)), and do all else on the device, after the loader",
            )
        self._labels = pictures.labels
        self._classes = pictures.classes

    # ---------------------------------------------------------------- what there is

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def labels(self) -> NDArray[Any] | None:
        """For each picture the number of its class, or the values that a table has for it; None without labels."""
        return self._labels

    @property
    def targets(self) -> list[Any]:
        """The same as a list, by the name that torchvision has for it."""
        return [] if self._labels is None else self._labels.tolist()

    @property
    def samples(self) -> list[tuple[str, Any]]:
        """Where each picture lies, and its label (None without), as torchvision has it."""
        names = (self.pictures.name(position) for position in range(len(self)))
        return list(zip(names, self.targets or [None] * len(self)))

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes by their numbers, if labels are classes."""
        return self._classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The numbers of the classes by their names."""
        return {name: number for number, name in enumerate(self._classes or ())}

    @property
    def fingerprint(self) -> str:
        """What tells these pictures from others."""
        return self.pictures.fingerprint

    def describe(self, position: int) -> str:
        """Return where the picture at `position` lies."""
        return self.pictures.name(self.checked(position))

    def __repr__(self) -> str:
        number = len(self._classes or ())
        classes = f", {number} class{'es' if number > 1 else ''}" if number else ""
        return f"Images({len(self):,} pictures{classes}, transform={self.pipeline!r})"

    def subset(self, positions: Any) -> Images:
        """Return some of the pictures, in the order of `positions`, with the same transforms and the same classes."""
        chosen = copy.copy(self)
        chosen.pictures = ImageSubset(self.pictures, positions)
        chosen._labels = chosen.pictures.labels
        return chosen

    # ---------------------------------------------------------------- samples

    def __getitem__(self, position: int) -> Any:
        """Return the sample at `position`."""
        position = self.checked(position)
        image = self.arranged(self.found(position))
        return image if self._labels is None else Picture(image, self.label(position))

    def drawing(self, position: int) -> Drawing:
        """Return what draws the view of the sample that is being read."""
        return self.pipeline.drawing(uniforms(rng_of(position)), exact=self.decoding["exact"])

    def found(self, position: int, out: NDArray[Any] | None = None) -> Any:
        """Return pixels [H, W, C] of the picture at `position`, or whatever the last transform has made of them.

        Pixels are written to `out`, if there is one.
        """
        return self.decoded(self.pictures.read(position), position, self.drawing(position), out)

    def decoded(self, data: Data, position: int, drawing: Drawing, out: NDArray[Any] | None = None) -> Any:
        """Return the same of a picture that was read, and whose view may have been drawn."""
        pictures = self.pictures
        with transforming():
            return self.pipeline.picture(data, drawing, out=out, name=lambda: pictures.name(position), **self.decoding)

    def arranged(self, found: Any) -> Any:
        """Return a picture by the layout; tensors, arrays of another layout, and what nobody knows, as they are."""
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
        """Return the label of the picture at `position`: a number, or an array where there are several."""
        assert self._labels is not None
        label = self._labels[position]
        return label.item() if label.ndim == 0 else label

    def checked(self, position: Any) -> int:
        """Return a position counted from the beginning, or raise `PositionError`."""
        number, length = operator.index(position), len(self.pictures)
        if number < 0:
            number += length
        if not 0 <= number < length:
            raise PositionError(position, length=length, what="the pictures")
        return number

    # ---------------------------------------------------------------- batches

    def open_batch(self, num_samples: int, empty: Empty, hint: float | None) -> ImageRowWriter | LooseImageWriter:
        """Return the memory of a batch, which pictures are decoded into, each in its row.

        Where their size is only known when they are decoded, they are kept until all are there. With decode="auto",
        `hint` is the share of them that is left to the device: the loader measures it.
        """
        if self.pipeline.size is None or not self.pipeline.is_ours:
            return LooseImageWriter(self, num_samples, empty)
        share = (1.0 if self.decode == "device" else hint or 0.0) if self.leaves_files else 0.0
        return ImageRowWriter(self, num_samples, empty, num_files=round(share * num_samples))

    def _reason_against_files(self) -> str | None:
        """Return why the device cannot decode these; None if it can."""
        pipeline = self.pipeline
        if self.decoding["exact"]:
            return "exact=True asks for the pixels of Pillow, which is not there"
        if self.pixels.is_deep:
            return f"mode={self.mode!r} asks for numbers of {self.pixels.dtype}, and the device decodes 8 bits"
        if pipeline.tail:
            return f"{pipeline.tail[0]!r} changes pixels, which are not there before the device has decoded them"
        if pipeline.size is None:
            return "pictures have the sizes they have, and a batch on the device has to be of one"
        return None


def _warn_of_bits(mode: str, bits: str) -> None:
    # the same words for each picture of a kind: then Python shows them once in each process
    hint = "mode='I;16' keeps all of them, as uint16" if bits == "16 bits" else "Pillow reads no more than 8 of colours"
    warnings.warn(f"there are pictures with {bits}, of which mode={mode!r} keeps 8\nhint: {hint}", stacklevel=2)


def _check_one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ArgumentError(f"{name}={value!r} is not known", hint=f"choose one of {', '.join(known)}")
