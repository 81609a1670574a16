from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.native import fill_rows, gather_rows
from stoker.native.arrays import SOURCES, TARGETS
from tests.native.reference import filled

pytestmark = pytest.mark.usefixtures("native")

sources, targets = st.sampled_from(list(SOURCES)), st.sampled_from(list(TARGETS))
one_library = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def values_of(dtype: np.dtype[Any], size: int, seed: int) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    values: NDArray[Any] = np.random.default_rng(seed).integers(
        limits.min, limits.max, size, dtype=dtype, endpoint=True
    )
    return values


def outputs_for(num_rows: int, length: int, width: int, dtype: Any = np.int64, labels: Any = None) -> dict[str, Any]:
    return {
        "tokens": np.full((num_rows, length), 7, dtype),
        "labels": np.full((num_rows, length), 7, labels or dtype),
        "positions": np.full((num_rows, length), 7, np.int32),
        "document_ids": np.full((num_rows, length), 7, np.int32),
        "cu_seqlens": np.full((num_rows, width), 7, np.int32),
    }


def arguments_for(spans: list[list[tuple[int, int, bool]]], rows: list[int]) -> tuple[NDArray[Any], ...]:
    parts = [part for row in spans for part in row]
    return (
        np.array([part[0] for part in parts], np.int64),
        np.array([part[1] for part in parts], np.int64),
        np.array([part[2] for part in parts], np.bool_),
        np.cumsum([0, *map(len, spans)]),
        np.array(rows, np.int64),
    )


@st.composite
def rows_of_spans(draw: Callable[..., Any]) -> tuple[NDArray[Any], list[list[tuple[int, int, bool]]], list[int], int]:
    flat = values_of(draw(sources), draw(st.integers(0, 300)), draw(st.integers(0, 9)))
    length = draw(st.integers(1, 150))
    spans = []
    for _ in range(draw(st.integers(0, 5))):
        parts, room = [], length
        for _ in range(draw(st.integers(0, 6))):
            size = draw(st.integers(0, min(room, len(flat))))
            has_next = draw(st.booleans()) and size < len(flat)
            parts.append((draw(st.integers(0, len(flat) - size - has_next)), size, has_next))
            room -= size
        spans.append(parts)
    rows = draw(st.permutations(range(len(spans) + 2)))[: len(spans)]
    return flat, spans, rows, length


@one_library
@given(case=rows_of_spans(), tokens=targets, labels=targets, more=st.integers(0, 3), data=st.data())
def test_rows_are_filled_as_they_are_said_to_be(
    case: Any, tokens: np.dtype[Any], labels: np.dtype[Any], more: int, data: st.DataObject
) -> None:
    flat, spans, rows, length = case
    pad, ignored = (data.draw(st.integers(max(-200, np.iinfo(kind).min), 60_000)) for kind in (tokens, labels))
    shape = len(spans) + 2, length, max(map(len, spans), default=0) + 2 + more
    wanted, found = (outputs_for(*shape, tokens, labels) for _ in range(2))
    filled(flat, spans, rows, wanted, pad=pad, ignored=ignored)
    assert fill_rows(flat, *arguments_for(spans, rows), **found, pad=pad, ignored=ignored)
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


@one_library
@given(case=rows_of_spans(), left_out=st.sets(st.sampled_from(["tokens", "labels", "positions", "cu_seqlens"])))
def test_outputs_may_be_left_out(case: Any, left_out: set[str]) -> None:
    flat, spans, rows, length = case
    whole, some = (outputs_for(len(spans) + 2, length, 8) for _ in range(2))
    some = {name: array for name, array in some.items() if name not in left_out}
    assert fill_rows(flat, *arguments_for(spans, rows), **whole)
    assert fill_rows(flat, *arguments_for(spans, rows), **some)
    for name, array in some.items():
        np.testing.assert_array_equal(array, whole[name])


def test_inputs_of_any_layout_are_taken() -> None:
    flat = values_of(np.dtype(np.uint16), 100, 0)
    elements, sizes, has_next, starts, rows = arguments_for([[(3, 4, True), (9, 2, False)], [(50, 6, True)]], [1, 0])
    wanted, found = outputs_for(2, 8, 4), outputs_for(2, 8, 4)
    assert fill_rows(flat, elements, sizes, has_next, starts, rows, **wanted)
    spread = np.repeat(elements, 2)[::2]
    for array in (sizes, rows, starts):
        array.flags.writeable = False
    assert fill_rows(flat, spread, sizes.astype(np.int32), has_next.astype(np.int8), starts, rows, **found)
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name])


@one_library
@given(
    numbers=st.lists(
        st.lists(st.integers(-3, 40) | st.sampled_from([2**62, 2**63 - 1, -(2**63), 2**32]), max_size=6),
        min_size=4,
        max_size=4,
    ),
    has_next=st.booleans(),
    kind=sources,
    shape=st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 5)),
)
def test_no_input_reads_or_writes_elsewhere(
    numbers: list[list[int]], has_next: bool, kind: np.dtype[Any], shape: tuple[int, int, int]
) -> None:
    elements, sizes, starts, rows = (np.array(part, np.int64) for part in numbers)
    flat = np.arange(33).astype(kind)
    num_rows, length, width = shape
    # The outputs lie between guards, which nothing may touch.
    guarded = {name: np.full(array.size + 128, 99, array.dtype) for name, array in outputs_for(*shape).items()}
    inner: dict[str, Any] = {
        name: guard[64 : len(guard) - 64].reshape(num_rows, width if name == "cu_seqlens" else length)
        for name, guard in guarded.items()
    }
    try:
        assert fill_rows(flat, elements, sizes, np.full(len(sizes), has_next), starts, rows, **inner)
    except ArgumentError:
        for guard in guarded.values():
            assert (guard == 99).all(), "what is refused writes nothing"
    for guard in guarded.values():
        assert (guard[:64] == 99).all() and (guard[len(guard) - 64 :] == 99).all()


GOOD: dict[str, Any] = {
    "elements": np.array([0, 5]),
    "sizes": np.array([4, 4]),
    "has_next": np.array([True, True]),
    "row_starts": np.array([0, 2]),
    "rows": np.array([1]),
}


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"elements": np.array([-1, 5])}, "outside the values"),
        ({"elements": np.array([0, 6])}, "outside the values"),
        ({"elements": np.array([0, 2**63 - 1])}, "outside the values"),
        ({"sizes": np.array([-1, 4])}, "outside the values"),
        ({"sizes": np.array([5, 4])}, "longer than a row"),
        ({"sizes": np.array([2**63 - 1, 2**63 - 1])}, "outside the values"),
        ({"row_starts": np.array([0, 3])}, "exceed the number of spans"),
        ({"row_starts": np.array([-1, 2])}, "exceed the number of spans"),
        ({"row_starts": np.array([2, 0])}, "exceed the number of spans"),
        ({"row_starts": np.array([0])}, "do not go together"),
        ({"rows": np.array([2])}, "do not have"),
        ({"rows": np.array([-1])}, "do not have"),
        ({"elements": np.array([0.0, 1.0])}, "float64"),
        ({"elements": np.array([2**63, 0], np.uint64)}, "63 bits"),
        ({"elements": np.array([[0, 5]])}, "2 dimensions"),
        ({"pad": 2**63}, "does not fit"),
        ({"ignored": -(2**63) - 1}, "does not fit"),
        ({"tokens": np.zeros((2, 8), np.uint16), "pad": -1}, "does not fit"),
        ({"labels": np.zeros((2, 9), np.int64)}, "shape"),
        ({"labels": np.zeros(16, np.int64)}, "dimensions"),
        ({"cu_seqlens": np.zeros((2, 2), np.int32)}, "more spans"),
        ({"cu_seqlens": np.zeros((2, 0), np.int32)}, "more spans"),
        ({"cu_seqlens": np.zeros((3, 4), np.int32)}, "shape"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], shown: str) -> None:
    outputs = outputs_for(2, 8, 4)
    with pytest.raises(ArgumentError, match=shown):
        fill_rows(np.arange(10, dtype=np.uint16), **{**GOOD, **outputs, **change})


def test_outputs_that_are_inputs_too_are_refused() -> None:
    outputs = outputs_for(2, 8, 4)
    flat = outputs["tokens"].reshape(-1)
    with pytest.raises(ArgumentError, match="shares memory"):
        fill_rows(flat, **GOOD, **outputs)
    outputs = outputs_for(2, 8, 4)
    starts = outputs["labels"].reshape(-1)[:2]
    with pytest.raises(ArgumentError, match="shares memory"):
        fill_rows(np.arange(10), **{**GOOD, "row_starts": starts}, **outputs)
    with pytest.raises(ArgumentError, match="shares memory"):
        gather_rows(flat, np.array([0, 1]), 8, outputs["tokens"], flat.reshape(2, 8))


def test_read_only_outputs_are_refused() -> None:
    outputs = outputs_for(2, 8, 4)
    for name in outputs:
        outputs[name].flags.writeable = False
        with pytest.raises(ArgumentError, match=f"{name} is read-only"):
            fill_rows(np.arange(10), **GOOD, **outputs)
        outputs[name].flags.writeable = True


@pytest.mark.parametrize(
    "flat",
    [
        np.arange(10.0),
        np.arange(10, dtype=">u2"),
        np.arange(10, dtype=np.int8),
        np.arange(20, dtype=np.uint16)[::2],
        np.frombuffer(bytes(21), np.uint16, 10, 1),
    ],
    ids=["floats", "the other byte order", "int8", "strided", "not aligned"],
)
def test_what_there_is_no_code_for_is_left_to_numpy(flat: NDArray[Any]) -> None:
    outputs = outputs_for(2, 8, 4)
    assert not fill_rows(flat, **GOOD, **outputs)
    assert not gather_rows(flat, np.array([0, 1]), 8, outputs["tokens"], outputs["labels"])
    assert all((array == 7).all() for array in outputs.values())


def test_outputs_there_is_no_code_for_are_left_to_numpy() -> None:
    for change in (
        {"tokens": np.zeros((2, 8), np.float32)},
        {"positions": np.zeros((2, 8), np.int64)},
        {"labels": np.zeros((2, 16), np.int64)[:, ::2]},
        {"cu_seqlens": np.zeros((2, 4), np.int64)},
    ):
        assert not fill_rows(np.arange(10), **GOOD, **{**outputs_for(2, 8, 4), **change})


@one_library
@given(data=st.data(), kind=sources, tokens=targets, labels=targets, length=st.integers(1, 400))
def test_gathered_rows_are_windows(
    data: st.DataObject, kind: np.dtype[Any], tokens: np.dtype[Any], labels: np.dtype[Any], length: int
) -> None:
    flat = values_of(kind, length + data.draw(st.integers(1, 300)), 1)
    elements = np.array(data.draw(st.lists(st.integers(0, len(flat) - length - 1), max_size=5)), np.int64)
    x, y = np.empty((len(elements), length), tokens), np.empty((len(elements), length), labels)
    assert gather_rows(flat, elements, length, x, y)
    places = elements[:, None] + np.arange(length)
    np.testing.assert_array_equal(x, flat[places].astype(tokens))
    np.testing.assert_array_equal(y, flat[places + 1].astype(labels))
    x[...] = 0
    assert gather_rows(flat, elements, length, x)
    np.testing.assert_array_equal(x, flat[places].astype(tokens))


@pytest.mark.parametrize("element", [-1, 2, 2**63 - 1, -(2**63)])
def test_windows_outside_are_refused(element: int) -> None:
    x = np.full((2, 8), 7, np.int64)
    with pytest.raises(ArgumentError, match="row 1"):
        gather_rows(np.arange(10), np.array([0, element]), 8, x, x.copy())
    assert (x == 7).all()
    with pytest.raises(ArgumentError, match="shape"):
        gather_rows(np.arange(100), np.array([0]), 8, x)
