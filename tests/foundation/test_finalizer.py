"""Finalizers that Ctrl-C interrupts run all the same."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from stoker.foundation.finalizer import Finalizer, run_interrupted


class Owner:
    pass


def interrupted_once(done: list[str]) -> Callable[[], None]:
    def free() -> None:
        done.append("begun")
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append("ended")

    return free


def test_it_runs_once_when_its_owner_is_collected() -> None:
    done: list[int] = []
    owner = Owner()
    finalizer = Finalizer(owner, done.append, 3)
    assert finalizer.alive
    del owner
    gc.collect()
    finalizer()
    run_interrupted()
    assert done == [3]
    assert not finalizer.alive


def test_what_an_interrupt_cuts_short_runs_again_at_once() -> None:
    done: list[str] = []
    owner = Owner()
    finalizer = Finalizer(owner, interrupted_once(done))
    with pytest.raises(KeyboardInterrupt):
        finalizer()
    assert done == ["begun", "begun", "ended"]
    assert not finalizer.alive


def test_an_interrupt_before_its_first_line_leaves_it_for_the_next_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    swallowed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)
    owner = Owner()
    finalizer = Finalizer(owner, done.append, 3)

    def interrupted(self: Finalizer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Finalizer, "__call__", interrupted)
        del owner
        gc.collect()
    assert len(swallowed) == 1
    assert done == []
    assert finalizer.is_overdue
    run_interrupted()
    run_interrupted()
    assert done == [3]


def test_one_that_another_thread_is_running_is_not_run_beside_it() -> None:
    begun, may_end = threading.Event(), threading.Event()
    calls: list[int] = []

    def free() -> None:
        calls.append(1)
        begun.set()
        may_end.wait(20)

    owners = [Owner()]
    finalizer = Finalizer(owners[0], free)
    thread = threading.Thread(target=owners.clear)  # the last reference
    thread.start()
    assert begun.wait(20)
    assert not finalizer.is_overdue
    run_interrupted()
    may_end.set()
    thread.join()
    assert calls == [1]
    assert not finalizer.alive


def test_an_error_of_its_own_is_reported_and_not_repeated() -> None:
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise OSError("full")

    owner = Owner()
    finalizer = Finalizer(owner, fail)
    with pytest.raises(OSError, match="full"):
        finalizer()
    finalizer()
    assert tries == [1]


def test_one_that_is_detached_never_runs() -> None:
    done: list[int] = []
    owner = Owner()
    Finalizer(owner, done.append, 3).detach()
    del owner
    gc.collect()
    run_interrupted()
    assert done == []


def test_the_end_of_the_program_runs_it() -> None:
    code = (
        "from stoker.foundation.finalizer import Finalizer\n"
        "class Owner: pass\n"
        "owner = Owner()\n"
        "Finalizer(owner, print, 'freed')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "freed\n"
