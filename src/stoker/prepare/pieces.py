"""Cut the inputs into pieces: independent jobs, each of which turns a range of the inputs into shards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from stoker.foundation import machine
from stoker.prepare.arrow_text import ArrowTextFile, Unreadable
from stoker.prepare.inputs import Input
from stoker.prepare.settings import CODE, TokenSettings

_FILE_BYTES = 4096
"""Minimum weight of a file: opening it costs about as much as reading this."""

_MAX_GROUP = 4
"""Maximum size of a group of small files, in sizes of a piece."""

IN_ONE_PIECE = ("csv", "tsv", "json array")
"""Kinds that cannot be split: where a document begins depends on everything before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of the inputs that is one job."""

    inputs: tuple[Input, ...]
    """One file, or several small files that are one document each."""
    start: int = 0
    stop: int | None = None
    """End of the range, in units of `unit`; None: the end of the file."""
    num_bytes: int
    """Size of this part on disk."""
    key: str = ""

    @property
    def unit(self) -> str:
        """Unit of the range."""
        return {"parquet": "row groups", "arrow": "record batches"}.get(self.inputs[0].kind, "bytes")

    def describe(self) -> str:
        """Return which piece it is, for messages."""
        first = self.inputs[0].path
        if len(self.inputs) > 1:
            return f"the piece of {len(self.inputs)} files from {first} to {self.inputs[-1].path}"
        if self.stop is None:
            return f"the piece {first}"
        return f"the piece {first}, {self.unit} {self.start} to {self.stop}"


def plan_pieces(inputs: Sequence[Input], settings: TokenSettings, *, tokenizer: Any) -> tuple[Piece, ...]:
    """Return the pieces of all inputs, in order, each with its key.

    `tokenizer` is a JSON value that changes with the token ids. A key is made of contents, ranges and everything else
    that determines the output: it does not depend on the path or time of a file, the number of workers, or the pieces
    before it. Pieces that are equal in all of this are numbered.
    """
    count: Counter[str] = Counter()
    pieces = []
    for piece in cut_inputs(inputs, settings):
        kind = piece.inputs[0].kind
        parts = [
            CODE,
            tokenizer,
            settings.end_of_document,
            kind,
            settings.documents if kind == "text" else settings.text_column,
            [(entry.digest, entry.compression) for entry in piece.inputs],
            (piece.start, piece.stop),
        ]
        key = key_of(*parts)
        count[key] += 1
        pieces.append(replace(piece, key=key if count[key] == 1 else key_of(*parts, count[key])))
    return tuple(pieces)


def key_of(*parts: Any) -> str:
    """Return a digest of JSON values, as 32 characters."""
    import xxhash

    return str(xxhash.xxh3_128_hexdigest(json.dumps(parts, sort_keys=True).encode()))


def cut_inputs(inputs: Sequence[Input], settings: TokenSettings) -> Iterator[Piece]:
    """Yield the pieces of all inputs, in order, without keys."""
    tables = [entry for entry in inputs if entry.kind in ("parquet", "arrow")]
    with ThreadPoolExecutor(min(8, 2 * machine.num_cores()), thread_name_prefix="stoker-plan") as threads:
        weights = dict(zip(tables, threads.map(lambda entry: _weights(entry, settings.text_column), tables)))
    small: list[Input] = []
    for entry in inputs:
        is_whole_document = entry.kind == "text" and settings.documents == "file"
        if not is_whole_document:
            yield from _groups(small, settings.piece_bytes)
            small.clear()
        if is_whole_document:
            small.append(entry)
        elif entry in weights:
            yield from _by_weight(entry, weights[entry], settings.piece_bytes)
        elif entry.compression is not None or entry.kind in IN_ONE_PIECE or not entry.num_bytes:
            yield Piece(inputs=(entry,), num_bytes=entry.num_bytes)
        else:
            yield from _by_bytes(entry, settings.piece_bytes)
    yield from _groups(small, settings.piece_bytes)


def _by_bytes(entry: Input, piece_bytes: int) -> Iterator[Piece]:
    """Yield equal ranges of a file. Lines and paragraphs belong to the range in which they begin."""
    num_pieces = -(-entry.num_bytes // piece_bytes)
    for number in range(num_pieces):
        start, stop = (entry.num_bytes * at // num_pieces for at in (number, number + 1))
        yield Piece(inputs=(entry,), start=start, stop=stop, num_bytes=stop - start)


def _by_weight(entry: Input, weights: Sequence[int], piece_bytes: int) -> Iterator[Piece]:
    """Yield ranges of whole row groups or record batches. A file that cannot be opened is one piece, which fails."""
    if not weights:
        yield Piece(inputs=(entry,), num_bytes=entry.num_bytes)
        return
    total, bounds, weight = max(1, sum(weights)), [0], 0
    for number, own in enumerate(weights):
        if weight and weight + own > piece_bytes:
            bounds.append(number)
            weight = 0
        weight += own
    bounds.append(len(weights))
    for start, stop in pairwise(bounds):
        before, after = (entry.num_bytes * sum(weights[:at]) // total for at in (start, stop))
        yield Piece(inputs=(entry,), start=start, stop=stop, num_bytes=after - before)


def _groups(files: Iterable[Input], piece_bytes: int) -> Iterator[Piece]:
    """Yield groups of consecutive files of about `piece_bytes` together.

    Where a group ends depends only on the content of the file that begins the next one, so that a file that is added,
    changed or removed changes the groups around it, and not all that follow: a digest, scaled by the size of its file,
    begins a group about every `piece_bytes`.
    """
    group: list[Input] = []
    weight = 0
    for entry in files:
        own = max(_FILE_BYTES, entry.num_bytes)
        begins = int(entry.digest[:16] or "0", 16) * piece_bytes < own << 64
        if group and (begins or weight + own > _MAX_GROUP * piece_bytes):
            yield Piece(inputs=tuple(group), num_bytes=sum(one.num_bytes for one in group))
            group, weight = [], 0
        group.append(entry)
        weight += own
    if group:
        yield Piece(inputs=tuple(group), num_bytes=sum(one.num_bytes for one in group))


def _weights(entry: Input, text_column: str) -> list[int]:
    """Return the approximate size of the text in each row group or record batch; empty if the file cannot be read."""
    try:
        with ArrowTextFile(entry) as file:
            path = file.path_of(text_column)
            return [max(1, file.num_bytes(number, path)) for number in range(file.num_parts)]
    except Unreadable:
        return []
