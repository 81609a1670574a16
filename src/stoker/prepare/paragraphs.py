"""Documents out of plain text in which blank lines stand between them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.prepare.batch import (
    BATCH_BYTES,
    MAX_DOCUMENT_BYTES,
    NOT_UTF8,
    TOO_LARGE,
    Batch,
    Gathered,
    not_utf8,
    too_large,
)
from stoker.prepare.lines import lines_of
from stoker.prepare.pieces import Piece
from stoker.prepare.skips import Skips

_BLANK_LINE = re.compile(rb"^[ \t\r\v\f]*\n", re.MULTILINE)


def from_paragraphs(piece: Piece, skips: Skips) -> Iterator[Batch]:
    """Yield the texts between blank lines. A paragraph belongs to where the blank line just before it begins."""
    stop = piece.stop
    batch = Gathered()
    parts: list[bytes] = []
    is_ours = not piece.start
    size = begin = 0
    for lines in lines_of(piece, skips, stop=None):
        raw, at = lines.raw, 0
        if not is_ours and stop is not None and lines.byte >= stop:
            break
        for blank in _BLANK_LINE.finditer(raw):
            if is_ours:
                parts.append(raw[at : blank.start()])
                batch.add(_paragraph(parts, begin, skips))
            parts, size, at = [], 0, blank.end()
            # the file's first line begins at 0, also where a byte order mark was taken off it
            begin, place = lines.byte + at, lines.byte + blank.start() if blank.start() or lines.line != 1 else 0
            is_ours = stop is None or place < stop
            if not is_ours:
                yield batch.taken(piece.num_bytes)
                return
            if batch.num_bytes >= BATCH_BYTES:
                yield batch.taken(min(piece.num_bytes, lines.byte + at - piece.start))
        if is_ours:
            parts.append(raw[at:])
            size += len(raw) - at
            if size > MAX_DOCUMENT_BYTES:
                skips.note(TOO_LARGE, too_large("the paragraph"), byte=begin)
                parts, is_ours = [], False
    if is_ours:
        batch.add(_paragraph(parts, begin, skips))
    yield batch.taken(piece.num_bytes)


def _paragraph(parts: list[bytes], begin: int, skips: Skips) -> tuple[str, int] | None:
    raw = b"".join(parts).removesuffix(b"\n").removesuffix(b"\r")
    if not raw.strip():
        return None
    try:
        return raw.decode(), len(raw)
    except UnicodeDecodeError as error:
        skips.note(NOT_UTF8, not_utf8(error), byte=begin)
        return None
