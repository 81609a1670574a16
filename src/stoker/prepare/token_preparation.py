"""Prepare text as tokens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError, DataError
from stoker.prepare.inputs import Input, Paths, find_inputs, identify_inputs
from stoker.prepare.piece_run import PieceRun, checked_workers, count_skips, start_run
from stoker.prepare.pieces import Piece, plan_pieces
from stoker.prepare.report import PreparationProgress, TokensReport, Watch
from stoker.prepare.settings import CODE, Documents, OnError, TokenSettings, choose_piece_bytes
from stoker.prepare.skips import ledger_entries
from stoker.prepare.store_target import TokenTarget
from stoker.prepare.token_work import COLUMN, Shuffling, TokenWork, plan_shuffled_pieces
from stoker.prepare.tokenizers import (
    Backend,
    TokenizerChoice,
    TokenizerFacts,
    compare_on_inputs,
    identify_tokenizer,
    library_versions,
)
from stoker.prepare.worker_pool import Cell
from stoker.store import Build, Column


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
) -> TokensReport:
    """Turn text into a store of tokens at `out`, and return a summary.

    `inputs` are files, patterns and folders of Parquet, JSONL, plain text or Arrow; JSONL and text may be compressed.
    They are read in natural order of their paths. Each document is one sample of the column `tokens`.

    `text_column` is the column or field with the text; dots separate the names of nested ones. `documents` is what one
    document of plain text is. `end_of_document` is whether a token ends each document, or which one. Unusable input
    raises an error or, with `on_error="skip"`, is left out and listed in `skipped.jsonl`. `shuffle` is the seed of a
    random order of all documents. `workers` is the number of processes, by default one per core; 0 works in this one.

    The inputs are processed in pieces of about `piece_bytes`; by default as large as those in an existing store at
    `out`, otherwise chosen by the size of the inputs. An interrupted run continues where it stopped; changed inputs
    rebuild only the pieces they are in; without changes, only sizes and times are read. The result depends on inputs,
    tokenizer and settings, never on workers or interruptions, down to the last byte.
    """
    begin = time.perf_counter()
    target = TokenTarget(Path(out))
    target.check_is_ours()
    files = find_inputs(inputs, without=target.path)
    num_workers = checked_workers(workers)
    if piece_bytes is None:
        # Keep the size of an existing store: one more file could change the default, and with it every piece.
        piece_bytes = target.known_piece_bytes() or choose_piece_bytes(sum(entry.num_bytes for entry in files))
    settings = TokenSettings(
        text_column=text_column,
        documents=documents,
        end_of_document=end_of_document is not False,
        shuffle=shuffle,
        on_error=on_error,
        piece_bytes=piece_bytes,
    )
    choice = TokenizerChoice(
        spec=os.fspath(tokenizer),
        end_of_document=None if isinstance(end_of_document, bool) else end_of_document,
        backend=backend,
        pattern=pattern,
    )
    facts = identify_tokenizer(choice, in_child=num_workers > 0)
    if settings.end_of_document and facts.identity.end_of_document is None:
        raise ArgumentError(
            f"the tokenizer {tokenizer} has no token that ends a document",
            hint="choose one with --end-of-document TEXT (end_of_document= in Python), or use --no-end-of-document "
            "(end_of_document=False)",
        )
    meta = {
        "tokenizer": facts.identity.to_meta(),
        "settings": settings.to_meta(),
        "origin": {"inputs": [entry.to_meta() for entry in files], "code": CODE},
    }

    def report(**more: Any) -> TokensReport:
        return TokensReport(
            **target.report_facts() | {"backend": facts.backend, "fallback_reason": facts.fallback_reason} | more,
            seconds=time.perf_counter() - begin,
        )

    if target.is_fresh(meta):
        target.end_generations()
        return report(is_up_to_date=True)
    with start_run(target, num_workers=num_workers, watch=watch) as run:
        if target.is_fresh(meta, is_settled=False):  # the run before was killed between its last two steps
            target.keep_tokenizer(choice.spec, facts.identity)  # a run with another may have left its own here
            if target.finish_again():
                return report()
        preparation = _TokenPreparation(target, settings, choice, facts, run, watch)
        preparation.run(files)
    facts = preparation.facts
    return report(
        num_pieces=run.num_pieces,
        num_made=run.num_made,
        num_removed=run.num_removed,
        made_bytes=preparation.made_bytes,
    )


class _TokenPreparation:
    """A preparation that has something to do."""

    def __init__(
        self,
        target: TokenTarget,
        settings: TokenSettings,
        choice: TokenizerChoice,
        facts: TokenizerFacts,
        run: PieceRun,
        watch: Watch | None,
    ) -> None:
        self._target, self._settings, self._choice, self._run, self._watch = target, settings, choice, run, watch
        self.facts = facts
        self.made_bytes = 0
        self._columns = {COLUMN: Column.ragged(facts.identity.dtype)}

    def run(self, files: Sequence[Input]) -> None:
        """Make the missing pieces, then the store."""
        target, settings, identity = self._target, self._settings, self.facts.identity
        target.keep_run(settings.piece_bytes, identity)
        files = self._identified(files)
        end = identity.end_of_document if settings.end_of_document else None
        planned = plan_pieces(files, settings, tokenizer=[identity.digest, identity.vocab_size, end])
        is_shuffled = settings.shuffle is not None
        build = Build(target.unshuffled if is_shuffled else target.path, self._columns)

        def work_for(missing: Sequence[Piece]) -> Callable[[Piece, Cell], dict[str, Any]]:
            in_child = self._run.num_workers > 0
            choice, self.facts = compare_on_inputs(self._choice, missing, settings, in_child=in_child)
            work = TokenWork(build=build, settings=settings, choice=choice, identity=self.facts.identity)
            made.update(piece.key for piece in missing)
            return work

        made: set[str] = set()
        pieces, notes = self._run.complete(build, planned, work_for, stage="tokenizing", on_error=settings.on_error)
        self.made_bytes = sum(noted["text_bytes"] for piece, noted in zip(pieces, notes) if piece.key in made)
        reasons = count_skips(notes)
        counts = {name: sum(noted[name] for noted in notes) for name in ("documents", "tokens", "text_bytes")}
        counts["skipped"] = reasons.total()
        if not counts["documents"]:
            raise DataError(
                f"the inputs contain no documents ({len(files)} files, {counts['skipped']} skipped)\n"
                "hint: check --text-column and --documents; --on-error raise stops at the first unusable input"
            )
        entries = ledger_entries((piece.inputs, noted["skipped"]) for piece, noted in zip(pieces, notes, strict=True))
        keys = [piece.key for piece in pieces]
        if is_shuffled:
            build.finish(keys, meta={})
            build, keys = self._shuffled(keys, counts)
        target.write_ledger(list(entries))
        target.keep_tokenizer(self._choice.spec, identity)
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
        self._run.finish(build, keys, meta=meta, keeps_read=True)

    def _identified(self, files: Sequence[Input]) -> tuple[Input, ...]:
        num_bytes = sum(entry.num_bytes for entry in files)

        def report(num_read: int) -> None:
            if self._watch is not None:
                self._watch(PreparationProgress(stage="hashing", num_read=num_read, num_bytes=num_bytes))

        identified = identify_inputs(files, self._target.known_inputs(), progress=report)
        self._target.keep_inputs(identified)
        return identified

    def _shuffled(self, keys: Sequence[str], counts: dict[str, int]) -> tuple[Build, list[str]]:
        """Write the documents of the unshuffled store in random order; return the build and the keys of its pieces."""
        seed, num_documents = self._settings.shuffle, counts["documents"]
        assert seed is not None
        build = Build(self._target.path, self._columns)
        pieces = plan_shuffled_pieces(
            keys,
            num_documents=num_documents,
            text_bytes=counts["text_bytes"],
            piece_bytes=self._settings.piece_bytes,
            seed=seed,
        )
        self._run.num_pieces += len(pieces)
        missing = [piece for piece in pieces if build.record(piece.key) is None]
        work = Shuffling(build, source=self._target.unshuffled, num_documents=num_documents, seed=seed)
        self._run.make(missing, work, stage="shuffling")
        return build, [piece.key for piece in pieces]
