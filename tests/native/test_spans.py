from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker import native
from stoker.compose.packs.pack_rows import BestFitRows
from stoker.compose.packs.packed import Packed
from stoker.errors import ArgumentError, DataError
from stoker.native import ArrayParts, FoundSpans, RowMemory, SpanFinder
from tests.laws.test_packing import packed_in, places, sizes
from tests.store.places import folder

pytestmark = pytest.mark.usefixtures("native")

one_library = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
ways = st.fixed_dictionaries(
    {
        "strategy": st.just("best_fit"),
        "long": st.sampled_from(["split", "truncate"]),
        "window": st.none() | st.integers(1, 30),
    }
)


def fitted(packed: Packed) -> BestFitRows:
    assert isinstance(packed._rows, BestFitRows)
    return packed._rows


def read_whole(packed: Packed) -> None:
    """Have all blocks seen."""
    with native.without():
        packed.__getitems__(np.arange(len(packed)))


def has_finder(packed: Packed) -> bool:
    return fitted(packed)._finder(0) is not None


def finder_of(packed: Packed, epoch: int = 0) -> SpanFinder:
    finder = fitted(packed)._finder(epoch)
    assert finder is not None
    return finder[0]


@one_library
@given(lengths=sizes, length=st.integers(2, 24), way=ways, place=places, epoch=st.integers(0, 3), data=st.data())
def test_spans_are_found_as_numpy_finds_them(
    lengths: list[int], length: int, way: Any, place: str, epoch: int, data: st.DataObject
) -> None:
    with folder() as path:
        packed = packed_in(place, path, lengths, length, way).in_epoch(epoch)
        read_whole(packed)
        rows = np.array(data.draw(st.lists(st.integers(0, len(packed) - 1), max_size=70)), np.int64)
        found = finder_of(packed, epoch)(rows)
        assert found is not None
        wanted = fitted(packed)._spans_by_numpy(rows, epoch)
        for name, array in wanted._asdict().items():
            assert getattr(found, name).dtype == array.dtype
            np.testing.assert_array_equal(getattr(found, name), array, err_msg=name)
        if len(rows):
            _, elements = packed._documents.spans(wanted.begins, wanted.sizes + wanted.has_next)
            np.testing.assert_array_equal(found.elements, elements)
        batch = packed.__getbatch__(rows, np.empty)
        with native.without():
            same = packed.__getbatch__(rows, np.empty)
        for name, array in same.items():
            np.testing.assert_array_equal(batch[name], array, err_msg=name)


def test_blocks_that_were_not_seen_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    with folder() as path:
        packed = pickle.loads(pickle.dumps(packed_in("shards", path, [9] * 80, 12, {"strategy": "best_fit"})))
        rows = np.arange(len(packed))
        assert not has_finder(packed), "nothing is mapped yet"
        read_whole(packed)
        assert finder_of(packed)(rows) is not None
        seen = packed._documents._files._seen
        before = seen.copy()
        seen[...] = False
        assert finder_of(packed)(rows) is None
        assert not fitted(packed).write(rows, 0, packed._layout_of(len(rows))[1], np.empty(1 << 20, np.uint8))
        seen[...] = before
        monkeypatch.setattr(packed._documents._files, "_is_vast", True)
        fitted(packed)._finders.clear()
        assert not has_finder(packed), "what was seen may have to be read anew"


def tables() -> dict[str, Any]:
    """Return good ones: of 5 documents, of 3 tokens but for one of 9, full rows of 4 and rests."""
    return {
        "row_starts": np.array([0, 2, 4]),
        "slot_starts": np.array([0, 1, 2]),
        "slots": np.array([[0, 1, 0, 2, 4, 0], [1, 2, 2, 4, 3, 0]]),
        "order": np.array([4, 4, 0, 1, 2, 3], np.uint32),
        "pieces": np.array([0, 1], np.uint32),
        "offsets": np.array([0, 3, 6, 9, 12, 21]),
        "values": np.arange(21, dtype=np.uint16),
    }


def finder_for(given: dict[str, Any], *, is_cut: bool = True) -> SpanFinder:
    parts = {name: ArrayParts.of(given[name]) for name in ("order", "pieces", "values")}
    offsets = ArrayParts.of(given["offsets"], max(0, len(given["offsets"]) - 1))
    starts, slot_starts, slots = given["row_starts"], given["slot_starts"], given["slots"]
    return SpanFinder(starts, slot_starts, slots, offsets=offsets, **parts, length=4, is_cut=is_cut)


def test_the_good_tables_are() -> None:
    found = finder_for(tables())(np.arange(4))
    assert found is not None
    assert found.documents.tolist() == [4, 4, 1, 3]
    assert found.offsets.tolist() == [0, 4, 0, 0]
    assert found.begins.tolist() == found.elements.tolist() == [12, 16, 3, 9]
    assert found.has_next.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("name", "at", "number"),
    [
        ("row_starts", 2, 3),
        ("row_starts", 0, -5),
        ("slot_starts", 2, 3),
        ("slot_starts", 0, -1),
        ("slot_starts", 1, 3),
        ("slots", (1, 0), -1),
        ("slots", (1, 0), 2**63 - 1),
        ("slots", (1, 1), 2**63 - 1),
        ("slots", (1, 1), -1),
        ("slots", (1, 2), 2**63 - 1),
        ("slots", (1, 2), 5),
        ("slots", (1, 3), 0),
        ("slots", (1, 4), 0),
        ("slots", (1, 4), 5),
        ("slots", (0, 5), 1),
        ("slots", (0, 5), 2**63 - 1),
        ("order", 3, 5),
        ("order", 5, 2**32 - 1),
        ("pieces", 1, 2),
        ("pieces", 1, 2**32 - 1),
        ("offsets", 1, -1),
        ("offsets", 2, 5),
        ("offsets", 4, 24),
        ("offsets", 5, 22),
        ("offsets", 5, 13),
        ("offsets", 5, 2**63 - 1),
    ],
)
def test_what_cannot_be_is_left_to_numpy(name: str, at: Any, number: int) -> None:
    given = tables()
    given[name][at] = number
    assert finder_for(given)(np.arange(4)) is None


@pytest.mark.parametrize("row", [-1, 4, 2**63 - 1, -(2**63)])
def test_rows_that_are_not_there_are_left_to_numpy(row: int) -> None:
    assert finder_for(tables())(np.array([0, row])) is None


def test_there_is_room_for_any_number_of_spans() -> None:
    finder = finder_for(tables())
    found = finder(np.full(100_000, 3))
    assert found is not None
    assert found.row_starts[-1] == 100_000
    assert (found.documents == 3).all()


far = st.integers(-3, 25) | st.sampled_from([2**63 - 1, -(2**63), 2**62, 2**32, -(2**31), 2**40])
some_rows = st.lists(st.integers(0, 3), min_size=1, max_size=6) | st.lists(far, min_size=1, max_size=3)


@settings(one_library, max_examples=400)
@given(data=st.data(), rows=some_rows, is_cut=st.booleans())
def test_no_table_makes_it_read_elsewhere(data: st.DataObject, rows: list[int], is_cut: bool) -> None:
    given = tables()
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([name for name in given if name != "values"]))
        table = given[name].reshape(-1)
        number = data.draw(far)
        limits = np.iinfo(table.dtype)
        table[data.draw(st.integers(0, len(table) - 1))] = min(max(number, limits.min), limits.max)
    finder = finder_for(given, is_cut=is_cut)
    found = finder(np.array(rows, np.int64))  # far away it would end the process
    sheet = sheet_of(len(rows))
    memory = np.full(sheet.num_bytes + 64, 99, np.uint8)
    wrote = finder.write(np.array(rows, np.int64), sheet, memory[: sheet.num_bytes])
    assert (memory[sheet.num_bytes :] == 99).all()
    assert not (wrote and found is None)
    if found is None:
        assert (memory == 99).all()
    else:
        assert is_within(found, given)


def is_within(found: FoundSpans, given: dict[str, Any]) -> bool:
    stops = found.elements + found.sizes + found.has_next
    is_there = (found.elements >= 0) & (stops <= len(given["values"])) & (found.sizes > 0)
    return bool(is_there.all() and (found.documents < len(given["offsets"]) - 1).all())


def sheet_of(num_rows: int, **changes: Any) -> RowMemory:
    room = 64 * num_rows
    names = ("tokens", "labels", "positions", "document_ids", "cu_seqlens")
    options: dict[str, Any] = {
        "num_bytes": 5 * room,
        "shape": (num_rows, 4),
        "width": 3,
        "source": np.dtype(np.uint16),
        "dtype": np.dtype(np.int64),
        "pad": 0,
        "ignored": -100,
    }
    return RowMemory({name: room * at for at, name in enumerate(names)}, **{**options, **changes})


def test_what_does_not_go_together_is_not_written() -> None:
    finder, rows = finder_for(tables()), np.arange(4)
    memory = np.full(5 * 256 + 8, 99, np.uint8)
    assert not finder.write(rows, sheet_of(3), memory)
    assert not finder.write(rows, sheet_of(4), memory[:-9])
    assert not finder.write(rows, sheet_of(4), memory[1:-7])
    assert not finder.write(rows, sheet_of(4, source=np.dtype(np.uint32)), memory)
    assert not finder.write(rows, sheet_of(4, dtype=np.dtype(np.int8)), memory)
    assert not finder.write(rows, sheet_of(4, width=1), memory)
    with native.without():
        assert not finder.write(rows, sheet_of(4), memory)
        assert finder(rows) is None
    assert (memory == 99).all()
    assert finder.write(rows, sheet_of(4), memory)
    tokens = memory[:128].view(np.int64).reshape(4, 4)
    assert tokens.tolist() == [[12, 13, 14, 15], [16, 17, 18, 19], [3, 4, 5, 0], [9, 10, 11, 0]]


@pytest.mark.parametrize("change", [{"num_bytes": 1000}, {"pad": 2**70}, {"dtype": np.dtype(np.uint16)}])
def test_sheets_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        sheet_of(4, **change)


def test_a_plan_of_other_documents_is_refused_as_by_numpy() -> None:
    packed = packed_in("memory", None, [5, 5, 7], 12, {"strategy": "best_fit"})  # type: ignore[arg-type]
    packed._documents._starts[1] += 1  # type: ignore[attr-defined]
    assert finder_of(packed)(np.arange(len(packed))) is None
    with pytest.raises(DataError, match="not one of these documents"):
        packed.__getitems__(np.arange(len(packed)))
