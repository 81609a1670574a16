"""What is marked as transforming."""

from __future__ import annotations

import threading
import time

import pytest

import stoker
from stoker.foundation.stages import watch


def test_a_block_counts_once_whatever_is_inside_it() -> None:
    before = watch.seconds
    with stoker.transforming():
        with stoker.transforming():
            time.sleep(0.01)
        time.sleep(0.01)
    assert 0.02 <= watch.seconds - before < 60
    assert watch.depth == 0


def test_an_error_ends_the_block() -> None:
    before = watch.seconds
    with pytest.raises(ValueError, match="bad"), stoker.transforming():
        time.sleep(0.01)
        raise ValueError("bad")
    assert watch.seconds - before >= 0.01
    assert watch.depth == 0


def test_threads_count_for_themselves() -> None:
    before, seen = watch.seconds, []

    def work() -> None:
        with stoker.transforming():
            time.sleep(0.01)
        seen.append(watch.seconds)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen[0] >= 0.01
    assert watch.seconds == before
