"""Every pathology, built on purpose, gets its verdict; a healthy loader gets a clean bill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

from stoker import DataLoader
from tests.lab.pathologies import (
    Counting,
    Hashing,
    Huge,
    Leaking,
    Quick,
    SharedStream,
    Sleeping,
    Stream,
    slow_collate,
    slow_start,
)
from tests.lab.watching import first_in_line, found, watched

__all__ = ["first_in_line"]

pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("first_in_line")]
KINDS = pytest.mark.parametrize("kind", [TorchLoader, DataLoader], ids=["torch", "stoker"])


@KINDS
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_that_keeps_up_gets_a_clean_bill(kind: Any, num_workers: int) -> None:
    loader = kind(Quick(), batch_size=16, num_workers=num_workers, shuffle=True)
    diagnosis, run = found(lambda: watched(loader, step=0.02), "compute-bound")
    assert diagnosis.is_healthy
    assert diagnosis.findings == []
    assert diagnosis.advice == []
    assert diagnosis.gain is None
    assert run.loaders[0].num_samples == 16 * run.loaders[0].num_batches


@KINDS
@pytest.mark.parametrize("num_workers", [0, 2])
def test_waiting_for_a_disk_is_storage_bound(kind: Any, num_workers: int) -> None:
    loader = kind(Sleeping(0.004), batch_size=8, num_workers=num_workers)
    diagnosis, run = found(lambda: watched(loader), "storage-bound")
    assert diagnosis.gain_share is not None and diagnosis.gain_share > 0.5
    assert "num_workers=" in diagnosis.advice[0]
    sampled = run.loaders[0].sampled
    assert sampled is not None
    assert "pathologies.py" in next(iter(sampled.places))
    assert "__getitem__" in next(iter(sampled.places))


def test_threads_that_wait_for_a_disk_are_storage_bound() -> None:
    loader: Any = DataLoader(Sleeping(0.01), batch_size=8, num_threads=2)
    found(lambda: watched(loader), "storage-bound")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_work_in_native_code_is_decode_bound(num_workers: int) -> None:
    loader: Any = TorchLoader(Hashing(), batch_size=8, num_workers=num_workers)
    diagnosis, run = found(lambda: watched(loader), "decode-bound")
    sampled = run.loaders[0].sampled
    assert sampled is not None and sampled.gil_share is not None and sampled.gil_share < 0.5
    assert any("prepare" in line for line in diagnosis.advice)


@pytest.mark.parametrize("setting", [{"num_workers": 1}, {"num_threads": 1}], ids=["process", "thread"])
def test_work_in_native_code_is_decode_bound_for_our_loader_too(setting: dict[str, int]) -> None:
    make: Any = DataLoader
    loader = make(Hashing(), batch_size=8, **setting)
    found(lambda: watched(loader), "decode-bound")


@KINDS
@pytest.mark.parametrize("num_workers", [0, 1])
def test_work_in_python_is_python_bound(kind: Any, num_workers: int) -> None:
    loader = kind(Counting(), batch_size=8, num_workers=num_workers)
    diagnosis, run = found(lambda: watched(loader), "python-bound")
    sampled = run.loaders[0].sampled
    assert sampled is not None and sampled.gil_share is not None and sampled.gil_share > 0.6
    assert "pathologies.py" in str(diagnosis)


@KINDS
def test_work_in_python_shows_though_the_lock_is_let_go_of_again_and_again(kind: Any) -> None:
    """Whoever waits for it hardly ever gets it before a batch is made, and then cannot see where it was made."""
    loader = kind(Counting(num_rounds=20_000), batch_size=8)
    _, run = found(lambda: watched(loader), "python-bound")
    sampled = run.loaders[0].sampled
    assert sampled is not None and sampled.num >= 10


def test_threads_that_take_turns_with_pythons_lock_are_python_bound() -> None:
    loader: Any = DataLoader(Counting(), batch_size=8, num_threads=4)
    diagnosis, _ = found(lambda: watched(loader), "python-bound")
    assert "num_workers=2" in diagnosis.advice[0] or "processes" in diagnosis.advice[0]


@KINDS
def test_samples_that_are_slow_to_put_together_are_collate_bound(kind: Any) -> None:
    loader = kind(Quick(), batch_size=8, num_workers=1, collate_fn=slow_collate)
    diagnosis, _ = found(lambda: watched(loader), "collate-bound")
    assert "slow_collate" in diagnosis.advice[0]


@KINDS
def test_batches_that_are_slow_on_their_way_are_transport_bound(kind: Any) -> None:
    loader = kind(Huge(), batch_size=None, num_workers=1)
    diagnosis, _ = found(lambda: watched(loader, step=0.0005), "transport-bound")
    assert "MB" in diagnosis.says


@KINDS
def test_short_epochs_of_workers_that_start_slowly_are_start_up_bound(kind: Any) -> None:
    loader = kind(Quick(64), batch_size=16, num_workers=1, worker_init_fn=slow_start)
    diagnosis, _ = found(lambda: watched(loader, step=0.005), "start-up-bound")
    assert "persistent_workers=True" in diagnosis.advice[0]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_workers"), [(TorchLoader, 0), (TorchLoader, 1), (DataLoader, 1)])
def test_a_dataset_that_keeps_every_sample_is_memory_growth(kind: Any, num_workers: int) -> None:
    def look() -> Any:
        loader = kind(Leaking(), batch_size=8, num_workers=num_workers)
        return watched(loader, step=0.04, seconds=3.0)

    diagnosis, _ = found(look, "memory-growth")
    assert ("workers" if num_workers else "trainer") in diagnosis.says


@KINDS
@pytest.mark.filterwarnings("ignore:every worker reads the whole")
def test_workers_that_read_the_same_stream_are_duplicated_data(kind: Any) -> None:
    loader = kind(Stream(), batch_size=16, num_workers=2)
    diagnosis, run = found(lambda: watched(loader, step=0.001, num_epochs=1), "duplicated-data")
    assert run.loaders[0].duplicate_share == pytest.approx(0.5, abs=0.1)
    assert "shard='auto'" in diagnosis.advice[0]


@KINDS
def test_workers_that_share_a_stream_are_not(kind: Any) -> None:
    loader = kind(SharedStream(), batch_size=16, num_workers=2)
    run = watched(loader, step=0.001, num_epochs=1)
    assert run.loaders[0].duplicate_share == 0.0


def compute(seconds: float, batch: Any) -> None:
    """Be on a core for so long, however long that takes."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@contextmanager
def neighbours(core: int) -> Iterator[None]:
    """Two programs that want the core, and this thread on it too."""
    affinity = os.sched_getaffinity(0)
    code = (
        f"import os, time\nos.sched_setaffinity(0, {{{core}}})\nos.write(1, b'%d\\n' % os.getpid())\n"
        "over = time.monotonic() + 30\nwhile time.monotonic() < over: pass"
    )
    # started by a shell that ends at once: they are nobody's children here
    starter = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1" & "$0" -c "$1" &', sys.executable, code], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    burners: list[int] = []
    try:
        burners += [int(starter.stdout.readline()) for _ in range(2)]
        starter.wait()
        os.sched_setaffinity(0, {core})
        yield
    finally:
        os.sched_setaffinity(0, affinity)
        for burner in burners:
            os.kill(burner, signal.SIGKILL)
        starter.stdout.close()


@pytest.mark.slow
@KINDS
def test_a_trainer_that_has_to_share_its_core_has_noisy_neighbors(kind: Any) -> None:
    with neighbours(max(os.sched_getaffinity(0))):
        loader = kind(Quick(), batch_size=16)
        diagnosis, run = found(lambda: watched(loader, step=partial(compute, 0.01), seconds=2.0), "noisy-neighbour")
    assert "other programs" in diagnosis.says
    trainer = run.loaders[0].trainer
    assert trainer is not None and trainer.delay_seconds is not None
    assert trainer.delay_seconds > 0.2 * run.loaders[0].seconds


def test_an_iterable_of_any_kind_is_watched() -> None:
    def batches() -> Iterator[torch.Tensor]:
        for number in range(200):
            time.sleep(0.01)
            yield torch.full((8, 4), float(number))

    diagnosis, run = found(lambda: watched(batches(), num_epochs=1), "storage-bound")
    assert run.loaders[0].kind == "iterable"
    assert run.loaders[0].num_samples == 8 * run.loaders[0].num_batches
    assert "threads or processes" in diagnosis.advice[0]
