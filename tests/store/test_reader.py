"""Stores, read."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import ArgumentError, DamagedFile, PositionError, StaleSource, StoreMismatch
from stoker.store import Column, Store, Writer, files, open_store
from stoker.store.space import AddressSpace

COLUMNS = {"x": Column("int32", (3,)), "t": Column.ragged("uint16"), "text": Column.text(), "y": Column("float32")}
NUM = 20


def sample(number: int) -> dict[str, Any]:
    return {
        "x": np.arange(number, number + 3, dtype=np.int32),
        "t": np.arange(number, dtype=np.uint16),
        "text": "ä" * (number % 4),
        "y": np.float32(number / 2),
    }


@pytest.fixture(params=[60, 128 << 20], ids=["many shards", "one shard"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    with Writer(tmp_path / "s", COLUMNS, shard_bytes=request.param, meta={"name": "x"}) as writer:
        for number in range(NUM):
            writer.append(sample(number))
    return open_store(tmp_path / "s")


def same(found: dict[str, Any], number: int) -> bool:
    expected = sample(number)
    return found.keys() == expected.keys() and all(
        np.array_equal(found[name], value) and np.asarray(found[name]).dtype == np.asarray(value).dtype
        for name, value in expected.items()
    )


def test_samples_are_read_by_position(store: Store) -> None:
    assert len(store) == NUM
    assert all(same(store[number], number) for number in range(NUM))
    assert same(store[-1], NUM - 1) and same(store[-NUM], 0)
    positions = [3, 3, -1, 0, 19, 7]
    assert all(same(found, position % NUM) for found, position in zip(store.__getitems__(positions), positions))
    assert same(store.__getitems__(np.array([5], np.uint8))[0], 5)
    assert same(store[np.int16(5)], 5)  # type: ignore[index]


def test_columns_are_read_by_position(store: Store) -> None:
    assert store.read("y", [3, 1]).tolist() == [1.5, 0.5]
    assert store.read("x", [3, 1]).tolist() == [[3, 4, 5], [1, 2, 3]]
    values, lengths = store.read_ragged("t", [3, 0, -18])
    assert (values.tolist(), lengths.tolist()) == ([0, 1, 2, 0, 1], [3, 0, 2])
    assert store.lengths("t", [3, 0, -18]).tolist() == [3, 0, 2]
    assert store.lengths("text", [3]).tolist() == [6]


def test_no_positions_are_no_samples_even_if_nothing_was_read_before(store: Store) -> None:
    empties: list[Any] = [[], np.array([], np.int64), range(0)]
    for empty in empties:
        assert store.__getitems__(empty) == []
        assert store.read("x", empty).shape == (0, 3)
        assert [part.tolist() for part in store.read_ragged("t", empty)] == [[], []]
        assert store.lengths("t", empty).tolist() == []
        assert store.stretch("t").windows(np.array(empty, np.int64), 3).shape == (0, 3)
        assert store.tokens(3, column="t").__getitems__(empty) == []


def test_a_column_is_read_into_what_is_given(store: Store) -> None:
    for dtype in (np.int32, np.int64, np.float64, np.float32):
        out = np.zeros((2, 3), dtype)
        assert store.read("x", [1, 5], out=out) is out
        assert out.tolist() == [[1, 2, 3], [5, 6, 7]]
    wide = np.zeros((2, 6), np.int32)
    store.read("x", [1, 5], out=wide[:, ::2])
    assert wide.tolist() == [[1, 0, 2, 0, 3, 0], [5, 0, 6, 0, 7, 0]]
    with pytest.raises(ArgumentError, match="out must have shape \\(2, 3\\), got \\(3, 3\\)"):
        store.read("x", [1, 5], out=np.zeros((3, 3)))
    for kind in (np.int16, np.uint32, np.bool_):
        with pytest.raises(ArgumentError, match=f"out is {np.dtype(kind)}, which cannot represent every int32"):
            store.read("x", [1, 5], out=np.zeros((2, 3), kind))
    with pytest.raises(ArgumentError, match="cannot represent every float32"):
        store.read("y", [1], out=np.zeros(1, np.int64))


@pytest.mark.parametrize("position", [NUM, -NUM - 1, 1 << 40, 2**63 - 1, -(2**63), 2**63, 2**64 - 1])
def test_a_position_outside_is_told(store: Store, position: int) -> None:
    for read in (
        lambda: store[position],
        lambda: store.read("x", [position, position]),
        lambda: store.read_ragged("t", np.array([position])),
    ):
        with pytest.raises(
            PositionError, match=f"position {position} is outside .*/s, which has 20 samples\nhint: .* 19"
        ):
            read()


@pytest.mark.parametrize("position", [1.0, "1", None, True, slice(0, 2), [1, 2], 2**70])
def test_what_is_no_position_is_told(store: Store, position: Any) -> None:
    with pytest.raises(ArgumentError, match="must be (a list of ints|an int), got"):
        store[position]


def test_a_column_that_is_not_there_or_of_the_other_kind_is_told(store: Store) -> None:
    with pytest.raises(ArgumentError, match="has no column 'z'\nhint: it has x, t, text, y"):
        store.read("z", [0])
    with pytest.raises(ArgumentError, match="'t' is ragged\nhint: use read_ragged for ragged columns"):
        store.read("t", [0])
    for read in (store.read_ragged, store.lengths):
        with pytest.raises(ArgumentError, match="'x' has a fixed shape\nhint"):
            read("x", [0])
    with pytest.raises(ArgumentError, match="'x' has a fixed shape"):
        store.stretch("x")


def test_a_stretch_is_of_single_numbers(tmp_path: Path) -> None:
    with Writer(tmp_path / "s", {"t": Column.ragged("uint16", (2,))}) as writer:
        writer.append({"t": [[1, 2]]})
    with pytest.raises(ArgumentError, match="the values of 't' are not scalars"):
        open_store(tmp_path / "s").stretch("t")


def test_a_store_tells_what_it_is(store: Store) -> None:
    assert store.meta == {"name": "x"}
    assert store.columns == COLUMNS
    assert repr(store).endswith("/s of 20 samples (x: int32[3], t: uint16[*], text: text, y: float32)>")
    number = 0 if len(store.manifest.shards) == 1 else 1
    at = store.manifest.shards[0].num_samples if number else 0
    assert store.describe(at) == f"{store.path / store.manifest.shards[number].file} sample 0"


def test_a_store_is_opened_from_another_folder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.path.parent)
    found = stoker.open("s")
    monkeypatch.chdir("/")
    assert same(found[3], 3)


def test_what_is_read_is_nobody_elses(store: Store) -> None:
    values, lengths = store.read_ragged("t", [5])
    first = store.read("x", [5])
    windows = store.stretch("t").windows(np.array([0]), 4)
    for array in (values, lengths, first, windows, store[5]["x"], store[5]["t"]):
        array[...] = 77
    assert same(store[5], 5)


def test_a_store_travels_as_its_path(store: Store) -> None:
    assert len(pickle.dumps(store)) < 500
    other = pickle.loads(pickle.dumps(store))
    assert other.path == store.path and same(other[5], 5)
    stretch = pickle.loads(pickle.dumps(store.stretch("t")))
    assert stretch.num_values == sum(range(NUM)) and stretch.offsets(0, 3).tolist() == [0, 0, 1, 3]


def test_a_store_that_was_made_anew_meanwhile_is_not_the_one_that_was_sent(store: Store) -> None:
    sent = pickle.dumps(store)
    with Writer(store.path, {"x": Column("int32")}, overwrite=True) as writer:
        writer.append({"x": 1})
    with pytest.raises(StaleSource, match="is no longer the file that was opened: the store was prepared again"):
        pickle.loads(sent)


def test_a_store_that_is_gone_is_told(store: Store) -> None:
    shutil.rmtree(store.path)
    with pytest.raises(StaleSource, match="is no longer the file that was opened: it is gone"):
        store[0]


def test_a_store_is_read_after_it_was_deleted_once_it_is_mapped(store: Store) -> None:
    store.__getitems__(range(NUM))
    shutil.rmtree(store.path)
    assert all(same(store[number], number) for number in range(NUM))


def test_memory_is_given_back_when_nobody_reads_any_more(store: Store) -> None:
    def num_mapped() -> int:
        maps = Path("/proc/self/maps").read_text().splitlines()  # without the manifest, which each store holds
        return sum(str(store.path) in line and line.endswith(".safetensors") for line in maps)

    other: Any = open_store(store.path)
    found = other[3]
    assert num_mapped() > 0
    stretch: Any = other.stretch("t")
    del other
    gc.collect()
    assert num_mapped() > 0 and stretch.windows(np.array([3]), 2).tolist() == [[0, 1]]
    del stretch
    gc.collect()
    assert num_mapped() == 0 and same(found, 3)


def test_no_descriptor_stays_open(store: Store) -> None:
    before = os.listdir("/proc/self/fd")
    store.__getitems__(range(NUM))
    assert os.listdir("/proc/self/fd") == before


def test_only_what_is_read_is_mapped(store: Store) -> None:
    if len(store.manifest.shards) == 1:
        return
    store[0]
    assert store._files._is_mapped.tolist() == [True] + [False] * (len(store.manifest.shards) - 1)


def test_a_vast_store_is_read_alike(store: Store) -> None:
    for check in (True, False):
        other = open_store(store.path, check=check)
        other._files._is_vast = True
        assert all(same(found, number) for number, found in enumerate(other.__getitems__(range(NUM))))
        assert np.array_equal(
            other.stretch("t").windows(np.arange(50), 40), store.stretch("t").windows(np.arange(50), 40)
        )


def test_unchecked_stores_are_read_alike(store: Store) -> None:
    other = pickle.loads(pickle.dumps(open_store(store.path, check=False)))
    assert all(same(found, number) for number, found in enumerate(other.__getitems__(range(NUM))))
    assert not other._files._seen[1:].all()


def test_expectations_are_told_when_a_store_is_opened(store: Store) -> None:
    assert len(open_store(store.path, expect={"name": "x", "num_samples": NUM})) == NUM
    with pytest.raises(StoreMismatch, match="than expected:\n  name: expected 'y', the store has 'x'\nhint"):
        stoker.open(store.path, expect={"name": "y"})
    with pytest.raises(StoreMismatch, match="name: expected 'y', the store has 'x'"):
        stoker.DataLoader(store.tokens(4, column="t"), expect={"name": "y"})


def test_a_store_needs_its_own_columns_to_make_a_batch(store: Store, tmp_path: Path) -> None:
    assert store.__getbatch__([1], np.empty) is NotImplemented
    with Writer(tmp_path / "fixed", {"x": Column("int32", (3,)), "y": Column("float32")}) as writer:
        writer.extend({"x": np.arange(12).reshape(4, 3), "y": np.arange(4.0)})
    batch = open_store(tmp_path / "fixed").__getbatch__([3, -4, 3], np.empty)
    assert batch["x"].tolist() == [[9, 10, 11], [0, 1, 2], [9, 10, 11]]
    assert batch["y"].tolist() == [3, 0, 3]


def test_columns_of_zero_size_are_read(tmp_path: Path) -> None:
    with Writer(tmp_path / "s", {"x": Column("int32", (2, 0)), "t": Column.ragged("uint8", (0,))}) as writer:
        for number in range(3):
            writer.append({"x": np.zeros((2, 0)), "t": np.zeros((number, 0))})
    store = open_store(tmp_path / "s")
    assert store.read("x", [0, 2]).shape == (2, 2, 0)
    assert [part.shape for part in store.read_ragged("t", [1, 2])] == [(3, 0), (2,)]
    assert [found["t"].shape for found in store.__getitems__([0, 1, 2])] == [(0, 0), (1, 0), (2, 0)]


def test_an_empty_store_is_one(tmp_path: Path) -> None:
    with Writer(tmp_path / "s", COLUMNS):
        pass
    store = open_store(tmp_path / "s")
    assert len(store) == 0 and store.manifest.shards == ()
    assert store.__getitems__([]) == [] and len(store.tokens(column="t")) == 0
    assert store.stretch("t").offsets(0, 0).tolist() == [0]
    with pytest.raises(PositionError, match="position 0 is outside .*, which has 0 samples"):
        store[0]


def test_threads_map_at_once_and_read_the_same(store: Store) -> None:
    for _ in range(10):
        other = open_store(store.path)
        barrier = threading.Barrier(8)
        found: list[bool] = []

        def read(number: int, other: Store = other, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            found.append(all(same(got, at) for at, got in enumerate(other.__getitems__(range(NUM)))))  # noqa: B023

        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 8


def test_opening_reads_the_manifest_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any) -> Any:
        raise AssertionError("a shard was opened")

    monkeypatch.setattr(files, "opened", refusing)
    monkeypatch.setattr(files, "AddressSpace", refusing)
    other = open_store(store.path)
    assert len(other.tokens(4, column="t")) == 47 and len(other) == NUM


def test_opening_imports_no_torch(store: Store) -> None:
    code = f"import stoker, sys; stoker.open({str(store.path)!r})[3]; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_when_there_is_no_room_to_map_the_limits_are_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> int:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(AddressSpace, "_mapped", staticmethod(failing))
    with pytest.raises(OSError, match="Cannot allocate memory"):
        store[0]
    monkeypatch.undo()
    assert same(store[0], 0)


def test_offsets_that_cannot_be_name_the_sample(tmp_path: Path) -> None:
    from tests.store import by_hand

    by_hand.write(tmp_path / "s", [by_hand.of_tokens([1, 2, 3], [0, 2, 1, 3])])
    store = open_store(tmp_path / "s")
    assert store[0]["tokens"].tolist() == [1, 2]
    with pytest.raises(
        DamagedFile,
        match="s0.safetensors has invalid offsets: sample 1 of 'tokens' begins at 2 and ends at 1 of 3 values",
    ):
        store[1]
