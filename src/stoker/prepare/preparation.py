"""From text to tokens: what is there already, what has to be made, and who makes it."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from stoker.errors import ArgumentError, DataError
from stoker.foundation import machine
from stoker.prepare.choice import Backend, Choice, Findings, inspected, library_versions, settled
from stoker.prepare.encoding import COLUMN, Encoding
from stoker.prepare.inputs import Input, Paths, found, identified
from stoker.prepare.pieces import Piece, key_of, planned
from stoker.prepare.report import Progress, Report, Stage, Watch
from stoker.prepare.settings import CODE, Documents, OnError, Settings, fitting_piece_bytes
from stoker.prepare.shuffling import Share, Shuffling, shares
from stoker.prepare.skips import ledger
from stoker.prepare.target import Target
from stoker.prepare.worker_pool import NUM_COUNTS, Cell, WorkerPool
from stoker.store import Build, Column
from stoker.store.lock import Lock, locked

J = TypeVar("J", Piece, Share)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def tokens(
    inputs: Paths,
    *,
    tokenizer: str | os.PathLike[str],
    out: str | os.PathLike[str],
    text_column: str = "text",
    documents: Documents = "file",
    end_of_document: bool | str | int = True,
    on_error: OnError = "raise",
    shuffle: int | None = None,
    workers: int | None = None,
    piece_bytes: int | None = None,
    backend: Backend = "auto",
    pattern: str | None = None,
    watch: Watch | None = None,
) -> Report:
    """Turn text into a store of tokens at `out`, and return what became of it.

    `inputs` are files, patterns and folders of Parquet, JSONL, plain text or Arrow; JSONL and text may be compressed.
    They are taken in natural order of their paths. Each document is one sample of the column `tokens`.

    `text_column` is the column or field with the text; dots lead into nested ones. `documents` says what a document of
    plain text is. `end_of_document` is whether a token ends each document, or which one. What cannot be used stops the
    preparation or, with `on_error="skip"`, is left out and listed in `skipped.jsonl`. `shuffle` is the seed of a random
    order of all documents. `workers` are processes, by default as many as there are cores; 0 works in this one.

    Pieces of about `piece_bytes` of input are made one by one; by default as large as those that are at `out` already,
    or else as fits the inputs. A run that was stopped goes on where it was; one with changed inputs makes the pieces
    that changed; and one that has nothing to do looks at sizes and times alone. What comes out depends on inputs,
    tokenizer and settings, never on workers or interruptions, down to the last byte.
    """
    begin = time.perf_counter()
    target = Target(Path(out))
    target.check_is_ours()
    files = found(inputs, without=target.path)
    if workers is not None and workers < 0:
        raise ArgumentError(f"workers={workers} is negative", hint="pass a number of processes, or 0 for none")
    num_workers = machine.num_cores() if workers is None else workers
    settings = Settings(
        text_column=text_column,
        documents=documents,
        end_of_document=end_of_document is not False,
        shuffle=shuffle,
        on_error=on_error,
        piece_bytes=_piece_bytes(piece_bytes, target, files),
    )
    choice = Choice(
        spec=os.fspath(tokenizer),
        end_of_document=None if isinstance(end_of_document, bool) else end_of_document,
        backend=backend,
        pattern=pattern,
    )
    findings = inspected(choice, is_away=num_workers > 0)
    if settings.end_of_document and findings.identity.end_of_document is None:
        raise ArgumentError(
            f"the tokenizer {tokenizer} names no token that ends a document",
            hint="choose one: --end-of-document TEXT (end_of_document= in Python), or do without: "
            "--no-end-of-document (end_of_document=False)",
        )
    meta = {
        "tokenizer": findings.identity.to_meta(),
        "settings": settings.to_meta(),
        "origin": {"inputs": [entry.to_meta() for entry in files], "code": CODE},
    }
    if target.is_fresh(meta):
        target.end_generations()
        report = target.report(seconds=time.perf_counter() - begin, findings=findings)
        return replace(report, is_up_to_date=True)
    preparation = _Preparation(target, settings, choice, findings, num_workers=num_workers, watch=watch)
    with locked(target.unfinished) as lock:
        target.clear_up()
        # it may have been stopped between its last two steps
        if target.is_fresh(meta, is_settled=False):
            target.keep_tokenizer(choice.spec, findings.identity)  # a run with another may have left its own here
            if target.finish_again():
                return target.report(seconds=time.perf_counter() - begin, findings=findings)
        try:
            preparation.run(files, lock)
        except OSError as error:
            if error.errno in _FULL:
                error.add_note("what was finished is kept")
                error.add_note("hint: free space on the disk and run the same command again: it goes on where it was")
            raise
    return preparation.report(seconds=time.perf_counter() - begin)


def _piece_bytes(asked: int | None, target: Target, files: Sequence[Input]) -> int:
    """Return the size of pieces. One that was chosen stays, or a file more could change it, and all pieces with it."""
    if asked is not None:
        return asked
    return target.known_piece_bytes() or fitting_piece_bytes(files)


class _Preparation:
    """One run that has something to do."""

    def __init__(
        self,
        target: Target,
        settings: Settings,
        choice: Choice,
        findings: Findings,
        *,
        num_workers: int,
        watch: Watch | None,
    ) -> None:
        self._target, self._settings, self._choice, self._findings = target, settings, choice, findings
        self._num_workers, self._watch = num_workers, watch
        self._columns = {COLUMN: Column.ragged(findings.identity.dtype)}
        self._num_made = self._made_bytes = self._num_pieces = self._num_removed = 0

    def run(self, files: Sequence[Input], lock: Lock) -> None:
        """Make what is not there, and then the store."""
        target, settings = self._target, self._settings
        identity = self._findings.identity
        target.keep_run(settings, identity)
        files = self._identified(files)
        end = identity.end_of_document if settings.end_of_document else None
        pieces: Sequence[Piece] = planned(files, settings, tokenizer=[identity.digest, identity.vocab_size, end])
        is_shuffled = settings.shuffle is not None
        build = Build(target.unshuffled if is_shuffled else target.path, self._columns)
        self._num_pieces = len(pieces)
        pieces, notes = self._encoded(build, pieces, lock)
        counts = {name: sum(noted[name] for noted in notes) for name in ("documents", "tokens", "text_bytes")}
        counts["skipped"] = sum(noted["skipped"]["count"] for noted in notes)
        if not counts["documents"]:
            raise DataError(
                f"there is no document in the inputs ({len(files)} files, {counts['skipped']} skipped)\n"
                "hint: check --text-column and --documents; --on-error raise stops at the first that cannot be used"
            )
        entries = ledger((piece.inputs, noted["skipped"]) for piece, noted in zip(pieces, notes, strict=True))
        keys = [piece.key for piece in pieces]
        if is_shuffled:
            build.finish(keys, meta={})
            build, keys = self._shuffled(keys, counts, lock)
        target.write_ledger(list(entries))
        target.keep_tokenizer(self._choice.spec, identity)
        reasons: Counter[str] = Counter()
        for noted in notes:
            reasons.update(noted["skipped"]["reasons"])
        meta = {
            "tokenizer": identity.to_meta(),
            "settings": settings.to_meta(),
            "origin": {
                "inputs": [entry.to_meta() for entry in files],
                "code": CODE,
                "libraries": library_versions(identity),
            },
            "counts": counts | {"reasons": dict(sorted(reasons.items()))},
        }
        before = target.piece_keys()
        build.finish(keys, meta=meta, keeps_read=True)
        self._num_removed = len(before - target.piece_keys())

    def report(self, *, seconds: float) -> Report:
        """Return what is there now, and what of it was made."""
        report = self._target.report(seconds=seconds, findings=self._findings)
        return replace(
            report,
            num_pieces=self._num_pieces,
            num_made=self._num_made,
            num_removed=self._num_removed,
            made_bytes=self._made_bytes,
        )

    def _identified(self, files: Sequence[Input]) -> tuple[Input, ...]:
        num_bytes = sum(entry.num_bytes for entry in files)

        def tell(num_read: int) -> None:
            if self._watch is not None:
                self._watch(Progress(stage="hashing", num_read=num_read, num_bytes=num_bytes))

        done = identified(files, self._target.known_inputs(), tell=tell)
        self._target.keep_inputs(done)
        return done

    def _encoded(self, build: Build, planned: Sequence[Piece], lock: Lock) -> tuple[list[Piece], list[dict[str, Any]]]:
        """Return the pieces and the notes of each, when all are there."""
        notes: dict[str, dict[str, Any]] = {}
        pieces: list[Piece] = []
        for piece in planned:
            record = build.record(piece.key)
            if record is not None and self._settings.on_error == "raise" and record["notes"]["skipped"]["count"]:
                # A piece from which something was left out is of no use where nothing may be. It is made again to meet
                # that, and under another name: the store that is there keeps its shards when this fails.
                piece = replace(piece, key=key_of(piece.key, "nothing left out"))
                record = build.record(piece.key)
            if record is not None:
                notes[piece.key] = record["notes"]
            pieces.append(piece)
        missing = [piece for piece in pieces if piece.key not in notes]
        if missing:
            is_away = self._num_workers > 0
            choice, self._findings = settled(self._choice, missing, self._settings, is_away=is_away)
            work = Encoding(build=build, settings=self._settings, choice=choice, identity=self._findings.identity)

            def note(piece: Piece, noted: dict[str, Any]) -> None:
                notes[piece.key] = noted
                self._made_bytes += noted["text_bytes"]

            self._make(missing, work, note, stage="tokenizing", lock=lock, described=Piece.described)
        return pieces, [notes[piece.key] for piece in pieces]

    def _shuffled(self, keys: Sequence[str], counts: dict[str, int], lock: Lock) -> tuple[Build, list[str]]:
        settings, target = self._settings, self._target
        assert settings.shuffle is not None
        build = Build(target.path, self._columns)
        found = shares(
            keys,
            num_documents=counts["documents"],
            text_bytes=counts["text_bytes"],
            piece_bytes=settings.piece_bytes,
            seed=settings.shuffle,
        )
        self._num_pieces += len(found)
        missing = [share for share in found if build.record(share.key) is None]
        work = Shuffling(build, source=target.unshuffled, num_documents=counts["documents"], seed=settings.shuffle)
        self._make(missing, work, None, stage="shuffling", lock=lock, described=_described_share)
        return build, [share.key for share in found]

    def _make(
        self,
        jobs: Sequence[J],
        work: Callable[[J, Cell], dict[str, Any]],
        note: Callable[[J, dict[str, Any]], None] | None,
        *,
        stage: Stage,
        lock: Lock,
        described: Callable[[J], str],
    ) -> None:
        """Do all jobs; `note` is called with each of them and its notes when it is done."""
        # the largest first, so that all end at about the same time
        jobs = sorted(jobs, key=lambda job: -job.num_bytes)
        num_bytes = sum(job.num_bytes for job in jobs)
        done = Counter[str]()

        def tell(counts: Sequence[int] = (0,) * NUM_COUNTS) -> None:
            if self._watch is not None:
                so_far = done + Counter(dict(zip(("documents", "tokens", "num_read"), counts, strict=True)))
                self._watch(
                    Progress(
                        stage=stage,
                        num_read=so_far["num_read"],
                        num_bytes=num_bytes,
                        documents=so_far["documents"],
                        tokens=so_far["tokens"],
                        pieces_done=so_far["pieces"],
                        num_pieces=len(jobs),
                    )
                )

        tell()
        num_workers = min(self._num_workers, len(jobs))
        with WorkerPool(work, num_workers=num_workers, described=described, watch=tell, begin=lock.leave) as crew:
            for number, noted in crew.results(jobs):
                size = jobs[number].num_bytes
                done.update(documents=noted["documents"], tokens=noted["tokens"], num_read=size, pieces=1)
                self._num_made += 1
                if note is not None:
                    note(jobs[number], noted)
                tell()


def _described_share(share: Share) -> str:
    return f"the piece of shuffled documents {share.start} to {share.stop}"
