"""Find the images and labels in a batch of any form.

Shapes: B images of H rows and W columns, with C channels first or last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.batch.encoded import Encoded
from stoker.errors import ArgumentError
from stoker.foundation import trees
from stoker.foundation.text import format_number, format_percent, trim_zeros

Pixels = NDArray[np.uint8]

IMAGES = ("image", "images", "picture", "pictures", "pixels", "pixel_values", "img", "x", "input", "inputs", "data")
LABELS = ("label", "labels", "target", "targets", "class", "classes", "y")
"""Field names to try, the likeliest first."""

CHANNELS = (1, 3, 4)

NAN_COLOR = (255, 0, 200)
"""Color of NaN pixels, chosen to stand out."""

SLACK = 1e-3
"""Tolerance around the range 0 to 1: resizing and half precision overshoot a little."""


@dataclass(frozen=True, slots=True)
class BatchImages:
    """The images of a batch, ready to be drawn."""

    images: list[Pixels]
    """uint8 [H, W, 3] each; sizes may differ."""
    labels: Any
    """The labels in the batch, or None."""
    num_all: int
    """Number of images in the batch, which may exceed the limit."""
    kind: str
    """Original shape and dtype."""
    notes: list[str] = field(default_factory=list)
    """Conversions made to display them."""


def find_images(batch: Any, *, normalize: Any = None, limit: int) -> BatchImages:
    """Return the first `limit` images of a batch, with their labels.

    A batch is a tensor or array of images (channels first or last, or grayscale), one image, a list of images, or a
    dict or tuple that holds one of these. `normalize` is the normalization to undo.
    """
    images, labels = _parts(batch)
    if images is None:
        raise ArgumentError(
            f"no images found in {_describe(batch)}",
            hint="pass a tensor of shape [B, C, H, W] or [B, H, W, C] with 1, 3 or 4 channels, or a dict or tuple that "
            "holds one; packed rows need 'document_ids'; for a dataset, pass a loader of it",
        )
    whole = images if isinstance(images, list) else _add_batch_axis(images)
    shown = [_array(image) for image in whole[:limit]] if isinstance(whole, list) else [*_array(whole[:limit])]
    converted, notes = _to_pixels(shown, _constants(normalize))
    shape = " x ".join(map(str, whole.shape if not isinstance(whole, list) else shown[0].shape)) if shown else "0"
    return BatchImages(converted, labels, len(whole), f"{shape} {_type(images)}", notes)


def format_labels(labels: Any, classes: Sequence[str] | None, number: int) -> list[str | None]:
    """Format the labels of the first `number` images: class names, or the labels themselves."""
    if labels is None:
        return [None] * number
    if (
        isinstance(labels, str | bytes) or not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) == 0
    ):  # a single label
        labels = [labels]
    values = _array(labels[:number]) if _is_array(labels) else list(labels)[:number]
    texts: list[str | None] = [_format_label(value, classes) for value in values]
    return texts + [None] * (number - len(texts))


# ---------------------------------------------------------------- finding images


def _parts(batch: Any) -> tuple[Any, Any]:
    """Return the images and the labels of a batch, each None if there are none."""
    if isinstance(batch, Encoded):
        raise ArgumentError(
            f"{batch.num_files} images of this batch are still encoded, to be decoded on a device",
            hint="use a batch from DataLoader(..., device='cuda'), or load with decode='cpu'",
        )
    if _is_pil_image(batch) or (_is_array(batch) and _looks_like_images(batch)):
        return ([batch] if _is_pil_image(batch) else batch), None
    if isinstance(batch, list) and batch and all(_is_single_image(entry) for entry in batch):
        return batch, None
    if isinstance(batch, tuple | list) and batch and all(map(_is_sample, batch)):
        return _of_samples(batch)
    parts = trees.items(batch)
    return (None, None) if parts is None else _of_parts(dict(parts))


def _of_parts(parts: dict[Any, Any]) -> tuple[Any, Any]:
    """Return the images among the parts of a container by key, field or index, and the labels next to them."""
    likely = {name: place for place, name in enumerate(IMAGES)}
    for name in sorted(parts, key=lambda name: likely.get(name, len(likely))):
        images, labels = _parts(parts[name]) if name not in LABELS else (None, None)
        if images is None:
            continue
        others = {other: part for other, part in parts.items() if other != name}
        size = len(images) if isinstance(images, list) else len(_add_batch_axis(images))
        found = [others[label] for label in LABELS if label in others]
        found += [part for other, part in others.items() if isinstance(other, int) and _is_labels(part, size)]
        return images, next(iter(found), labels)
    return None, None


def _is_sample(entry: Any) -> bool:
    """Return whether a value is an uncollated sample that begins with an image."""
    return isinstance(entry, tuple | list) and bool(entry) and _is_single_image(entry[0])


def _of_samples(samples: Sequence[Any]) -> tuple[Any, Any]:
    """Return the images and labels of an uncollated list of samples."""
    images = [sample[0] for sample in samples]
    return images, [sample[1] for sample in samples] if all(len(sample) > 1 for sample in samples) else None


def _describe(batch: Any) -> str:
    """Describe a batch for an error message."""
    if _is_array(batch):
        return f"a tensor of shape {tuple(batch.shape)}"
    if trees.is_named_tuple(batch) or isinstance(batch, Mapping):
        values = {name: _describe(value).removeprefix("a tensor of shape ") for name, value in trees.items(batch) or ()}
        parts = [f"{name}: {value}" for name, value in values.items()]
        return "{" + ", ".join(parts) + "}"
    if isinstance(batch, tuple | list) and len(batch) <= 4:
        return f"a {type(batch).__name__} of {', '.join(map(_describe, batch)) or 'nothing'}"
    name = type(batch).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def _is_labels(entry: Any, size: int) -> bool:
    if _is_array(entry):
        return entry.ndim in (1, 2) and len(entry) == size
    return isinstance(entry, list | tuple) and len(entry) == size


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "ndim")


def _is_pil_image(value: Any) -> bool:
    """Return whether a value is a PIL image."""
    return hasattr(value, "getbands") and hasattr(value, "convert")


def _is_single_image(value: Any) -> bool:
    """Return whether a value is a single image."""
    return _is_pil_image(value) or (_is_array(value) and value.ndim in (2, 3) and _looks_like_images(value))


def _looks_like_images(array: Any) -> bool:
    shape = tuple(array.shape)
    if array.ndim == 4:
        return bool(shape[1] in CHANNELS or shape[-1] in CHANNELS)
    if array.ndim == 3:  # embeddings [B, T, D] are 3-D too, but long and thin, and rarely bytes
        return min(shape[-2:]) >= 2 or shape[-1] in CHANNELS
    return bool(array.ndim == 2 and "uint8" in str(array.dtype))


def _add_batch_axis(images: Any) -> Any:
    """Return [B, H, W] or [B, ?, ?, ?], adding the batch axis to a single image."""
    if images.ndim == 2 or (images.ndim == 3 and (images.shape[0] in CHANNELS or images.shape[-1] in CHANNELS)):
        return images[None]
    return images


# ---------------------------------------------------------------- conversion to pixels


def _array(value: Any) -> NDArray[Any]:
    """Return a tensor (any device and dtype), array or PIL image as an array."""
    if _is_pil_image(value):
        return np.asarray(value.convert("RGB"))
    if hasattr(value, "detach"):
        value = value.detach()
        if value.dtype.is_floating_point and value.dtype.itemsize < 4:
            value = value.float()  # NumPy has no bfloat16
        return np.asarray(value.cpu().numpy())
    return np.asarray(value)


def _type(images: Any) -> str:
    first = images[0] if isinstance(images, list) and images else images
    return str(getattr(first, "dtype", None) or getattr(first, "mode", "")).removeprefix("torch.")


def _constants(normalize: Any) -> tuple[NDArray[Any], NDArray[Any]] | None:
    if normalize is None:
        return None
    mean, std = (normalize.mean, normalize.std) if hasattr(normalize, "mean") else normalize
    return np.atleast_1d(np.asarray(mean, np.float64)), np.atleast_1d(np.asarray(std, np.float64))


def _to_pixels(
    arrays: list[NDArray[Any]], constants: tuple[NDArray[Any], NDArray[Any]] | None
) -> tuple[list[Pixels], list[str]]:
    """Return all images as uint8, on one common scale, with notes on the conversion."""
    arrays = [_channels_last(array) for array in arrays]
    if not arrays or all(array.dtype == np.uint8 for array in arrays):
        return [_to_rgb(array) for array in arrays], []
    notes = []
    finite = [np.isfinite(array) for array in arrays] if arrays[0].dtype.kind == "f" else None
    if finite is not None:
        num_odd = sum(not good.all() for good in finite)
        if num_odd:
            notes.append(f"{num_odd} with NaN values, shown in magenta")
            arrays = [np.where(good, array, 0) for good, array in zip(finite, arrays)]
    if constants is not None and arrays[0].dtype.kind == "f":
        mean, std = constants
        if any(array.shape[-1] != len(mean) and len(mean) > 1 for array in arrays):
            raise ArgumentError(
                f"normalize has {len(mean)} channels, the images have {arrays[0].shape[-1]}",
                hint="pass one mean and one standard deviation per channel",
            )
        arrays = [array * std + mean for array in arrays]
        low, high = 0.0, 1.0
    else:
        low, high, note = _range(arrays)
        notes += [note] if note else []
    scale = 255 / (high - low) if high > low else 0.0
    drawn = [_to_rgb(np.rint((array.astype(np.float64) - low) * scale).clip(0, 255)) for array in arrays]
    for good, pixels in zip(finite or (), drawn):
        pixels[~good.all(-1)] = NAN_COLOR
    return drawn, notes


def _range(arrays: list[NDArray[Any]]) -> tuple[float, float, str | None]:
    """Return the values shown as black and white, and a note if they are a guess."""
    low = min((float(array.min()) for array in arrays if array.size), default=0.0)
    high = max((float(array.max()) for array in arrays if array.size), default=1.0)
    kind = arrays[0].dtype.kind
    if kind == "b" or (kind == "f" and low >= -SLACK and high <= 1 + SLACK):
        return 0.0, 1.0, None
    if low >= 0 and high <= 255:
        return 0.0, 255.0, None
    if arrays[0].dtype == np.uint16:
        return 0.0, 65535.0, None
    if kind == "f" and low >= -1 - SLACK and high <= 1 + SLACK:
        return -1.0, 1.0, "values from -1 to 1, shown from black to white"
    ends = f"{trim_zeros(format_number(low))} to {trim_zeros(format_number(high))}"
    return low, high, f"values from {ends}, shown from black to white: pass normalize= for true colors"


def _channels_last(array: NDArray[Any]) -> NDArray[Any]:
    """Return [H, W, C] from an image [H, W], [C, H, W] or [H, W, C]."""
    if array.ndim == 2:
        return array[:, :, None]
    if array.ndim == 3 and array.shape[0] in CHANNELS:
        return array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[-1] in CHANNELS:
        return array
    raise ArgumentError(
        f"cannot draw an image of shape {array.shape}",
        hint="images need 1, 3 or 4 channels, first or last; pass a slice such as batch[:, :3]",
    )


def _to_rgb(array: NDArray[Any]) -> Pixels:
    """Return [H, W, 3] uint8: grayscale repeated, transparency over white."""
    pixels = array.astype(np.uint8)
    if pixels.shape[-1] == 1:
        return np.repeat(pixels, 3, axis=-1)
    if pixels.shape[-1] == 4:
        opacity = pixels[..., 3:].astype(np.float64) / 255
        return np.rint(pixels[..., :3] * opacity + 255 * (1 - opacity)).astype(np.uint8)
    return pixels


# ---------------------------------------------------------------- labels


def _format_label(value: Any, classes: Sequence[str] | None) -> str | None:
    if value is None or isinstance(value, str | bytes):
        return value.decode(errors="replace") if isinstance(value, bytes) else value
    numbers = _array(value)
    if numbers.ndim == 0:
        return _name(numbers.item(), classes)
    if numbers.ndim == 1 and len(numbers) == 1:
        return _name(numbers[0].item(), classes)
    if _is_distribution(numbers):  # mixed labels (mixup): show the top two
        order = np.argsort(-numbers, kind="stable")[:2]
        parts = [(_name(int(at), classes), float(numbers[at])) for at in order if numbers[at] >= 0.005]
        return parts[0][0] if len(parts) == 1 else ", ".join(f"{name} {format_percent(share)}" for name, share in parts)
    shown = ", ".join(_name(number, None) for number in numbers.flat[:4].tolist())
    return shown + (", ..." if numbers.size > 4 else "")


def _is_distribution(numbers: NDArray[Any]) -> bool:
    return numbers.ndim == 1 and numbers.min() >= 0 and abs(float(numbers.sum()) - 1) < 0.01


def _name(value: Any, classes: Sequence[str] | None) -> str:
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, int):
        return str(classes[value]) if classes is not None and 0 <= value < len(classes) else str(value)
    return trim_zeros(format_number(value, 4)) if isinstance(value, float) else str(value)
