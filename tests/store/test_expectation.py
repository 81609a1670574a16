"""What somebody expects of a store."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import StoreMismatch
from stoker.store import Column, Store, Writer, open_store

TOKENIZER = b'{"model": "bpe"}'
META = {
    "tokenizer": {
        "kind": "huggingface",
        "name": "tokenizer.json",
        "digest": hashlib.sha256(TOKENIZER).hexdigest(),
        "vocab_size": 100,
        "specials": {"<|end|>": 99},
    },
    "settings": {"end_of_document": True, "shuffle": None, "sizes": [1, 2]},
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with Writer(tmp_path / "s", {"tokens": Column.ragged("uint16"), "x": Column("int8", (2,))}, meta=META) as writer:
        writer.append({"tokens": [1], "x": [1, 2]})
    return open_store(tmp_path / "s")


@pytest.mark.parametrize(
    "expected",
    [
        {},
        {"settings": {"shuffle": None}},
        {"settings.end_of_document": True, "tokenizer.vocab_size": 100},
        {"end_of_document": True, "vocab_size": 100, "sizes": (1, 2)},
        {"tokenizer": {"specials": {"<|end|>": 99}}},
        {"tokenizer": {"name": "tokenizer.json"}},
        {"columns": {"tokens": "uint16[*]"}, "num_samples": 1},
    ],
)
def test_what_holds_is_accepted(store: Store, expected: dict[str, Any]) -> None:
    store.expect(expected)


@pytest.mark.parametrize(
    ("expected", "shown"),
    [
        ({"shuffle": 5}, "\n  shuffle: expected 5, the store has None\nhint: prepare it again"),
        ({"settings": {"shuffle": 5, "new": 1}}, "settings.new: expected 1, the store has 'missing'"),
        ({"color": "red"}, "color: expected 'red', the store has 'missing'"),
        ({"tokenizer": {"vocab_size": 50257}}, "tokenizer.vocab_size: expected 50257, the store has 100"),
        ({"tokenizer": "bytes"}, "tokenizer: expected 'bytes', the store has 'tokenizer.json'"),
        ({"columns": {"tokens": "uint32[*]"}}, "columns.tokens: expected 'uint32\\[\\*\\]', the store has 'uint16"),
        ({"columns": {"labels": "uint8"}}, "columns.labels: expected 'uint8', the store has 'missing'"),
        ({"num_samples": 2}, "num_samples: expected 2, the store has 1"),
        ({"settings": 5}, "settings: expected 5, the store has {"),
    ],
)
def test_what_does_not_hold_is_reported(store: Store, expected: dict[str, Any], shown: str) -> None:
    with pytest.raises(StoreMismatch, match=shown) as caught:
        store.expect(expected)
    assert str(caught.value).startswith(f"{store.path} was prepared with other settings than expected:")
    assert pickle.loads(pickle.dumps(caught.value)).differences == caught.value.differences


def test_all_differences_are_told_at_once(store: Store) -> None:
    with pytest.raises(StoreMismatch) as caught:
        store.expect({"shuffle": 5, "num_samples": 2, "vocab_size": 100})
    assert caught.value.differences == {"shuffle": (5, None), "num_samples": (2, 1)}


def test_a_tokenizer_is_expected_by_its_file(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "renamed.json"
    path.write_bytes(TOKENIZER)
    store.expect({"tokenizer": path})
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "tokenizer.json").write_bytes(TOKENIZER)
    store.expect({"tokenizer": str(tmp_path / "folder")})
    path.write_bytes(b"another")
    with pytest.raises(StoreMismatch, match="tokenizer: expected '.*renamed.json .*', the store has 'tokenizer.json"):
        store.expect({"tokenizer": path})
