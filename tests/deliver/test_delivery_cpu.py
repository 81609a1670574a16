"""Delivery without a device to copy to: order, turns and bounds are the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.deliver import Delivery, Widening, checked_device
from stoker.errors import ArgumentError

CPU = torch.device("cpu")


class Script:
    """An engine that gives what it is told to, and notes how far ahead of the caller it is asked."""

    def __init__(self, steps: Iterable[Any], *, num_ready: int = 10**6) -> None:
        self.steps = list(steps)
        self.num_taken = 0
        self.num_ready = num_ready
        """How many steps are ready; whoever asks for more waits, and makes one more ready."""
        self.is_closed = False

    @property
    def is_ready(self) -> bool:
        return self.num_taken < self.num_ready

    def __next__(self) -> Any:
        self.num_ready = max(self.num_ready, self.num_taken + 1)
        number, self.num_taken = self.num_taken, self.num_taken + 1
        if number >= len(self.steps):
            raise StopIteration
        step = self.steps[number]
        if isinstance(step, BaseException):
            raise step
        return step

    def close(self) -> None:
        self.is_closed = True


class Result(NamedTuple):
    number: int
    batch: Any


def delivery(engine: Any, depth: int = 2, **options: Any) -> Delivery[Any]:
    return Delivery(engine, CPU, depth=depth, **options)


def outcome(engine: Any) -> Any:
    try:
        return next(engine)
    except StopIteration:
        return "end"
    except Exception as error:
        return str(error)


steps = st.lists(st.integers(0, 99) | st.just("bad").map(RuntimeError), max_size=12)


@given(steps=steps, depth=st.integers(0, 4), num_ready=st.integers(0, 14))
def test_whatever_is_ready_the_results_are_those_of_the_engine(steps: list[Any], depth: int, num_ready: int) -> None:
    engine = Script(steps, num_ready=num_ready)
    delivered = delivery(engine, depth)
    plain = Script(steps)
    for number in range(len(steps) + 1):
        assert outcome(delivered) == outcome(plain)
        assert engine.num_taken <= number + 1 + depth
    assert outcome(delivered) == "end"


def test_it_takes_what_is_ready_up_to_its_depth_and_waits_for_nothing_else() -> None:
    engine = Script(range(10), num_ready=3)
    delivered = delivery(engine, depth=4)
    assert next(delivered) == 0
    assert engine.num_taken == 3
    engine.num_ready = 10
    assert next(delivered) == 1
    assert engine.num_taken == 6  # 1, and four ahead of it
    engine.num_ready = 6
    readiness = [(delivered.is_ready, next(delivered)) for _ in range(5)]
    assert readiness == [(True, 2), (True, 3), (True, 4), (True, 5), (False, 6)]


def test_an_error_comes_in_its_turn_and_nothing_is_taken_past_it() -> None:
    engine = Script([0, 1, ValueError("the third"), 3, 4])
    delivered = delivery(engine, depth=4)
    assert next(delivered) == 0
    assert engine.num_taken == 3
    assert next(delivered) == 1
    with pytest.raises(ValueError, match="the third") as caught:
        next(delivered)
    assert "__next__" in [entry.name for entry in caught.traceback]  # where it was raised is still told
    assert [next(delivered), next(delivered)] == [3, 4]
    with pytest.raises(StopIteration):
        next(delivered)


def test_an_interrupt_comes_at_once_and_costs_nothing() -> None:
    engine = Script([0, 1, KeyboardInterrupt(), 3])
    delivered = delivery(engine, depth=1)
    assert next(delivered) == 0
    with pytest.raises(KeyboardInterrupt):
        next(delivered)
    assert [next(delivered), next(delivered)] == [1, 3]


def test_batches_are_widened_and_results_without_one_are_passed_on() -> None:
    pixels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    engine = Script([Result(0, {"x": pixels}), Result(1, None), Result(2, [pixels])])
    delivered = delivery(
        engine,
        widen=Widening(torch.float16, ((0.5,) * 3, (0.5,) * 3)),
        of=lambda result: result.batch,
        replaced=lambda result, batch: result._replace(batch=batch),
    )
    first, second, third = (next(delivered) for _ in range(3))
    assert first.number == 0 and first.batch["x"].unique().tolist() == [-1.0]
    assert first.batch["x"].dtype is torch.float16
    assert second == Result(1, None)
    assert third.batch[0].dtype is torch.float16
    assert pixels.dtype is torch.uint8


def test_without_widening_the_batch_is_passed_on_as_it_is() -> None:
    batch = {"x": torch.ones(2)}
    assert next(delivery(Script([batch]))) is batch


def test_an_error_of_the_widening_is_raised_in_its_turn_and_the_next_call_goes_on() -> None:
    good, bad = torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(1, 2, 4, 4, dtype=torch.uint8)
    delivered = delivery(Script([good, bad, good]), widen=Widening(None, ((0.5,) * 3, (0.5,) * 3)))
    assert next(delivered).dtype is torch.float32
    with pytest.raises(ArgumentError, match=r"\(1, 2, 4, 4\)"):
        next(delivered)
    assert next(delivered).dtype is torch.float32


def test_closing_closes_the_engine_and_lets_go_of_what_is_in_hand() -> None:
    engine = Script(range(10))
    delivered = delivery(engine)
    next(delivered)
    delivered.close()
    delivered.close()
    assert engine.is_closed
    assert next(delivered) == 3  # 1 and 2 were in hand


def test_devices_are_checked_where_they_are_named() -> None:
    assert checked_device(None) is None
    assert checked_device("cpu") == CPU
    for wrong in (True, 1.5, "gpu", "cuda:x", -1, "meta"):
        with pytest.raises(ArgumentError, match="device="):
            checked_device(wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", 0, torch.device("cuda")])
def test_a_device_that_is_not_there_is_refused_with_what_to_do(device: Any) -> None:
    with pytest.raises(ArgumentError, match='cannot be used(.|\n)*hint: .*device="cpu"'):
        checked_device(device)
