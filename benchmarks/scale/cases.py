"""What `python -m benchmarks.scale` runs: one loader at one place of one axis, in a process that is forked for it.

The samples cost nothing, so that what is left is what the loader itself costs.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

from benchmarks.scale.record import (
    FIRST,
    MEMORY,
    RANKS,
    SAMPLES,
    STATE,
    STATEFUL,
    STEP,
    STEPS,
    STOKER,
    TORCH,
    WORKERS,
)
from stoker.foundation import machine
from stoker.lab.trial.child import forked
from stoker.lab.trial.out_of_memory import is_out_of_memory, limit_memory

BATCH_SIZE = 8
"""Of a rank. Small, so that what a batch costs is not hidden by what its samples cost."""

SMALLEST = 1000
"""Samples of the smallest dataset."""

NUM_WARM, NUM_TIMED = 10, 100
"""Steps that are not timed, and steps that are: an epoch of the smallest dataset has a few more."""

SEED = 1


class Case(NamedTuple):
    """One loader at one place of an axis."""

    axis: str
    x: int
    loader: str
    num_samples: int = 10**6
    """Of the dataset, where they are not what is varied."""


class Numbers:
    """As many samples as wanted, each its own position."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, position: int) -> int:
        return position


class Shares(NamedTuple):
    """What all ranks together get."""

    num_steps: int
    """Of an epoch; the same for every rank."""
    num_each: int
    """Samples of a rank at a step; the same for every rank, at every step that was looked at."""
    are_equal: bool
    """Whether that is so, and whether no sample is in two shares."""


def loaders() -> list[str]:
    """Return the loaders that can be measured here."""
    has_torchdata = find_spec("torchdata") is not None and find_spec("torchdata.stateful_dataloader") is not None
    return [STOKER, TORCH, STATEFUL] if has_torchdata else [STOKER, TORCH]


def host(names: list[str], memory_bytes: int | None) -> Callable[[str, Any], Any]:
    """Return what answers in the process from which cases are forked: all is imported here, once."""
    import torch

    torch.set_num_threads(1)  # no pool of threads that a fork would lose
    for name in names:
        _class(name)

    def answer(what: str, about: Any) -> Any:
        if what == "shares":
            return forked(shares, about)
        return forked(measured, about, os.getpid(), memory_bytes)

    return answer


def measured(case: Case, group: int, memory_bytes: int | None = None) -> dict[str, float]:
    """Return what a case costs, by the names above. `group` is the process that all count as children of.

    `MemoryError` is raised if it needs more than `memory_bytes`.
    """
    run = _RUNS[case.axis]
    run(case.loader, SMALLEST if case.axis == SAMPLES else 1, lambda: 0, SMALLEST)  # whatever is done only once
    gc.collect()
    gc.freeze()  # what was there before is not looked through again, which would copy its pages
    if memory_bytes is not None:
        limit_memory((machine.data_bytes() or 0) + memory_bytes)
    before = _memory(group)
    try:
        return run(case.loader, case.x, lambda: _memory(group) - before, case.num_samples)
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from None
        raise


def shares(num_ranks: int, num_samples: int = 10**6) -> Shares:
    """Return what each of so many ranks gets, looked at in the first, the middle and the last whole step."""
    import numpy as np

    from stoker.loader import DataLoader

    def made(rank: int) -> Any:
        return DataLoader(
            Numbers(num_samples), BATCH_SIZE, shuffle=True, seed=SEED, rank=rank, num_ranks=num_ranks, drop_last=True
        )

    plan = made(0).plan
    lengths = {len(made(rank)) for rank in {0, num_ranks // 2, num_ranks - 1}}
    num_steps = plan.num_steps(0)
    sizes = set()
    are_distinct = True
    for step in (0, num_steps // 2, num_steps - 1):
        positions = [plan.recipe(step, rank, num_ranks).positions for rank in range(num_ranks)]
        sizes |= {len(mine) for mine in positions}
        are_distinct = are_distinct and len(np.unique(np.concatenate(positions))) == num_ranks * BATCH_SIZE
    are_equal = sizes == {BATCH_SIZE} and lengths == {num_steps} and are_distinct
    return Shares(num_steps, min(sizes), are_equal)


# ---------------------------------------------------------------- one loader, at one place

Grown = Callable[[], int]
"""How much memory has been added."""


def samples_for(num_steps: int) -> int:
    """Return how many samples an epoch needs in which there is something left to measure after so many steps."""
    return BATCH_SIZE * (num_steps + NUM_WARM + NUM_TIMED + 1)


def _over_samples(loader: str, x: int, grown: Grown, _: int) -> dict[str, float]:
    return _started(lambda: _class(loader)(Numbers(x), BATCH_SIZE, shuffle=True), grown)


def _over_workers(loader: str, x: int, grown: Grown, num_samples: int) -> dict[str, float]:
    def make() -> Any:
        return _class(loader)(Numbers(num_samples), BATCH_SIZE, shuffle=True, num_workers=x)

    # what the workers have made ahead while nobody asked is not timed
    return _started(make, grown, num_warm=NUM_WARM + 2 * x)


def _over_ranks(loader: str, x: int, grown: Grown, num_samples: int) -> dict[str, float]:
    dataset, rank = Numbers(num_samples), x // 2

    def make() -> Any:
        if loader == STOKER:
            return _class(loader)(dataset, BATCH_SIZE, shuffle=True, rank=rank, num_ranks=x)
        from torch.utils.data import DistributedSampler

        sampler: Any = DistributedSampler(dataset, x, rank)  # type: ignore[arg-type]
        return _class(loader)(dataset, BATCH_SIZE, sampler=sampler)

    return _started(make, grown)


def _over_steps(loader: str, x: int, grown: Grown, num_samples: int) -> dict[str, float]:
    """Go on after so many steps: from a state; torch's loader has none, and passes over what it has given before."""
    dataset = Numbers(num_samples)

    def make() -> Any:
        options = {"seed": SEED} if loader == STOKER else {}
        return _class(loader)(dataset, BATCH_SIZE, shuffle=True, **options)

    if loader == TORCH:
        return _started(make, grown, num_passed=x)
    state = state_after(make(), x) if loader == STOKER else _state_gone_to(make(), x)

    def resumed() -> Any:
        one = make()
        one.load_state_dict(state)
        return one

    return _started(resumed, grown, with_state=True)


_RUNS: dict[str, Callable[[str, int, Grown, int], dict[str, float]]] = {
    SAMPLES: _over_samples,
    WORKERS: _over_workers,
    RANKS: _over_ranks,
    STEPS: _over_steps,
}


def state_after(loader: Any, num_steps: int) -> dict[str, Any]:
    """Return the state that a loader of ours, which has not begun, has after so many steps of its first epoch.

    A step is all that distinguishes it from the state at the beginning, and the digest, which is only for comparison:
    no step has to be made.
    """
    state: dict[str, Any] = loader.state_dict()
    # its checksums are those of the beginning, and a state without them is not checked
    return state | {"step": num_steps, "position": num_steps * state["batch_size"], "checksums": None}


def _state_gone_to(loader: Any, num_steps: int) -> Any:
    batches = iter(loader)
    for _ in range(num_steps):
        next(batches)
    return loader.state_dict()


def _started(
    make: Callable[[], Any],
    grown: Callable[[], int],
    *,
    num_warm: int = NUM_WARM,
    num_passed: int = 0,
    with_state: bool = False,
) -> dict[str, float]:
    """Return what the first batch and those after it cost, with a loader that `make` makes."""
    began = time.perf_counter()
    loader = make()
    batches: Iterator[Any] = iter(loader)
    for _ in range(num_passed):
        next(batches)
    next(batches)
    found = {FIRST: time.perf_counter() - began}
    for _ in range(num_warm):
        next(batches)
    began = time.perf_counter()
    for _ in range(NUM_TIMED):
        next(batches)
    found[STEP] = (time.perf_counter() - began) / NUM_TIMED
    if with_state:
        began = time.perf_counter()
        for _ in range(NUM_TIMED):
            loader.state_dict()
        found[STATE] = (time.perf_counter() - began) / NUM_TIMED
    found[MEMORY] = grown()
    if hasattr(batches, "close"):
        batches.close()
    return found


def _class(name: str) -> Any:
    if name == STOKER:
        from stoker.loader import DataLoader

        return DataLoader
    if name == TORCH:
        import torch.utils.data

        return torch.utils.data.DataLoader
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader


def _memory(group: int) -> int:
    """Return the memory of a process and all that descend from it.

    Each counts its share of a page that they have in common, so the sum is what they use, and forking adds nothing.
    """
    return sum(machine.pss_bytes(pid) or 0 for pid in machine.tree(group))
