"""What somebody expects of a store, compared with what it was made with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError, StoreMismatch
from stoker.store.manifest import Manifest

_MISSING = "nothing of the kind"


def check_expectations(path: Path, manifest: Manifest, expect: Mapping[str, Any]) -> None:
    """Raise `StoreMismatch` unless all that is expected holds.

    A key is `columns` (`{"columns": {"tokens": "uint16[*]"}}`), `num_samples`, or is looked up in the store's meta, in
    dots (`"settings.shuffle"`), then among its settings and its tokenizer's properties. Tables are compared by the keys
    that are expected. `tokenizer` may be the path of a tokenizer file: its content must be the one that was used.
    """
    differences: dict[str, tuple[Any, Any]] = {}
    for key, expected in expect.items():
        found: list[dict[str, tuple[Any, Any]]] = []
        for candidate in _found(manifest, key):
            found.append({})
            _compare(key, expected, candidate, found[-1])
        if all(found):
            differences |= found[0]
    if differences:
        raise StoreMismatch(path, differences)


def _found(manifest: Manifest, key: str) -> list[Any]:
    """Return what may be meant: `end_of_document` is whether there is one among the settings, and which one it is."""
    if key == "num_samples":
        return [manifest.num_samples]
    if key == "columns":
        return [{name: column.described() for name, column in manifest.columns.items()}]
    meta = manifest.meta
    candidates = []
    for table in (meta, meta.get("settings"), meta.get("tokenizer")):
        found: Any = table
        for name in key.split("."):
            found = found.get(name, _MISSING) if isinstance(found, Mapping) else _MISSING
        if found is not _MISSING:
            candidates.append(found)
    return candidates or [_MISSING]


def _compare(key: str, expected: Any, found: Any, differences: dict[str, tuple[Any, Any]]) -> None:
    if key == "tokenizer" and isinstance(expected, str | os.PathLike) and isinstance(found, Mapping):
        expected, found = _tokenizers(expected, found)
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for name, value in expected.items():
            _compare(f"{key}.{name}", value, found.get(name, _MISSING), differences)
    elif _plain(expected) != _plain(found) or isinstance(expected, bool) != isinstance(found, bool):
        differences[key] = (expected, found)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _tokenizers(expected: str | os.PathLike[str], found: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what to compare when a tokenizer is expected by name, or by the file that it is in."""
    path = Path(expected)
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.is_file():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return f"{path} ({digest[:16]}...)", (
            f"{path} ({digest[:16]}...)"
            if digest in (found.get("file_digest"), found.get("digest"))
            else f"{found.get('name')} ({str(found.get('digest'))[:16]}...)"
        )
    name = os.fspath(expected)
    if isinstance(expected, os.PathLike) or "/" in name or path.suffix in (".json", ".model", ".tiktoken"):
        raise ArgumentError(
            f"the tokenizer that is expected cannot be looked at: there is no {path.absolute()}",
            hint="pass the path of the tokenizer's file; of 'bytes', the word",
        )
    return name, found.get("name", _MISSING)
