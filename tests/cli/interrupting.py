"""Press Ctrl-C on the process that measures this code, after a given number of calls."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch.utils.data

import stoker
from benchmarks.scale import cases, growth
from benchmarks.scale.__main__ import app as scale_app
from stoker.cli import main
from tests.lab.plain_loaders import measuring_process

NUM_DONE = int(os.environ.get("NUM_DONE", "0"))


def press(process: int) -> None:
    """Interrupt a process, and never come back."""
    os.kill(process, signal.SIGINT)
    threading.Event().wait()


# ---------------------------------------------------------------- benchmarks.scale


def host(names: list[str], memory_bytes: int | None) -> Callable[[str, Any], Any]:
    """Stand for the process that cases are forked from: after so many of them the user has seen enough."""
    answer, num_done = cases.host(names, memory_bytes), 0

    def interrupting(what: str, about: Any) -> Any:
        nonlocal num_done
        if num_done == NUM_DONE:
            press(measuring_process())
        num_done += 1
        return answer(what, about)

    return interrupting


# ---------------------------------------------------------------- bench train


class Numbers:
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, position: int) -> Any:
        return np.full(3, position)


def our_loader() -> Any:
    return stoker.DataLoader(Numbers(), 1, num_workers=1)


def torch_loader() -> Any:
    dataset: Any = Numbers()
    return torch.utils.data.DataLoader(dataset, 1, num_workers=1)


def make_step() -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        """Take as long as a few steps may take in a round. Ctrl-C of a terminal reaches all processes of the group."""
        if int(batch.max()) >= NUM_DONE:
            os.killpg(os.getpgrp(), signal.SIGINT)
        time.sleep(0.02)

    return step


# ---------------------------------------------------------------- tune batch


def make_batch_step(batch_size: int) -> Callable[[], None]:
    def step() -> None:
        if batch_size > NUM_DONE:
            press(measuring_process())

    return step


def make_batch_step_that_lasts(batch_size: int) -> Callable[[], None]:
    """All is found out but how fast it is: the same size is tried a third time."""
    with open(os.environ["COUNTED"], "a") as file:
        file.write(f"{batch_size}\n")
    with open(os.environ["COUNTED"]) as file:
        if file.read().split().count("16") > NUM_DONE:
            press(measuring_process())
    return lambda: None


def begin() -> None:
    """Be the command line."""
    vars(growth)["host"] = host
    if sys.argv[1] == "scale":
        scale_app(sys.argv[2:])
    main()
