"""A fresh process that answers questions, one at a time, and may fail without harm to this one.

What is measured may take all memory, hang or crash. It does so in a process of its own, with an interpreter of its own,
under a supervisor: when it is closed or ends, or its parent dies, everything that it has started is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self, TypeVar

from stoker.engine.processes.failure import WorkerFailure, WorkerTraceback
from stoker.foundation.processes import describe_exit, die_with_parent
from stoker.lab.watch.supervised_process import SupervisedProcess

T = TypeVar("T")

Answering = Callable[..., Callable[..., Any] | AbstractContextManager[Callable[..., Any]]]
"""Returns, in the child, the function that answers questions, or a context manager that gives it and cleans up. It is
pickled, so it has to be at the top level of a module."""

PATIENCE_SECONDS = 2.0
"""How long a child may take to end by itself before it is killed."""

MAX_SAID = 4000
"""Characters of a child's output that are kept for an error."""


class ChildEnded(Exception):
    """A child has ended instead of answering."""

    def __init__(self, end: str, said: str) -> None:
        super().__init__(f"the process ended ({end}){f', and said:{chr(10)}{said}' if said else ''}")
        self.end = end
        """The name of a signal, or an exit code in words."""
        self.said = said
        """The last of what it has printed."""


class ChildSlow(Exception):
    """A child has not answered in time. It was killed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds = seconds


class Child:
    """A process in which `answering(*args)` is called once, and then its result for every question.

    An exception that an answer raises is raised by `ask`, and the child lives on. `ask` raises `ChildEnded` if the
    child ends, and `ChildSlow` after `limit_seconds`, which a call may override. `environment` has variables that are
    set in the child.
    """

    def __init__(
        self,
        answering: Answering,
        *args: Any,
        limit_seconds: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._limit_seconds = limit_seconds
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 closed with the child
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        begin = f"from stoker.lab.trial.child import serve; serve({theirs.fileno()})"
        try:
            # Not `multiprocessing`, which would import the caller's main module, and share its resource tracker. The
            # group gets no Ctrl-C from a terminal: this process ends it.
            self._process = SupervisedProcess(
                [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {begin}"],
                environment={**os.environ, **(environment or {})},
                descriptors=[theirs.fileno()],
                has_own_group=True,
                ends_all=True,
                stdin=subprocess.DEVNULL,
                output=self._log,
            )
        except BaseException:
            self._connection.close()
            self._log.close()
            raise
        finally:
            theirs.close()
        self._end: int | None = None
        self._is_ready = False
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: reported when asked
            self._connection.send((answering, args))

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def wait_until_ready(self, *, limit_seconds: float | None = None) -> None:
        """Wait until `answering` has been called; raise what it raised."""
        if not self._is_ready:
            self._answer(limit_seconds)
            self._is_ready = True

    def ask(self, *question: Any, limit_seconds: float | None = None) -> Any:
        """Return the answer to a question. If it takes longer than the limit, the child is killed."""
        self.wait_until_ready(limit_seconds=limit_seconds)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(question)
        return self._answer(limit_seconds)

    def said(self) -> str:
        """Return the last output of the child."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - MAX_SAID))
        return self._log.read().decode(errors="replace").strip()

    def close(self) -> None:
        """End the child and all that it has started. A running answer is not waited for."""
        self._connection.close()
        self._end_process(PATIENCE_SECONDS if self._is_ready else 0.0)
        self._log.close()

    def _answer(self, limit_seconds: float | None) -> Any:
        limit_seconds = self._limit_seconds if limit_seconds is None else limit_seconds
        end = self._process.descriptor
        ends: list[Any] = [self._connection, *([end] if end >= 0 else [])]
        ready = wait(ends, limit_seconds)
        if not ready:
            self._is_ready = False
            self._end_process(0.0)
            assert limit_seconds is not None
            raise ChildSlow(limit_seconds)
        try:
            if not self._connection.poll():  # it has ended without an answer
                raise EOFError
            answer = self._connection.recv()
        except (EOFError, OSError):  # the latter if it ended in the middle of an answer
            self._is_ready = False
            self._end_process(PATIENCE_SECONDS)
            raise ChildEnded(describe_exit(self._end or 0), self.said()) from None
        if isinstance(answer, WorkerFailure):
            raise answer.error()
        return answer

    def _end_process(self, patience_seconds: float) -> None:
        """Wait for the child to end for so long, then kill it, with all that it has started."""
        if self._end is None:
            if patience_seconds:
                self._process.wait(patience_seconds)
            self._process.close()
            self._end = os.waitstatus_to_exitcode(self._process.wait() or 0)


def run_in_child(
    function: Callable[..., T],
    *args: Any,
    limit_seconds: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> T:
    """Return what `function(*args)` returns in a fresh process; raise what it raised."""
    with Child(_constant, function, limit_seconds=limit_seconds, environment=environment) as child:
        found: T = child.ask(*args)
        return found


def describe_failure(error: Exception) -> str:
    """Return an error of a child as text: the child's own traceback, or how it ended and its last output."""
    return str(error.__cause__ if isinstance(error.__cause__, WorkerTraceback) else error)


def _constant(function: T) -> T:
    return function


def forked(function: Callable[..., Any], *args: Any) -> Any:
    """Return what `function(*args)` returns in a forked child of this process; raise what it raised.

    It begins with all that this process has imported, and what it does to memory ends with it.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send_answer, args=(theirs, os.getpid(), function, args))
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        process.join()
        raise ChildEnded(describe_exit(process.exitcode or 0), "") from None
    finally:
        ours.close()
        process.join()
        process.close()
    if isinstance(answer, WorkerFailure):
        raise answer.error()
    return answer


def serve(descriptor: int) -> None:
    """Answer the questions of the process at the other end of a socket, until it closes it."""
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    with contextlib.ExitStack() as stack:
        try:
            answering, args = connection.recv()
            answer = answering(*args)
            if isinstance(answer, AbstractContextManager):
                answer = stack.enter_context(answer)
            connection.send(None)
        except EOFError:
            return
        except BaseException as error:
            _send_failure(connection, error)
            return
        while True:
            try:
                question = connection.recv()
            except EOFError:
                return
            try:
                connection.send(answer(*question))
            except BrokenPipeError:
                return
            except BaseException as error:
                _send_failure(connection, error)


def _send_failure(connection: Connection, error: BaseException) -> None:
    with contextlib.suppress(BrokenPipeError):
        connection.send(WorkerFailure(error))


def _send_answer(pipe: Connection, parent: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    die_with_parent(parent)
    try:
        answer = function(*args)
    except BaseException as error:
        answer = WorkerFailure(error)
    pipe.send(answer)
    pipe.close()
