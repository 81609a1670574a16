"""Chaos: killed and stopped workers, interrupts, broken-off epochs, kept and large batches, files that are rewritten.

Everything is drawn from a seed (`STOKER_CHAOS_SEED`). `STOKER_CHAOS_SECONDS` says how long each start method and each
number of workers is tried: some seconds by default, `make chaos SECONDS=3600` by hand for as long as you like.
"""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.forkserver
import os
import random
import signal
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import StaleSource, StokerError
from stoker.foundation.finalizer import run_interrupted
from tests.loader.datasets import Numbers

SECONDS = float(os.environ.get("STOKER_CHAOS_SECONDS", "4"))
SEED = int(os.environ.get("STOKER_CHAOS_SEED", "0"))

pytestmark = [
    pytest.mark.timeout(SECONDS * 4 + 240),
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes"),
]

LENGTH, BATCH_SIZE = 60, 6


class Interrupted(BaseException):
    """What a signal handler raises, wherever the trainer is."""


class Uneven(Numbers):
    """Samples of a few bytes and of some kilobytes; one of 6 MB. Each has random numbers of its own."""

    def __getitem__(self, position: int) -> Any:
        size = 6_000_000 if position == 17 else 1 + position % 7 * 4001
        return np.full(size, position, np.uint8), np.float32(stoker.rng().random())


def as_list(samples: list[Any]) -> list[Any]:
    """Collate samples of different sizes."""
    return samples


def checksum(batch: Any) -> int:
    """Return a number for all bytes of a batch."""
    total = 0
    for array, drawn in batch:
        total = zlib.crc32(np.asarray(array).tobytes() + np.asarray(drawn).tobytes(), total)
    return total


@dataclass
class Chaos:
    """One run of rounds, each with a loader of its own."""

    chance: random.Random
    method: str
    counts: Counter[str] = field(default_factory=Counter)
    """What was done, and the batches that were compared."""

    def loader(self, seed: int, **options: Any) -> stoker.DataLoader[Any]:
        return stoker.DataLoader(
            Uneven(LENGTH), batch_size=BATCH_SIZE, shuffle=True, seed=seed, collate_fn=as_list, **options
        )

    def round(self) -> None:
        """Load a few epochs, interfere, and compare every batch with what one process gives."""
        chance = self.chance
        seed = chance.randrange(1000)
        is_quick = self.method == "fork"  # other workers import torch, each for seconds
        expected = [[checksum(batch) for batch in epoch] for epoch in _epochs(self.loader(seed), 3 if is_quick else 1)]
        options = {
            "num_workers": chance.randint(1, 3 if is_quick else 2),
            "num_threads": chance.choice([0, 0, 2]),
            "prefetch_factor": chance.randint(1, 4),
            "persistent_workers": chance.random() < 0.5,
            "multiprocessing_context": self.method,
        }
        loader, kept = self.loader(seed, **options), []
        epoch = step = 0
        while epoch < len(expected):
            iterator, left = iter(loader), False
            try:
                with self.interruptions():
                    for batch in iterator:
                        assert checksum(batch) == expected[epoch][step], (seed, epoch, step, options)
                        step += 1
                        self.counts["batches"] += 1
                        if chance.random() < 0.2:
                            kept.append((batch, expected[epoch][step - 1]))
                            del kept[: -chance.randint(1, 6)]
                        if left := self.interfere():
                            break
            except Interrupted:
                left = True
            if step < len(expected[epoch]) and not left:
                raise AssertionError(f"the epoch ended after {step} batches: {seed, epoch, options}")
            state = loader.state_dict()
            close = getattr(iterator, "close", None)
            if close is not None and chance.random() < 0.5:
                close()
            if step == len(expected[epoch]):
                epoch, step = epoch + 1, 0
            elif state["step"] != epoch * len(expected[0]) + step:  # it was drawn, and the signal came before we had it
                assert state["step"] == epoch * len(expected[0]) + step + 1, (seed, state)
                step += 1
                if step == len(expected[epoch]):
                    epoch, step = epoch + 1, 0
            if left:  # go on with another loader, as after a restart
                loader = self.loader(seed, **options)
                loader.load_state_dict(state)
                if state["epoch"] < epoch:  # left behind its last batch: of that epoch nothing is left
                    assert not list(loader)
        for batch, number in kept:
            assert checksum(batch) == number, "a batch that was kept has changed"
        self.counts["rounds"] += 1

    @contextmanager
    def interruptions(self) -> Iterator[None]:
        """Now and then, raise an exception from a signal handler in the middle of whatever the trainer does."""
        timer = None
        if self.chance.random() < 0.2:
            timer = threading.Timer(self.chance.uniform(0, 0.05), os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            self.counts["interrupts"] += 1
        try:
            yield
        finally:
            if timer is not None:
                _without_interruption(timer.join)

    def interfere(self) -> bool:
        """Do something to a worker, or nothing; return whether to leave the epoch."""
        what = self.chance.choices(["nothing", "kill", "stop", "leave"], [70, 12, 10, 5])[0]
        self.counts[what] += 1
        workers = [child for child in multiprocessing.active_children() if child.name.startswith("stoker-")]
        if what in ("kill", "stop") and workers:
            pid = self.chance.choice(workers).pid
            assert pid is not None
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
                if what == "stop":
                    threading.Timer(self.chance.uniform(0, 0.05), _go_on, (pid,)).start()
        return what == "leave"


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _without_interruption(do: Callable[[], None]) -> None:
    while True:
        with suppress(Interrupted):
            do()
            return


def _epochs(loader: Any, num: int) -> list[list[Any]]:
    return [list(loader) for _ in range(num)]


def _descriptors() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


@pytest.fixture
def swallowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let SIGUSR1 raise; list the finalizers and callbacks it struck, whose exceptions Python reports and drops."""
    struck: list[str] = []

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted

    def note(unraisable: Any) -> None:
        if unraisable.exc_type is not Interrupted:
            report(unraisable)
        struck.append(repr(unraisable.object))

    report = sys.unraisablehook
    monkeypatch.setattr(sys, "unraisablehook", note)
    before = signal.signal(signal.SIGUSR1, interrupt)
    yield struck
    signal.signal(signal.SIGUSR1, before)


LOST_DESCRIPTORS = 3
"""How many an interrupted finalizer of the standard library can lose. Workers that stay would be many more."""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_whatever_happens_to_workers_and_epochs_each_batch_is_the_one_that_was_due(
    method: str, swallowed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    chaos = Chaos(random.Random(f"{SEED} {method}"), method)
    over = time.monotonic() + SECONDS
    chaos.round()
    gc.collect()
    before = _descriptors()
    while time.monotonic() < over or chaos.counts["batches"] < 3 * LENGTH // BATCH_SIZE:
        chaos.round()
        gc.collect()
        run_interrupted()  # as the next loader with workers would
        opened = _descriptors() - before
        assert len(opened) <= 2 + LOST_DESCRIPTORS * len(swallowed), ("descriptors are left open", opened, swallowed)
    chaos.counts["interrupted finalizers"] = len(swallowed)
    for descriptor in _descriptors() - before if swallowed else ():
        with suppress(OSError):
            os.close(descriptor)
    if method == "forkserver":
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]  # the standard library would keep it
    with capsys.disabled():
        if SECONDS > 30:
            sys.stdout.write(f"\n{method}: {dict(chaos.counts)}\n")


NUM_ROWS = 600


def _write(path: Path, version: int, chance: random.Random, counts: Counter[str]) -> None:
    """Put a version in the place of another, in one of the ways that people do, some of which they should not."""
    rows = np.full((NUM_ROWS, 512), version, np.int64)
    how = chance.choice(["in place", "truncated", "renamed"])
    counts[how] += 1
    if how == "renamed":
        beside = path.with_suffix(".new.npy")
        np.save(beside, rows)
        os.replace(beside, path)
    elif how == "truncated":
        with path.open("r+b") as file:
            file.truncate(chance.randrange(path.stat().st_size))
        np.save(path, rows)
    else:
        np.save(path, rows)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_files_that_change_under_the_loader_are_noticed_and_versions_never_mixed(
    num_workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, counts = random.Random(f"{SEED} {num_workers}"), Counter[str]()
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((NUM_ROWS, 512), np.int64))
    version = 0
    errors: list[StokerError] = []
    over = time.monotonic() + SECONDS
    while time.monotonic() < over or counts["rounds"] < 3 or not errors:
        counts["rounds"] += 1
        writer = None
        loader = stoker.DataLoader(stoker.open(path), batch_size=16, shuffle=True, seed=1, num_workers=num_workers)
        try:
            for step, batch in enumerate(loader):
                found = np.unique(np.asarray(batch))
                assert len(found) == 1, f"a batch has rows of versions {found.tolist()}"
                counts["batches"] += 1
                if step == chance.randrange(1, 20) and writer is None:
                    version += 1
                    writer = threading.Thread(target=_write, args=(path, version, chance, counts))
                    writer.start()
                    if not num_workers:  # a file that is cut off in the middle of a read ends the process that reads it
                        writer.join()
        except StokerError as error:
            errors.append(error.with_traceback(None))  # its frames would keep every version of the file mapped
        finally:
            if writer is not None:
                writer.join()
    for failure in errors:
        assert "rows.npy" in str(failure)
        counts["noticed" if isinstance(failure, StaleSource) else type(failure).__name__] += 1
    assert counts["noticed"] > 0
    with capsys.disabled():
        if SECONDS > 30:
            sys.stdout.write(f"\nfiles, {num_workers} workers: {dict(counts)}\n")
