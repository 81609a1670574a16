"""The memory that loaders with worker processes have, counted in the file it lies in; and what limits it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.engine.slots.recent_sizes import SLACK, roomy
from stoker.engine.slots.ring import LOOK_LEASES

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes")

SMALL, LARGE = 100_000, 25_000_000


class Sized:
    """Samples of so many bytes each."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, position: int) -> Any:
        return np.full(self.sizes[position], position % 251, np.uint8)


def held_bytes(loader: Any) -> int:
    """Return how much memory there is behind the loader's slots."""
    assert loader._ring is not None
    return os.fstat(loader._ring.arena.descriptor).st_blocks * 512


def check(batch: torch.Tensor, position: int) -> None:
    assert (batch == position % 251).all()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_kept_small_batches_after_a_large_one_have_their_own_size(method: str) -> None:
    sizes = [20_000_000, *[SMALL] * 60]
    loader = stoker.DataLoader(Sized(sizes), batch_size=1, num_workers=2, multiprocessing_context=method)
    kept: list[torch.Tensor] = []
    for position, batch in enumerate(loader):
        kept += [batch] if position else []
        assert held_bytes(loader) <= roomy(sizes[0]) + (len(kept) + 6) * SLACK * roomy(SMALL)
    del batch
    assert held_bytes(loader) <= 66 * SLACK * roomy(SMALL)
    for position, batch in enumerate(kept):
        check(batch, position + 1)


@pytest.mark.parametrize("is_persistent", [False, True])
def test_a_large_batch_in_every_epoch_does_not_make_all_slots_large(is_persistent: bool) -> None:
    sizes = [SMALL] * 40
    sizes[20] = LARGE
    loader = stoker.DataLoader(Sized(sizes), batch_size=1, num_workers=4, persistent_workers=is_persistent)
    for _ in range(4):
        for position, batch in enumerate(loader):
            check(batch, position)
            assert held_bytes(loader) <= 2 * roomy(LARGE) + 12 * SLACK * roomy(SMALL)
        del batch
        # at the end of an epoch no memory is kept for what only one batch needed
        assert held_bytes(loader) <= 10 * SLACK * roomy(SMALL)


def test_slots_of_equal_batches_stay_where_they_are() -> None:
    loader = stoker.DataLoader(Sized([SMALL] * 8 * LOOK_LEASES), batch_size=2, num_workers=2, persistent_workers=True)
    seen: dict[Any, set[Any]] = {}
    for _ in range(3):
        for _ in loader:
            assert loader._ring is not None
            for slot in loader._ring._slots.values():
                if slot.memory is not None:
                    seen.setdefault(slot, set()).add((slot.extent, slot.address))
    assert len(seen) >= 4
    assert all(len(places) == 1 for places in seen.values())


class Dying(Sized):
    """Ends its worker once, when it has taken much memory in the slot."""

    def __init__(self, sizes: list[int], mark: Path) -> None:
        super().__init__(sizes)
        self.mark = mark

    def __getbatch__(self, positions: Any, empty: Any) -> Any:
        (position,) = positions
        if position == 5 and not self.mark.exists():
            self.mark.touch()
            empty((LARGE,), np.uint8)[:] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        batch = empty((self.sizes[position],), np.uint8)
        batch[:] = position % 251
        return batch


@pytest.mark.parametrize("num_workers", [1, 3])
def test_what_a_killed_worker_had_taken_in_a_slot_goes_back(num_workers: int, tmp_path: Path) -> None:
    dataset = Dying([SMALL] * 20, tmp_path / "died")
    loader = stoker.DataLoader(dataset, batch_size=1, num_workers=num_workers)
    kept = list(loader)
    assert (tmp_path / "died").exists()
    for position, batch in enumerate(kept):
        check(batch, position)
    assert held_bytes(loader) <= 30 * SLACK * roomy(SMALL) < LARGE


def test_epochs_use_the_addresses_of_those_before() -> None:
    loader = stoker.DataLoader(Sized([SMALL] * 12), batch_size=1, num_workers=2)
    lengths = []
    for _ in range(6):
        for _ in loader:
            pass
        assert loader._ring is not None
        lengths.append(os.fstat(loader._ring.arena.descriptor).st_size)
    assert len(set(lengths[2:])) == 1


# ---------------------------------------------------------------- a limit on the length of files

LIMITED = """
import os, resource, signal, sys
import numpy as np
import stoker
from stoker.errors import OutOfSharedMemory
from tests.faults.test_memory_faults import Sized, check

def limit(num_bytes):
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it; a program that embeds it may not
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))

def check_all(sizes, **arguments):
    loader = stoker.DataLoader(Sized(sizes), batch_size=1, **arguments)
    for _ in range(3):
        kept = list(loader)
        assert len(kept) == len(sizes)
        for position, batch in enumerate(kept):
            assert batch.shape == (1, sizes[position])
            check(batch, position)
        del kept, batch
    return loader
"""


def run(program: str, tmp_path: Path, *, seconds: int = 100) -> str:
    path = tmp_path / "program.py"
    path.write_text(LIMITED + program)
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.run(
        [sys.executable, "-W", "ignore", path],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("arguments", [{}, {"num_threads": 2}, {"persistent_workers": True}, {"method": "spawn"}])
def test_loaders_work_under_an_ordinary_limit_on_files(arguments: dict[str, Any], tmp_path: Path) -> None:
    arguments = dict(arguments)
    if method := arguments.pop("method", None):
        arguments["multiprocessing_context"] = method
    program = f"""
if __name__ == "__main__":
    limit(10485760 << 10)  # ulimit -f 10485760
    loader = check_all([20_000 + 30_000 * (n % 7) for n in range(60)], num_workers=2, **{arguments!r})
    assert not any(slot.is_apart for slot in loader._ring._slots.values())
    print("done")
"""
    assert run(program, tmp_path) == "done\n"


@pytest.mark.parametrize("arguments", [{}, {"num_threads": 2, "persistent_workers": True}])
def test_batches_of_more_than_the_limit_together_lie_in_several_files(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    program = f"""
if __name__ == "__main__":
    limit(2 << 20)
    before = len(os.listdir("/proc/self/fd"))
    loader = check_all([100_000 * (n % 15) for n in range(90)], num_workers=2, **{arguments!r})
    print(sum(100_000 * (n % 15) for n in range(90)) > 25 * (2 << 20))
    del loader
    print(len(os.listdir("/proc/self/fd")) - before)
"""
    assert run(program, tmp_path) == "True\n0\n"


def test_a_batch_bigger_than_the_limit_is_an_error_that_names_it(tmp_path: Path) -> None:
    program = """
if __name__ == "__main__":
    limit(2 << 20)
    loader = stoker.DataLoader(Sized([100_000, 3_000_000, 100_000, 1_900_000]), batch_size=1, num_workers=2)
    iterator = iter(loader)
    check(next(iterator), 0)
    try:
        next(iterator)
    except OutOfSharedMemory as error:
        print("files, and shared memory with them, are limited to 2,097,152 bytes here (`ulimit -f`)" in str(error))
    check(next(iterator), 2)
    check(next(iterator), 3)
    print(len(list(iterator)))
"""
    assert run(program, tmp_path) == "True\n0\n"


def test_streams_and_errors_come_through_under_a_tight_limit(tmp_path: Path) -> None:
    program = """

from torch.utils.data import IterableDataset

class Numbers(IterableDataset):
    def __iter__(self):
        for number in range(40):
            yield np.full(50_000 + 10_000 * (number % 9), number, np.int64)

class Failing(Sized):
    def __getitem__(self, position):
        if position == 2:
            raise ValueError("x" * 600_000)
        return super().__getitem__(position)

if __name__ == "__main__":
    limit(1 << 20)
    kept = list(stoker.DataLoader(Numbers(), batch_size=1, num_workers=2, shard="auto"))
    assert [int(batch[0, 0]) for batch in kept] == list(range(40))
    assert all((batch == number).all() for number, batch in enumerate(kept))
    iterator = iter(stoker.DataLoader(Failing([100_000] * 4), batch_size=1, num_workers=1))
    for position in range(4):
        try:
            check(next(iterator), position)
        except ValueError as error:
            print(position, len(str(error)) > 20_000)
"""
    assert run(program, tmp_path) == "2 True\n"
