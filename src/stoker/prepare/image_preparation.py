"""Prepare images as a store of images."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError, DataError
from stoker.prepare.image_inputs import CODE, ImageInputs
from stoker.prepare.image_work import QUALITY, ImageSettings, ImageWork, columns_for, jpeg_encoder
from stoker.prepare.piece_run import PieceRun, checked_workers, count_skips, start_run
from stoker.prepare.report import ImageReport, Watch, measure_cost
from stoker.prepare.settings import OnError, check_piece_bytes, choose_piece_bytes
from stoker.prepare.skips import image_ledger_entries
from stoker.prepare.store_target import ImageTarget
from stoker.source.images import open_images
from stoker.source.images.names import printable
from stoker.store import Build


def images(
    source: Any,
    *,
    out: str | os.PathLike[str],
    max_side: int | None = None,
    short_side: int | None = None,
    quality: int | None = None,
    apply_exif_orientation: bool | None = None,
    on_error: OnError = "raise",
    workers: int | None = None,
    piece_bytes: int | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> ImageReport:
    """Turn images into a store of images at `out`, and return a summary.

    `source` and `options` (labels, classes, column, ...) are those of `stoker.images`. Each image is one sample:
    `image`, the bytes of its file; `label`, if there are labels; `name`; `width` and `height` of the upright image.

    Files are copied byte for byte, unless `max_side` or `short_side` limits their longer or shorter side. Larger images
    are then downscaled (antialiased) and become JPEG files of `quality` (default 90), with colors at half the
    resolution (4:2:0); so do those that are not JPEG, or not upright. Gray stays gray, and nothing is enlarged.

    With `apply_exif_orientation=False` images are never rotated, neither here nor by `stoker.images` of the store.

    Files that cannot be read or decoded raise an error or, with `on_error="skip"`, are left out and listed in
    `skipped.jsonl`. Files that are copied are not decoded: only their headers are read. `workers` is the number of
    processes, by default one per core; 0 works in this one.

    An interrupted run continues where it stopped; changed images rebuild only the pieces they are in; without changes,
    only names, sizes and times are read. The result does not depend on workers or interruptions.
    """
    begin = time.perf_counter()
    target = ImageTarget(Path(out))
    target.check_is_ours()
    if isinstance(source, (str, os.PathLike)) and os.path.realpath(source) == os.path.realpath(out):
        raise ArgumentError(f"{out} is both the source and the target", hint="choose another folder for the store")
    num_workers = checked_workers(workers)
    is_smaller = max_side is not None or short_side is not None
    if quality is not None and not is_smaller:
        raise ArgumentError(
            f"quality={quality} is only for images that are downscaled, and these are copied",
            hint="pass max_side= or short_side= with it (--max-side, --short-side)",
        )
    if piece_bytes is not None:
        check_piece_bytes(piece_bytes)
    settings = ImageSettings(
        max_side=max_side,
        short_side=short_side,
        quality=(QUALITY if quality is None else quality) if is_smaller else None,
        encoder=jpeg_encoder() if is_smaller else None,
        on_error=on_error,
        apply_exif_orientation=apply_exif_orientation is not False,
        piece_bytes=piece_bytes or 1,
    )
    inputs = ImageInputs(open_images(source, **options), source)
    if apply_exif_orientation is None:  # if the source is a store, it decides
        prepared = getattr(inputs.images, "apply_exif_orientation", True)
        settings = replace(settings, apply_exif_orientation=prepared)
    if piece_bytes is None:
        # Keep the size of an existing store: one more image could change the default, and with it every piece.
        settings = replace(settings, piece_bytes=target.known_piece_bytes() or choose_piece_bytes(inputs.num_bytes))
    classes = inputs.images.classes
    meta = {
        "kind": target.kind,
        "settings": settings.to_meta(),
        # escaped: JSON cannot hold a name that is not text
        "classes": None if classes is None else [printable(os.fsencode(name)) for name in classes],
        "origin": {"inputs": inputs.to_meta(), "digest": inputs.digest, "code": CODE},
    }

    def report(**more: Any) -> ImageReport:
        return ImageReport(**target.report_facts() | more, seconds=time.perf_counter() - begin)

    if target.is_fresh(meta):
        return report(is_up_to_date=True)
    with start_run(target, num_workers=num_workers, watch=watch) as run:
        _make_store(target, settings, inputs, run, meta)
    return replace(
        report(num_pieces=run.num_pieces, num_made=run.num_made, num_removed=run.num_removed),
        before=measure_cost(inputs.images),
        after=measure_cost(open_images(target.path)),
    )


def _make_store(
    target: ImageTarget, settings: ImageSettings, inputs: ImageInputs, run: PieceRun, meta: dict[str, Any]
) -> None:
    """Make the missing pieces, then the store."""
    target.keep_run(settings.piece_bytes)
    build = Build(target.path, columns_for(inputs.images.labels))
    work = ImageWork(build=build, settings=settings, inputs=inputs)
    planned = inputs.pieces(settings.piece_bytes, settings.to_key())
    pieces, notes = run.complete(build, planned, lambda _: work, stage="images", on_error=settings.on_error)
    counts = {name: sum(noted[name] for noted in notes) for name in notes[0] if name != "skipped"}
    reasons = count_skips(notes)
    if not counts["pictures"]:
        raise DataError(
            f"none of {len(inputs):,} images could be used ({dict(reasons)})\n"
            "hint: `stoker verify images` reports what is wrong with each"
        )
    target.write_ledger(image_ledger_entries(notes))
    counts_meta = counts | {"skipped": reasons.total(), "reasons": dict(sorted(reasons.items()))}
    run.finish(build, [piece.key for piece in pieces], meta=meta | {"counts": counts_meta})
