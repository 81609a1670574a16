"""Several threads that share one iterator."""

from __future__ import annotations

import threading
from typing import Any

import stoker
from tests.loader.datasets import Numbers


def test_a_thread_does_not_hand_over_what_another_one_is_about_to_hand_over() -> None:
    iterator: Any = iter(stoker.DataLoader(Numbers(40), batch_size=10))
    advance = iterator._progress.advance
    is_inside, may_go_on = threading.Event(), threading.Event()

    def wait_and_advance(made: Any) -> None:
        if threading.current_thread() is first:
            is_inside.set()
            may_go_on.wait(20)
        advance(made)

    iterator._progress.advance = wait_and_advance
    taken: list[list[int]] = []
    first = threading.Thread(target=lambda: taken.append(next(iterator).tolist()))
    first.start()
    assert is_inside.wait(20)
    second = next(iterator).tolist()
    may_go_on.set()
    first.join()
    assert sorted([second, *taken]) == [list(range(10)), list(range(10, 20))]
