"""An exception on its way from a worker process to the trainer's.

Most exceptions pickle. The rest is what this file is for: constructors that want other arguments than `args`, messages
that grow when they are constructed a second time, locks and open files among the attributes, classes made inside a
function, a gigabyte of samples as an argument. So an exception travels in three forms, and the trainer takes the first
that arrives as it left: as its own pickle; as its type and the pieces of its state, put together past its constructor;
as the text of a `WorkerError`.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import textwrap
import traceback
from collections.abc import Iterator
from reprlib import Repr
from typing import Any

from stoker.errors import WorkerError

MAX_BYTES = 1 << 20
"""The most that an exception's state may take, pickled."""

MAX_CHARACTERS = 20_000
"""The most that any one text may take: a message, a note, the traceback."""

MAX_LINKS = 16
"""The most exceptions of a chain, or of a group and its groups, that the traceback shows."""

MAX_GROUP = 64
"""The most exceptions of one group that travel."""

Reduced = tuple[type[BaseException], tuple[Any, ...], dict[str, Any]]


class WorkerFailure:
    """An exception that was raised in a worker, in a form that always pickles and is never large.

    `WorkerFailure(error)` is made in the worker, `error()` is called in the trainer.
    """

    def __init__(self, error: BaseException) -> None:
        self._traceback = _cut("".join(_traceback_lines(error, seen=set())))
        self._pickled_error = _PickledError(error, MAX_BYTES)

    def error(self) -> BaseException:
        """Return the exception, caused by a `WorkerTraceback`.

        It has the type that it had, wherever that can be imported here, its message, notes and attributes; a short
        text stands where a piece of its state could not travel. Otherwise it is a `WorkerError` that names the type.
        """
        error = self._pickled_error.error()
        # not `raise ... from`, nor plain assignment: a frozen dataclass may be an exception, too
        object.__setattr__(error, "__cause__", WorkerTraceback(self._traceback))
        return error


class WorkerTraceback(Exception):
    """Shows the worker's own traceback above the error, as its cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in a worker process\n\n{self.text}"


class _Placeholder(str):
    """A short text in the place of something that could not travel; shown bare, as that would have been."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _PickledError:
    """An exception without the place where it was raised, in its three forms."""

    def __init__(self, error: BaseException, max_bytes: int) -> None:
        kind, args, state = _reduced(error)
        self.name = _name(kind)
        self.kind = _pickled(kind, max_bytes)
        self.group: list[_PickledError] | None = None
        self.num_left_out = 0
        if isinstance(error, BaseExceptionGroup):
            args = (error.message,)
            self._carry_group(error, max_bytes)
        budget = _Budget(max_bytes // 2)
        self.args = [budget.piece(arg) for arg in args]
        self.state = {name: budget.piece(value) for name, value in state.items() if name != "__notes__"}
        self.notes = _notes(error)
        self.message = _message(error, [piece.brief for piece in self.args])
        # a group is never taken whole: its message may be right and those inside it wrong
        self.whole = _pickled(error, max_bytes // 2) if self.group is None else None

    def _carry_group(self, group: BaseExceptionGroup[Any], max_bytes: int) -> None:
        inner = group.exceptions[:MAX_GROUP]
        share = max_bytes // (1 + len(inner))  # halves at least, so nesting has an end
        if share < 1024:
            inner = ()
        self.group = [_PickledError(error, share) for error in inner]
        self.num_left_out = len(group.exceptions) - len(inner)

    def error(self) -> BaseException:
        """Return the exception in the first form that arrives as it left."""
        arrived = [error for form in (self._unpickled, self._put_together) if (error := form()) is not None]
        # a constructor that runs a second time, on its own message, makes another message
        faithful = [error for error in arrived if _is_same(_message(error), self.message)]
        if faithful:
            error = faithful[0]
        elif arrived:
            error = arrived[0]
            _add_note(error, f"its message in the worker: {self.message}")
        else:
            error = WorkerError(
                f"{self.name}: {self.message}\n(the original exception could not travel from the worker process)"
            )
        for note in self.notes:
            _add_note(error, note)
        return error

    def _unpickled(self) -> BaseException | None:
        if self.whole is None:
            return None
        with contextlib.suppress(Exception):
            error = pickle.loads(self.whole)
            return error if isinstance(error, BaseException) else None
        return None

    def _put_together(self) -> BaseException | None:
        if self.kind is None:
            return None
        with contextlib.suppress(Exception):
            args = tuple(piece.value() for piece in self.args)
            if self.group is not None:
                args = (*args, self._group())
            return _made(pickle.loads(self.kind), args, {name: piece.value() for name, piece in self.state.items()})
        return None

    def _group(self) -> list[BaseException]:
        inner = [carried.error() for carried in self.group or ()]
        if self.num_left_out:
            inner.append(WorkerError(f"{self.num_left_out} more exceptions of this group were left out"))
        return inner


class _CarriedValue:
    """One argument or attribute of an exception."""

    def __init__(self, value: Any, pickled: bytes | None) -> None:
        self.pickled = pickled
        self.brief = None if pickled is not None else _brief(value)
        """What to say in its place, where it cannot travel."""
        self.name = _name(type(value))

    def value(self) -> Any:
        """Return what it was, or a short text."""
        if self.pickled is None:
            return self.brief
        try:
            return pickle.loads(self.pickled)
        except Exception:
            return _Placeholder(f"<{self.name}>")


class _Budget:
    """Room for the pieces of one exception: first come, first served."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes

    def piece(self, value: Any) -> _CarriedValue:
        pickled = _pickled(value, self._left)
        self._left -= len(pickled or b"")
        return _CarriedValue(value, pickled)


def _reduced(error: BaseException) -> Reduced:
    """Return type, arguments and attributes as the built-in type of the exception reduces it.

    The exception's own `__reduce__` may be at fault; that of `OSError` knows the file name, and so on.
    """
    kind = type(error)
    try:
        reduced: Any = _built_in(kind).__reduce__(error)
        _, args, *state = reduced
        return kind, tuple(args), dict(state[0] or {}) if state else {}
    except Exception:
        return kind, error.args, {}


def _built_in(kind: type[BaseException]) -> type[BaseException]:
    return next(base for base in kind.__mro__ if base.__module__ == "builtins" and issubclass(base, BaseException))


def _made(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """Make an exception past its own constructor."""
    base = _built_in(kind)  # lays out the memory: `BaseException.__new__` alone refuses an `OSError`
    make: Any = base.__new__
    try:
        error: BaseException = make(kind, *args)
        base.__init__(error, *args)
    except Exception:
        if issubclass(kind, BaseExceptionGroup):
            raise
        error = make(kind)  # as when a text stands where a `UnicodeError` wants bytes
        error.args = args
    for name, value in state.items():
        with contextlib.suppress(Exception):  # a read-only property
            object.__setattr__(error, name, value)
    return error


def _add_note(error: BaseException, note: str) -> None:
    notes = error.__dict__.setdefault("__notes__", [])
    if isinstance(notes, list) and note not in notes:
        notes.append(note)


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", ())
    return [_cut(note) for note in notes if isinstance(note, str)] if isinstance(notes, list | tuple) else []


def _message(error: BaseException, briefs: list[str | None] | tuple[()] = ()) -> str:
    """Return `str(error)`, shortened; with `briefs` in the place of those arguments that have one.

    What is too large to travel is too large to be printed: the text of a list can be gigabytes, too.
    """
    try:
        if any(brief is not None for brief in briefs) and type(error).__str__ in _PRINTS_ARGS:
            args = [arg if brief is None else brief for arg, brief in zip(error.args, briefs)]
            return _cut(type(error).__str__(_made(_built_in(type(error)), tuple(args), {})))
        return _cut(str(error))
    except Exception as reason:
        return f"<no message: its __str__ raised {_name(type(reason))}>"


_PRINTS_ARGS = (BaseException.__str__, KeyError.__str__)


def _is_same(one: str, other: str) -> bool:
    """Whether two messages are the same but for the addresses of objects."""
    address = re.compile("0x[0-9a-fA-F]+")
    return address.sub("0x", one) == address.sub("0x", other)


def _traceback_lines(error: BaseException, *, seen: set[int]) -> Iterator[str]:
    """Yield the lines of the traceback, with causes and groups.

    Python's own formatter would print every message in full, however long.
    """
    chain: list[tuple[BaseException, str]] = [(error, "")]
    seen.add(id(error))
    while len(seen) < MAX_LINKS:
        last = chain[-1][0]
        cause = last.__cause__
        before = cause or (None if last.__suppress_context__ else last.__context__)
        if before is None or id(before) in seen:
            break
        seen.add(id(before))
        chain.append((before, _CAUSED if cause else _MEANWHILE))
    for link, joint in reversed(chain):
        if link.__traceback__ is not None:
            yield "Traceback (most recent call last):\n"
            yield from traceback.format_tb(link.__traceback__)
        message = _message(link, [_pick_brief(arg) for arg in link.args])
        yield "\n".join([f"{_name(type(link))}: {message}" if message else _name(type(link)), *_notes(link), ""])
        if isinstance(link, BaseExceptionGroup):
            for number, inner in enumerate(link.exceptions, 1):
                if len(seen) >= MAX_LINKS:
                    yield f"  ({len(link.exceptions) - number + 1} more exceptions left out)\n"
                    break
                yield f"  ---------------- {number} ----------------\n"
                yield textwrap.indent("".join(_traceback_lines(inner, seen=seen)), "  | ")
        yield joint


_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"


def _pick_brief(value: Any) -> str | None:
    """Return a short text for what is too large to be printed, or cannot be pickled."""
    return None if _pickled(value, MAX_BYTES) is not None else _brief(value)


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _cut(text: str) -> str:
    """Return `text`, or its beginning and end and how much was left out between them."""
    if len(text) <= MAX_CHARACTERS:
        return str(text)
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half:,} characters left out) ...\n{text[-half:]}"


def _brief(value: Any) -> str:
    """Return a short text for `value`, without making a long one first."""
    if isinstance(value, str):
        return _cut(value)
    try:
        return _Placeholder(_Short().repr(value))
    except Exception:
        return _Placeholder(f"<{_name(type(value))}>")


class _Short(Repr):
    """Like `repr`, without making a long text first."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200

    def repr_bytes(self, value: bytes | bytearray, _level: int) -> str:
        return f"{value[: self.maxother]!r}" + f"... ({len(value):,} bytes)" * (len(value) > self.maxother)

    repr_bytearray = repr_bytes

    def repr_instance(self, value: Any, level: int) -> str:
        if isinstance(shape := getattr(value, "shape", None), tuple):  # an array, of whatever library
            return f"<{_name(type(value))} of shape {tuple(shape)} and {getattr(value, 'dtype', 'no dtype')}>"
        return super().repr_instance(value, level)


class _TooMuch(Exception):
    """More bytes than there is room for."""


class _Bounded(io.BytesIO):
    """A file in memory that refuses to grow past a size."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._left = max_bytes

    def write(self, data: Any) -> int:
        self._left -= memoryview(data).nbytes
        if self._left < 0:
            raise _TooMuch
        return super().write(data)


class _BoundedPickler(pickle.Pickler):
    """Refuses arrays that would not fit before they are copied."""

    def __init__(self, file: _Bounded, max_bytes: int) -> None:
        super().__init__(file, protocol=5)
        self._max_bytes = max_bytes

    def reducer_override(self, value: Any) -> Any:
        storage = getattr(value, "untyped_storage", None)  # of which torch pickles all, however small the tensor
        num_bytes = storage().nbytes() if storage and not isinstance(value, type) else getattr(value, "nbytes", 0)
        if isinstance(num_bytes, int) and num_bytes > self._max_bytes:
            raise _TooMuch
        return NotImplemented


def _pickled(value: Any, max_bytes: int) -> bytes | None:
    """Return `value` pickled, or None if that fails or takes more than `max_bytes`."""
    file = _Bounded(max_bytes)
    try:
        _BoundedPickler(file, max_bytes).dump(value)
    except Exception:
        return None
    return file.getvalue()
