"""What is wrong gets an error that says what, where and what next."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import stoker
from stoker.errors import (
    ArgumentError,
    BadLength,
    EmptyDataset,
    NestedNext,
    NothingCollated,
    NotPicklable,
    StateMismatch,
    StateUnreadable,
    TooManySkipped,
)
from tests.loader.datasets import Broken, Counting, Many, Numbers, listed, plain

ENGINES: list[dict[str, Any]] = [{}, {"num_threads": 2}, {"num_workers": 1}]
NAMES = ["inline", "threads", "workers"]


@pytest.mark.parametrize("arguments", [{}, {"shuffle": True}, {"batch_size": None}], ids=str)
def test_an_empty_dataset(arguments: dict[str, Any]) -> None:
    with pytest.raises(EmptyDataset, match=re.escape("the dataset (list) is empty: len(dataset) is 0\nhint: ")):
        stoker.DataLoader([], **arguments)


def test_a_dataset_without_a_length() -> None:
    class Endless:
        def __getitem__(self, position: int) -> int:
            return position

    with pytest.raises(ArgumentError, match="has no length.*\nhint: give it a __len__"):
        stoker.DataLoader(Endless())
    assert listed(stoker.DataLoader(Endless(), batch_size=2, sampler=[7, 8])) == [[7, 8]]


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_length_that_lies(engine: dict[str, Any]) -> None:
    class Short(Numbers):
        def __len__(self) -> int:
            return 10

    iterator = iter(stoker.DataLoader(Short(7), batch_size=4, **engine))
    assert plain(next(iterator)) == [0, 1, 2, 3]
    with pytest.raises(IndexError) as caught:
        next(iterator)
    notes = "\n".join(caught.value.__notes__)
    assert "raised while reading position 7 of Short, step 1, epoch 0" in notes
    assert "len(dataset) says 10, so position 7 should exist" in notes
    assert "fix its __len__" in notes
    iterator.close()
    del caught


@pytest.mark.parametrize("position", [10**18, 500, -104])
def test_positions_outside_from_a_sampler(position: int) -> None:
    with pytest.raises(IndexError) as caught:
        list(stoker.DataLoader(Numbers(103), batch_size=2, sampler=[1, position]))
    assert "comes from the sampler and is outside the dataset, whose len is 103" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "8"])
def test_a_batch_size_that_is_none(size: Any) -> None:
    with pytest.raises(ArgumentError, match=f"batch_size={size!r} is not a positive integer\nhint: "):
        stoker.DataLoader(Numbers(), batch_size=size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle": True, "order": "sequential"}, "shuffle=True contradicts order='sequential'"),
        ({"shuffle": False, "order": "window"}, "shuffle=False contradicts order='window'"),
        ({"drop_last": True, "tail": "pad"}, "drop_last=True contradicts tail='pad'"),
        ({"tail": "cut"}, "tail='cut' is not known"),
        ({"order": "sorted"}, "order='sorted' is not known"),
        ({"sampler": range(3), "order": "shuffle"}, "order cannot be used with another sampler (range)"),
        ({"sampler": range(3), "skip": [(1, 2)]}, "skip cannot be used with another sampler"),
        ({"sampler": range(3), "tail": "pad"}, "tail cannot be used with another sampler"),
        ({"sampler": range(3), "rank": 0, "num_ranks": 2}, "rank and num_ranks cannot be used with another sampler"),
        ({"rank": 0}, "must be passed together, got rank=0 and num_ranks=None"),
        ({"rank": 2, "num_ranks": 2}, "rank must be from 0 to num_ranks - 1, got rank=2 and num_ranks=2"),
        (
            {"rank": 0, "num_ranks": 2, "distributed": True},
            "distributed=True reads the rank from torch.distributed or the launcher, but rank=0",
        ),
        ({"num_threads": -1}, "num_threads=-1 is negative"),
        ({"num_threads": 1, "prefetch_factor": 0}, "prefetch_factor=0 leaves threads nothing to do"),
        ({"timeout": 3}, "timeout=3 cannot be kept without workers"),
        ({"on_error": "ignore"}, "on_error='ignore' is not known"),
        ({"shard": "auto"}, "shard='auto' is for iterable datasets"),
        ({"skip": [(5, 2)]}, "is not a range of steps"),
        ({"skip": [3]}, "skip=3 is not a range of steps"),
        ({"seed": "x"}, "seed='x' is not an integer"),
        ({"num_threads": 2.5}, "num_threads=2.5 is not an integer"),
    ],
    ids=str,
)
def test_contradictory_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)) as caught:
        stoker.DataLoader(Numbers(), **arguments)
    assert "\nhint: " in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "shuffle"}, "order cannot be used with an iterable dataset"),
        ({"rank": 0, "num_ranks": 2}, "each of the 2 ranks would read the whole iterable dataset"),
        ({"shard": "some"}, "shard='some' is not known"),
    ],
    ids=str,
)
def test_contradictory_arguments_of_streams(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        stoker.DataLoader(Counting(), **arguments)


def test_ranks_are_read_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(launcher, raising=False)
    with pytest.raises(ArgumentError, match="none of these is set: RANK/WORLD_SIZE"):
        stoker.DataLoader(Numbers(), distributed=True)
    for rank, num_ranks in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        with monkeypatch.context() as patch:
            patch.setenv(rank, "1")
            patch.setenv(num_ranks, "3")
            shares = listed(stoker.DataLoader(Numbers(12), batch_size=2, distributed=True))
            assert shares == [[1, 4], [7, 10]]
    monkeypatch.setenv("RANK", "one")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ArgumentError, match="RANK='one' and WORLD_SIZE='3' are not numbers"):
        stoker.DataLoader(Numbers(), distributed=True)


def test_ranks_are_read_from_torch_distributed(tmp_path: Any) -> None:
    store = torch.distributed.FileStore(  # type: ignore[attr-defined]
        str(tmp_path / "store"), 1
    )
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        loader = stoker.DataLoader(Numbers(12), batch_size=2, distributed=True)
        assert loader.state_dict()["num_ranks"] == 1
    finally:
        torch.distributed.destroy_process_group()


def test_a_state_of_another_dataset_or_plan_says_what_differs() -> None:
    state = stoker.DataLoader(Numbers(100), batch_size=4, shuffle=True, seed=1).state_dict()
    with pytest.raises(StateMismatch, match="dataset_length: the state has 100, this loader 99"):
        stoker.DataLoader(Numbers(99), batch_size=4, shuffle=True, seed=1).load_state_dict(state)
    with pytest.raises(StateMismatch, match="seed: the state has 1, this loader 2"):
        stoker.DataLoader(Numbers(100), batch_size=4, shuffle=True, seed=2).load_state_dict(state)
    with pytest.raises(
        StateMismatch, match=r"order: the state has \{'name': 'shuffle'\}, this loader \{'name': 'sequential'"
    ):
        stoker.DataLoader(Numbers(100), batch_size=4).load_state_dict(state)
    with pytest.raises(StateMismatch, match="tail: the state has 'keep', this loader 'drop'"):
        stoker.DataLoader(Numbers(100), batch_size=4, shuffle=True, drop_last=True).load_state_dict(state)
    with pytest.raises(StateMismatch, match="kind: the state has 'plan', this loader 'sampler'"):
        stoker.DataLoader(Numbers(100), batch_size=4, sampler=range(4)).load_state_dict(state)
    loader = stoker.DataLoader(Numbers(99), batch_size=4, shuffle=True)
    before = listed(loader)
    with pytest.raises(StateMismatch):
        loader.load_state_dict(state)
    loader.set_epoch(0)
    assert listed(loader) == before  # a refused state changes nothing


class OddLength(Numbers):
    """Returns whatever it is given for its length."""

    def __init__(self, length: Any) -> None:
        super().__init__(3)
        self.length = length


class OddStream(torch.utils.data.IterableDataset[int]):
    """Three samples, and an odd length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        return 3.5  # type: ignore[return-value]


@pytest.mark.parametrize("length", [3.5, -1, "3", None, 10**30], ids=str)
def test_a_length_that_is_not_a_number_of_samples_is_named(length: Any) -> None:
    with pytest.raises(
        BadLength, match=r"__len__ of the dataset \(OddLength\) must return an int of at least 0"
    ) as caught:
        stoker.DataLoader(OddLength(length), batch_size=2)
    assert f"got {length!r}\nhint: return the number of samples" in str(caught.value)
    assert isinstance(caught.value, ArgumentError) and isinstance(caught.value, TypeError)
    with pytest.raises(ArgumentError, match="source 'a' .* cannot be mixed"):
        stoker.mix({"a": OddLength(length), "b": Numbers()})
    loader = stoker.DataLoader(OddLength(length), batch_size=2, sampler=[0, 1, 2])
    loader.load_state_dict(loader.state_dict())


def test_the_odd_length_of_a_stream_is_named_when_it_is_asked_for() -> None:
    loader = stoker.DataLoader(OddStream(), batch_size=2)
    with pytest.raises(BadLength, match=r"\(OddStream\) must return an int of at least 0, got 3.5"):
        len(loader)
    assert [len(batch) for batch in list(loader)] == [2, 1]  # as with torch, nobody has to ask


def test_an_error_of_the_users_own_length_stays_what_it_is() -> None:
    class Failing(Numbers):
        def __len__(self) -> int:
            raise ValueError("no table")

    with pytest.raises(ValueError, match="^no table$"):
        stoker.DataLoader(Failing(), batch_size=2)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_next_in_a_signal_handler_inside_next_is_refused_and_harms_nothing(engine: dict[str, Any]) -> None:
    expected = listed(stoker.DataLoader(Numbers(40), batch_size=4, shuffle=True, seed=1))
    loader = stoker.DataLoader(Numbers(40), batch_size=4, shuffle=True, seed=1, **engine)
    iterator = iter(loader)
    refused: list[str] = []

    def handle(*_: object) -> None:
        try:
            next(iterator)
        except NestedNext as error:
            refused.append(str(error))

    advance = iterator._progress.advance

    def interrupted(made: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)
        advance(made)

    iterator._progress.advance = interrupted
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert listed(iterator) == expected
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 10
    assert "hint: let the handler set a flag" in refused[0]


def test_next_after_a_handler_that_raised_inside_next_goes_on() -> None:
    loader = stoker.DataLoader(Numbers(40), batch_size=4)
    iterator = iter(loader)
    advance = iterator._progress.advance

    def interrupted(made: Any) -> None:
        iterator._progress.advance = advance
        raise KeyboardInterrupt

    iterator._progress.advance = interrupted
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert sum(map(len, iterator)) == 40


def test_next_in_one_thread_does_not_refuse_it_to_another() -> None:
    iterator = iter(stoker.DataLoader(Numbers(40), batch_size=4))
    found: list[Any] = []
    advance = iterator._progress.advance

    def elsewhere(made: Any) -> None:
        iterator._progress.advance = advance
        advance(made)
        thread = threading.Thread(target=lambda: found.append(iterator._inside.copy() or None))
        thread.start()
        thread.join()

    iterator._progress.advance = elsewhere
    next(iterator)
    assert found == [{threading.get_ident()}]
    thread = threading.Thread(target=lambda: found.append(plain(next(iterator))))
    iterator._inside.add(threading.get_ident())  # as if this one were in it
    thread.start()
    thread.join()
    assert found[1] == [4, 5, 6, 7]
    with pytest.raises(NestedNext):
        next(iterator)


def test_a_dataset_that_tells_its_fingerprint_is_recognised() -> None:
    class Versioned(Numbers):
        fingerprint = "v1"

    state = stoker.DataLoader(Versioned(), batch_size=4).state_dict()
    assert state["dataset"] == "v1"
    other = Versioned()
    other.fingerprint = "v2"
    with pytest.raises(StateMismatch, match="dataset: the state has 'v1', this loader 'v2'"):
        stoker.DataLoader(other, batch_size=4).load_state_dict(state)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "it is a NoneType, not a dict"),
        ({}, "it has no version and kind; its keys are none"),
        ({"_iterator": 1}, "its keys are _iterator"),
        ({"version": 99, "kind": "plan"}, "it has version 99"),
        ({"version": 1, "kind": "magic"}, "its kind is 'magic'"),
        ({"version": 1, "kind": "plan", "epoch": 0}, "lacks ahead, batch_size"),
        ({"version": 1, "kind": "stream", "epoch": 0}, "lacks .*seed"),
    ],
    ids=str,
)
def test_what_is_not_a_state(state: Any, message: str) -> None:
    with pytest.raises(StateUnreadable, match=message):
        stoker.DataLoader(Numbers()).load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"step": -4},
        {"step": "x"},
        {"epoch": 3},
        {"step": 10**9},
        {"position": 10**9},
        {"digest": "zz"},
        {"origin": [1]},
    ],
    ids=str,
)
def test_a_state_that_was_tampered_with(change: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Numbers(100), batch_size=4)
    state = loader.state_dict() | change
    with pytest.raises(StateUnreadable, match="hint: pass what"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_collate_function_that_returns_nothing(engine: dict[str, Any]) -> None:
    iterator = iter(stoker.DataLoader(Numbers(8), batch_size=4, collate_fn=forgets_to_return, **engine))
    with pytest.raises(
        NothingCollated,
        match="the collate function forgets_to_return returned None at step 0\nhint: did the",
    ):
        next(iterator)
    iterator.close()


def forgets_to_return(samples: Any) -> None:
    torch.tensor(samples)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_an_error_in_collation_names_step_and_positions(engine: dict[str, Any]) -> None:
    samples = [torch.zeros(size) for size in (1, 1, 2, 3)]
    iterator = iter(stoker.DataLoader(samples, batch_size=2, **engine))
    assert next(iterator).shape == (2, 1)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
        next(iterator)
    assert "raised while collating positions 2, 3, step 1, epoch 0" in "\n".join(caught.value.__notes__)
    iterator.close()
    del caught


def test_sequences_of_different_lengths() -> None:
    with pytest.raises(RuntimeError, match="each sample of a batch should be of equal size"):
        list(stoker.DataLoader([[1, 2], [1]], batch_size=2))


def test_a_dataset_that_cannot_be_pickled_is_named() -> None:
    class Local(Numbers):
        """Local classes cannot be pickled."""

    loader = stoker.DataLoader(Local(8), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(NotPicklable, match=r"the dataset cannot be sent to a worker process \(start method 'spawn'\)"):
        iter(loader)
    loader = stoker.DataLoader(
        Numbers(8), batch_size=4, num_workers=1, multiprocessing_context="spawn", collate_fn=lambda samples: samples
    )
    with pytest.raises(NotPicklable, match="the collate function cannot be sent.*lambda"):
        iter(loader)
    assert len(list(stoker.DataLoader(Local(8), batch_size=4, num_threads=1))) == 2  # as the hint says


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_the_original_error_comes_with_where_it_was(engine: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Broken(20, {9}), batch_size=4, **engine)
    iterator = iter(loader)
    assert plain([next(iterator), next(iterator)]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="sample 9 is broken") as caught:
        next(iterator)
    assert type(caught.value) is ValueError
    notes = "\n".join(caught.value.__notes__)
    assert "raised while reading position 9 (file-9.bin) of Broken, step 2, epoch 0" in notes
    import traceback

    shown = "".join(traceback.format_exception(caught.value))
    assert "__getitem__" in shown
    assert loader.state_dict()["step"] == 2  # what failed was not yielded
    assert plain(next(iterator)) == [12, 13, 14, 15]  # whoever catches it may go on, as in torch
    iterator.close()
    del caught


class Difficult(Exception):
    """Cannot be made again from its message."""

    def __init__(self, first: int, *, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.lock = open(os.devnull)  # noqa: SIM115


class RaisesDifficult(Numbers):
    """Raises what cannot be pickled."""

    def __getitem__(self, position: int) -> int:
        raise Difficult(1, second=2)


def test_errors_that_cannot_be_pickled_arrive_readable() -> None:
    iterator = iter(stoker.DataLoader(RaisesDifficult(8), batch_size=4, num_workers=1))
    with pytest.raises(Difficult, match="1 and 2") as caught:
        next(iterator)
    assert "in __getitem__" in str(caught.value.__cause__)
    assert "position 0 of RaisesDifficult" in "\n".join(caught.value.__notes__)
    iterator.close()
    del caught


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_skipped_samples_are_replaced_and_listed(engine: dict[str, Any]) -> None:
    bad = {3, 17, 18, 40}
    policy = stoker.Policy(max_skipped=4, max_rate=None)
    loader = stoker.DataLoader(Broken(60, bad), batch_size=8, shuffle=True, seed=5, on_error=policy, **engine)
    batches = listed(loader)
    reference = listed(stoker.DataLoader(Numbers(60), batch_size=8, shuffle=True, seed=5))
    assert [len(batch) for batch in batches] == [len(batch) for batch in reference]
    changed = [(old, new) for a, b in zip(reference, batches) for old, new in zip(a, b) if old != new]
    assert {old for old, _ in changed} == bad
    assert not {new for _, new in changed} & bad
    entries = list(loader.ledger)
    assert [(entry.position, entry.replaced_by) for entry in entries] == changed
    assert entries[0].reason == f"ValueError: sample {entries[0].position} is broken"
    assert entries[0].where == f"file-{entries[0].position}.bin"
    assert (loader.ledger.num_skipped, loader.ledger.num_served, len(loader.ledger)) == (4, 60, 4)
    assert loader.state_dict()["skipped"] == 4


def test_every_engine_and_rank_replaces_alike() -> None:
    arguments: dict[str, Any] = {"shuffle": True, "seed": 5, "on_error": stoker.Policy(max_rate=None)}
    whole = listed(stoker.DataLoader(Broken(60, {3, 17}), batch_size=8, **arguments))
    for engine in ENGINES[1:]:
        assert listed(stoker.DataLoader(Broken(60, {3, 17}), batch_size=8, **arguments, **engine)) == whole
    ranks = [
        listed(stoker.DataLoader(Broken(60, {3, 17}), batch_size=4, rank=rank, num_ranks=2, **arguments))
        for rank in (0, 1)
    ]
    assert [sorted(a + b) for a, b in zip(*ranks)] == [sorted(batch) for batch in whole]


def test_a_batch_read_in_one_call_is_searched_for_the_bad_sample() -> None:
    class BrokenMany(Broken):
        def __getitems__(self, positions: list[int]) -> list[int]:
            return [self[position] for position in positions]

    loader = stoker.DataLoader(BrokenMany(20, {9}), batch_size=4, on_error="skip")
    batches = listed(loader)
    assert batches[1] == [4, 5, 6, 7]
    assert batches[2][0] == 8
    assert [entry.position for entry in loader.ledger] == [9]
    assert Many(3).__getitems__([1]) == [10]


def test_too_many_bad_samples_are_an_error_that_lists_them() -> None:
    loader = stoker.DataLoader(
        Broken(100, set(range(0, 100, 5))), batch_size=10, on_error=stoker.Policy(max_skipped=3, max_rate=None)
    )
    with pytest.raises(TooManySkipped, match="4 of 20 samples were skipped, more than max_skipped=3") as caught:
        list(loader)
    assert "position 15 (file-15.bin), epoch 0, step 1: ValueError: sample 15 is broken" in str(caught.value)
    by_rate = stoker.DataLoader(Broken(100, set(range(0, 100, 5))), batch_size=10, on_error="skip")
    with pytest.raises(TooManySkipped, match="more than max_rate=0.01"):
        list(by_rate)
    assert by_rate.ledger.num_skipped == 12  # ten are let pass, whatever the rate


def test_with_a_sampler_replacements_come_from_what_it_has_chosen() -> None:
    chosen = list(range(10))
    loader = stoker.DataLoader(Broken(1000, {3}), batch_size=5, sampler=chosen, on_error=stoker.Policy(max_rate=None))
    served: list[int] = sum(listed(loader), [])
    assert set(served) <= set(chosen) - {3}
    assert len(served) == 10
    alone = stoker.DataLoader(Broken(1000, {3}), batch_size=1, sampler=[3], on_error="skip")
    with pytest.raises(ValueError, match="sample 3 is broken") as caught:
        list(alone)
    assert "there is no other sample in this batch" in caught.value.__notes__[-1]


def test_a_dataset_with_nothing_good_raises_the_original_error() -> None:
    with pytest.raises(ValueError, match="sample 0 is broken") as caught:
        list(stoker.DataLoader(Broken(10, set(range(10))), batch_size=2, on_error="skip"))
    assert "8 other samples, tried in its place, could not be read either" in "\n".join(caught.value.__notes__)


def test_a_loader_that_gives_no_batch_says_so() -> None:
    with pytest.warns(UserWarning, match="will give no batch: 10 samples do not fill a batch of 16"):
        loader = stoker.DataLoader(Numbers(10), batch_size=16, drop_last=True)
    assert listed(loader) == []
    assert len(loader) == 0


class RunsOut(Numbers):
    """Has an inner iterator that is too short."""

    def __getitem__(self, position: int) -> int:
        if position == 6:
            next(iter(()))
        return position


class ManyRunOut(RunsOut):
    """The same, many at a time."""

    def __getitems__(self, positions: list[int]) -> list[int]:
        return [next(iter(())) if position == 6 else position for position in positions]


def collates_early(samples: list[int]) -> Any:
    if 6 in samples:
        next(iter(()))
    return samples


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize(
    "arguments", [{}, {"collate_fn": collates_early}, {"many": True}], ids=["item", "collate", "many"]
)
def test_a_stop_iteration_inside_does_not_end_the_epoch_in_silence(arguments: Any, engine: dict[str, Any]) -> None:
    if arguments.get("many"):
        dataset: Any = ManyRunOut(12)
        arguments = {}
    else:
        dataset = Numbers(12) if arguments else RunsOut(12)
    iterator = iter(stoker.DataLoader(dataset, batch_size=4, **arguments, **engine))
    next(iterator)
    with pytest.raises(
        stoker.errors.EarlyStop, match="raised StopIteration, which a loop would mistake for the end"
    ) as caught:
        next(iterator)
    assert caught.value.__notes__
    iterator.close()
    del caught


def test_replacements_of_samples_with_names_are_the_same_in_every_process() -> None:
    code = (
        "import stoker\n"
        "class Named:\n"
        "    def __len__(self): return 1000\n"
        "    def __getitem__(self, name):\n"
        "        if name == 'bad': raise ValueError\n"
        "        return name\n"
        "sampler = ['a', 'bad', 'b', 'c']\n"
        "arguments = {'batch_size': 4, 'seed': 1, 'on_error': 'skip', 'collate_fn': tuple}\n"
        "print(list(stoker.DataLoader(Named(), sampler=sampler, **arguments)))\n"
    )
    runs = {subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout for _ in range(2)}
    assert len(runs) == 1


def test_policies_are_checked() -> None:
    for arguments in ({"max_skipped": -1}, {"max_rate": 2.0}, {"action": "hide"}):
        with pytest.raises(ArgumentError):
            stoker.Policy(**arguments)


def test_describe_that_fails_does_not_hide_the_error() -> None:
    class Worse(Broken):
        def describe(self, position: int) -> str:
            raise KeyError(position)

    with pytest.raises(ValueError, match="sample 1 is broken") as caught:
        list(stoker.DataLoader(Worse(4, {1}), batch_size=2))
    assert "describe() raised KeyError" in caught.value.__notes__[0]
