"""Compare the expected settings of a store with its manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError, StoreMismatch
from stoker.store.manifest import Manifest

_MISSING = "missing"


def check_expectations(path: Path, manifest: Manifest, expect: Mapping[str, Any]) -> None:
    """Raise `StoreMismatch` unless all that is expected holds.

    A key is `columns` (`{"columns": {"tokens": "uint16[*]"}}`), `num_samples`, or a name in the store's meta (nested
    names with dots: `"settings.shuffle"`), its settings or its tokenizer's properties. Dicts are compared by the
    expected keys only. `tokenizer` may be the path of a tokenizer file, whose content must be the one that was used.
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
    """Return the values a key may mean: `end_of_document` is a bool in the settings and an id in the tokenizer."""
    if key == "num_samples":
        return [manifest.num_samples]
    if key == "columns":
        return [{name: column.described() for name, column in manifest.columns.items()}]
    meta = manifest.meta
    candidates = []
    for values in (meta, meta.get("settings"), meta.get("tokenizer")):
        found: Any = values
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
    """Return what to compare if a tokenizer is expected by name, or by the path of its file."""
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
            f"the expected tokenizer {path.absolute()} does not exist",
            hint="pass the path of its file, or the word 'bytes'",
        )
    return name, found.get("name", _MISSING)
