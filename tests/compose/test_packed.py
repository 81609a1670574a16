"""Packed rows: what can be packed and what cannot, and how they are used."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stoker
from stoker.compose.batch_fields import FieldLayout
from stoker.compose.packs import packed as packed_module
from stoker.compose.packs.packed import Packed
from stoker.errors import ArgumentError, DamagedFile, DataError, PositionError, StateMismatch, StoreMismatch
from stoker.store import Crops, Store, Writer, open_store
from tests.source.foreign import write_megatron
from tests.store.places import folder

LENGTHS = [5, 3, 0, 12, 8, 1, 4, 7, 20, 2, 0, 6]
DOCUMENTS = [np.arange(size) + 100 * number for number, size in enumerate(LENGTHS)]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder() as path:
        yield path


def stored(path: Path, documents: list[NDArray[Any]] = DOCUMENTS, *, dtype: str = "uint16", **options: Any) -> Store:
    with Writer(path, {"tokens": f"{dtype}[*]"}, **options) as writer:
        for document in documents:
            writer.append({"tokens": document})
    return open_store(path)


def rows_of(packed: Packed) -> list[list[int]]:
    return [packed[row]["tokens"].tolist() for row in range(len(packed))]


# ---------------------------------------------------------------- sources


def megatron(prefix: Path, documents: list[NDArray[Any]]) -> Path:
    """Write documents as Megatron-LM does, each of two sequences."""
    halves = [half.tolist() for document in documents for half in np.array_split(document, 2)]
    write_megatron(prefix, halves, documents=range(0, len(halves) + 1, 2))
    return prefix


class WithBorders:
    """Tokens of a source that a user wrote when `offsets` was called `borders`."""

    def __init__(self, documents: list[NDArray[Any]] = DOCUMENTS) -> None:
        self.flat = np.concatenate(documents).astype(np.uint16)
        self.starts = np.cumsum([0, *map(len, documents)])
        self.num_values, self.num_documents, self.dtype = len(self.flat), len(documents), np.dtype(np.uint16)

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[Any]:
        return np.stack([self.flat[start : start + length] for start in starts.tolist()])

    def borders(self, first: int, last: int) -> NDArray[np.int64]:
        return self.starts[first : last + 1]


class Others(WithBorders):
    """Tokens of somebody else: windows and offsets, and no more."""

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        return self.starts[first : last + 1]

    borders = None  # type: ignore[assignment]


WAYS: list[dict[str, Any]] = [{}, {"window": 4}, {"long": "truncate"}, {"strategy": "concat"}]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_kind_of_source_gives_the_same_rows(tmp_path: Path, way: dict[str, Any]) -> None:
    store = stored(tmp_path / "store")
    shards = stored(tmp_path / "shards", shard_bytes=60)
    assert len(shards.manifest.shards) > 3
    expected = stoker.pack(DOCUMENTS, 8, **way)
    sources = [
        store,
        store.stretch(),
        tmp_path / "store",
        str(tmp_path / "shards"),
        stoker.open(megatron(tmp_path / "m", DOCUMENTS)),
        Others(),
        [document.tolist() for document in DOCUMENTS],
        tuple(DOCUMENTS),
    ]
    for source in sources:
        packed = stoker.pack(source, 8, **way)
        for epoch in (0, 3):
            one, two = (
                some.in_epoch(epoch).__getbatch__(range(len(expected)), np.empty) for some in (expected, packed)
            )
            assert all(np.array_equal(one[name], two[name]) for name in one), source
        assert [packed.find(document) for document in range(len(DOCUMENTS))] == [
            expected.find(document) for document in range(len(DOCUMENTS))
        ]
        assert rows_of(pickle.loads(pickle.dumps(packed))) == rows_of(expected)


def test_the_rows_of_a_table_are_documents() -> None:
    assert rows_of(stoker.pack(np.arange(12).reshape(4, 3), 6)) == rows_of(
        stoker.pack([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], 6)
    )


def test_another_column_may_hold_the_tokens(tmp_path: Path) -> None:
    with Writer(tmp_path / "s", {"ids": "uint32[*]", "text": "text"}) as writer:
        writer.append({"ids": [7, 8], "text": "a"})
    assert rows_of(stoker.pack(tmp_path / "s", 3, column="ids", pad=1)) == [[7, 8, 1]]
    with pytest.raises(ArgumentError, match="has no column 'tokens'"):
        stoker.pack(tmp_path / "s", 3)


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"length": 1}, "length must be 2 .* got 1"),
        ({"length": 0}, "length must be 2 .* got 0"),
        ({"length": 2**31}, "length must be 2 .* to 2,147,483,647"),
        ({"length": 8.0}, "length must be an int, got 8.0"),
        ({"strategy": "first_fit"}, "unknown strategy='first_fit'"),
        ({"long": "drop"}, "unknown long='drop'"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"window": -5}, "window must be at least 1, got -5"),
        ({"strategy": "concat", "window": 5}, "cuts documents wherever a row ends"),
        ({"strategy": "concat", "long": "error"}, "cuts documents wherever a row ends"),
        ({"dtype": "int16"}, "dtype=int16 cannot hold tokens of int64"),
        ({"dtype": "float32"}, "dtype=float32 cannot hold tokens"),
        ({"dtype": "uint64"}, "ignored=-100 does not fit uint64"),
        ({"dtype": "token"}, "unknown dtype='token'"),
        ({"cache": None}, "cache=None is not a folder"),
        ({"cache": 0}, "cache=0 is not a folder"),
        ({"pad": 2**63}, "pad=9223372036854775808 does not fit int64"),
        ({"ignored": None}, "ignored must be an int, got None"),
        ({"blocks": 1}, "blocks=1"),
        ({"blocks": True}, "blocks must be an int, got True"),
        ({"long": "error"}, "document 3 has 12 tokens, and a row 8"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], shown: str) -> None:
    with pytest.raises(ArgumentError, match=shown):
        stoker.pack(DOCUMENTS, **{"length": 8, **options})


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ([], "there are no tokens to pack"),
        ([[], []], "there are no tokens to pack"),
        ([[1.5, 2.5]], "document 0 must be integers in one dimension, got float64"),
        ([[1], "ab"], "document 1 must be integers .*\nhint: tokenize text first"),
        ([{"ids": [1]}], "document 0 must be integers .*\nhint: pass one field of each: .document.'ids'."),
        ([[True]], "document 0 must be integers in one dimension, got bool"),
        ([1, 2, 3], "document 0 must be integers in one dimension, got int64 of shape"),
        (np.arange(5), "cannot be packed"),
        (b"tokens", "cannot be packed"),
        (iter([[1]]), "cannot be packed"),
        (None, "None cannot be packed"),
        ([[1], [[1], [2, 3]]], "document 1 cannot be converted to an array"),
        ([np.array([1], np.int64), np.array([1], np.uint64)], "the documents are of int64, uint64"),
    ],
)
def test_what_is_not_documents_is_refused(source: Any, shown: str) -> None:
    with pytest.raises(ArgumentError, match=shown):
        stoker.pack(source, 8)


def test_tokens_without_offsets_are_refused(tmp_path: Path) -> None:
    np.arange(50, dtype="<u2").tofile(tmp_path / "train.bin")
    with pytest.raises(ArgumentError, match="does not know where documents begin"):
        stoker.pack(tmp_path / "train.bin", 8)


def test_a_store_without_tokens_is_refused(tmp_path: Path) -> None:
    with Writer(tmp_path / "s", {"tokens": "uint16[*]"}):
        pass
    with pytest.raises(ArgumentError, match="there are no tokens to pack"):
        stoker.pack(tmp_path / "s", 8)


def test_options_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    stored(tmp_path / "s")
    plain = stoker.pack(tmp_path / "s", 8, window=5, blocks=4, seed=2)
    packed = stoker.pack(tmp_path / "s", np.int64(8), window=np.int32(5), blocks=np.uint8(4), seed=np.int16(2))  # type: ignore[arg-type]
    assert packed.plan_path == plain.plan_path
    assert packed.fingerprint == plain.fingerprint
    assert rows_of(packed) == rows_of(plain)


def test_documents_that_leave_all_tokens_out_are_refused() -> None:
    others = Others([np.arange(5), np.arange(3)])
    others.starts = np.zeros(3, np.int64)
    with pytest.raises(ArgumentError, match="all documents are empty"):
        stoker.pack(others, 8)


@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
def test_a_source_with_borders_instead_of_offsets_still_works(strategy: Any) -> None:
    assert not hasattr(WithBorders(), "offsets")
    assert rows_of(stoker.pack(WithBorders(), 8, strategy=strategy)) == rows_of(
        stoker.pack(Others(), 8, strategy=strategy)
    )
    crops = [Crops(tokens, length=4, across=False) for tokens in (Others(), WithBorders())]  # type: ignore[arg-type]
    wanted, found = ([rows[row]["tokens"].tolist() for row in range(len(rows))] for rows in crops)
    assert found == wanted


@pytest.mark.parametrize("starts", [[0, 5, 3, 9], [0, 5, 9, 12], [-1, 5, 6, 9]], ids=str)
@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
def test_invalid_offsets_are_reported(starts: list[int], strategy: Any) -> None:
    others = Others([np.arange(5), np.arange(3), np.arange(1)])
    others.starts = np.array(starts)
    with pytest.raises(DataError, match="document offsets are invalid from document 0"):
        stoker.pack(others, 8, strategy=strategy)


def test_tokens_outside_all_documents_are_reported() -> None:
    others = Others([np.arange(5), np.arange(3), np.arange(1)])
    others.starts = np.array([0, 5, 8, 8])
    with pytest.raises(DataError, match="have 8 tokens together, but the source has 9"):
        stoker.pack(others, 8, strategy="concat")


def test_an_index_of_megatron_that_lies_is_reported(tmp_path: Path) -> None:
    source = stoker.open(megatron(tmp_path / "m", DOCUMENTS))
    packed = stoker.pack(source, 8)
    index = bytearray((tmp_path / "m.idx").read_bytes())
    at = 34 + 12 * 2 * len(DOCUMENTS) + 8 * 4  # where document 4 begins
    index[at : at + 8] = struct.pack("<q", 10**6)
    found = (tmp_path / "m.idx").stat()
    with open(tmp_path / "m.idx", "r+b") as file:
        file.write(index)
    os.utime(tmp_path / "m.idx", ns=(found.st_atime_ns, found.st_mtime_ns))  # or it would be stale
    with pytest.raises(DamagedFile, match="does not fit its .bin file"):
        [packed[row] for row in range(len(packed))]


@pytest.mark.parametrize("position", [100, -100, 2**70])
def test_positions_outside_are_reported(position: int) -> None:
    packed = stoker.pack(DOCUMENTS, 8)
    with pytest.raises((PositionError, ArgumentError)):
        packed[position]
    with pytest.raises((PositionError, ArgumentError)):
        packed.find(position)
    with pytest.raises((PositionError, ArgumentError)):
        packed.documents(position)


def test_negative_positions_count_from_the_end() -> None:
    packed = stoker.pack(DOCUMENTS, 8)
    assert packed[-1]["tokens"].tolist() == packed[len(packed) - 1]["tokens"].tolist()
    assert packed.documents(-1) == packed.documents(len(packed) - 1)
    assert packed.find(-1) == packed.find(len(DOCUMENTS) - 1)


# ---------------------------------------------------------------- what they tell


def test_empty_documents_are_left_out_and_counted() -> None:
    packed = stoker.pack(DOCUMENTS, 8)
    assert packed.find(2) == []
    assert (packed.report().num_empty, packed.report().num_documents) == (2, 10)


def test_a_report_is_a_small_table() -> None:
    text = str(stoker.pack(DOCUMENTS, 8, long="truncate").report())
    assert text.splitlines()[0].split() == ["rows", "7", "of", "8", "tokens"]
    assert "and 2 empty ones left out" in text
    assert "and 16 truncated" in text
    assert "2 documents (20.00%)" in text


def test_who_has_asked_for_all_rows_gets_few_as_cheaply_as_before() -> None:
    packed = stoker.pack(np.ones((300_000, 1), np.uint16), 2)
    assert len(packed.spans(range(len(packed))).documents) == 300_000
    memory: Any = packed.spans([0]).documents.base
    assert memory is None or memory.nbytes < 8 << 20


def test_a_row_is_described_by_its_documents() -> None:
    packed = stoker.pack(DOCUMENTS, 8)
    assert packed.describe(1) == "document 4"
    spans = packed.find(3)
    assert [span.size for span in spans] == [8, 4]
    assert "3 from token 8 on" in packed.describe(spans[1].row)
    assert spans[1].columns == range(spans[1].start, spans[1].stop)
    assert stoker.pack([[1]] * 20, 30).describe(0).endswith(" and 12 more")


def test_rows_of_another_version_of_the_algorithm_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = stoker.pack(DOCUMENTS, 8).fingerprint
    monkeypatch.setattr(packed_module, "VERSION", 0)
    assert stoker.pack(DOCUMENTS, 8).fingerprint != before


def test_a_state_of_another_version_of_the_algorithm_is_refused_by_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = stoker.DataLoader(stoker.pack(DOCUMENTS, 8), batch_size=2, shuffle=True, seed=1)
    monkeypatch.setattr(packed_module, "VERSION", 1)
    state = stoker.DataLoader(stoker.pack(DOCUMENTS, 8), batch_size=2, shuffle=True, seed=1).state_dict()
    monkeypatch.undo()
    with pytest.raises(StateMismatch, match="version of the packing of documents: the state has 1, this loader 2"):
        loader.load_state_dict(state)


def test_fingerprints_tell_rows_apart(tmp_path: Path) -> None:
    store = stored(tmp_path / "s")
    ways: list[dict[str, Any]] = [
        *WAYS,
        {"length": 9},
        {"seed": 1},
        {"window": 5},
        {"pad": 1},
        {"ignored": -1},
    ]
    for source in (store, DOCUMENTS):
        found = {stoker.pack(source, **{"length": 8, **way}).fingerprint for way in ways}
        assert len(found) == len(ways)
        assert stoker.pack(source, 8).in_epoch(3).fingerprint == stoker.pack(source, 8, cache=False).fingerprint
    assert stoker.pack(DOCUMENTS[1:], 8).fingerprint != stoker.pack(DOCUMENTS, 8).fingerprint
    assert stoker.pack(Others(), 8).fingerprint is None


def test_padding_is_the_token_that_ends_documents(tmp_path: Path) -> None:
    store = stored(tmp_path / "s", [np.arange(3)], meta={"tokenizer": {"end_of_document": 42, "name": "x"}})
    packed = stoker.pack(store, 5)
    assert rows_of(packed) == [[0, 1, 2, 42, 42]]
    assert packed.meta["tokenizer"]["name"] == "x"
    assert rows_of(stoker.pack(store, 5, pad=0)) == [[0, 1, 2, 0, 0]]
    packed.expect({"tokenizer.name": "x"})
    with pytest.raises(StoreMismatch):
        packed.expect({"tokenizer.name": "y"})
    with pytest.raises(ArgumentError, match="does not record how it was prepared"):
        stoker.pack(DOCUMENTS, 8).expect({})


def test_padding_is_0_where_no_token_is_known_to_end_documents(tmp_path: Path) -> None:
    store = stored(tmp_path / "s", meta={"tokenizer": {"end_of_document": "<end>"}})
    assert stoker.pack(store, 1000)[0]["tokens"][-1] == 0


def test_tokens_may_stay_as_they_are_stored(tmp_path: Path) -> None:
    packed = stoker.pack(stored(tmp_path / "s"), 8, dtype=None, ignored=65535)
    assert packed[0]["tokens"].dtype == packed.dtype == packed.stored_dtype == np.uint16
    assert packed[0]["labels"].dtype == np.uint16


def test_a_batch_is_one_piece_of_memory() -> None:
    packed = stoker.pack(DOCUMENTS, 8, blocks=4)
    asked: list[tuple[int, ...]] = []

    def empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        asked.append(shape)
        return np.empty(shape, dtype)

    batch = packed.__getbatch__([0, 1, 2], empty)
    assert len(asked) == 1
    starts = [array.ctypes.data for array in batch.values()]
    assert all((start - starts[0]) % 64 == 0 for start in starts)
    ends = [start + array.nbytes for start, array in zip(starts, batch.values())]
    assert all(end <= start for end, start in zip(ends, starts[1:]))
    again = FieldLayout(packed.fields(), 3).allocate(np.empty)
    packed.fill([0, 1, 2], again, np.arange(3))
    assert all(np.array_equal(batch[name], again[name]) for name in batch)


def test_no_positions_make_a_batch_of_none() -> None:
    packed = stoker.pack(DOCUMENTS, 8, blocks=4)
    batch = packed.__getbatch__([], np.empty)
    assert {name: len(rows) for name, rows in batch.items()} == dict.fromkeys(packed.fields(), 0)
    assert packed.__getitems__([]) == []


# ---------------------------------------------------------------- through a loader


def batches(loader: Any) -> list[dict[str, list[Any]]]:
    return [{name: rows.tolist() for name, rows in batch.items()} for batch in loader]


def without_workers(source: Any, **options: Any) -> list[dict[str, list[Any]]]:
    return batches(stoker.DataLoader(stoker.pack(source, 16, blocks=4), batch_size=3, **options))


@pytest.mark.parametrize("place", ["memory", "store", "shards"])
@pytest.mark.parametrize(
    "engine",
    [{"num_threads": 2}, {"num_workers": 2, "multiprocessing_context": "fork"}, {"num_workers": 1, "num_threads": 2}],
    ids=str,
)
def test_every_engine_gives_the_same_batches(tmp_path: Path, place: str, engine: dict[str, Any]) -> None:
    documents = [np.arange(size) + size for size in np.random.default_rng(5).integers(0, 40, 200).tolist()]
    if place == "memory":
        source: Any = documents
    else:
        source = stored(tmp_path / "s", documents, shard_bytes=1 << 20 if place == "store" else 500)
    expected = without_workers(source, shuffle=True, seed=3)
    found = batches(stoker.DataLoader(stoker.pack(source, 16, blocks=4), batch_size=3, shuffle=True, seed=3, **engine))
    assert len(expected) > 60
    assert found == expected


def test_spawned_workers_open_the_plan_that_is_kept(tmp_path: Path) -> None:
    source = stored(tmp_path / "s", DOCUMENTS * 5, shard_bytes=500)
    expected = without_workers(source, shuffle=True, seed=3)
    packed = stoker.pack(source, 16, blocks=4)
    assert packed.plan_path is not None
    assert len(pickle.dumps(packed)) < 2000
    loader = stoker.DataLoader(
        packed, batch_size=3, shuffle=True, seed=3, num_workers=2, multiprocessing_context="spawn"
    )
    assert batches(loader) == expected
