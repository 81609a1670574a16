"""Loaders in turns: what is timed, and that a contender that fails or hangs is left out with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from benchmarks.turns import BatchTaker, Failures, Turn, failure_of, run_alone, take_turns, taking


class Naps:
    """Batches that take two milliseconds each; the first of an epoch takes longer, as if workers had to start."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches, self.num_epochs = num_batches, 0

    def __iter__(self) -> Iterator[int]:
        self.num_epochs += 1
        time.sleep(0.05)
        for number in range(self.num_batches):
            time.sleep(0.002)
            yield number


def serve_naps(num_batches: int) -> AbstractContextManager[Callable[[float], Turn]]:
    return taking(BatchTaker(Naps(num_batches), int, num_untimed=3))


def serve_nothing() -> AbstractContextManager[Callable[[float], Turn]]:
    raise ValueError("no such file\nand more")


def serve_a_failure() -> Callable[[float], Turn]:
    def answer(_: float) -> Turn:
        raise RuntimeError("half-way")

    return answer


def serve_a_hang() -> Callable[[float], Turn]:
    def answer(_: float) -> Turn:
        time.sleep(1000)
        raise AssertionError

    return answer


def test_starts_of_epochs_are_not_timed() -> None:
    naps = Naps(20)
    turn = BatchTaker(naps, int, num_untimed=3).take(0.2)
    assert naps.num_epochs > 1
    assert 0.002 <= turn.seconds / turn.num_batches < 0.02
    assert len(turn.wait_seconds) == len(turn.batch_seconds) == turn.num_batches
    assert sum(turn.batch_seconds) <= turn.seconds


def test_ends_of_epochs_are_not_timed_if_their_length_is_known() -> None:
    touched: list[int] = []
    taker = BatchTaker(Naps(20), touched.append, num_untimed=3, epoch_length=20)
    turn = taker.take(0.1)
    assert len(touched) > turn.num_batches >= 14
    assert taker.draw() not in (0, 1, 2)
    with pytest.raises(AssertionError, match="epochs are too short"):
        BatchTaker(Naps(6), int, num_untimed=3, epoch_length=6)


def test_contenders_that_fail_are_left_out_with_the_reason() -> None:
    failures = Failures()
    warmed_up = []

    def watch(name: str, _: object, ask: Callable[[], Turn]) -> Turn:
        warmed_up.append(name)
        return ask()

    turns = take_turns(
        {"naps": (serve_naps, 50), "nothing": (serve_nothing,), "failing": (serve_a_failure,)},
        num_rounds=2,
        seconds=0.05,
        warm_up_seconds=0.02,
        failures=failures,
        watch_warm_up=watch,
    )
    assert {name: len(taken) for name, taken in turns.items()} == {"naps": 2}
    assert failures.reasons == {
        "nothing, batches": "ValueError: no such file",
        "failing, batches": "RuntimeError: half-way",
    }
    assert warmed_up == ["naps", "failing"]


def test_a_contender_that_hangs_is_tried_again() -> None:
    failures = Failures(num_tries=2)
    turns = take_turns(
        {"hanging": (serve_a_hang,)},
        num_rounds=1,
        seconds=0.05,
        warm_up_seconds=0.02,
        failures=failures,
        limit_seconds=3.0,
    )
    assert turns == {}
    assert failures.num_hung == {"hanging": 1}
    assert failures.reasons == {"hanging, batches": "no answer within 3 s"}


def test_our_own_failures_are_raised() -> None:
    with pytest.raises(RuntimeError, match="half-way"):
        take_turns({"ours": (serve_a_failure,)}, num_rounds=1, seconds=0.05, warm_up_seconds=0.02)


def test_a_function_runs_alone() -> None:
    assert run_alone(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError) as caught:
        run_alone(divmod, 7, 0)
    assert failure_of(caught.value).startswith("ZeroDivisionError: ")
