"""What is written is what is read, however it was handed over and however it is asked for."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import stoker
from stoker.store import Build, Column, Crops, Store, Writer, open_store, verify
from stoker.store.column import SAFETENSORS_NAMES
from tests.store.places import folder

# ---------------------------------------------------------------- arbitrary columns and samples

SHAPES = [(), (1,), (3,), (2, 3), (0,), (2, 0)]
columns_of_arrays = st.builds(
    Column, st.sampled_from(list(SAFETENSORS_NAMES)), st.sampled_from(SHAPES), is_ragged=st.booleans()
)
any_column = st.one_of(columns_of_arrays, st.just(Column.text()), st.just(Column.blob()))
names = st.sampled_from(["a", "b", "tokens", "x/y", "0", "z.z"])
any_columns = st.dictionaries(names, any_column, min_size=1, max_size=4)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def value_of(column: Column) -> st.SearchStrategy[Any]:
    if column.kind == "text":
        return text
    if column.kind == "bytes":
        return st.binary(max_size=8)
    if column.is_ragged:
        return st.integers(0, 5).flatmap(lambda size: hnp.arrays(column.dtype, (size, *column.shape)))
    return hnp.arrays(column.dtype, column.shape)


def samples_of(columns: dict[str, Column]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.fixed_dictionaries({name: value_of(column) for name, column in columns.items()}), max_size=12)


datasets = any_columns.flatmap(lambda columns: st.tuples(st.just(columns), samples_of(columns)))
shard_sizes = st.sampled_from([1, 7, 30, 100, 1000, 128 << 20])


def is_same(found: Any, expected: Any) -> bool:
    """Whether two values are the same, bit by bit."""
    if isinstance(expected, str | bytes):
        return type(found) is type(expected) and bool(found == expected)
    found, expected = np.asarray(found), np.asarray(expected)
    return (found.dtype, found.shape) == (expected.dtype, expected.shape) and found.tobytes() == expected.tobytes()


def are_same(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> bool:
    return len(found) == len(expected) and all(
        one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in other)
        for one, other in zip(found, expected)
    )


def together(samples: Sequence[dict[str, Any]], columns: dict[str, Column]) -> dict[str, Any]:
    """Samples as `extend` takes them."""
    given: dict[str, Any] = {}
    for name, column in columns.items():
        values = [sample[name] for sample in samples]
        if column.kind != "array":
            parts = [value.encode() if isinstance(value, str) else value for value in values]
            given[name] = np.frombuffer(b"".join(parts), np.uint8), list(map(len, parts))
        elif column.is_ragged:
            whole = np.concatenate([np.empty((0, *column.shape), column.dtype), *values])
            given[name] = whole, list(map(len, values))
        else:
            given[name] = np.array(values, column.dtype).reshape(len(values), *column.shape)
    return given


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file()}


# ---------------------------------------------------------------- written and read


@settings(max_examples=60)
@given(dataset=datasets, shard_bytes=shard_sizes, data=st.data())
def test_what_is_written_is_read_however_it_is_asked_for(
    dataset: tuple[dict[str, Column], list[dict[str, Any]]], shard_bytes: int, data: st.DataObject
) -> None:
    columns, samples = dataset
    with folder() as path:
        with Writer(path / "s", columns, shard_bytes=shard_bytes) as writer:
            for sample in samples:
                writer.append(sample)
        for check in (True, False):
            store = open_store(path / "s", check=check)
            assert store.columns == columns and len(store) == len(samples)
            assert are_same(store.__getitems__(range(len(samples))), samples)
        assert are_same([store[number] for number in range(len(samples))], samples)
        assert verify(path / "s").is_sound
        if samples:
            positions = data.draw(st.lists(st.integers(-len(samples), len(samples) - 1)))
            _check_columns(open_store(path / "s"), columns, [samples[position] for position in positions], positions)


def _check_columns(
    store: Store, columns: dict[str, Column], chosen: list[dict[str, Any]], positions: list[int]
) -> None:
    assert are_same(store.__getitems__(np.array(positions, np.int64)), chosen)
    given = together(chosen, columns)
    for name, column in columns.items():
        if column.is_ragged:
            values, lengths = store.read_ragged(name, positions)
            assert is_same(values, given[name][0]) and lengths.tolist() == given[name][1]
            assert store.lengths(name, positions).tolist() == given[name][1]
        else:
            assert is_same(store.read(name, positions), given[name])
            out = np.ones((len(positions), *column.shape), column.dtype)
            assert store.read(name, positions, out=out) is out and is_same(out, given[name])
    batch = store.__getbatch__(positions, np.empty)
    if any(column.is_ragged for column in columns.values()):
        assert batch is NotImplemented
    else:
        assert list(batch) == list(columns) and all(is_same(batch[name], given[name]) for name in columns)


@settings(max_examples=40)
@given(dataset=datasets, shard_bytes=shard_sizes, cuts=st.lists(st.tuples(st.integers(0, 12), st.booleans())))
def test_bytes_do_not_depend_on_how_samples_are_handed_over(
    dataset: tuple[dict[str, Column], list[dict[str, Any]]], shard_bytes: int, cuts: list[tuple[int, bool]]
) -> None:
    columns, samples = dataset
    with folder() as path:
        with Writer(path / "one by one", columns, shard_bytes=shard_bytes) as writer:
            for sample in samples:
                writer.append(sample)
        with Writer(path / "in groups", columns, shard_bytes=shard_bytes) as writer:
            at = 0
            for size, extends in [*cuts, (len(samples), True)]:
                if extends:
                    writer.extend(together(samples[at : at + size], columns))
                else:
                    for sample in samples[at : at + size]:
                        writer.append(sample)
                at = min(len(samples), at + size)
        assert contents(path / "one by one") == contents(path / "in groups")


@settings(max_examples=30)
@given(
    dataset=datasets,
    shard_bytes=shard_sizes,
    num_pieces=st.integers(1, 4),
    data=st.data(),
)
def test_bytes_do_not_depend_on_the_order_in_which_pieces_are_written(
    dataset: tuple[dict[str, Column], list[dict[str, Any]]], shard_bytes: int, num_pieces: int, data: st.DataObject
) -> None:
    columns, samples = dataset
    shares = {f"p{number}": samples[number::num_pieces] for number in range(num_pieces)}
    keys = list(shares)

    def write(build: Build, key: str) -> None:
        with build.piece(key) as piece:
            piece.notes["count"] = len(shares[key])
            for sample in shares[key]:
                piece.append(sample)

    with folder() as path:
        first = Build(path / "in order", columns, shard_bytes=shard_bytes)
        for key in keys:
            write(first, key)
        store = first.finish(keys, meta={"a": [1]})
        assert are_same(store.__getitems__(range(len(store))), list(itertools.chain(*shares.values())))
        second = Build(path / "at once", columns, shard_bytes=shard_bytes)
        threads = [threading.Thread(target=write, args=(second, key)) for key in data.draw(st.permutations(keys))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        write(second, data.draw(st.sampled_from(keys)))  # once more: of a run that was killed
        Build(path / "at once", columns, shard_bytes=shard_bytes).finish(keys, meta={"a": [1]})
        assert contents(path / "in order") == contents(path / "at once")


@settings(max_examples=20)
@given(dataset=datasets, shard_bytes=shard_sizes, stops=st.lists(st.integers(0, 12), max_size=3))
def test_an_interrupted_writer_goes_on_to_the_same_bytes(
    dataset: tuple[dict[str, Column], list[dict[str, Any]]], shard_bytes: int, stops: list[int]
) -> None:
    columns, samples = dataset
    with folder() as path:
        with Writer(path / "whole", columns, shard_bytes=shard_bytes) as writer:
            writer.extend(together(samples, columns))
        for stop in stops:
            with pytest.raises(KeyError), Writer(path / "s", columns, shard_bytes=shard_bytes, resume=True) as writer:
                done = writer.num_samples
                writer.extend(together(samples[done : max(done, stop)], columns))
                raise KeyError
        with Writer(path / "s", columns, shard_bytes=shard_bytes, resume=True) as writer:
            writer.extend(together(samples[writer.num_samples :], columns))
        assert contents(path / "whole") == contents(path / "s")


# ---------------------------------------------------------------- tokens

documents = st.lists(st.lists(st.integers(0, 65535), max_size=9), max_size=12)


def token_store(path: Path, listed: list[list[int]], shard_bytes: int) -> Store:
    with Writer(path / "s", {"tokens": Column.ragged("uint16")}, shard_bytes=shard_bytes) as writer:
        for document in listed:
            writer.append({"tokens": document})
    return open_store(path / "s")


@settings(max_examples=60)
@given(listed=documents, shard_bytes=shard_sizes, length=st.integers(1, 12), data=st.data())
def test_windows_are_slices_of_all_tokens(
    listed: list[list[int]], shard_bytes: int, length: int, data: st.DataObject
) -> None:
    tokens = list(itertools.chain(*listed))
    with folder() as path:
        stretch = token_store(path, listed, shard_bytes).stretch()
        assert (stretch.num_values, stretch.num_documents) == (len(tokens), len(listed))
        borders = [0, *itertools.accumulate(map(len, listed))]
        first = data.draw(st.integers(0, len(listed)))
        last = data.draw(st.integers(first, len(listed)))
        assert stretch.offsets(first, last).tolist() == borders[first : last + 1]
        assume(len(tokens) >= length)
        starts = data.draw(st.lists(st.integers(0, len(tokens) - length)))
        found = stretch.windows(np.array(starts, np.int64), length)
        assert found.dtype == np.uint16 and found.shape == (len(starts), length)
        assert found.tolist() == [tokens[start : start + length] for start in starts]


def reference(
    listed: list[list[int]], *, length: int, stride: int, across: bool, pad: int, ignored: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Rows and labels, the slow and obvious way."""
    for document in [list(itertools.chain(*listed))] if across else listed:
        for start in range(0, max(0, len(document) - 1), stride):
            row, labels = document[start : start + length], document[start + 1 : start + 1 + length]
            if across and len(labels) < length:
                return
            if start and start - stride + length >= len(document) - 1:
                break  # the row before has all that there is
            yield row + [pad] * (length - len(row)), labels + [ignored] * (length - len(labels))


@settings(max_examples=120)
@given(
    listed=documents,
    shard_bytes=shard_sizes,
    length=st.integers(1, 12),
    stride=st.none() | st.integers(1, 15),
    across=st.booleans(),
    dtype=st.sampled_from([None, "int64", "int32", "uint16", "uint32"]),
    shared=st.booleans(),
    pad=st.sampled_from([0, 7]),
    data=st.data(),
)
@example([[1, 2, 3, 4, 5, 6, 7]], 1, 4, 10, False, "int64", False, 0, None)
def test_rows_are_what_a_plain_loop_makes(
    listed: list[list[int]],
    shard_bytes: int,
    length: int,
    stride: int | None,
    across: bool,
    dtype: str | None,
    shared: bool,
    pad: int,
    data: Any,
) -> None:
    shared, ignored = shared and across, -100 if dtype in ("int64", "int32") else 0
    with folder() as path:
        store = token_store(path, listed, shard_bytes)
        crops = store.tokens(length, stride=stride, across=across, dtype=dtype, shared=shared, pad=pad, ignored=ignored)
        assert isinstance(crops, Crops)
        expected = list(
            reference(listed, length=length, stride=stride or length, across=across, pad=pad, ignored=ignored)
        )
        assert len(crops) == len(expected)
        positions = list(range(len(crops)))
        if data is not None and expected:
            positions += data.draw(st.lists(st.integers(-len(crops), len(crops) - 1)))
        batch = crops.__getbatch__(positions, np.empty)
        assert batch["tokens"].dtype == batch["labels"].dtype == np.dtype(dtype or "uint16")
        assert batch["tokens"].tolist() == [expected[position][0] for position in positions]
        assert batch["labels"].tolist() == [expected[position][1] for position in positions]
        for position, row in zip(positions, crops.__getitems__(positions)):
            assert (row["tokens"].tolist(), row["labels"].tolist()) == expected[position]
            assert is_same(crops[position]["tokens"], row["tokens"])


def test_rows_within_documents_are_counted_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    import stoker.store.crops as module

    listed = [[number] * (number % 6) for number in range(40)]
    with folder() as path:
        store = token_store(path, listed, 100)
        crops = store.tokens(2, across=False)
        positions = range(-len(crops), len(crops))
        expected = crops.__getbatch__(positions, np.empty)
        monkeypatch.setattr(module, "COUNTED_TOGETHER", 3)
        crops = store.tokens(2, across=False)
        assert crops._firsts is not None and len(crops._firsts) == 15
        found = crops.__getbatch__(positions, np.empty)
        assert all(is_same(found[name], expected[name]) for name in expected)


# ---------------------------------------------------------------- engines

ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_threads": 2},
    "processes": {"num_workers": 2},
    "processes with threads": {"num_workers": 2, "num_threads": 2},
}


@pytest.fixture(scope="module")
def big() -> Iterator[Store]:
    """Tokens of which a batch is big enough to lie in a slot or in the pool."""
    with folder() as path:
        with Writer(path / "s", {"tokens": Column.ragged("uint16")}, shard_bytes=150_000) as writer:
            values = np.random.default_rng(0).integers(0, 65536, 300_000, np.uint16)
            lengths = [2500, 1, 0, 6000, 1499] * 30
            writer.extend({"tokens": (values, lengths)})
        yield open_store(path / "s")


@pytest.fixture(scope="module")
def images() -> Iterator[Store]:
    with folder() as path:
        columns = {"image": Column("uint8", (3, 40, 40)), "label": Column("int64"), "z": Column("complex64", (0,))}
        with Writer(path / "s", columns, shard_bytes=100_000) as writer:
            rng = np.random.default_rng(0)
            writer.extend(
                {
                    "image": rng.integers(0, 256, (203, 3, 40, 40), np.uint8),
                    "label": np.arange(203),
                    "z": np.zeros((203, 0), np.complex64),
                }
            )
        yield open_store(path / "s")


def datasets_of(big: Store, images: Store) -> dict[str, Any]:
    return {
        "tokens": big.tokens(512),
        "shared": big.tokens(512, shared=True),
        "as stored": big.tokens(512, dtype=None, stride=300),
        "small": big.tokens(16, stride=1000, shared=True),
        "within": big.tokens(700, across=False),
        "images": images,
    }


DATASETS = ["tokens", "shared", "as stored", "small", "within", "images"]


def equal(found: Any, expected: Any) -> bool:
    return list(found) == list(expected) and all(
        found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name]) for name in expected
    )


def plain(dataset: Any, positions: Any) -> dict[str, torch.Tensor]:
    """A batch, sample by sample."""
    samples = [dataset[int(position)] for position in positions]
    return {name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in samples[0]}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", DATASETS)
def test_every_engine_gives_the_same_batches_and_resumes_within_them(
    big: Store, images: Store, name: str, engine: str
) -> None:
    dataset = datasets_of(big, images)[name]
    how: dict[str, Any] = {"batch_size": 24, "shuffle": True, "seed": 7}
    loader = stoker.DataLoader(dataset, **how, **ENGINES[engine])
    assert loader.plan is not None
    expected = [plain(dataset, loader.plan.recipe(step).positions) for step in range(len(loader))]
    found = []
    state = None
    for batch in loader:
        found.append(batch)
        if len(found) == 3:
            state = loader.state_dict()
    assert len(found) == len(expected) >= 5
    assert all(map(equal, found, expected))
    other = stoker.DataLoader(dataset, **how, **ENGINES[engine])
    assert state is not None
    other.load_state_dict(state)
    assert all(map(equal, list(other), expected[3:]))


def test_spawned_workers_give_the_same_batches(big: Store) -> None:
    crops = big.tokens(512, shared=True)
    expected = list(stoker.DataLoader(crops, batch_size=24, shuffle=True, seed=1))
    loader = stoker.DataLoader(
        crops, batch_size=24, shuffle=True, seed=1, num_workers=1, multiprocessing_context="spawn"
    )
    assert all(map(equal, list(loader), expected))


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_batches_that_are_kept_never_change(big: Store, images: Store, engine: str, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["tokens", "shared", "within", "images"]))
    dataset = datasets_of(big, images)[name]
    keeps = data.draw(st.sets(st.integers(0, 15)))
    parts = data.draw(st.sampled_from(["whole", "one field", "a row", "as array"]))
    kept: list[tuple[Any, Any]] = []
    loader = stoker.DataLoader(dataset, batch_size=24, shuffle=True, **ENGINES[engine])
    for step, batch in enumerate(_twice(loader)):
        if step % 16 not in keeps:
            continue
        fields = list(batch.values())
        match parts:
            case "whole":
                kept += [(field, field.clone()) for field in fields]
            case "one field":
                kept.append((fields[-1 if step % 2 else 0], fields[-1 if step % 2 else 0].clone()))
            case "a row":
                kept.append((fields[0][3], fields[0][3].clone()))
            case _:
                kept.append((fields[0].numpy(), fields[0].numpy().copy()))
        del batch, fields
    gc.collect()
    for now, then in kept:
        assert np.array_equal(np.asarray(now), np.asarray(then))


def _twice(loader: Any) -> Iterator[Any]:
    yield from loader
    yield from loader
