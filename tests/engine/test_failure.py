"""Any exception reaches the trainer: with its type where that can be imported, with its text in any case."""

from __future__ import annotations

import pickle
import threading
import traceback
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.processes.failure import MAX_BYTES, MAX_CHARACTERS, WorkerFailure
from stoker.errors import BadLine, WorkerError


def sent(error: BaseException) -> BaseException:
    """Return what the trainer gets for `error`."""
    try:
        raise error
    except BaseException as raised:
        data = pickle.dumps(WorkerFailure(raised))
    assert len(data) < 2 * MAX_BYTES
    failure = pickle.loads(data)
    assert isinstance(failure, WorkerFailure)
    return failure.error()


class Wrapping(Exception):
    """Makes its message from its argument, as a constructor that runs twice would do twice."""

    def __init__(self, code: int) -> None:
        super().__init__(f"failed with {code}")
        self.code = code


class Demanding(Exception):
    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class Locked(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()
        self.number = 3


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not me")


class Unarriving(Exception):
    def __reduce__(self) -> Any:
        return _refused, (1,)


def _refused(_number: int) -> Any:
    raise LookupError("gone")


class Forgetful(Exception):
    def __reduce__(self) -> Any:
        return Forgetful, self.args


class FileTrouble(OSError):
    def __init__(self, path: str, *, code: int) -> None:
        super().__init__(code, "no such luck", path)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("cannot say")

    __repr__ = __str__


@dataclass(frozen=True)
class Frozen(Exception):
    field: str


class Picky(Exception):
    def __new__(cls, _first: int, _second: int) -> Picky:
        return super().__new__(cls)


def test_an_exception_arrives_with_its_type_message_notes_and_attributes() -> None:
    error = BadLine("a.txt", line=3, offset=20, reason="odd")
    error.add_note("in shard 4")
    again = sent(error)
    assert isinstance(again, BadLine)
    assert (str(again), again.line, again.__notes__) == (str(error), 3, ["in shard 4"])


@pytest.mark.parametrize(
    "error",
    [
        Wrapping(7),
        Demanding("no", path="/tmp/x"),
        Locked(),
        Unpicklable("a", 1),
        Unarriving("b"),
        Forgetful("c"),
        FileTrouble("/tmp/y", code=2),
        Frozen("d"),
        Picky(1, 2),
        KeyError("key"),
        FileNotFoundError(2, "No such file or directory", "/tmp/z"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        ImportError("no module", name="nothing", path="there"),
        KeyboardInterrupt(),
        SystemExit(3),
        StopIteration(5),
        ValueError("two", threading.Lock()),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_type_and_the_message_arrive_whatever_the_constructor_wants(error: BaseException) -> None:
    text = str(error)
    error.__dict__.setdefault("__notes__", []).append("a note")
    again = sent(error)
    assert type(again) is type(error)
    assert str(again) == text
    assert again.__notes__ == ["a note"]


def test_attributes_arrive_and_a_short_text_stands_for_those_that_cannot() -> None:
    again = sent(Locked())
    assert isinstance(again, Locked)
    assert again.number == 3
    assert str(again.lock).startswith("<unlocked _thread.lock object")
    assert vars(sent(Demanding("no", path="here"))) == {"path": "here"}
    missing = sent(FileTrouble("/tmp/y", code=2))
    assert isinstance(missing, FileTrouble)
    assert (missing.errno, missing.filename) == (2, "/tmp/y")
    ended = sent(SystemExit(3))
    assert isinstance(ended, SystemExit) and ended.code == 3


def test_a_type_that_cannot_travel_becomes_a_worker_error_that_names_it() -> None:
    class Local(ValueError):
        pass

    error = Local("oh no")
    error.add_note("a note")
    again = sent(error)
    assert type(again) is WorkerError
    assert "Local: oh no" in str(again)
    assert again.__notes__ == ["a note"]


def test_a_type_that_is_not_found_in_the_trainer_becomes_a_worker_error(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = pickle.dumps(WorkerFailure(Wrapping(7)))
    monkeypatch.delattr(f"{__name__}.Wrapping")
    again = pickle.loads(failure).error()
    assert type(again) is WorkerError
    assert str(again).startswith(f"{__name__}.Wrapping: failed with 7\n")


def test_an_exception_that_cannot_be_printed_arrives() -> None:
    again = sent(Mute("x"))
    assert type(again) is Mute
    assert again.args == ("x",)
    assert "<no message: its __str__ raised ValueError>" in str(again.__cause__)
    assert type(sent(ValueError("holds", Mute("x"), threading.Lock()))) is ValueError


def test_the_traceback_is_shown_as_the_cause_with_what_caused_it() -> None:
    def fails() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    try:
        fails()
    except ValueError as error:
        again = WorkerFailure(error).error()
    text = str(again.__cause__)
    assert text.startswith("in a worker process\n\nTraceback (most recent call last):\n")
    assert "in fails" in text
    assert text.index("KeyError: 'inner'") < text.index("direct cause") < text.index("ValueError: outer")
    assert "in a worker process" in "".join(traceback.format_exception(again))


def test_a_long_or_circular_chain_is_shown_in_part() -> None:
    first = error = ValueError(0)
    for number in range(1, 2000):
        error.__context__ = ValueError(number)
        error = error.__context__
    error.__context__ = first
    text = str(WorkerFailure(first).error().__cause__)
    assert "ValueError: 0" in text and "ValueError: 15" in text and "ValueError: 16" not in text


def test_groups_arrive_as_groups() -> None:
    group = ExceptionGroup("many", [ValueError("one"), ExceptionGroup("deep", [Wrapping(2)]), Locked()])
    again = sent(group)
    assert isinstance(again, ExceptionGroup)
    one, deep, locked = again.exceptions
    assert isinstance(one, ValueError) and isinstance(locked, Locked)
    assert isinstance(deep, ExceptionGroup) and str(deep.exceptions[0]) == "failed with 2"
    assert str(again) == "many (3 sub-exceptions)"
    assert "failed with 2" in str(again.__cause__)


def test_a_large_or_deep_group_arrives_in_part() -> None:
    again = sent(ExceptionGroup("many", [Unpicklable(number) for number in range(100)]))
    assert isinstance(again, ExceptionGroup)
    assert str(again.exceptions[-1]) == "36 more exceptions of this group were left out"
    assert again.__notes__ == ["its message in the worker: many (100 sub-exceptions)"]
    deep: Exception = Unpicklable("bottom")
    for _ in range(500):
        deep = ExceptionGroup("deeper", [deep])
    assert isinstance(sent(deep), ExceptionGroup)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: np.zeros(1 << 27), "<numpy.ndarray of shape (134217728,) and float64>"),
        (lambda: np.zeros((1 << 14, 1 << 14))[::2, ::2], "<numpy.ndarray of shape (8192, 8192) and float64>"),
        (lambda: torch.zeros(1 << 27), "<torch.Tensor of shape (134217728,) and torch.float32>"),
        (lambda: torch.zeros(1 << 27)[:2], "<torch.Tensor of shape (2,) and torch.float32>"),
        (lambda: [1.5] * (1 << 26), "[1.5, 1.5, 1.5, 1.5, 1.5, 1.5, ...]"),
        (lambda: bytes(1 << 28), "... (268,435,456 bytes)"),
    ],
    ids=["array", "strided", "tensor", "view", "list", "bytes"],
)
def test_huge_arguments_do_not_travel_and_are_not_copied(make: Callable[[], Any], shown: str) -> None:
    huge = make()
    tracemalloc.start()
    try:
        again = sent(ValueError("too much of", huge))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert type(again) is ValueError
    assert again.args[0] == "too much of"
    assert shown in again.args[1]
    assert shown in str(again)
    assert shown in str(again.__cause__)
    assert peak < 20 * MAX_BYTES


def test_a_huge_message_is_cut() -> None:
    error = RuntimeError("a" * 10**8 + "the end")
    error.add_note("b" * 10**8)
    again = sent(error)
    assert type(again) is RuntimeError
    assert "characters left out" in str(again) and str(again).endswith("the end")
    assert len(str(again)) < MAX_CHARACTERS + 100
    assert len(str(again.__cause__)) < MAX_CHARACTERS + 100
    assert all(len(note) < MAX_CHARACTERS + 100 for note in again.__notes__)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(
    kind=st.sampled_from([ValueError, KeyError, Forgetful, Unpicklable, Unarriving, KeyboardInterrupt]),
    args=st.lists(plain).map(tuple),
    attributes=st.dictionaries(st.from_regex("[a-z]{1,8}", fullmatch=True).filter(lambda name: name != "args"), plain),
)
def test_plain_arguments_and_attributes_arrive_as_they_were(
    kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    error = kind(*args)
    if kind is not Forgetful:
        error.__dict__.update(attributes)
    again = sent(error)
    assert type(again) is kind
    assert (again.args, vars(again)) == (args, vars(error))
    assert str(again) == str(error)
