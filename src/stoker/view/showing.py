"""`stoker.view.batch` and `stoker.view.mask`: draw batches and masks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.errors import ArgumentError, MissingExtra

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_MASKS = 4
"""Masks shown side by side."""


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
    """Draw a batch: a contact sheet of images, or packed rows with one color per document.

    `batch` is a tensor of images (channels first or last, bytes or floats, on any device), a dict or tuple that holds
    one, a list of images, a batch of packed rows (`stoker.pack`), or a loader. The next batch of a loader is shown
    without being consumed.

    Args:
        labels: text below each image (default: the labels of the batch).
        classes: names for integer labels (default: those of the loader's dataset).
        positions: the position of each sample, such as `loader.recipe.positions`. Known for a loader.
        normalize: the normalization to undo, as given to the loader: `(mean, std)` or `stoker.Normalize`.
        columns: images per row (default: chosen to fit).
        side: longer side of each image on the sheet, in pixels.
        max_images: maximum number of images or rows.
        title: a line at the top.
    """
    _check(columns=columns, side=side, max_images=max_images)
    require_pillow()
    if _is_loader(batch):
        taken, remarks, known = _peek(batch)
        return _draw_images(
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
    return _draw_images(
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
    """Draw attention masks: which keys each query sees, with document boundaries.

    `mask` is a batch of packed rows or its document ids [B, T], colored by document; or any mask [B, 1, T, T],
    [B, T, T] or [T, T], boolean or additive. The first `max_masks` are shown.
    """
    require_pillow()
    _check(max_masks=max_masks)
    from stoker.view import attention
    from stoker.view.packed_rows import document_ids, is_packed

    remarks = _remarks(positions)
    if _is_loader(mask):
        mask, remarks, _ = _peek(mask)
    names = [f"row {remark or number}" for number, remark in zip(range(max_masks), _pad_with_none(remarks, max_masks))]
    if is_packed(mask) or (_num_dims(mask) in (1, 2) and not _is_square(mask)):
        rows = enumerate(zip(document_ids(mask)[:max_masks], names))
        return attention.draw_panels(
            [attention.draw_document_mask(ids, row=row, name=name) for row, (ids, name) in rows], title=title
        )
    if isinstance(mask, Mapping):
        raise ArgumentError(
            f"no mask found in a batch with {', '.join(map(repr, mask)) or 'no fields'}",
            hint="pass a batch of stoker.pack(...), which has 'document_ids', or the mask itself",
        )
    dense = attention.to_dense_masks(mask, limit=max_masks)
    return attention.draw_panels([attention.draw_mask(one, name=name) for one, name in zip(dense, names)], title=title)


def require_pillow() -> None:
    """Raise `MissingExtra` if Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingExtra("Pillow", extra="images", need="drawing images") from error


def _draw_images(
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
    from stoker.view.pictures import find_images, format_labels

    if packed_rows.is_packed(batch):
        ids = packed_rows.document_ids(batch)
        names = None if remarks is None else remarks[:max_images]
        return packed_rows.draw_rows(ids[:max_images], names=names, num_all=len(ids), title=title)
    seen = find_images(batch, normalize=normalize, limit=max_images)
    number = len(seen.pictures)
    for name, given in (("labels", labels), ("positions", remarks)):
        if given is not None and len(given) < number:
            raise ArgumentError(f"{name} has {len(given)} entries for {number} images", hint="pass one per image")
    foot = f"{seen.kind}; the first {number} of {seen.num_all}" if number < seen.num_all else seen.kind
    return sheet.draw_sheet(
        seen.pictures,
        labels=format_labels(labels if labels is not None else seen.labels, classes, number),
        remarks=_pad_with_none(remarks, number),
        title=title,
        foot="; ".join((foot, *seen.notes)),
        columns=columns,
        side=side,
    )


def _is_loader(value: Any) -> bool:
    return hasattr(value, "dataset") and hasattr(value, "__iter__") and not hasattr(value, "shape")


def _peek(loader: Any) -> tuple[Any, list[str] | None, dict[str, Any]]:
    """Return a loader's next batch without consuming it, its positions, and more options for drawing."""
    peeked = copy.copy(loader)  # drawing from the copy leaves the loader untouched
    batches: Iterator[Any] = iter(peeked)
    try:
        taken = next(batches, None)
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()
    if taken is None:
        raise ArgumentError("the loader yields no batch", hint="it may be exhausted, or hold less than one batch")
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


def _pad_with_none(remarks: list[str] | None, number: int) -> list[str | None]:
    known: list[str | None] = [*(remarks or ())][:number]
    return known + [None] * (number - len(known))


def _num_dims(value: Any) -> int | None:
    return getattr(value, "ndim", None)


def _is_square(value: Any) -> bool:
    """Return whether a value is a mask [T, T] rather than ids: boolean or float, or square."""
    if value.ndim != 2:
        return False
    kind = str(value.dtype)
    return "bool" in kind or "float" in kind


def _check(**numbers: Any) -> None:
    for name, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ArgumentError(f"{name} must be a positive integer, got {number!r}", hint=f"pass {name}=1 or more")
