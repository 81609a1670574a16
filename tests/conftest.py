"""What holds forevery test: nothing is left behind, and what is random is repeatable."""

from __future__ import annotations

import gc
import multiprocessing.resource_tracker
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No deadline: timings are noisy. `make test` and CI repeat the same examples every time; `make check` and a plain
# `pytest` try new ones, and print what reproduces a failure.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("repeat", parent=settings.get_profile("explore"), derandomize=True)
settings.load_profile("repeat" if os.environ.get("CI") else "explore")

# A shell that runs tests in the background lets them ignore Ctrl-C, and they would pass that on to what they start.
with suppress(ValueError):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

NUM_RERUNS, RERUN_SECONDS = 2, 3
"""How often a test that is `timed` is run again if it fails, and after how long: others may have had the cores."""

LEFT_BEHIND = "left behind:"

GRACE_SECONDS = 5.0
"""How long a test's threads and processes may take to go, after it is over."""


class Hung(BaseException):
    """A test has run out of time."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have tests that are `timed` run again if they fail, where pytest-rerunfailures is installed."""
    for item in items if config.pluginmanager.hasplugin("rerunfailures") else ():
        if item.get_closest_marker("timed"):
            # what is left behind is there the second time, too, and would not be noticed then
            again = {"reruns": NUM_RERUNS, "reruns_delay": RERUN_SECONDS, "rerun_except": [LEFT_BEHIND]}
            item.add_marker(pytest.mark.flaky(**again))


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer() -> Generator[None, Any, Any]:
    """Let a timeout end the test. Hypothesis would catch what it raises and try the same again, now without a timer."""
    is_set = yield
    handler: Any = signal.getsignal(signal.SIGALRM)

    def end(number: int, frame: Any) -> None:
        try:
            handler(number, frame)
        except pytest.fail.Exception as error:
            raise Hung(error.msg) from None

    if callable(handler):
        signal.signal(signal.SIGALRM, end)
    return is_set


def _threads() -> set[str]:
    return {f"thread {thread.name} (task {thread.native_id})" for thread in threading.enumerate()}


def _is_old(what: str, tasks: set[str]) -> bool:
    """Whether a thread ran before the test and was only now noticed: one that Python did not start, such as the test
    runner's own, is listed from the first time it asks who it is.
    """
    return what.startswith("thread ") and what.rpartition("(task ")[2].rstrip(")") in tasks


def _children() -> set[str]:
    tracker = getattr(multiprocessing.resource_tracker._resource_tracker, "_pid", None)
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except OSError:  # the thread is gone
            continue
        # the standard library's tracker is started by the first spawned process and stays with the interpreter
        found |= {f"process {pid}" for pid in pids if int(pid) != tracker}
    return found


def _told(what: str) -> str:
    """Add what a process runs, which is no part of who it is: a program may start another in its place."""
    if not what.startswith("process "):
        return what
    try:
        command = Path(f"/proc/{what.split()[1]}/cmdline").read_text().replace("\0", " ")[:80]
    except OSError:
        command = "gone"
    return f"{what} ({command})"


def _descriptors() -> set[str]:
    tracker = getattr(multiprocessing.resource_tracker._resource_tracker, "_fd", None)
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:  # the one that lists the folder
            continue
        # what stays open by design: torch and NumPy read the machine's description, randomness comes from a device,
        # the standard library keeps its heap for locks between processes (pym-), and Matplotlib the fonts it has used
        if (
            int(entry.name) != tracker
            and not target.startswith(("/proc/", "/sys/", "/dev/urandom", "/dev/null", "/dev/shm/pym-"))
            and "/matplotlib/mpl-data/fonts/" not in target
        ):
            found.add(f"descriptor {entry.name} -> {target}")
    return found


def _shared_memory() -> set[str]:
    mine = {f"psm_{os.getpid()}", f"torch_{os.getpid()}", f"sem.mp-{os.getpid()}"}
    return {f"shared memory {name}" for name in os.listdir("/dev/shm") if any(part in name for part in mine)}


KINDS: tuple[Callable[[], set[str]], ...] = (_threads, _children, _descriptors, _shared_memory)


def _start_cuda() -> None:
    """Use CUDA for the first time: it opens devices and starts threads, which stay."""
    import torch

    some: Any = torch.zeros(1)
    if torch.cuda.is_available():
        (some.pin_memory().to("cuda").requires_grad_() * 2).sum().backward()
        torch.cuda.synchronize()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a child process, a file descriptor or shared memory."""
    if request.node.get_closest_marker("gpu"):
        _start_cuda()
    before = [kind() for kind in KINDS]
    tasks = set(os.listdir("/proc/self/task"))
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        left = set().union(*(kind() - were for kind, were in zip(KINDS, before)))
        left = {what for what in left if not _is_old(what, tasks)}
        if not left:
            return
        gc.collect()
        if time.monotonic() > deadline:
            pytest.fail(f"{LEFT_BEHIND}\n  " + "\n  ".join(sorted(map(_told, left))))
        time.sleep(0.02)
