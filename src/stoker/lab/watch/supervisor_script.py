"""Run one command, and kill everything that it started if the process that requested it dies.

This file is run as a script by `stoker.lab.watch.supervised_process` and imports nothing of Stoker: it starts in 20 ms.
The supervisor is the parent of the command and, as its subreaper, of everything that the command leaves behind: nothing
escapes by forking twice or by leaving the process group. It watches its owner through a socket and a pidfd. If the
owner ends first, even by SIGKILL, the supervisor kills the command and its descendants, and removes the folders of
doctors that were killed. If the supervisor is killed too, the kernel kills the command (PR_SET_PDEATHSIG).

The owner sends one message, `marshal` of a `CommandRequest` as a tuple, after its size. It gets back the process id and
an errno, and in the end the wait status, with a SIGCHLD; it answers that with a byte. The end of the stream without
that means: kill everything.
"""

import ctypes
import errno
import importlib.util
import marshal
import os
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from typing import NamedTuple

SIZE = struct.Struct("<q")
"""Precedes the request: its number of bytes."""
REPLY = struct.Struct("<qq")
"""What is sent back: the process id and an errno; then the wait status and a zero."""


class CommandRequest(NamedTuple):
    """What to run, in the folder and with the standard streams that the supervisor is started with."""

    arguments: list[bytes]
    environment: dict[bytes, bytes]
    """Not that of the supervisor: Python may have set a locale there."""
    blocked_signals: list[int]
    """The signal mask of the command."""
    has_own_group: bool
    """Whether the command leads a process group of its own; else it is in that of the owner."""
    ends_all: bool
    """Whether what the command has started is killed when the command ends."""
    descriptors: list[int]
    """What is passed on to the command, and closed here."""


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
"""Processes that remove shared memory when all others have ended, and end then: by what is on their command lines."""
CLEANING_SECONDS = 5.0
"""How long they may take."""


def main(descriptor: int, owner: int) -> None:
    """Supervise for the process `owner`, at the other end of the socket `descriptor`."""
    os.set_inheritable(descriptor, False)
    wakeup, notify = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    poll = select.poll()
    process = _pidfd(owner)
    for watched in (wakeup, descriptor, process):
        if watched >= 0:
            poll.register(watched, select.POLLIN)
    request = _received(descriptor)
    if request is None or os.getppid() != owner:
        return
    command, error = _start(request)
    _detach(request.descriptors)
    with suppress(OSError):
        os.write(descriptor, REPLY.pack(command, error))
    if error:
        return
    while True:
        ready = {number for number, _ in poll.poll()}
        if ready - {wakeup}:
            kill_all()
            _remove_stale_folders()
            return
        with suppress(BlockingIOError):
            os.read(wakeup, 4096)
        status = _reaped(command)
        if status is not None:
            if request.ends_all:
                kill_all()
            with suppress(OSError):
                os.write(descriptor, REPLY.pack(status, 0))
                # a signal that ends the command may end its owner, too: only an owner that answers is alive
                os.kill(owner, signal.SIGCHLD) if process < 0 else signal.pidfd_send_signal(process, signal.SIGCHLD)
            poll.unregister(wakeup)
            poll.poll()
            if _is_answered(descriptor):
                return
            kill_all()
            _remove_stale_folders()
            return


def _is_answered(descriptor: int) -> bool:
    """Whether the owner has taken notice of how the command ended."""
    os.set_blocking(descriptor, False)
    try:
        return bool(os.read(descriptor, 1))
    except OSError:
        return False


def kill_all() -> None:
    """Kill all descendants, and return when they are gone.

    Only children are killed, whose process ids stay theirs until they are waited for. Their children then become ours.
    """
    deadline = time.monotonic() + CLEANING_SECONDS
    while True:
        left = children()
        killable = 0
        cleaners = [pid for pid in left if _is_cleaner(pid)]
        # processes that clean up end by themselves, once all others are gone
        is_over = time.monotonic() > deadline
        for pid in left if is_over else [pid for pid in left if pid not in cleaners]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killable += 1
        try:
            ended, _ = os.waitpid(-1, 0 if killable else os.WNOHANG)
        except ChildProcessError:
            return
        if not killable and not ended:
            if is_over or (left and not cleaners):
                return  # of another user, as by `sudo`
            time.sleep(0.01)


def children() -> list[int]:
    """Return the children of this process, including those that have ended and were not waited for."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _is_cleaner(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return False
    return any(mark in command for mark in CLEANERS)


def _reaped(command: int) -> int | None:
    """Wait for children that have ended; return the wait status of the command when it has.

    The command itself is not waited for: until the supervisor ends, its process id means nothing else.
    """
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if found is None:
            return None
        if found.si_pid == command:
            return found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status
        os.waitpid(found.si_pid, 0)


def _start(request: CommandRequest) -> tuple[int, int]:
    """Return the process id of the command; 0 and an errno if it cannot be run."""
    read, write = os.pipe2(os.O_CLOEXEC)
    supervisor = os.getpid()
    pid = os.fork()
    if not pid:
        try:
            if request.has_own_group:
                os.setpgid(0, 0)
            with suppress(AttributeError):
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(1)
            # Python ignores these, which a program does not expect to inherit
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored, signal.SIG_DFL)
            for number in request.descriptors:
                os.set_inheritable(number, True)
            signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked_signals)
            os.execvpe(request.arguments[0], request.arguments, request.environment)
        except OSError as error:
            os.write(write, struct.pack("<i", error.errno or errno.EINVAL))
        finally:
            os._exit(127)
    os.close(write)
    found = os.read(read, 4)
    os.close(read)
    if found:
        os.waitpid(pid, 0)
        return 0, struct.unpack("<i", found)[0]
    return pid, 0


def _detach(theirs: list[int]) -> None:
    """Leave the session and the folder, and close the command's files, so that their readers see the end of them."""
    with suppress(OSError):  # a leader of a group stays
        os.setsid()
    os.chdir("/")
    for number in theirs:
        os.close(number)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)


def _received(descriptor: int) -> CommandRequest | None:
    """Return the owner's request; None if the owner is gone."""
    content = b""
    while len(content) < SIZE.size or len(content) < SIZE.size + SIZE.unpack_from(content)[0]:
        part = os.read(descriptor, 1 << 16)
        if not part:
            return None
        content += part
    return CommandRequest(*marshal.loads(content[SIZE.size :]))


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):  # an old kernel: the socket alone is watched
        return -1


def _remove_stale_folders() -> None:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shared_folder.py")
    spec = importlib.util.spec_from_file_location("folder", path)
    if spec is not None and spec.loader is not None:
        folder = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(folder)
        folder.remove_stale()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
