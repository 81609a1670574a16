"""Loaders without torch, which start quickly: what is measured in most tests of measuring."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class Naps:
    """Batches of eight numbers that take a while each; with `num_workers` as many times as fast."""

    def __init__(self, seconds: float, num_batches: int, num_workers: int = 1, batch_size: int = 8) -> None:
        self.seconds, self.num_batches, self.num_workers, self.batch_size = (
            seconds / max(1, num_workers),
            num_batches,
            num_workers,
            batch_size,
        )

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.num_batches):
            time.sleep(self.seconds)
            yield list(range(self.batch_size))


def long(num_workers: int = 1, batch_size: int = 8) -> Naps:
    return Naps(0.004, 100_000, num_workers, batch_size)


def short() -> Naps:
    return Naps(0.004, 3)


def once() -> Iterator[list[int]]:
    """An iterator, which can be gone through only once."""
    return iter(Naps(0.002, 40))


def empty() -> list[int]:
    return []


def chatty() -> Naps:
    print("printed to the output " * 1000)  # noqa: T201
    print("and to the errors", file=sys.stderr)  # noqa: T201
    os.write(1, b'{"failed": "not by a long way"}\n' * 100)
    return long()


def failing(num_workers: int = 0) -> Naps:
    if num_workers == 1:
        raise RuntimeError("no luck with one")
    return long(num_workers)


def failing_later() -> Iterator[list[int]]:
    for number in range(30):
        yield [number]
    raise OSError(5, "the disk is gone", "data.bin")


def hanging(num_workers: int = 0) -> Naps:
    if num_workers == 2:
        threading.Event().wait()
    return long(num_workers)


def killed(num_workers: int = 0) -> Naps:
    if num_workers == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return long(num_workers)


def exiting() -> Naps:
    sys.exit("that is all")


def nothing() -> None:
    return


def number() -> int:
    return 3


def demanding(path: str) -> Naps:
    raise AssertionError(path)


not_a_function = 5


def measuring_process() -> int:
    """Return the process that measures this one. Between them is a supervisor."""
    supervisor = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(supervisor.rpartition(")")[2].split()[1])


def interrupting(num_workers: int = 0) -> Naps:
    """Press Ctrl-C on the process that measures, when the third setting is tried."""
    if num_workers == 3:
        os.kill(measuring_process(), signal.SIGINT)
        threading.Event().wait()
    return long(num_workers)


def leaving_children() -> Naps:
    """Start a process that nobody ends."""
    import subprocess

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["STOKER_TEST_PID"], "w") as file:
        file.write(str(child.pid))
    return long()


def make_step() -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        assert len(batch) > 0
        time.sleep(0.006)

    return step


def make_no_step() -> int:
    return 3


def unlucky() -> Naps:
    return failing(1)
