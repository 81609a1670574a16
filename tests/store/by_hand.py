"""Stores written by other code than the library's, from what the format says: right ones, and such as lie."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from stoker.store.manifest import signed

BLOCK = 65536
CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "int32": "I32",
    "int64": "I64",
    "uint64": "U64",
    "float32": "F32",
}

Edit = Callable[[dict[str, Any]], Any]


def tokens_column() -> dict[str, Any]:
    return {"tokens": {"dtype": "uint16", "shape": [], "ragged": True, "kind": "array"}}


def head_of(table: Mapping[str, Any]) -> bytes:
    """The header of a file, and its length, padded so that what follows begins at a block."""
    text = json.dumps(table).encode()
    num_bytes = -(-(8 + len(text)) // BLOCK) * BLOCK - 8
    return num_bytes.to_bytes(8, "little") + text.ljust(num_bytes)


def shard(arrays: Mapping[str, NDArray[Any]], *, edit: Edit | None = None) -> tuple[bytes, dict[str, Any]]:
    """A shard's bytes, and what a manifest says of them. `edit` may change the header; the checksums are right."""
    content = b"".join(array.tobytes() for array in arrays.values())
    blocks = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)]
    sums = np.zeros(-(-len(blocks) // 8192) * 8192, "<u8")
    sums[: len(blocks)] = [xxhash.xxh3_64_intdigest(block) for block in blocks]
    table: dict[str, Any] = {"__metadata__": {"format": "stoker.shard", "version": "1", "block_bytes": str(BLOCK)}}
    at = 0
    for name, array in {"stoker.checksums": sums, **arrays}.items():
        table[name] = {
            "dtype": CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    if edit is not None:
        edit(table)
    before = head_of(table) + sums.tobytes()
    entry = {
        "num_bytes": len(before) + len(content),
        "body": len(before),
        "digest": f"{xxhash.xxh3_64_intdigest(before):016x}",
    }
    return before + content, entry


def of_tokens(values: Any, offsets: Any) -> dict[str, NDArray[Any]]:
    """The arrays of a shard of tokens."""
    return {"tokens.offsets": np.array(offsets, "<i8"), "tokens": np.array(values, "<u2")}


def write(
    folder: Path,
    shards: Sequence[Mapping[str, NDArray[Any]]],
    *,
    columns: Mapping[str, Any] | None = None,
    edit_header: Edit | None = None,
    edit_entry: Edit | None = None,
    edit_manifest: Edit | None = None,
) -> Path:
    """Write a store of shards, tokens unless `columns` says otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = columns or tokens_column()
    entries = []
    for number, arrays in enumerate(shards):
        data, entry = shard(arrays, edit=edit_header)
        entry |= {"file": f"s{number}.safetensors", "piece": "p"}
        entry["values"] = {name: len(arrays[name]) for name, column in columns.items() if column["ragged"]}
        first = next(iter(columns))
        entry["num_samples"] = (
            len(arrays[f"{first}.offsets"]) - 1 if columns[first]["ragged"] else len(next(iter(arrays.values())))
        )
        (folder / entry["file"]).write_bytes(data)
        if edit_entry is not None:
            edit_entry(entry)
        entries.append(entry)
    table = {
        "format": "stoker.store",
        "version": 1,
        "num_samples": sum(entry["num_samples"] for entry in entries),
        "columns": columns,
        "meta": {},
        "shards": entries,
    }
    if edit_manifest is not None:
        edit_manifest(table)
    write_manifest(folder, table)
    return folder


def write_manifest(folder: Path, table: Mapping[str, Any]) -> None:
    """Write a manifest with the checksum of its text."""
    unsigned = {name: value for name, value in table.items() if name != "checksum"}
    (folder / "manifest.json").write_bytes(signed(json.dumps(unsigned).encode()[:-1] + b",\n"))
