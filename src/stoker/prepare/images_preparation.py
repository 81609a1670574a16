"""From files of pictures to a store of them: what is there already, what has to be made, and who makes it."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError, DataError
from stoker.foundation import machine
from stoker.prepare.images_report import ImageReport, cost_of
from stoker.prepare.images_stock import CODE, PicturePiece, Stock, checked_piece_bytes, fitting_piece_bytes
from stoker.prepare.images_target import KIND, ImageTarget, ledger_of
from stoker.prepare.images_work import QUALITY, ImageSettings, ImageWork, columns_for, encoder
from stoker.prepare.pieces import key_of
from stoker.prepare.report import Progress, Watch
from stoker.prepare.settings import OnError
from stoker.prepare.worker_pool import NUM_COUNTS, WorkerPool
from stoker.source.images import open_pictures
from stoker.source.images.names import printable
from stoker.store import Build
from stoker.store.lock import Lock, locked

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    """Turn pictures into a store of them at `out`, and return what became of it.

    `source` is what `stoker.images` takes, and so are `options` (labels, classes, column, ...). Each picture is one
    sample: `image`, the bytes of its file; `label`, if there are labels; `name`; `width` and `height` of the upright
    picture.

    Pictures stay as they are, byte for byte, unless `max_side` or `short_side` limits their longer or shorter side.
    Those that are larger are then made smaller (antialiased) and become JPEG files of `quality` (90 by default), with
    colours at half the resolution (4:2:0); so do those that are no JPEG, or are not upright. Grey stays grey, and
    nothing is enlarged.

    With `apply_exif_orientation=False` nothing is put upright, here or by `stoker.images` of the store.

    What cannot be read or decoded stops the preparation or, with `on_error="skip"`, is left out and listed in
    `skipped.jsonl`. Where pictures stay as they are, their headers alone are looked at. `workers` are processes, by
    default as many as there are cores; 0 works in this one.

    A run that was stopped goes on where it was; one with changed pictures makes the pieces that changed; and one that
    has nothing to do looks at names, sizes and times alone. What comes out does not depend on workers or interruptions.
    """
    begin = time.perf_counter()
    target = ImageTarget(Path(out))
    target.check_is_ours()
    if isinstance(source, (str, os.PathLike)) and os.path.realpath(source) == os.path.realpath(out):
        raise ArgumentError(
            f"{out} is both where the pictures are and where they are to go", hint="choose another folder for the store"
        )
    if workers is not None and workers < 0:
        raise ArgumentError(f"workers={workers} is negative", hint="pass a number of processes, or 0 for none")
    is_smaller = max_side is not None or short_side is not None
    if quality is not None and not is_smaller:
        raise ArgumentError(
            f"quality={quality} is for pictures that are made smaller, and these stay as they are",
            hint="pass max_side= or short_side= with it (--max-side, --short-side)",
        )
    asked = checked_piece_bytes(piece_bytes)
    settings = ImageSettings(
        max_side=max_side,
        short_side=short_side,
        quality=(QUALITY if quality is None else quality) if is_smaller else None,
        encoder=encoder() if is_smaller else None,
        on_error=on_error,
        apply_exif_orientation=apply_exif_orientation is not False,
        piece_bytes=asked or 1,
    )
    stock = Stock(open_pictures(source, **options), source)
    if apply_exif_orientation is None:  # a store is made into another as it is
        prepared = getattr(stock.pictures, "apply_exif_orientation", True)
        settings = replace(settings, apply_exif_orientation=prepared)
    if asked is None:
        # one that was chosen stays, or a picture more could change it, and all pieces with it
        settings = replace(settings, piece_bytes=target.known_piece_bytes() or fitting_piece_bytes(stock.num_bytes))
    classes = stock.pictures.classes
    meta = {
        "kind": KIND,
        "settings": settings.to_meta(),
        # a name that is not text would not be JSON either
        "classes": None if classes is None else [printable(os.fsencode(name)) for name in classes],
        "origin": {"inputs": stock.inputs(), "digest": stock.digest, "code": CODE},
    }
    if target.is_fresh(meta):
        return replace(target.report(seconds=time.perf_counter() - begin), is_up_to_date=True)
    num_workers = machine.num_cores() if workers is None else workers
    preparation = _Preparation(target, settings, stock, num_workers=num_workers, watch=watch)
    with locked(target.unfinished) as lock:
        target.clear_up()
        try:
            preparation.run(meta, lock)
        except OSError as error:
            if error.errno in _FULL:
                error.add_note("what was finished is kept")
                error.add_note("hint: free space on the disk and run the same command again: it goes on where it was")
            raise
    return preparation.report(begin)


class _Preparation:
    """One run that has something to do."""

    def __init__(
        self, target: ImageTarget, settings: ImageSettings, stock: Stock, *, num_workers: int, watch: Watch | None
    ) -> None:
        self._target, self._settings, self._stock = target, settings, stock
        self._num_workers, self._watch = num_workers, watch
        self._num_made = self._num_pieces = self._num_removed = 0

    def run(self, meta: dict[str, Any], lock: Lock) -> None:
        """Make what is not there, and then the store."""
        target, settings, stock = self._target, self._settings, self._stock
        target.keep_run(settings.piece_bytes)
        build = Build(target.path, columns_for(stock.pictures.labels))
        pieces, notes = self._made(build, stock.pieces(settings.piece_bytes, settings.to_key()), lock)
        self._num_pieces = len(pieces)
        counts = {name: sum(noted[name] for noted in notes) for name in notes[0] if name != "skipped"}
        reasons: Counter[str] = Counter()
        for noted in notes:
            reasons.update(noted["skipped"]["reasons"])
        skipped = reasons.total()
        if not counts["pictures"]:
            raise DataError(
                f"none of {len(stock):,} pictures could be used ({dict(reasons)})\n"
                "hint: `stoker verify images` tells what is wrong with them"
            )
        target.write_ledger(ledger_of(notes))
        before = target.piece_keys()
        counts_meta = counts | {"skipped": skipped, "reasons": dict(sorted(reasons.items()))}
        build.finish([piece.key for piece in pieces], meta=meta | {"counts": counts_meta})
        self._num_removed = len(before - target.piece_keys())

    def report(self, begin: float) -> ImageReport:
        """Return what is there now, what of it was made, and what the pictures cost before and now."""
        report = self._target.report(seconds=time.perf_counter() - begin)
        return replace(
            report,
            num_pieces=self._num_pieces,
            num_made=self._num_made,
            num_removed=self._num_removed,
            before=cost_of(self._stock.pictures),
            after=cost_of(open_pictures(self._target.path)),
        )

    def _made(
        self, build: Build, planned: Sequence[PicturePiece], lock: Lock
    ) -> tuple[list[PicturePiece], list[dict[str, Any]]]:
        """Return the pieces and the notes of each, when all are there."""
        notes: dict[str, dict[str, Any]] = {}
        pieces: list[PicturePiece] = []
        for piece in planned:
            record = build.record(piece.key)
            if record is not None and self._settings.on_error == "raise" and record["notes"]["skipped"]["count"]:
                # A piece from which something was left out is of no use where nothing may be. It is made again under
                # another name: the store that is there keeps its shards when this fails.
                piece = replace(piece, key=key_of(piece.key, "nothing left out"))
                record = build.record(piece.key)
            if record is not None:
                notes[piece.key] = record["notes"]
            pieces.append(piece)
        # the largest first, so that all end at about the same time
        jobs = sorted((piece for piece in pieces if piece.key not in notes), key=lambda job: -job.num_bytes)
        work = ImageWork(build=build, settings=self._settings, stock=self._stock)
        num_bytes = sum(job.num_bytes for job in jobs)
        done = Counter[str]()

        def tell(counts: Sequence[int] = (0,) * NUM_COUNTS) -> None:
            if self._watch is not None:
                so_far = done + Counter(dict(zip(("pictures", "image_bytes", "num_read"), counts, strict=True)))
                self._watch(
                    Progress(
                        stage="pictures",
                        num_read=so_far["num_read"],
                        num_bytes=num_bytes,
                        documents=so_far["pictures"],
                        pieces_done=so_far["pieces"],
                        num_pieces=len(jobs),
                    )
                )

        if jobs:
            tell()
        num_workers = min(self._num_workers, len(jobs))
        described = PicturePiece.described
        with WorkerPool(work, num_workers=num_workers, described=described, watch=tell, begin=lock.leave) as crew:
            for number, noted in crew.results(jobs):
                notes[jobs[number].key] = noted
                done.update(pictures=noted["pictures"], num_read=jobs[number].num_bytes, pieces=1)
                self._num_made += 1
                tell()
        return pieces, [notes[piece.key] for piece in pieces]
