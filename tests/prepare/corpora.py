"""Small inputs of every kind, and what is in a store."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import stoker
from stoker.prepare.documents import read_documents
from stoker.prepare.inputs import find_inputs, identify_inputs
from stoker.prepare.pieces import plan_pieces
from stoker.prepare.settings import TokenSettings
from stoker.prepare.skips import Skips

END = 256
"""What ends a document where the tokenizer is `bytes`."""


def write_jsonl(path: Path, texts: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts)))
    return path


def write_parquet(path: Path, texts: Sequence[Any], *, row_group_size: int = 4, column: str = "text") -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": list(range(len(texts))), column: texts}), path, row_group_size=row_group_size)
    return path


def write_arrow(path: Path, texts: Sequence[Any], *, batch_rows: int = 3) -> Path:
    import pyarrow as pa

    table = pa.table({"text": texts})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return path


def write_gzip(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def texts_in(paths: Any, **options: Any) -> list[str]:
    """Return all documents of the inputs, read piece by piece; what cannot be used raises or is left out."""
    return read(paths, **options)[0]


def read(paths: Any, **options: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Return all documents, and the notes on what was left out of each piece."""
    settings = TokenSettings(**options)
    texts, notes = [], []
    for piece in plan_pieces(identify_inputs(find_inputs(paths), ()), settings, tokenizer="none"):
        skips = Skips(piece.inputs, raises=settings.on_error == "raise")
        for batch in read_documents(piece, settings, skips):
            assert batch.texts
            assert batch.num_bytes == sum(len(text.encode()) for text in batch.texts)
            assert batch.num_read <= piece.num_bytes
            texts += batch.texts
        notes.append(skips.to_notes())
    return texts, notes


def decoded(path: Path) -> list[str]:
    """Return the documents of a store that was made with the tokenizer `bytes`."""
    store = stoker.Store(path)
    samples = [sample["tokens"] for sample in store.__getitems__(range(len(store)))]
    assert all(sample[-1] == END and sample.dtype == np.uint16 for sample in samples)
    return [sample[:-1].astype(np.uint8).tobytes().decode() for sample in samples]


def contents(path: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
