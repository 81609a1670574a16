"""Mixtures: what comes when, from which source, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.errors import ArgumentError, PositionError, StateMismatch, StateUnreadable
from stoker.store import Writer

A, B = list(range(10)), list(range(100, 130))


def documents(first: int, number: int, size: int = 40) -> list[Any]:
    """Documents whose tokens are their number, so that a row tells what is in it."""
    return [np.full(size - at % 7, first + at) for at in range(number)]


def stored(path: Path, *, dtype: str = "uint16", tokenizer: str = "one", number: int = 40, first: int = 0) -> Any:
    meta = {"tokenizer": {"name": tokenizer, "digest": tokenizer * 16}}
    with Writer(path, {"tokens": f"{dtype}[*]"}, meta=meta) as writer:
        for document in documents(first, number):
            writer.append({"tokens": document.astype(dtype)})
    return stoker.open(path)


# ---------------------------------------------------------------- what comes


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    data=st.data(),
    order=st.sampled_from(["shuffle", "sequential", stoker.Window(size=8, block=2)]),
    stop=st.sampled_from(["first_exhausted", "all_exhausted", 57]),
)
def test_each_source_comes_whole_in_each_of_its_epochs(sizes: list[int], data: Any, order: Any, stop: Any) -> None:
    weights = [data.draw(st.integers(1, 9)) for _ in sizes]
    names = [f"source {number}" for number in range(len(sizes))]
    sources = {
        name: ([(name, number) for number in range(size)], weight) for name, size, weight in zip(names, sizes, weights)
    }
    mixture = stoker.mix(sources, order=order, stop=stop, seed=data.draw(st.integers(0, 9)))
    stream = [mixture.in_epoch(epoch)[at] for epoch in range(3) for at in range(len(mixture))]
    for name, size, weight in zip(names, sizes, weights):
        own = [number for source, number in stream if source == name]
        for start in range(0, len(own), size):
            once = own[start : start + size]
            assert len(set(once)) == len(once)
        share = Fraction(weight, sum(weights))
        count = 0
        for number, (source, _) in enumerate(stream):
            assert abs(count - number * share) < 1
            assert mixture.counts(number)[name] == count
            count += source == name
    for number, (name, position) in enumerate(stream):
        source, epoch, place = mixture.at(number)
        assert (source, place) == (name, position)
        assert mixture.find(source, place, epoch) == number


def test_when_an_epoch_ends() -> None:
    def length(**options: Any) -> int:
        return len(stoker.mix({"a": (A, 1), "b": (B, 1)}, **options))

    assert length(stop="first_exhausted") in (20, 21)  # a has 10 samples and half of the turns
    assert length(stop="all_exhausted") in (59, 60)
    assert length(stop=7) == 7
    assert length(stop="never") == 2**48
    assert length(stop="never", limits={"a": 2, "b": 1.5}) == 65
    assert length(stop="all_exhausted", limits={"a": 2, "b": 0.5}) in (29, 30)
    assert length(stop="first_exhausted", limits={"a": 3}) in (59, 60, 61)
    mixture = stoker.mix({"a": (A, 1), "b": (B, 1)}, stop="first_exhausted")
    assert max(Counter(mixture[at] for at in range(len(mixture))).values()) == 1
    mixture = stoker.mix({"a": (A, 1), "b": (B, 1)}, stop="all_exhausted")
    assert {mixture[at] for at in range(len(mixture))} == {*A, *B}


def test_a_limited_source_drops_out_over_all_epochs() -> None:
    mixture = stoker.mix({"a": (A, 1), "b": (B, 1)}, limits={"a": 2}, stop=30)
    counts = Counter(mixture.in_epoch(epoch)[at] for epoch in range(5) for at in range(30))
    assert all(counts[sample] == 2 for sample in A)
    assert sum(counts[sample] for sample in B) == 130
    over = stoker.mix({"a": (A, 1), "b": (B, 1)}, limits={"a": 2, "b": 1}, stop=30)
    with pytest.raises(ArgumentError, match="the limits of the sources leave 50"):
        over.in_epoch(1)


def test_sources_are_shuffled_apart_and_again_in_each_epoch() -> None:
    mixture = stoker.mix({"a": (list(range(50)), 1), "b": (list(range(50)), 1)}, stop="never")
    own: dict[str, list[int]] = {"a": [], "b": []}
    for number in range(200):
        source, _, position = mixture.at(number)
        own[source].append(position)
    assert len({tuple(own[name][start : start + 50]) for name in own for start in (0, 50)}) == 4
    other = stoker.mix({"a": (list(range(50)), 1), "b": (list(range(50)), 1)}, stop="never", seed=1)
    assert [other.at(number) for number in range(50)] != [mixture.at(number) for number in range(50)]


def test_a_schedule_changes_the_weights_at_a_step() -> None:
    mixture = stoker.mix(
        {"a": A, "b": B}, schedule={0: {"a": 1}, 5: {"a": 1, "b": 3}, 10: {"b": 1}}, batch_size=4, stop="never"
    )
    assert mixture.counts(20) == {"a": 20, "b": 0}
    assert mixture.counts(40) == {"a": 25, "b": 15}
    assert mixture.counts(100) == {"a": 25, "b": 75}
    assert mixture.shares == {"a": 1}
    assert mixture.shares_at(25) == {"a": Fraction(1, 4), "b": Fraction(3, 4)}
    for number in range(100):
        source, epoch, position = mixture.at(number)
        assert mixture.find(source, position, epoch) == number


def test_positions_far_out_and_in_any_order_are_those_one_by_one() -> None:
    mixture = stoker.mix({"a": (A, 0.3), "b": (B, 0.7)}, stop="never", label=None)
    for positions in ([5], [7, 3, 900], list(range(0, 400, 7)), [2**47, 2**47 + 1], list(range(40)), [39, 38]):
        keys, places = mixture._look_up_ahead(np.array(positions))
        for position, key, place in zip(positions, keys.tolist(), places.tolist()):
            name, epoch, at = mixture.at(position)
            assert (key, place) == (epoch * 2 + mixture.names.index(name), at)


@given(
    starts=st.lists(st.integers(0, 300), min_size=1, max_size=12),
    stride=st.integers(1, 3),
    size=st.integers(1, 9),
)
def test_looking_ahead_changes_nothing(starts: list[int], stride: int, size: int) -> None:
    mixture = stoker.mix({"a": (A, 2), "b": (B, 3)}, stop=400)
    for start in [*starts, *range(0, 300, size * stride)]:
        positions = np.arange(start, start + size * stride, stride)
        keys, places = mixture._look_up_ahead(positions)
        expected = mixture._look_up(positions)
        assert np.array_equal(keys, expected[0])
        assert np.array_equal(places, expected[1])


# ---------------------------------------------------------------- tokens


def test_by_tokens_a_source_of_short_samples_gives_more_of_them() -> None:
    short = stoker.pack(documents(0, 30), length=64)
    long = stoker.pack(documents(0, 10, size=64), length=64, strategy="concat")
    mixture = stoker.mix({"short": (short, 0.5), "long": (long, 0.5)}, by="tokens", stop=100)
    means = {"short": Fraction(short.num_tokens, len(short)), "long": Fraction(long.num_tokens, len(long))}
    assert means["short"] < means["long"]
    for number in range(0, 101, 10):
        counts = mixture.counts(number)
        tokens = {name: counts[name] * means[name] for name in counts}
        assert abs(tokens["short"] - tokens["long"]) <= 2 * max(means.values())
    with pytest.raises(ArgumentError, match="does not say how many tokens"):
        stoker.mix({"a": (A, 1)}, by="tokens")


# ---------------------------------------------------------------- batches


def test_a_batch_of_packs_is_its_rows_with_wider_fields() -> None:
    few = stoker.pack(documents(100, 20, size=60), length=64)
    many = stoker.pack(documents(0, 60, size=12), length=64)
    assert few.max_documents < many.max_documents
    mixture = stoker.mix({"few": (few, 1), "many": (many, 2)}, stop=60, label="source")
    batch = mixture.__getbatch__(np.arange(5, 45), np.empty)
    assert batch["cu_seqlens"].shape == (40, many.max_documents + 1)
    assert set(batch["max_seqlen"].tolist()) == {max(few.max_seqlen, many.max_seqlen)} == {mixture.max_seqlen}
    for row in range(40):
        name, epoch, position = mixture.at(row + 5)
        own = {"few": few, "many": many}[name].in_epoch(epoch)[position]
        for field in ("tokens", "labels", "positions", "document_ids"):
            assert np.array_equal(batch[field][row], own[field])
        width = len(own["cu_seqlens"])
        assert np.array_equal(batch["cu_seqlens"][row][:width], own["cu_seqlens"])
        assert set(batch["cu_seqlens"][row][width:].tolist()) <= {64}
        assert batch["source"][row] == mixture.names.index(name)
        assert dict(zip(mixture.names, batch["source_counts"][row].tolist())) == mixture.counts(row + 6)


def test_rows_of_a_later_epoch_of_a_source_are_those_of_that_epoch() -> None:
    packed = stoker.pack(documents(0, 40, size=12), length=64)
    mixture = stoker.mix({"only": (packed, 1)}, stop=3 * len(packed), order="sequential")
    batch = mixture.__getbatch__(np.arange(3 * len(packed)), np.empty)
    rows = [packed.in_epoch(epoch)[at]["tokens"] for epoch in range(3) for at in range(len(packed))]
    assert np.array_equal(batch["tokens"], np.stack(rows))
    assert not np.array_equal(rows[0], rows[len(packed)])


@pytest.mark.parametrize("across", [True, False])
def test_crops_fill_their_rows(tmp_path: Path, across: bool) -> None:
    first, second = stored(tmp_path / "a"), stored(tmp_path / "b", number=25)
    crops = {"a": first.tokens(32, across=across, dtype=None if across else "int64"), "b": second.tokens(32)}
    crops["b"] = second.tokens(32, across=across, dtype=crops["a"].dtype)
    mixture = stoker.mix({name: (rows, 1) for name, rows in crops.items()}, stop=50)
    batch = mixture.__getbatch__(np.arange(50), np.empty)
    assert batch["tokens"].dtype == crops["a"].dtype
    for row in range(50):
        name, _, position = mixture.at(row)
        assert np.array_equal(batch["tokens"][row], crops[name][position]["tokens"])
        assert np.array_equal(batch["labels"][row], crops[name][position]["labels"])
        assert np.array_equal(mixture[row]["labels"], batch["labels"][row])
    assert mixture.is_pure


class Whole:
    """Makes batches whole, of a form of its own."""

    def __init__(self, form: Any, length: int = 9) -> None:
        self.form, self.length = form, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> Any:
        return self.form(np.array(position))

    def __getbatch__(self, positions: Any, empty: Any) -> Any:
        return self.form(np.asarray(positions))


def test_batches_that_sources_make_are_put_together() -> None:
    def table(positions: Any) -> Any:
        return {"x": positions * 2, "pair": (positions, [positions + 1])}

    mixture = stoker.mix({"a": (Whole(table), 1), "b": (Whole(table), 2)}, stop=20)
    batch = mixture.__getbatch__(np.arange(20), np.empty)
    places = [mixture.at(number)[2] for number in range(20)]
    assert batch["x"].tolist() == [2 * place for place in places]
    assert batch["pair"][0].tolist() == places
    assert batch["pair"][1][0].tolist() == [place + 1 for place in places]
    labelled = stoker.mix({"a": (Whole(table), 1), "b": (Whole(table), 2)}, stop=20, label="from")
    assert labelled.__getbatch__(np.arange(20), np.empty)["from"].tolist() == [
        ["a", "b"].index(labelled.at(number)[0]) for number in range(20)
    ]


@pytest.mark.parametrize(
    "other",
    [
        lambda x: {"y": x},
        lambda x: {"x": x.astype(np.int32)},
        lambda x: [x],
        lambda x: {"x": x[..., None]},
        lambda x: x,
    ],
)
def test_batches_of_different_forms_are_left_to_the_samples(other: Any) -> None:
    mixture = stoker.mix({"a": (Whole(lambda x: {"x": x}), 1), "b": (Whole(other), 1)}, stop=18)
    assert mixture.__getbatch__(np.arange(18), np.empty) is NotImplemented
    plain = stoker.mix({"a": (A, 1), "b": (B, 1)}, stop=18)
    assert plain.__getbatch__(np.arange(18), np.empty) is NotImplemented
    assert not plain.__getitems__


def test_many_samples_in_one_call_are_those_one_by_one() -> None:
    few, many = stoker.pack(documents(100, 20), length=64), stoker.pack(documents(0, 60), length=64)
    mixture = stoker.mix({"few": (few, 1), "many": (many, 2)}, stop=60, label="source")
    for at, sample in enumerate(mixture.__getitems__(list(range(20)))):
        assert np.array_equal(sample["tokens"], mixture[at]["tokens"])
        assert np.array_equal(sample["source_counts"], mixture[at]["source_counts"])


def test_a_mixture_can_be_mixed() -> None:
    packs = [stoker.pack(documents(first, 30), length=64) for first in (0, 100, 200)]
    inner = stoker.mix({"x": (packs[0], 1), "y": (packs[1], 1)}, stop=20)
    outer = stoker.mix({"inner": (inner, 2), "z": (packs[2], 1)}, stop=60)
    batch = outer.__getbatch__(np.arange(60), np.empty)
    for row in range(60):
        name, epoch, position = outer.at(row)
        sources: dict[str, Any] = {"inner": inner, "z": packs[2]}
        own = sources[name].in_epoch(epoch)[position]
        assert np.array_equal(batch["tokens"][row], own["tokens"])


def test_a_mixture_in_a_mixture_keeps_its_shares_and_may_be_of_anything() -> None:
    inner = stoker.mix({"a": (A, 0.5), "b": (B, 0.5)}, stop="never")
    outer = stoker.mix({"inner": (inner, 0.5), "c": (list(range(200, 210)), 0.5)}, stop=80)
    counts = Counter(outer[at] // 100 for at in range(80))
    assert counts == {0: 20, 1: 20, 2: 40}
    assert outer.fields is None and outer.max_seqlen is None
    pack = stoker.pack(documents(0, 30), length=64)
    assert stoker.mix({"inner": (inner, 1), "pack": (pack, 1)}).max_seqlen == pack.max_seqlen


def test_shares_that_are_rounded_by_much_are_reported() -> None:
    with pytest.warns(UserWarning, match="'rare' should give 1e-09 of the samples, and gives 1 in 1048576"):
        stoker.mix({"rare": (A, 1e-9), "b": (B, 1)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stoker.mix({"a": (A, 1 / 3), "b": (B, 0.1234567891)})


def test_mixtures_pickle_small_and_the_same() -> None:
    mixture = stoker.mix({"a": (A, 0.123456789), "b": (B, 0.8)}, stop=500)
    assert mixture.blend.segments(1)[0].quota.period > 2**15
    view = mixture.in_epoch(3)
    data = pickle.dumps(view)
    assert len(data) < 4000
    again = pickle.loads(data)
    assert again.epoch == 3
    assert [again[at] for at in range(500)] == [view[at] for at in range(500)]
    assert copy.copy(again).shares == mixture.shares


def test_what_a_mixture_tells(tmp_path: Path) -> None:
    rows = stored(tmp_path / "a")
    packs = [stoker.pack(rows, length=64, seed=seed) for seed in (0, 1)]
    mixture = stoker.mix({"a": (packs[0], 0.25), "b": (packs[1], 0.75)})
    assert "a 25%" in repr(mixture)
    assert "of source 'b'" in mixture.describe(0) or "of source 'a'" in mixture.describe(0)
    assert "document" in mixture.describe(0)
    assert set(mixture.report()) == {"a", "b"}
    assert (
        mixture.fingerprint
        == stoker.mix(
            {"a": (stoker.pack(rows, length=64), 1), "b": (stoker.pack(rows, length=64, seed=1), 3)}
        ).fingerprint
    )
    mixture.expect({"tokenizer": {"name": "one"}})
    with pytest.raises(stoker.errors.StoreMismatch):
        mixture.expect({"tokenizer": {"name": "two"}})
    with pytest.raises(ArgumentError, match="expect= can only check stores, and source 'a'"):
        stoker.mix({"a": (A, 1)}).expect({})
    plain = {weight: stoker.mix({"a": (A, weight), "b": (A, 1)}) for weight in (1, 2)}  # of sources without one
    assert plain[1].fingerprint != plain[2].fingerprint
    with pytest.raises(PositionError):
        mixture[len(mixture)]
    assert np.array_equal(mixture[-1]["tokens"], mixture[len(mixture) - 1]["tokens"])


# ---------------------------------------------------------------- what is refused


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ({}, {}, "nothing to mix"),
    ([A, B], {}, "sources is a list"),
    ({"a": (A, 0)}, {}, "weight of 'a' is 0"),
    ({"a": (A, -1)}, {}, "weight of 'a' is -1"),
    ({"a": (A, float("nan"))}, {}, "weight of 'a' is nan"),
    ({"a": (A, 1), "b": B}, {}, "source 'b' has no weight"),
    ({"a": (A, 1), "b": ([], 1)}, {}, "source 'b' is empty"),
    ({"a": (A, 1), "b": (iter(B), 1)}, {}, "cannot be mixed: its samples have no positions"),
    ({1: (A, 1)}, {}, "a source must be a string, got 1"),
    ({"a": (A, 1)}, {"by": "bytes"}, "by='bytes'"),
    ({"a": (A, 1)}, {"seed": 0.5}, "seed=0.5"),
    ({"a": (A, 1)}, {"stop": "sometime"}, "stop='sometime'"),
    ({"a": (A, 1)}, {"stop": 0}, "stop=0"),
    ({"a": (A, 1)}, {"stop": True}, "stop=True"),
    ({"a": (A, 1)}, {"stop": 21, "limits": {"a": 2}}, "leave 20 samples"),
    ({"a": (A, 1)}, {"order": "backwards"}, "order='backwards'"),
    ({"a": (A, 1)}, {"limits": {"b": 1}}, "limits: there is no source 'b'"),
    ({"a": (A, 1)}, {"limits": {"a": 0}}, "limits: the number of epochs of 'a' is 0"),
    ({"a": (A, 1)}, {"limits": {"a": 0.01}}, "less than one sample"),
    ({"a": (A, 1)}, {"schedule": {5: {"a": 1}}}, "batch_size=None"),
    ({"a": (A, 1)}, {"schedule": {5: {"a": 1}}, "batch_size": 0}, "batch_size=0"),
    ({"a": (A, 1)}, {"schedule": {5: {"a": 1}, 3: {"a": 1}}, "batch_size": 2}, "step 3 comes after step 5"),
    ({"a": (A, 1)}, {"schedule": {-5: {"a": 1}}, "batch_size": 2}, "-5 is not a step"),
    ({"a": (A, 1)}, {"schedule": {5: {"b": 1}}, "batch_size": 2}, "step 5: there is no source 'b'"),
    ({"a": (A, 1)}, {"schedule": {5: {"a": 0}}, "batch_size": 2}, "step 5: {} gives no weights"),
    ({"a": (A, 1)}, {"schedule": {5: {"a": -1}}, "batch_size": 2}, "step 5: the weight of 'a' is -1"),
    ({"a": (A, 1)}, {"schedule": {5: {}}, "batch_size": 2}, "gives no weights"),
    ({"a": (A, 1)}, {"schedule": {0: {"a": 1}}, "batch_size": 2}, "given twice"),
    ({"a": (A, 1)}, {"schedule": [1], "batch_size": 2}, "is not a dict"),
    ({"a": A, "b": B}, {"schedule": {0: {"a": 1}}, "batch_size": 2}, "'b' never has a weight"),
    (
        {"a": A, "b": B},
        {"schedule": {0: {"a": 1, "b": 1}, 1: {"a": 1}}, "batch_size": 2, "stop": "all_exhausted"},
        "'b' is never read completely",
    ),
]


@pytest.mark.parametrize(("sources", "options", "text"), REFUSED, ids=[text for _, _, text in REFUSED])
def test_bad_input_is_refused(sources: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match="hint: ") as error:
        stoker.mix(sources, **options)
    assert text in str(error.value)


def test_data_that_does_not_go_together_is_refused(tmp_path: Path) -> None:
    one, two = stored(tmp_path / "one"), stored(tmp_path / "two", tokenizer="two")
    wide = stored(tmp_path / "wide", dtype="uint32")

    def mixed(first: Any, second: Any, **options: Any) -> stoker.Mixture:
        return stoker.mix({"a": (first, 1), "b": (second, 1)}, **options)

    with pytest.raises(ArgumentError, match=r"the tokenizer is one .* in source 'a' and two .* in source 'b'"):
        mixed(one.tokens(32), two.tokens(32))
    with pytest.raises(ArgumentError, match="the tokens' type is uint16 in source 'a' and uint32 in source 'b'"):
        mixed(stoker.pack(one, length=32), stoker.pack(wide, length=32))
    with pytest.raises(ArgumentError, match="rows of the same length"):
        mixed(stoker.pack(one, length=32), stoker.pack(one, length=64), force=True)
    with pytest.raises(ArgumentError, match="pack all sources, or none"):
        mixed(stoker.pack(one, length=32), one.tokens(32), force=True)
    forced = mixed(one.tokens(32, dtype=None), wide.tokens(32, dtype=None), force=True)
    batch = forced.__getbatch__(np.arange(20), np.empty)
    assert batch["tokens"].dtype == np.uint32
    assert len(mixed(stoker.pack(one, length=32), stoker.pack(wide, length=32), force=True)[0]["tokens"]) == 32
    with pytest.raises(ArgumentError, match="have a field 'tokens' already"):
        mixed(one.tokens(32), one.tokens(32), label="tokens")
    labelled = stoker.mix({"a": (A, 1)}, label="source")
    with pytest.raises(ArgumentError, match="needs samples that are dicts, and one is int"):
        labelled[0]


def test_there_is_nothing_before_the_beginning() -> None:
    mixture = stoker.mix({"a": (A, 0.5), "b": (B, 0.5)}, stop=20)
    for ask in (lambda: mixture.find("a", 1, -1), lambda: mixture.counts(-1), lambda: mixture.at(-1)):
        with pytest.raises(ArgumentError, match="-1"):
            ask()


def test_a_schedule_that_leaves_nobody_says_so() -> None:
    schedule = {0: {"a": 1}, 100: {"b": 1}}
    with pytest.raises(ArgumentError, match="'b' is never read completely: after 10 samples all sources with a weight"):
        stoker.mix({"a": A, "b": B}, schedule=schedule, batch_size=1, limits={"a": 1}, stop="all_exhausted")


def test_labels_that_are_ignored_must_be_the_same() -> None:
    packs = [stoker.pack(documents(0, 30), length=64, ignored=ignored) for ignored in (-100, -1)]
    sources = {"a": (packs[0], 0.5), "b": (packs[1], 0.5)}
    with pytest.raises(ArgumentError, match="the label that is ignored is -100 in source 'a' and -1 in source 'b'"):
        stoker.mix(sources)
    assert stoker.mix(sources, force=True)


def test_what_is_not_there_is_not_found() -> None:
    mixture = stoker.mix({"a": (A, 1), "b": (B, 1)}, limits={"a": 1}, stop=40)
    assert mixture.find("a", 3, epoch=1) is None
    with pytest.raises(ArgumentError, match="no source 'c'"):
        mixture.find("c", 0)
    with pytest.raises(PositionError, match="source 'a'"):
        mixture.find("a", 10)
    with pytest.raises(ArgumentError, match="no epoch -1"):
        mixture.in_epoch(-1)


# ---------------------------------------------------------------- state


def plain(state: Any) -> Any:
    return json.loads(json.dumps(state))


def test_a_state_of_other_terms_is_refused_and_says_what_differs() -> None:
    state = plain(stoker.mix({"a": (A, 0.7), "b": (B, 0.3)}, stop=50).state(0, 20))
    stoker.mix({"b": (B, 3), "a": (A, 7)}, stop=50).resumed(state)  # the same in other words
    for other, text in (
        (stoker.mix({"a": (A, 0.6), "b": (B, 0.4)}, stop=50), "weights: the state has {'a': 0.7, 'b': 0.3}"),
        (stoker.mix({"a": (A, 0.7)}, stop=50), "sources: the state has ['a', 'b'], this loader ['a']"),
        (stoker.mix({"a": (A, 0.7), "b": (B, 0.3)}, stop=51), "stop: the state has 50, this loader 51"),
        (stoker.mix({"a": (A, 0.7), "b": (B, 0.3)}, stop=50, limits={"b": 3}), "limits, in samples"),
    ):
        with pytest.raises(StateMismatch) as error:
            other.resumed(state)
        assert text in str(error.value)
        assert "changes=True" in error.value.__notes__[0]
    for other, text in (
        (stoker.mix({"a": (A[:9], 0.7), "b": (B, 0.3)}, stop=50, changes=True), "length of 'a'"),
        (stoker.mix({"a": (A, 0.7), "b": (B, 0.3)}, stop=50, changes=True, seed=1), "seed of 'a'"),
        (stoker.mix({"a": (A, 0.7), "b": (B, 0.3)}, stop=50, changes=True, order="window"), "order of 'a'"),
    ):
        with pytest.raises(StateMismatch, match=text):
            other.resumed(state)


def test_other_data_under_the_same_name_is_refused_always(tmp_path: Path) -> None:
    one, two = stored(tmp_path / "one"), stored(tmp_path / "two", first=1)
    state = plain(stoker.mix({"a": (one.tokens(32), 1)}).state(0, 3))
    with pytest.raises(StateMismatch, match="fingerprint of 'a'"):
        stoker.mix({"a": (two.tokens(32), 1)}, changes=True).resumed(state)


def test_a_damaged_state_is_refused() -> None:
    mixture = stoker.mix({"a": (A, 0.7), "b": (B, 0.3)}, stop=50)
    with pytest.raises(StateMismatch, match="mixture"):
        mixture.resumed(None)
    good = plain(mixture.state(0, 20))
    for name in good:
        with pytest.raises(StateUnreadable):
            mixture.resumed({key: value for key, value in good.items() if key != name})
    for name, value in (
        ("phases", []),
        ("phases", [1]),
        ("sources", 3),
        ("number", "x"),
        ("number", -1),
        ("number", 2**63),
        ("counts", {"a": 1, "b": 19}),
    ):
        with pytest.raises(StateUnreadable):
            mixture.resumed(good | {name: value})


def test_a_source_that_left_keeps_its_counts_and_may_come_back() -> None:
    def made(weights: dict[str, float]) -> stoker.Mixture:
        data = {"a": A, "b": B}
        return stoker.mix({name: (data[name], weight) for name, weight in weights.items()}, stop=300, changes=True)

    both = made({"a": 1, "b": 1})
    alone = made({"b": 1}).resumed(plain(both.state(0, 40)))
    assert alone.counts(100) == {"a": 20, "b": 80}
    with pytest.raises(ArgumentError, match="'a' is no longer in the mixture"):
        alone[next(at for at in range(40) if both.at(at)[0] == "a")]
    again = made({"b": 1}).resumed(plain(alone.state(0, 60)))  # the same terms as before
    assert again.counts(100) == alone.counts(100)
    back = made({"a": 1, "b": 1}).resumed(plain(again.state(0, 100)))
    assert back.counts(200) == {"a": 70, "b": 130}
    assert [back.at(number) for number in range(40)] == [both.at(number) for number in range(40)]
    own = [back.at(number)[1:] for number in range(200) if back.at(number)[0] == "a"]
    assert sorted(own) == [(epoch, position) for epoch in range(7) for position in range(10)]
    with pytest.raises(ArgumentError, match="40 of it have been served already"):
        stoker.mix({"a": (A, 1), "b": (B, 1)}, stop=30, changes=True).resumed(plain(both.state(0, 40)))
