"""Run a command that cannot outlive this process: it runs under a supervisor, a small process of its own."""

from __future__ import annotations

import errno
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from stoker.foundation.processes import BLOCKED_SIGNALS
from stoker.lab.watch import supervisor_script

_HELD = {*BLOCKED_SIGNALS, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
"""Signals of a terminal, which would reach the supervisor until it has left the terminal's session."""


class SupervisedProcess:
    """A command that is killed, with everything that it started, when this process dies, however it dies.

    If the command ends by itself, whatever it left running continues, unless `ends_all`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] | None = None,
        output: int | IO[bytes] | None = None,
        descriptors: Sequence[int] = (),
        blocked_signals: Iterable[int] | None = None,
        has_own_group: bool = False,
        ends_all: bool = False,
    ) -> None:
        """Run a command; raise the `OSError` if it cannot be run.

        Args:
            output: where its output and errors go, instead of this process's.
            descriptors: passed on under the same numbers, besides the standard streams.
            blocked_signals: its signal mask; by default that of the calling thread.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        channel, theirs = socket.socketpair()
        self._channel = channel
        self._status: int | None = None
        self._descriptor = -1
        try:
            with theirs:
                # what `-I -S` leaves out takes ten times as long as the rest, and is not needed here
                start = [sys.executable, "-I", "-S", supervisor_script.__file__, str(theirs.fileno()), str(os.getpid())]
                self._supervisor = subprocess.Popen(
                    start,
                    pass_fds=[theirs.fileno(), *descriptors],
                    stdin=stdin,
                    stdout=output,
                    stderr=output,
                )
        except BaseException:
            channel.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            request = supervisor_script.CommandRequest(
                arguments=[os.fsencode(part) for part in command],
                environment=dict(os.environb) if environment is None else _encoded(environment),
                blocked_signals=[int(number) for number in (before if blocked_signals is None else blocked_signals)],
                has_own_group=has_own_group,
                ends_all=ends_all,
                descriptors=list(descriptors),
            )
            content = marshal.dumps(tuple(request))
            channel.sendall(supervisor_script.SIZE.pack(len(content)) + content)
            self.pid, error = self._received() or (0, errno.ECHILD)
            if error:
                raise OSError(error, os.strerror(error), command[0])
            with suppress(OSError, AttributeError):  # it has ended and was waited for already; or an old kernel
                self._descriptor = os.pidfd_open(self.pid)
        except BaseException:
            self.close()
            raise

    @property
    def descriptor(self) -> int:
        """A pidfd of the command, readable once the command has ended; -1 if there is none."""
        return self._descriptor

    def poll(self) -> int | None:
        """Return the wait status of the command, or None while it runs. Its end is announced by SIGCHLD."""
        if self._status is None and self._has_reply(0):
            self._conclude()
        return self._status

    def wait(self, seconds: float | None = None) -> int | None:
        """Return the wait status of the command when it has ended; None if that takes longer than `seconds`."""
        if self._status is None and self._has_reply(seconds):
            self._conclude()
        return self._status

    def close(self) -> None:
        """Kill the command and its descendants, if it still runs, and return when they are gone."""
        if self._status is None:
            with suppress(OSError):  # the supervisor has ended
                self._channel.shutdown(socket.SHUT_WR)  # unlike `close`, it counts though forks share the socket
            self.wait()

    def _has_reply(self, seconds: float | None) -> bool:
        """Wait up to `seconds`; return whether the supervisor has sent something, or has ended."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        return bool(poll.poll(None if seconds is None else 1000 * seconds))

    def _conclude(self) -> None:
        """Note how the command ended: by SIGKILL, if the supervisor was killed."""
        found = self._received()
        self._status = int(signal.SIGKILL) if found is None else found[0]
        with suppress(OSError):  # it has ended by itself
            self._channel.send(b".")
        self._supervisor.wait()
        self._channel.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _received(self) -> tuple[int, int] | None:
        content = b""
        while len(content) < supervisor_script.REPLY.size:
            try:
                part = self._channel.recv(supervisor_script.REPLY.size - len(content))
            except ConnectionError:
                part = b""
            if not part:
                return None
            content += part
        first, second = supervisor_script.REPLY.unpack(content)
        return first, second


def inherited_descriptors() -> list[int]:
    """Return the descriptors that a program started by this process inherits, except for the standard streams."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists the folder
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def _encoded(environment: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
