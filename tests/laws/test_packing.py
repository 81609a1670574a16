"""Laws of packed rows: every token once per epoch, and all that a row holds agrees with the documents in it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import stoker
from stoker.compose.packs import pack_rows as rows_module
from stoker.compose.packs.pack_planning import concat_facts, plan_best_fit
from stoker.compose.packs.packed import Packed
from stoker.store import Writer
from tests.plan.test_packing import one_by_one
from tests.store.places import folder

IGNORED, PAD = -7, 3

Ways = dict[str, Any]

ways = st.one_of(
    st.fixed_dictionaries(
        {
            "strategy": st.just("best_fit"),
            "long": st.sampled_from(["split", "truncate"]),
            "window": st.none() | st.integers(1, 30),
        }
    ),
    st.just({"strategy": "concat"}),
)
sizes = st.lists(st.integers(0, 9) | st.integers(0, 60), min_size=1, max_size=60).filter(any)


def documents_of(lengths: list[int]) -> list[NDArray[np.uint16]]:
    """Return documents of these lengths, in which no token occurs twice."""
    stops = np.cumsum(lengths).tolist()
    return [np.arange(stop - size, stop).astype(np.uint16) for stop, size in zip(stops, lengths)]


def packed_in(place: str, folder: Path, lengths: list[int], length: int, way: Ways, **options: Any) -> Packed:
    """Return the same documents packed, from memory or from a store of one shard or of many."""
    options = {**way, "pad": PAD, "ignored": IGNORED, **options}
    if place == "memory":
        return stoker.pack(documents_of(lengths), length, **options)
    shard_bytes = 1 << 20 if place == "store" else 100
    with Writer(folder / "store", {"tokens": "uint16[*]"}, shard_bytes=shard_bytes, overwrite=True) as writer:
        writer.extend({"tokens": (np.arange(sum(lengths)), lengths)})
    return stoker.pack(folder / "store", length, **options)


places = st.sampled_from(["memory", "store", "shards"])


def content(packed: Packed, row: int) -> list[tuple[int, int, int]]:
    return [(span.document, span.offset, span.size) for span in packed.documents(row)]


def pieces_of(packed: Packed, num_documents: int) -> list[list[tuple[int, int]]]:
    """Return where each document's pieces begin and end, over all rows."""
    pieces: list[list[tuple[int, int]]] = [[] for _ in range(num_documents)]
    for row in range(len(packed)):
        for document, offset, size in content(packed, row):
            pieces[document].append((offset, offset + size))
    return [sorted(found) for found in pieces]


@given(
    lengths=sizes, length=st.integers(2, 24), way=ways, place=places, seed=st.integers(0, 9), epoch=st.integers(0, 5)
)
@settings(max_examples=150)
def test_every_token_is_in_one_row_of_every_epoch(
    lengths: list[int], length: int, way: Ways, place: str, seed: int, epoch: int
) -> None:
    with folder() as path:
        packed = packed_in(place, path, lengths, length, way, seed=seed).in_epoch(epoch)
        for size, pieces in zip(lengths, pieces_of(packed, len(lengths)), strict=True):
            expected = min(size, length) if way.get("long") == "truncate" else size
            assert sum(stop - start for start, stop in pieces) == expected
            assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces)][: len(pieces)]
            if way["strategy"] == "best_fit" and size:
                assert len(pieces) == (1 if way["long"] == "truncate" else -(-size // length)), "cut without need"


@given(lengths=sizes, length=st.integers(2, 24), way=ways, place=places, epoch=st.integers(0, 3), dtype=st.data())
@settings(max_examples=150)
def test_all_that_a_row_holds_is_what_its_documents_say(
    lengths: list[int], length: int, way: Ways, place: str, epoch: int, dtype: Any
) -> None:
    kind = dtype.draw(st.sampled_from(["int64", "int32"]))
    documents = documents_of(lengths)
    with folder() as path:
        packed = packed_in(place, path, lengths, length, way, dtype=kind).in_epoch(epoch)
        order = np.random.default_rng(0).permutation(len(packed))
        batch = packed.__getbatch__(order, np.empty)
        assert {name: (rows.shape[1:], rows.dtype) for name, rows in batch.items()} == packed.fields()
        spans = packed.spans(order)
        seen_spans, longest = 0, 0
        for at, row in enumerate(order.tolist()):
            expected = slow_row(content(packed, row), documents, length, packed.max_documents, way)
            for name, values in expected.items():
                assert batch[name][at].tolist() == values, name
                assert np.asarray(packed[row][name]).tolist() == values
            first, last = spans.row_starts[at : at + 2].tolist()
            assert content(packed, row) == list(
                zip(*(part[first:last].tolist() for part in (spans.documents, spans.offsets, spans.sizes)))
            )
            borders = np.flatnonzero(np.diff(batch["cu_seqlens"][at]))
            seen_spans = max(seen_spans, len(borders))
            longest = max(longest, int(np.diff(batch["cu_seqlens"][at]).max()))
        assert seen_spans == packed.max_documents
        assert longest <= packed.max_seqlen <= length
        assert (batch["max_seqlen"] == packed.max_seqlen).all()
        assert int((batch["document_ids"] >= 0).sum()) == packed.num_tokens


def slow_row(
    spans: list[tuple[int, int, int]], documents: list[NDArray[np.uint16]], length: int, most: int, way: Ways
) -> dict[str, list[int]]:
    """Return what a row should hold, token by token."""
    tokens, labels, positions, ids, borders = [], [], [], [], [0]
    for number, (document, offset, size) in enumerate(spans):
        for place in range(offset, offset + size):
            end = length if way.get("long") == "truncate" else len(documents[document])
            tokens.append(int(documents[document][place]))
            has_next = place + 1 < min(end, len(documents[document]))
            labels.append(int(documents[document][place + 1]) if has_next else IGNORED)
            positions.append(place - offset)
            ids.append(number)
        borders.append(len(tokens))
    padding = length - len(tokens)
    assert padding >= 0, "a row over its length"
    borders += [length] * (most + 1 - len(borders))
    return {
        "tokens": tokens + [PAD] * padding,
        "labels": labels + [IGNORED] * padding,
        "positions": positions + list(range(padding)),
        "document_ids": ids + [-1] * padding,
        "cu_seqlens": borders,
    }


@given(lengths=sizes, length=st.integers(2, 24), way=ways, place=places, epoch=st.integers(0, 3))
@settings(max_examples=100)
def test_find_and_documents_are_inverse_to_each_other(
    lengths: list[int], length: int, way: Ways, place: str, epoch: int
) -> None:
    with folder() as path:
        packed = packed_in(place, path, lengths, length, way).in_epoch(epoch)
        found = [span for document in range(len(lengths)) for span in packed.find(document)]
        listed = [span for row in range(len(packed)) for span in packed.documents(row)]
        assert sorted(found) == sorted(listed)
        assert found == sorted(found, key=lambda span: (span.document, span.offset))
        for span in listed:
            row = packed[span.row]["tokens"][span.start : span.stop]
            assert row.tolist() == documents_of(lengths)[span.document][span.offset : span.offset + span.size].tolist()


@given(lengths=sizes, length=st.integers(2, 24), way=ways)
def test_the_report_counts_what_is_there(lengths: list[int], length: int, way: Ways) -> None:
    packed = packed_in("memory", Path(), lengths, length, way)
    rows = [content(packed, row) for row in range(len(packed))]
    report = packed.report()
    nums = [len(row) for row in rows]
    tokens = sum(size for row in rows for _, _, size in row)
    pieces = pieces_of(packed, len(lengths))
    is_whole = [found == [(0, size)] for found, size in zip(pieces, lengths) if size]
    assert (report.num_rows, report.length, report.num_tokens) == (len(rows), length, tokens)
    assert (report.num_documents, report.num_empty) == (sum(size > 0 for size in lengths), lengths.count(0))
    assert (report.min_documents, report.max_documents) == (min(nums), max(nums))
    assert report.mean_documents == pytest.approx(sum(nums) / len(nums))
    assert report.num_padding == len(rows) * length - tokens
    assert report.fill == pytest.approx(tokens / (len(rows) * length))
    assert (
        report.num_truncated == sum(lengths) - tokens == (0 if way.get("long") != "truncate" else report.num_truncated)
    )
    assert report.num_cut == is_whole.count(False)
    assert packed.num_tokens == tokens


@given(lengths=sizes, length=st.integers(2, 24), window=st.none() | st.integers(1, 20))
def test_rows_are_as_many_as_by_best_fit_item_by_item(lengths: list[int], length: int, window: int | None) -> None:
    packed = stoker.pack(documents_of(lengths), length, window=window)
    expected = 0
    for first in range(0, len(lengths), window or len(lengths)):
        some = lengths[first : first + (window or len(lengths))]
        expected += sum(size // length for size in some)
        expected += len(one_by_one([size % length for size in some if size % length], length))
    assert len(packed) == expected


@given(lengths=sizes, length=st.integers(2, 24), window=st.integers(1, 20), epoch=st.integers(0, 3))
def test_documents_of_a_row_are_of_one_window(lengths: list[int], length: int, window: int, epoch: int) -> None:
    packed = stoker.pack(documents_of(lengths), length, window=window).in_epoch(epoch)
    windows = [{document // window for document, _, _ in content(packed, row)} for row in range(len(packed))]
    assert all(len(found) == 1 for found in windows)
    assert [min(found) for found in windows] == sorted(min(found) for found in windows)


@given(lengths=st.lists(st.integers(0, 50), min_size=1, max_size=300), parts=st.data())
def test_a_plan_does_not_depend_on_how_lengths_are_handed_over(lengths: list[int], parts: Any) -> None:
    length, window = 16, parts.draw(st.none() | st.integers(1, 40))
    cuts = parts.draw(st.lists(st.integers(0, len(lengths)), max_size=5).map(sorted))
    pieces = np.split(np.array(lengths), cuts)
    whole = plan_best_fit([np.array(lengths)], length=length, window=window, long="split")
    apart = plan_best_fit(iter(pieces), length=length, window=window, long="split")
    assert apart.facts == whole.facts
    for name in ("row_starts", "slot_starts", "slots", "classes", "order", "pieces"):
        assert np.array_equal(getattr(apart, name), getattr(whole, name)), name
    assert concat_facts(iter(pieces), length=length) == concat_facts([np.array(lengths)], length=length)


@given(lengths=sizes, length=st.integers(2, 24), epochs=st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_what_is_put_together_for_some_slots_is_what_is_kept_for_all(
    lengths: list[int], length: int, epochs: list[int]
) -> None:
    packed, other = (stoker.pack(documents_of(lengths), length, window=7) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        for epoch in epochs:
            kept = packed.in_epoch(epoch).spans(range(len(packed)))
            patch.setattr(rows_module, "MAX_CACHED_SLOTS", -1)
            found = other.in_epoch(epoch).spans(range(len(packed)))
            patch.undo()
            assert all(np.array_equal(one, two) for one, two in zip(kept, found, strict=True))


def test_slots_of_64_bits_are_counted_exactly() -> None:
    packed = packed_in("memory", Path(), [n % 23 for n in range(300)], 16, {"strategy": "best_fit"})
    layout = packed._tables
    slots = layout.slots.astype(np.uint64)
    # the same ranks, many times around: a float has not the bits for them
    slots[:, 1] += layout.classes[layout.slots[:, 0], 1].astype(np.uint64) << np.uint64(55)
    copy = Packed(packed._documents, packed.settings, packed._cache, tables=replace(layout, slots=slots))
    rows = list(range(len(packed)))
    for one, other in zip(packed.in_epoch(3).spans(rows), copy.in_epoch(3).spans(rows), strict=True):
        assert np.array_equal(one, other)


def test_epochs_and_seeds_put_other_documents_together() -> None:
    lengths = (1 + np.arange(400) % 40).tolist()
    packed = stoker.pack(documents_of(lengths), 41)
    other = stoker.pack(documents_of(lengths), 41, seed=1)

    def neighbours(some: Packed) -> set[frozenset[int]]:
        return {frozenset(document for document, _, _ in content(some, row)) for row in range(len(some))}

    seen = [neighbours(packed.in_epoch(epoch)) for epoch in range(3)] + [neighbours(other)]
    for first in range(4):
        for second in range(first):
            assert len(seen[first] & seen[second]) < len(packed) / 2
    assert neighbours(packed.in_epoch(2).in_epoch(0)) == seen[0]


@given(lengths=sizes, length=st.integers(2, 24), way=ways, place=places, epoch=st.integers(0, 3))
@settings(max_examples=50)
def test_a_copy_by_pickle_has_the_same_rows(lengths: list[int], length: int, way: Ways, place: str, epoch: int) -> None:
    with folder() as path:
        packed = packed_in(place, path, lengths, length, way, blocks=2).in_epoch(epoch)
        copy = pickle.loads(pickle.dumps(packed))
        assert (copy.fingerprint, copy.epoch, len(copy)) == (packed.fingerprint, epoch, len(packed))
        one, two = (some.__getbatch__(range(len(packed)), np.empty) for some in (packed, copy))
        assert one.keys() == two.keys()
        assert all(np.array_equal(one[name], two[name]) for name in one)


@given(lengths=sizes, length=st.integers(2, 24), way=ways, chosen=st.data())
@settings(max_examples=50)
def test_fill_writes_the_rows_it_is_told_to_and_no_others(
    lengths: list[int], length: int, way: Ways, chosen: Any
) -> None:
    packed = packed_in("memory", Path(), lengths, length, way, blocks=4)
    num_rows = chosen.draw(st.integers(1, 6))
    rows = np.array(chosen.draw(st.permutations(range(num_rows + 2))), np.int64)[:num_rows]
    positions = chosen.draw(st.lists(st.integers(0, len(packed) - 1), min_size=num_rows, max_size=num_rows))
    wider = chosen.draw(st.integers(0, 3))
    batch = {
        name: np.full((num_rows + 2, *((shape[0] + wider,) if name == "cu_seqlens" else shape)), 77, dtype)
        for name, (shape, dtype) in packed.fields().items()
    }
    packed.fill(positions, batch, rows)
    for name, found in batch.items():
        for row, position in zip(rows.tolist(), positions):
            expected = np.asarray(packed[position][name])
            if name == "cu_seqlens":
                expected = np.append(expected, [length] * wider)
            assert np.array_equal(found[row], expected), name
        untouched = sorted(set(range(num_rows + 2)) - set(rows.tolist()))
        assert (found[untouched] == 77).all()
