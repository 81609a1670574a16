"""Iterable datasets: shared out exactly once, resumed, and warned of when every worker reads everything."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data as torch_data
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker.source import Lines
from tests.loader.datasets import Counting, KeyedOnly, Remembering, Sharing, ShuffleBuffer, SizedCounting, listed, plain

INLINE = listed(torch_data.DataLoader(Counting(50), batch_size=7))


def test_shard_auto_gives_the_inline_stream_for_any_number_of_workers() -> None:
    for engine in ({}, {"num_threads": 2}, {"num_workers": 1}, {"num_workers": 2}):
        loader = stoker.DataLoader(Counting(50), batch_size=7, shard="auto", **engine)  # type: ignore[arg-type]
        assert listed(loader) == INLINE, engine
        assert listed(loader) == INLINE, engine


def test_shard_auto_with_more_workers_than_batches() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of more workers than cores
        loader = stoker.DataLoader(Counting(10), batch_size=7, shard="auto", num_workers=5)
    assert listed(loader) == [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9]]


def test_shard_auto_hides_the_workers_from_datasets_that_share_themselves_out() -> None:
    assert listed(stoker.DataLoader(Sharing(50), batch_size=7, shard="auto", num_workers=2)) == INLINE


def test_shard_auto_with_persistent_workers() -> None:
    loader = stoker.DataLoader(Counting(50), batch_size=7, shard="auto", num_workers=2, persistent_workers=True)
    assert listed(loader) == listed(loader) == INLINE


@given(
    length=st.integers(0, 60),
    share=st.integers(1, 5),
    num_ranks=st.integers(1, 5),
    tail=st.sampled_from(["keep", "drop", "pad"]),
)
def test_shard_auto_shares_out_among_ranks_in_step(length: int, share: int, num_ranks: int, tail: Any) -> None:
    runs = []
    for rank in range(num_ranks):
        loader = stoker.DataLoader(
            SizedCounting(length, length), share, shard="auto", rank=rank, num_ranks=num_ranks, tail=tail
        )
        rows = []
        iterator = iter(loader)
        for batch in iterator:
            recipe = iterator.recipe
            padding = recipe.padding if recipe.padding is not None else [False] * len(batch)
            rows.append([value for value, is_padding in zip(plain(batch), padding) if not is_padding])
            assert len(batch) == share or tail == "keep"
        assert len(rows) == len(loader)
        runs.append(rows)
    assert len({len(rows) for rows in runs}) == 1
    served = sorted(value for rows in runs for row in rows for value in row)
    whole = share * num_ranks
    assert served == list(range(length // whole * whole if tail == "drop" else length))


def test_workers_that_all_read_everything_are_warned_of_once() -> None:
    loader = stoker.DataLoader(Counting(20), batch_size=7, num_workers=2)
    with pytest.warns(UserWarning, match="each sample will come once per worker") as caught:
        batches = listed(loader)
    ours = [str(warning.message) for warning in caught if "once per worker" in str(warning.message)]
    assert len(ours) == 1
    assert "shard='auto'" in ours[0]
    assert batches == listed(torch_data.DataLoader(Counting(20), batch_size=7, num_workers=2))
    assert listed(loader) == batches  # and not again in the next epoch


@pytest.mark.parametrize("dataset", [Sharing(20), Counting(20)], ids=["looks", "single"])
def test_no_warning_when_there_is_nothing_to_warn_of(dataset: Any) -> None:
    num_workers = 2 if isinstance(dataset, Sharing) else 1
    assert sorted(sum(listed(stoker.DataLoader(dataset, batch_size=4, num_workers=num_workers)), [])) == list(range(20))


def split_by_init(worker: int) -> None:
    info = torch_data.get_worker_info()
    assert info is not None
    info.dataset.length = 10 * (worker + 1)  # type: ignore[attr-defined]


def test_sharing_out_in_worker_init_fn_is_not_warned_of() -> None:
    loader = stoker.DataLoader(Counting(20), batch_size=10, num_workers=2, worker_init_fn=split_by_init)
    assert len(listed(loader)) == 3


SHARED: dict[str, Any] = {"shard": "auto"}
STREAM_ENGINES = [{}, {"num_threads": 2}, {"num_workers": 1}, {"num_workers": 2, **SHARED}]


@pytest.mark.parametrize("before", STREAM_ENGINES, ids=str)
@pytest.mark.parametrize("after", STREAM_ENGINES, ids=str)
def test_a_stream_resumes_by_fast_forward_in_any_engine(before: dict[str, Any], after: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Counting(50), batch_size=7, **before)
    iterator = iter(loader)
    seen = [plain(next(iterator)) for _ in range(3)]
    state = json.loads(json.dumps(loader.state_dict()))
    iterator.close()
    del iterator
    again = stoker.DataLoader(Counting(50), batch_size=7, **after)
    again.load_state_dict(state)
    assert seen + listed(again) == INLINE
    assert listed(again) == INLINE


def test_a_stream_resumes_with_another_batch_size_and_other_ranks() -> None:
    loader = stoker.DataLoader(Counting(50), batch_size=7)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    again = stoker.DataLoader(Counting(50), batch_size=6)
    again.load_state_dict(loader.state_dict())
    assert sum(listed(again), []) == list(range(14, 50))
    ranks = [stoker.DataLoader(Counting(50), 3, shard="auto", rank=rank, num_ranks=2) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(loader.state_dict())
    assert sorted(sum((sum(listed(rank), []) for rank in ranks), [])) == list(range(14, 50))


def test_a_stream_with_a_state_of_its_own_is_not_read_again() -> None:
    for num_threads in (0, 2):
        loader = stoker.DataLoader(Remembering(50), batch_size=7, num_threads=num_threads)
        iterator = iter(loader)
        seen = [plain(next(iterator)) for _ in range(3)]
        state = json.loads(json.dumps(loader.state_dict()))
        iterator.close()
        dataset = Remembering(50)
        again = stoker.DataLoader(dataset, batch_size=7, num_threads=num_threads)
        again.load_state_dict(state)
        assert seen + listed(again) == INLINE
        assert dataset.num_read == 50 - 21
        assert listed(again) == INLINE


def test_each_workers_own_state_travels_back() -> None:
    loader = stoker.DataLoader(SharingRemembering(), batch_size=4, num_workers=2)
    whole = listed(loader)
    iterator = iter(loader)
    for stop in range(1, len(whole)):
        seen = [plain(next(iterator)) for _ in range(stop)]
        state = json.loads(json.dumps(loader.state_dict()))
        iterator.close()
        again = stoker.DataLoader(SharingRemembering(), batch_size=4, num_workers=2)
        again.load_state_dict(state)
        assert seen + listed(again) == whole
        if stop > 4:
            break
        iterator = iter(loader)
    other = stoker.DataLoader(SharingRemembering(), batch_size=4, num_workers=1)
    with pytest.raises(
        stoker.errors.StateError,
        match="has a place of its own, which does not fit another setup.*num_workers was 2, is 1",
    ):
        other.load_state_dict(state)


class SharingRemembering(Remembering):
    """Shares itself out, unevenly, and knows where it is."""

    def __iter__(self) -> Iterator[int]:
        info = torch_data.get_worker_info()
        worker = info.id if info is not None else 0
        while self.at < 10 + 20 * worker:
            self.at += 1
            yield 1000 * worker + self.at - 1
        self.at = 0


def test_home_made_shuffle_buffers_resume_exactly_and_leave_the_trainer_alone() -> None:
    import random

    random.seed(3)
    before = random.getstate()
    whole = listed(stoker.DataLoader(ShuffleBuffer(50), batch_size=7, seed=1))
    assert sorted(sum(whole, [])) == list(range(50))
    assert sum(whole, []) != list(range(50))
    loader = stoker.DataLoader(ShuffleBuffer(50), batch_size=7, seed=1)
    iterator = iter(loader)
    seen = [plain(next(iterator)) for _ in range(4)]
    again = stoker.DataLoader(ShuffleBuffer(50), batch_size=7, seed=1)
    again.load_state_dict(loader.state_dict())
    assert seen + listed(again) == whole
    assert random.getstate() == before


class SharingBuffer(ShuffleBuffer):
    """Shuffles what is its worker's: less for worker 1."""

    def __iter__(self) -> Iterator[int]:
        info = torch_data.get_worker_info()
        assert info is not None
        return (1000 * info.id + number for number in ShuffleBuffer(self.length - 25 * info.id).__iter__())


@pytest.mark.parametrize("length", [30, 50], ids=["short", "long"])
def test_shuffle_buffers_of_several_workers_resume_exactly(length: int) -> None:
    def make() -> stoker.DataLoader[Any]:
        return stoker.DataLoader(SharingBuffer(length), batch_size=7, seed=1, num_workers=2)

    whole = listed(make())
    stopped = make()
    iterator = iter(stopped)
    for stop in range(len(whole)):
        again = make()
        again.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        resumed = iter(again)
        rest, steps = [], []
        for batch in resumed:
            rest.append(plain(batch))
            steps.append(resumed.recipe.step)
        assert (rest, steps) == (whole[stop:], list(range(stop, len(whole))))
        next(iterator)
    iterator.close()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
def test_shuffle_buffers_that_all_workers_go_through_are_shared_out_exactly() -> None:
    whole = listed(stoker.DataLoader(ShuffleBuffer(50), batch_size=7, seed=1))
    for num_workers in (1, 2, 3):
        loader = stoker.DataLoader(ShuffleBuffer(50), batch_size=7, seed=1, num_workers=num_workers, shard="auto")
        assert listed(loader) == whole


class Keyed(Counting):
    """Draws each sample's number from `stoker.rng()`."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.length):
            yield number, float(stoker.rng().random())


def test_numbers_keyed_by_the_sample_are_the_same_for_any_number_of_workers() -> None:
    inline = listed(stoker.DataLoader(Keyed(50), batch_size=7, seed=5))
    assert len({number for batch in inline for number in batch[1]}) == 50
    for engine in ({"num_threads": 2}, {"num_workers": 1}, {"num_workers": 2, "shard": "auto"}):
        assert listed(stoker.DataLoader(Keyed(50), batch_size=7, seed=5, **engine)) == inline


class Hiccups(torch_data.IterableDataset[int]):
    """Raises at some samples and goes on after it."""

    def __iter__(self) -> Iterator[int]:
        return _Hiccups()


class _Hiccups:
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at > 20:
            raise StopIteration
        if self.at % 6 == 0:
            raise ValueError(f"hiccup {self.at}")
        return self.at


def test_a_stream_that_goes_on_after_an_error_can_be_skipped_through() -> None:
    loader = stoker.DataLoader(Hiccups(), batch_size=4, on_error=stoker.Policy(max_rate=None))
    assert sum(listed(loader), []) == [n for n in range(1, 21) if n % 6]
    assert [entry.reason for entry in loader.ledger] == [f"ValueError: hiccup {n}" for n in (6, 12, 18)]
    with pytest.raises(ValueError, match="hiccup 6") as caught:
        list(stoker.DataLoader(Hiccups(), batch_size=4))
    assert "raised by the stream after 5 samples, step 1, epoch 0" in caught.value.__notes__[0]


class Stuck(Hiccups):
    """Raises for ever."""

    def __iter__(self) -> Iterator[int]:
        class Always:
            def __next__(self) -> int:
                raise OSError("gone")

        return Always()  # type: ignore[return-value]


def test_a_stream_that_does_not_mend_is_given_up() -> None:
    with pytest.raises(OSError, match="gone"):
        list(stoker.DataLoader(Stuck(), batch_size=4, on_error="skip"))


class Generator(Counting):
    """A generator, which cannot go on after an error."""

    def __iter__(self) -> Iterator[int]:
        yield 1
        raise ValueError("the end of it")


def test_a_generator_cannot_be_skipped_through_and_says_why() -> None:
    with pytest.raises(ValueError, match="the end of it") as caught:
        list(stoker.DataLoader(Generator(), batch_size=4, on_error="skip"))
    assert any("a generator ends with its first error" in note for note in caught.value.__notes__)


def test_the_state_of_unordered_workers_is_refused() -> None:
    loader = stoker.DataLoader(Counting(50), batch_size=7, num_workers=2, shard="auto", in_order=False)
    assert sorted(sum(listed(loader), [])) == list(range(50))
    with pytest.raises(stoker.errors.StateError, match="is not defined with in_order=False"):
        loader.state_dict()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"n": number, "text": "x" * (number % 37)}) + "\n" for number in range(200)))
    return path


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in plain(batch["n"])]


def test_lines_are_addressed_by_the_plan(corpus: Path, tmp_path: Path) -> None:
    lines = Lines(corpus, index_dir=tmp_path / "index")
    loader = stoker.DataLoader(lines, batch_size=16, order="window", seed=1)
    assert sorted(numbers(loader)) == list(range(200))
    workers = stoker.DataLoader(lines, batch_size=16, order="window", seed=1, num_workers=2)
    assert numbers(workers) == numbers(stoker.DataLoader(lines, batch_size=16, order="window", seed=1))


@pytest.mark.parametrize("engine", [{}, {"num_threads": 2}, {"num_workers": 2, "shard": "auto"}], ids=str)
def test_lines_are_streamed_and_split_themselves(corpus: Path, engine: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Lines(corpus).stream(), batch_size=16, **engine)
    assert sorted(numbers(loader)) == list(range(200))
    whole = numbers(loader)
    iterator = iter(loader)
    seen = numbers([next(iterator) for _ in range(5)])
    state = json.loads(json.dumps(loader.state_dict()))
    iterator.close()
    again = stoker.DataLoader(Lines(corpus).stream(), batch_size=16, **engine)
    again.load_state_dict(state)
    assert seen + numbers(again) == whole


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("before", [0, 2, 3])
@pytest.mark.parametrize("after", [{}, {"num_threads": 2}, {"num_workers": 1}, {"num_workers": 3}], ids=str)
def test_lines_are_gone_on_with_by_other_workers(corpus: Path, before: int, after: dict[str, Any]) -> None:
    def make(**engine: Any) -> stoker.DataLoader[Any]:
        return stoker.DataLoader(Lines(corpus).stream(), batch_size=16, shard="auto", **engine)

    loader = make(num_workers=before)
    whole = [plain(batch["n"]) for batch in loader]
    for stop in (1, 6):
        stopped = make(num_workers=before)
        iterator = iter(stopped)
        seen = [plain(next(iterator)["n"]) for _ in range(stop)]
        state = json.loads(json.dumps(stopped.state_dict()))
        iterator.close()
        again = make(**after)
        again.load_state_dict(state)
        assert seen + [plain(batch["n"]) for batch in again] == whole
        assert again.state_dict()["digest"] == loader.state_dict()["digest"]
        # the next epoch is that of the workers there are
        fresh = make(**after)
        fresh.set_epoch(1)
        assert numbers(again) == numbers(fresh)


def test_a_state_from_before_parts_were_apart_from_workers_still_loads(corpus: Path) -> None:
    def make() -> stoker.DataLoader[Any]:
        return stoker.DataLoader(Lines(corpus).stream(), batch_size=16, num_workers=2, shard="auto")

    loader = make()
    iterator = iter(loader)
    seen = numbers([next(iterator) for _ in range(5)])
    state = json.loads(json.dumps(loader.state_dict()))
    del state["num_parts"], state["checksums"]
    (state["place"],) = state["place"]
    state["place"]["workers"] = state["place"].pop("parts")
    for place in state["place"]["workers"].values():
        del place["cuts"]
    again = make()
    again.load_state_dict(state)
    assert seen + numbers(again) == seen + numbers(iterator)


def test_a_state_of_another_file_is_refused(corpus: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"n": number}) + "\n" for number in range(200)))
    index = tmp_path / "index"
    state = stoker.DataLoader(Lines(corpus, index_dir=index), batch_size=16, seed=0).state_dict()
    with pytest.raises(stoker.errors.StateMismatch, match="dataset: the state has"):
        stoker.DataLoader(Lines(other, index_dir=index), batch_size=16, seed=0).load_state_dict(state)


def test_bad_lines_are_skipped_and_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"n": 0}\n{"n": 1\n{"n": 2}\n{"n": 3}\n')
    policy = stoker.Policy(max_rate=None)
    addressed = stoker.DataLoader(Lines(path, index_dir=tmp_path), batch_size=4, on_error=policy)
    assert len(numbers(addressed)) == 4
    (entry,) = addressed.ledger
    assert (entry.position, entry.where) == (1, f"{path}, line 2")
    streamed = stoker.DataLoader(Lines(path).stream(), batch_size=4, on_error=policy)
    assert numbers(streamed) == [0, 2, 3]
    with pytest.raises(stoker.errors.BadLine, match="line 2") as caught:
        list(stoker.DataLoader(Lines(path, index_dir=tmp_path), batch_size=4))
    assert "positions 0, 1, 2, 3, step 0, epoch 0" in caught.value.__notes__[-1]
    assert f"line 2 (byte 9) of {path}" in str(caught.value)
    del caught  # its traceback holds the open file


@given(length=st.integers(0, 40), batch_size=st.integers(1, 9), steps=st.integers(0, 50), num_threads=st.integers(0, 2))
@settings(max_examples=40)
def test_any_stream_resumes_at_any_step(length: int, batch_size: int, steps: int, num_threads: int) -> None:
    whole = listed(stoker.DataLoader(Keyed(length), batch_size, seed=3))
    loader = stoker.DataLoader(Keyed(length), batch_size, seed=3, num_threads=num_threads)
    iterator = iter(loader)
    seen = [plain(batch) for _, batch in zip(range(min(steps, len(whole))), iterator)]
    state = loader.state_dict()
    iterator.close()
    again = stoker.DataLoader(Keyed(length), batch_size, seed=3)
    again.load_state_dict(state)
    assert seen + listed(again) == whole


def test_map_style_lines_need_no_shard(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(stoker.errors.ArgumentError, match="shard='auto' is for iterable datasets"):
        stoker.DataLoader(KeyedOnly(10), shard="auto")


class EpochCounting(Remembering):
    """What it gives depends on how often it was read to its end."""

    epochs = 0

    def __iter__(self) -> Iterator[int]:
        for number in super().__iter__():
            yield number + 1000 * self.epochs
        self.epochs += 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epochs = state["at"], state["epochs"]


@pytest.mark.parametrize(
    "engine",
    [{}, {"num_threads": 2}, {"num_workers": 1, "persistent_workers": True}],
    ids=["inline", "threads", "worker"],
)
def test_a_stream_with_a_state_resumes_between_epochs(engine: dict[str, Any]) -> None:
    def make() -> stoker.DataLoader[Any]:
        return stoker.DataLoader(EpochCounting(20), batch_size=7, **engine)

    whole = make()
    epochs = [listed(whole) for _ in range(3)]
    assert epochs[2][0][0] == 2000
    first = make()
    listed(first)
    state = json.loads(json.dumps(first.state_dict()))
    again = make()
    again.load_state_dict(state)
    assert [listed(again), listed(again)] == epochs[1:]


@pytest.mark.parametrize("engine", [{}, {"num_threads": 2}, {"num_workers": 1}], ids=["inline", "threads", "worker"])
def test_whoever_catches_a_streams_error_may_go_on(engine: dict[str, Any]) -> None:
    iterator = iter(stoker.DataLoader(Hiccups(), batch_size=4, **engine))
    seen, errors = [], 0
    while True:
        try:
            batch = next(iterator, None)
        except ValueError:
            errors += 1
            continue
        if batch is None:
            break
        seen += plain(batch)
    assert errors == 3
    assert seen[-1] == 20


def test_a_streams_digest_tells_runs_apart() -> None:
    def digest(length: int, **arguments: Any) -> str:
        made = stoker.DataLoader(Counting(length), **({"batch_size": 7} | arguments))
        list(made)
        return str(made.state_dict()["digest"])

    assert digest(50) == digest(50, batch_size=3) == digest(50, num_threads=2) != digest(49)
    assert digest(50) == digest(50, num_workers=2, shard="auto")


def test_a_stream_with_a_state_moves_from_inline_to_workers_in_a_later_epoch() -> None:
    made = stoker.DataLoader(EpochCounting(20), batch_size=7, shard="auto")
    listed(made)
    iterator = iter(made)
    seen = plain(next(iterator))
    again = stoker.DataLoader(EpochCounting(20), batch_size=7, shard="auto", num_workers=2)
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert seen + sum(listed(again), []) == [1000 + number for number in range(20)]


def test_persistent_workers_with_a_stateful_stream_resume_before_the_first_batch() -> None:
    for arguments in ({"num_workers": 1}, {"num_workers": 2, "shard": "auto"}):

        def make(arguments: Any = arguments) -> stoker.DataLoader[Any]:
            return stoker.DataLoader(EpochCounting(20), batch_size=7, persistent_workers=True, **arguments)

        made = make()
        epochs = [listed(made), listed(made)]
        assert epochs[1][0][0] == 1000
        stopped = make()
        listed(stopped)
        iterator = iter(stopped)
        state = json.loads(json.dumps(stopped.state_dict()))
        iterator.close()
        again = make()
        again.load_state_dict(state)
        assert listed(again) == epochs[1]


def test_loading_a_state_into_the_same_loader_puts_its_workers_back() -> None:
    made = stoker.DataLoader(Remembering(8), batch_size=2, num_workers=1, persistent_workers=True)
    state = made.state_dict()
    iterator = iter(made)
    next(iterator)
    next(iterator)
    made.load_state_dict(state)
    assert listed(made) == [[0, 1], [2, 3], [4, 5], [6, 7]]


class Flaky(Counting):
    """Cannot be opened the first time."""

    num_opened = 0

    def __iter__(self) -> Iterator[int]:
        self.num_opened += 1
        if self.num_opened == 1:
            raise OSError("connection refused")
        return super().__iter__()


@pytest.mark.parametrize("engine", [{}, {"num_threads": 1}, {"num_workers": 1}], ids=["inline", "threads", "worker"])
def test_a_stream_that_opens_late_still_begins_where_the_state_says(engine: dict[str, Any]) -> None:
    made = stoker.DataLoader(Counting(20), batch_size=4)
    next(iter(made))
    again = stoker.DataLoader(Flaky(20), batch_size=4, **engine)
    again.load_state_dict(made.state_dict())
    iterator = iter(again)
    with pytest.raises(OSError, match="connection refused"):
        next(iterator)
    assert plain(next(iterator)) == [4, 5, 6, 7]
    iterator.close()


class RunsOut(Counting):
    """Runs out while it is being opened."""

    def __iter__(self) -> Iterator[int]:
        return iter([next(iter([]))])


@pytest.mark.parametrize("engine", [{}, {"num_threads": 1}, {"num_workers": 1}], ids=["inline", "threads", "worker"])
def test_a_stream_that_runs_out_while_it_is_opened_is_not_empty(engine: dict[str, Any]) -> None:
    iterator = iter(stoker.DataLoader(RunsOut(20), batch_size=4, **engine))
    with pytest.raises(stoker.errors.EarlyStop, match="the iterable dataset raised StopIteration"):
        next(iterator)
    iterator.close()
