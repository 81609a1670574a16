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
    from stoker.view import packed_rows, sheet
    from stoker.view.batch_images import find_images, format_labels

    remarks = _remarks(positions)
    if _is_loader(batch):
        loader = batch
        batch, remarks_of_loader = _peek(loader)
        remarks = remarks_of_loader if remarks is None else remarks
        classes = getattr(loader.dataset, "classes", None) if classes is None else classes
        normalize = getattr(loader, "normalize", None) if normalize is None else normalize
    if packed_rows.is_packed(batch):
        ids = packed_rows.document_ids(batch)
        names = None if remarks is None else remarks[:max_images]
        return packed_rows.draw_rows(ids[:max_images], names=names, num_all=len(ids), title=title)
    found = find_images(batch, normalize=normalize, limit=max_images)
    number = len(found.images)
    for name, given in (("labels", labels), ("positions", remarks)):
        if given is not None and len(given) < number:
            raise ArgumentError(f"{name} has {len(given)} entries for {number} images", hint="pass one per image")
    kind = f"{found.kind}; the first {number} of {found.num_all}" if number < found.num_all else found.kind
    return sheet.draw_sheet(
        found.images,
        labels=format_labels(labels if labels is not None else found.labels, classes, number),
        remarks=_pad_with_none(remarks, number),
        title=title,
        foot="; ".join((kind, *found.notes)),
        columns=columns,
        side=side,
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
        mask, remarks = _peek(mask)
    names = [f"row {remark or number}" for number, remark in zip(range(max_masks), _pad_with_none(remarks, max_masks))]
    if is_packed(mask) or _are_ids(mask):
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


def _is_loader(value: Any) -> bool:
    return hasattr(value, "dataset") and hasattr(value, "__iter__") and not hasattr(value, "shape")


def _peek(loader: Any) -> tuple[Any, list[str] | None]:
    """Return a loader's next batch without consuming it, and its positions."""
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
    return taken, remarks


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


def _are_ids(value: Any) -> bool:
    """Return whether a value holds document ids [T] or [B, T], rather than a mask [T, T] of booleans or floats."""
    kind = str(getattr(value, "dtype", ""))
    return getattr(value, "ndim", None) == 1 or (
        getattr(value, "ndim", None) == 2 and "bool" not in kind and "float" not in kind
    )


def _check(**numbers: Any) -> None:
    for name, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ArgumentError(f"{name} must be a positive integer, got {number!r}", hint=f"pass {name}=1 or more")
