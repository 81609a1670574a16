"""Loading inside an event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stoker import DataLoader

ENGINES: list[dict[str, Any]] = [{}, {"num_threads": 2}, {"num_workers": 2}]
EPOCH = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def loader(**engine: Any) -> Any:
    return DataLoader(list(range(10)), batch_size=4, **engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_epoch_can_be_read_inside_a_coroutine(engine: dict[str, Any]) -> None:
    async def train() -> list[list[int]]:
        return [batch.tolist() for batch in loader(**engine)]

    assert asyncio.run(train()) == EPOCH


@pytest.mark.parametrize("engine", ENGINES)
def test_each_batch_can_be_awaited_in_another_thread_while_the_event_loop_runs(engine: dict[str, Any]) -> None:
    async def train() -> tuple[list[list[int]], bool]:
        pool, ticks = ThreadPoolExecutor(2), asyncio.Event()
        asyncio.get_running_loop().call_soon(ticks.set)
        iterator, seen = iter(loader(**engine)), []
        with pool:  # any of its threads: the iterator belongs to none
            while (batch := await asyncio.get_running_loop().run_in_executor(pool, next, iterator, None)) is not None:
                seen.append(batch.tolist())
        return seen, ticks.is_set()

    assert asyncio.run(train()) == (EPOCH, True)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_whole_epoch_can_be_read_in_a_thread(engine: dict[str, Any]) -> None:
    async def train() -> list[list[int]]:
        return await asyncio.to_thread(lambda: [batch.tolist() for batch in loader(**engine)])

    assert asyncio.run(train()) == EPOCH


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_that_is_canceled_between_batches_leaves_a_state_that_resumes(engine: dict[str, Any]) -> None:
    numbers = loader(**engine)

    async def train(has_started: asyncio.Event) -> None:
        for _ in numbers:
            has_started.set()
            await asyncio.sleep(0)

    async def run() -> None:
        has_started = asyncio.Event()
        task = asyncio.create_task(train(has_started))
        await has_started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    state = numbers.state_dict()
    again = loader(**engine)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == EPOCH[state["step"] :]
    assert 0 < state["step"] < len(EPOCH)
