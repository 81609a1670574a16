"""What was made last is kept, within bounds, and made once."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.source.recent import Recent


def never() -> tuple[str, int]:
    raise AssertionError("it should be here")


@given(capacity=st.integers(0, 20), asked=st.lists(st.integers(0, 9), min_size=1, max_size=50))
def test_the_latest_are_kept_up_to_the_capacity(capacity: int, asked: list[int]) -> None:
    recent: Recent[int, int] = Recent(capacity)
    latest: list[int] = []
    for key in asked:
        made: list[int] = []
        assert recent.get(key, lambda key=key, made=made: (made.append(key), (key * 10, key))[1]) == key * 10  # type: ignore[misc]
        assert made == ([] if key in latest else [key])
        latest = [*(other for other in latest if other != key), key]
        while sum(latest) > capacity and len(latest) > 1 and made:
            latest.pop(0)


def test_a_value_is_made_once_however_many_ask() -> None:
    recent: Recent[str, object] = Recent(100)
    together = Barrier(8)
    made: list[str] = []

    def make() -> tuple[object, int]:
        made.append("once")
        return object(), 1

    def ask(_: int) -> object:
        together.wait()
        return recent.get("key", make)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(8)))) == 1
    assert made == ["once"]


def test_what_fails_is_tried_again() -> None:
    recent: Recent[str, str] = Recent(100)

    def fail() -> tuple[str, int]:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            recent.get("key", fail)
    assert recent.get("key", lambda: ("value", 1)) == "value"
    assert recent.get("key", never) == "value"


def in_child(work: Callable[[], bool]) -> bool:
    child = os.fork()
    if not child:
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    recent: Recent[str, str] = Recent(100)

    def make() -> tuple[str, int]:
        # the fork happens while this thread has the key's turn
        assert in_child(lambda: recent.get("key", lambda: ("of the child", 1)) == "of the child")
        return "of the parent", 1

    assert recent.get("key", make) == "of the parent"
