"""torchrun: DDP, FSDP2 and checkpoints of torch.distributed.checkpoint; ranks that die, groups that grow and shrink."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.launch import ROOT, SETTINGS, free_port
from tests.integrations.torchrun_script import GLOBAL_BATCH, LOADERS, NUM_EPOCHS, read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # torch is started five times, on two cores

Batches = list[tuple[int, list[Any]]]
"""The epoch and the samples of all ranks, in each step."""

ENVIRONMENT = SETTINGS | {
    # torch shares a store with the ranks that gives them the addresses of those before a restart (pytorch #135712)
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
FOR_AS_MANY_RANKS = ("sampler", "dataset with a state")
"""Loaders with a state that each rank has for itself."""
EACH_ONCE = {
    **dict.fromkeys(("shuffled", "threads", "workers", "unseeded", "dataset with a state"), range(50)),
    "stream": range(45),
    "sampler": range(48),
}


@contextmanager
def torchrun(folder: Path, names: list[str], *options: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Start the script with torchrun, and end it with the block."""
    command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "tests.integrations.torchrun_script"]
    with subprocess.Popen(
        [*command, str(folder), *names],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # it ends its ranks


def starts(folder: Path) -> list[tuple[int, int]]:
    """Return from which round and by how many ranks the script was started, each time."""
    lines = map(json.loads, (folder / "0.jsonl").read_text().splitlines())
    return list(dict.fromkeys((line[1], line[5]) for line in lines))


def trained(folder: Path, name: str) -> Batches:
    """Return what was trained on in each step.

    Steps behind the latest checkpoint are trained on again after a restart, maybe by another number of ranks: this
    fails unless the batches are the same.
    """
    shares: dict[int, Any] = defaultdict(lambda: defaultdict(dict))
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            loader, start, epoch, step, served, num_ranks = json.loads(line)
            if loader == name:
                ranks = shares[step][start, num_ranks]
                assert step >= start, f"{name}: step {step} comes again after {start} steps were saved"
                assert path.stem not in ranks, f"{name}: rank {path.stem} has trained on step {step} twice"
                ranks[path.stem] = (epoch, served)
    batches = []
    for step in range(len(shares)):
        found = [
            (max(epoch for epoch, _ in ranks.values()), sorted(sum((served for _, served in ranks.values()), [])))
            for (_, num_ranks), ranks in shares[step].items()
            if len(ranks) == num_ranks  # or one of them died before
        ]
        assert found == found[:1] * max(1, len(found)), (name, step)
        batches += found[:1]
    return batches


def check(folder: Path, names: list[str]) -> None:
    """Check that the global batches are those of a plain loop, with every sample once in each epoch."""
    for name in names:
        batches = trained(folder, name)
        if name != "unseeded":  # one process draws a seed
            assert batches == [(epoch, sorted(samples)) for epoch, samples in read(name, LOADERS[name](GLOBAL_BATCH))]
        for epoch in range(NUM_EPOCHS) if name in EACH_ONCE else ():
            samples = [sample for at, batch in batches if at == epoch for sample in batch]
            assert sorted(samples) == list(EACH_ONCE[name]), (name, epoch)


def test_a_rank_that_is_killed_twice_resumes_every_loader_where_its_checkpoint_is(tmp_path: Path) -> None:
    """First at the end of an epoch for loaders of six steps, which is the middle for others, then in mid-epoch."""
    (tmp_path / "die_1").write_text("7 3")
    with torchrun(tmp_path, list(LOADERS), "--standalone", "--nproc-per-node=2", "--max-restarts=3") as process:
        printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert starts(tmp_path) == [(0, 2), (6, 2), (8, 2)]
    check(tmp_path, list(LOADERS))


def test_an_elastic_group_that_grows_and_shrinks_goes_on_with_the_same_global_batches(tmp_path: Path) -> None:
    (tmp_path / "grow").touch()
    names = [name for name in LOADERS if name not in FOR_AS_MANY_RANKS]
    options = [
        "--nnodes=1:2",
        "--nproc-per-node=1",
        "--max-restarts=3",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{free_port()}",
        "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=6",
    ]
    with torchrun(tmp_path, names, *options) as first:
        assert first.stdout is not None
        assert "alone\n" in first.stdout
        with torchrun(tmp_path, names, *options, DIE_WITH_AGENT="5") as second:
            second.communicate()
            assert second.returncode == -signal.SIGKILL
        printed, _ = first.communicate()
    assert first.returncode == 0, printed
    assert starts(tmp_path) == [(0, 1), (2, 2), (6, 1)]
    check(tmp_path, names)
