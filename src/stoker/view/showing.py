"""`stoker.view.batch` and `stoker.view.mask`: whatever it is, as a picture."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.errors import ArgumentError, MissingExtra

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_MASKS = 4
"""Masks that are shown side by side."""


def batch(
    batch: Any,
    *,
    labels: Sequence[Any] | None = None,
    classes: Sequence[str] | None = None,
    positions: Sequence[int] | None = None,
    normalize: Any = None,
    columns: int | None = None,
    side: int | None = None,
    max_images: int = 64,
    title: str | None = None,
) -> Image:
    """Return a picture of a batch: a contact sheet of images, or packed rows with their documents coloured.

    `batch` is a tensor of images (channels first or last, bytes or floats, on any device), a dict or tuple that holds
    one, a list of images, a batch of `stoker.pack`'s rows, or a loader, whose next batch is shown and which goes on as
    if nobody had looked.

    Args:
        labels: what stands below each image; by default the labels of the batch.
        classes: the names of labels that are numbers; by default those of the loader's dataset.
        positions: the position of each sample: `loader.recipe.positions`. A loader tells its own.
        normalize: what images were normalised with, as given to the loader: `(mean, std)` or `stoker.Normalize`.
        columns: how many images stand side by side; by default what fits well.
        side: pixels of an image's longer side on the sheet.
        max_images: how many images, or rows, are shown at most.
        title: a line above it all.
    """
    _check(columns=columns, side=side, max_images=max_images)
    pillow()
    if _is_loader(batch):
        taken, remarks, known = _first(batch)
        return _shown(
            taken,
            labels=labels,
            classes=classes if classes is not None else known.get("classes"),
            remarks=_remarks(positions) if positions is not None else remarks,
            normalize=normalize if normalize is not None else known.get("normalize"),
            columns=columns,
            side=side,
            max_images=max_images,
            title=title,
        )
    return _shown(
        batch,
        labels=labels,
        classes=classes,
        remarks=_remarks(positions),
        normalize=normalize,
        columns=columns,
        side=side,
        max_images=max_images,
        title=title,
    )


def mask(
    mask: Any, *, positions: Sequence[int] | None = None, max_masks: int = MAX_MASKS, title: str | None = None
) -> Image:
    """Return a picture of attention masks: which keys each query sees, with the borders of documents.

    `mask` is a batch of packed rows or its document ids [B, T], coloured by document; or any mask [B, 1, T, T],
    [B, T, T] or [T, T], of booleans or of numbers that are added to scores. The first `max_masks` are shown.
    """
    pillow()
    _check(max_masks=max_masks)
    from stoker.view import attention
    from stoker.view.packed_rows import ids_of, is_packed

    remarks = _remarks(positions)
    if _is_loader(mask):
        mask, remarks, _ = _first(mask)
    names = [f"row {remark or number}" for number, remark in zip(range(max_masks), _padded(remarks, max_masks))]
    if is_packed(mask) or (_num_dims(mask) in (1, 2) and not _is_square(mask)):
        rows = enumerate(zip(ids_of(mask)[:max_masks], names))
        return attention.drawn(
            [attention.of_documents(ids, row=row, name=name) for row, (ids, name) in rows], title=title
        )
    if isinstance(mask, Mapping):
        raise ArgumentError(
            f"there is no mask in a batch with {', '.join(map(repr, mask)) or 'nothing'}",
            hint="pass a batch of stoker.pack(...), which has 'document_ids', or the mask itself",
        )
    dense = attention.dense_of(mask, limit=max_masks)
    return attention.drawn([attention.of_mask(one, name=name) for one, name in zip(dense, names)], title=title)


def pillow() -> None:
    """Raise `MissingExtra` unless there is what draws pictures."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingExtra("Pillow", extra="images", need="drawing pictures") from error


def _shown(
    batch: Any,
    *,
    labels: Sequence[Any] | None,
    classes: Sequence[str] | None,
    remarks: list[str] | None,
    normalize: Any,
    columns: int | None,
    side: int | None,
    max_images: int,
    title: str | None,
) -> Image:
    from stoker.view import packed_rows, sheet
    from stoker.view.pictures import found, named

    if packed_rows.is_packed(batch):
        ids = packed_rows.ids_of(batch)
        names = None if remarks is None else remarks[:max_images]
        return packed_rows.drawn(ids[:max_images], names=names, num_all=len(ids), title=title)
    seen = found(batch, normalize=normalize, limit=max_images)
    number = len(seen.pictures)
    for name, given in (("labels", labels), ("positions", remarks)):
        if given is not None and len(given) < number:
            raise ArgumentError(f"{name} has {len(given)} entries for {number} images", hint="pass one for each")
    foot = f"{seen.kind}; the first {number} of {seen.num_all}" if number < seen.num_all else seen.kind
    return sheet.drawn(
        seen.pictures,
        labels=named(labels if labels is not None else seen.labels, classes, number),
        remarks=_padded(remarks, number),
        title=title,
        foot="; ".join((foot, *seen.notes)),
        columns=columns,
        side=side,
    )


def _is_loader(value: Any) -> bool:
    return hasattr(value, "dataset") and hasattr(value, "__iter__") and not hasattr(value, "shape")


def _first(loader: Any) -> tuple[Any, list[str] | None, dict[str, Any]]:
    """Return a loader's next batch, the positions in it, and what else is known about it."""
    peeked = copy.copy(loader)  # what is drawn from it is not missing later
    batches: Iterator[Any] = iter(peeked)
    try:
        taken = next(batches, None)
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()
    if taken is None:
        raise ArgumentError("the loader gives no batch", hint="it may be at its end, or have less than one batch")
    recipe = getattr(peeked, "recipe", None)
    remarks = None if recipe is None else _remarks(recipe.positions, getattr(recipe, "padding", None))
    known = {
        "classes": getattr(loader.dataset, "classes", None),
        "normalize": getattr(loader, "normalize", None),
    }
    return taken, remarks, known


def _remarks(positions: Any, padding: Any = None) -> list[str] | None:
    if positions is None:
        return None
    numbers = [int(position) for position in positions]
    if padding is None:
        return [f"{number:,}" for number in numbers]
    return [f"{number:,} (padding)" if is_padding else f"{number:,}" for number, is_padding in zip(numbers, padding)]


def _padded(remarks: list[str] | None, number: int) -> list[str | None]:
    known: list[str | None] = [*(remarks or ())][:number]
    return known + [None] * (number - len(known))


def _num_dims(value: Any) -> int | None:
    return getattr(value, "ndim", None)


def _is_square(value: Any) -> bool:
    """Whether it is a mask of one row rather than ids: booleans or floats, or as many queries as keys."""
    if value.ndim != 2:
        return False
    kind = str(value.dtype)
    return "bool" in kind or "float" in kind


def _check(**numbers: Any) -> None:
    for name, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ArgumentError(f"{name}={number!r} is not a positive number", hint=f"pass {name} as an int above 0")
