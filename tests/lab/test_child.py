"""A process that answers: what it returns and raises, how it ends, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import ArgumentError
from stoker.foundation import machine
from stoker.lab.trial.child import Child, ChildEnded, ChildSlow, forked

pytestmark = pytest.mark.timed


def adding(first: int) -> Callable[[str, int], Any]:
    """Answer several kinds of questions."""
    total = first

    def answer(what: str, number: int) -> Any:
        nonlocal total
        if what == "add":
            total += number
            return total
        if what == "fail":
            raise ArgumentError("no", hint="yes")
        if what == "print":
            sys.stderr.write("the last words")
            sys.stderr.flush()
            os._exit(number)
        if what == "die":
            os.kill(os.getpid(), number)
        if what == "hang":
            time.sleep(1000)
        if what == "fork":
            return forked(doubled, number)
        if what == "start":
            return subprocess.Popen(["sleep", "1000"], start_new_session=bool(number)).pid
        return None

    return answer


def doubled(number: int) -> tuple[int, int]:
    if number < 0:
        raise ArgumentError("negative", hint="positive")
    if number > 100:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number, os.getpid()


def failing() -> Callable[[], None]:
    raise ArgumentError("not today", hint="tomorrow")


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_keeps_what_it_knows_from_question_to_question() -> None:
    with Child(adding, 5) as child:
        assert child.pid != os.getpid()
        assert [child.ask("add", 1), child.ask("add", 2)] == [6, 8]


def test_an_error_is_raised_as_it_was_and_the_child_goes_on() -> None:
    with Child(adding, 5) as child:
        with pytest.raises(ArgumentError, match="no\nhint: yes"):
            child.ask("fail", 0)
        assert child.ask("add", 1) == 6


def test_an_error_at_the_start_is_raised_to_whoever_waits() -> None:
    with Child(failing) as child, pytest.raises(ArgumentError, match="not today"):
        child.wait_until_ready()


@pytest.mark.parametrize(
    ("question", "end"),
    [(("die", signal.SIGKILL), "SIGKILL"), (("die", signal.SIGSEGV), "SIGSEGV"), (("print", 3), "exit code 3")],
    ids=["killed", "crashed", "exit"],
)
def test_an_end_is_shown_with_its_name_and_the_last_words(question: tuple[str, int], end: str) -> None:
    with Child(adding, 0) as child:
        with pytest.raises(ChildEnded) as caught:
            child.ask(*question)
        assert caught.value.end == end
        assert ("the last words" in caught.value.said) == (end == "exit code 3")


def test_one_that_takes_too_long_is_ended() -> None:
    with Child(adding, 0) as child:
        child.wait_until_ready()
        with pytest.raises(ChildSlow, match=r"no answer within 0.2 s"):
            child.ask("hang", 0, limit_seconds=0.2)
        assert gone(child.pid)


@pytest.mark.parametrize("leaves_the_group", [0, 1])
def test_all_that_a_child_has_started_ends_with_it(leaves_the_group: int) -> None:
    with Child(adding, 0) as child:
        started = child.ask("start", leaves_the_group)
        assert not gone(started)
    wait_until(lambda: gone(started))


def test_all_that_a_child_has_started_ends_when_it_takes_too_long() -> None:
    with Child(adding, 0) as child:
        started = child.ask("start", 1)
        with pytest.raises(ChildSlow):
            child.ask("hang", 0, limit_seconds=0.2)
        wait_until(lambda: gone(started))


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, time\n"
        "from tests.lab.test_child import adding\n"
        "from stoker.lab.trial.child import Child\n"
        "child = Child(adding, 0)\n"
        "child.wait_until_ready()\n"
        "print(child.pid, flush=True)\n"
        "child.ask('hang', 0)\n"
    )
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.kill()
        parent.wait()
        wait_until(lambda: gone(child))


def test_a_fork_returns_raises_and_dies_without_harm() -> None:
    with Child(adding, 0) as child:
        result, pid = child.ask("fork", 21)
        assert (result, pid == child.pid) == (42, False)
        with pytest.raises(ArgumentError, match="negative"):
            child.ask("fork", -1)
        with pytest.raises(ChildEnded, match="SIGKILL"):
            child.ask("fork", 1000)
        assert child.ask("fork", 1)[0] == 2
        assert machine.children(child.pid) == []
