"""Watching a loader for a moment, on a machine that others use too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from statistics import fmean
from typing import Any

import pytest

from stoker.foundation.machine import core_seconds
from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.diagnose.verdict import diagnose
from stoker.lab.watch.run import Run
from stoker.lab.watch.watch import watch

NUM_TRIES = 3
DISTURBED_CORES = 0.4
"""What other programs may use of the machine, before a measurement counts as disturbed."""


def watched(
    loader: Any,
    *,
    step: Callable[[Any], Any] | float = 0.002,
    seconds: float = 1.0,
    num_epochs: int = 100,
    fewest_batches: int = 0,
    most_seconds: float = 0.0,
) -> Run:
    """Return what is seen of a loader in so many seconds, or in more if fewer batches than `fewest_batches` came."""
    began, num_batches = time.perf_counter(), 0
    with watch(loader) as seen:
        for _ in range(num_epochs):
            for batch in seen:
                num_batches += 1
                if callable(step):
                    step(batch)
                elif step:
                    time.sleep(step)
                if time.perf_counter() - began > (seconds if num_batches >= fewest_batches else most_seconds):
                    return seen.run()
        return seen.run()


@pytest.fixture
def first_in_line() -> Iterator[None]:
    """Go before other programs where that is allowed, so that they disturb less."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, min(before, -10))
    yield
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, before)


def wait_for_quiet(most_seconds: float = 3.0) -> None:
    """Wait until the machine has a core to spare, for a while."""
    over = time.monotonic() + most_seconds
    while time.monotonic() < over:
        before = core_seconds()
        time.sleep(0.2)
        spare = sum(1 - (busy - was) / 0.2 for (busy, _), (was, _) in zip(core_seconds(), before))
        if spare > 1.2:
            return


def found(look: Callable[[], Run], wanted: str) -> tuple[Diagnosis, Run]:
    """Return a diagnosis whose verdict is `wanted`; look again if other programs have disturbed, fail otherwise.

    A machine whose cores are taken by others is told so, and that is no mistake: there the test is skipped.
    """
    for _ in range(NUM_TRIES):
        run = look()
        diagnosis = diagnose(run)
        assert diagnosis.verdict in str(diagnosis)
        if diagnosis.verdict == wanted:
            return diagnosis, run
        if not run.moments or fmean(moment.others_cores for moment in run.moments) < DISTURBED_CORES:
            pytest.fail(f"not {wanted}:\n{diagnosis}")
        wait_for_quiet()
    if diagnosis.verdict == "noisy-neighbour":
        pytest.skip("other programs have the cores")
    pytest.fail(f"not {wanted}:\n{diagnosis}")
