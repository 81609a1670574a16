"""What a user would start with torchrun: DDP or FSDP2, and checkpoints of everything after every second batch.

Each rank appends what it trained on to a file, a line for each batch, so that a test sees it however the rank ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, IterableDataset

import stoker
from tests.loader.datasets import Numbers

GLOBAL_BATCH = 8
DOCUMENTS = [np.full(size, number) for number, size in enumerate([5, 9, 3, 7, 6, 8, 4, 10, 2, 11] * 8)]


class Stream(IterableDataset[int]):
    """The numbers up to 45, without a state of its own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(45))


def _sampled(batch_size: int) -> Any:
    numbers = Numbers(48)
    return stoker.DataLoader(numbers, batch_size=batch_size, sampler=DistributedSampler(numbers, seed=3))


def _mixed() -> Any:
    return stoker.mix({"a": (Numbers(40), 0.7), "b": (list(range(100, 130)), 0.3)}, stop=44, seed=5)


def _loader(dataset: Any, batch_size: int, **options: Any) -> Any:
    options = {"shuffle": True, "seed": 3} | options
    return stoker.DataLoader(dataset, batch_size=batch_size, distributed=dist.is_initialized(), **options)


LOADERS: dict[str, Callable[[int], Any]] = {
    "shuffled": lambda size: _loader(Numbers(50), size),
    "threads": lambda size: _loader(Numbers(50), size, num_threads=2),
    "workers": lambda size: _loader(Numbers(50), size, num_workers=2, prefetch_factor=3),
    "unseeded": lambda size: _loader(Numbers(50), size, seed=None),
    "pack": lambda size: _loader(stoker.pack(DOCUMENTS, length=16), size),
    "mixture": lambda size: _loader(_mixed(), size, shuffle=None),
    "stream": lambda size: _loader(Stream(), size, shuffle=None, shard="auto"),
    "sampler": _sampled,
}


def numbers_of(batch: Any) -> list[Any]:
    """Return what identifies the samples of a batch."""
    return (batch["tokens"][:, ::5] if isinstance(batch, dict) else batch).tolist()  # type: ignore[no-any-return]


class Training:
    """A model and its loader, and a checkpoint that has both."""

    def __init__(self, name: str, wrap: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.loader = LOADERS[name](GLOBAL_BATCH // dist.get_world_size())
        self.model: nn.Module = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
        if wrap == "ddp":
            self.model = DistributedDataParallel(self.model)
        else:
            for layer in self.model.children():
                fully_shard(layer)
            fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.num_saved = 0
        latest = folder / "latest"
        if latest.exists():
            self.num_saved = int(latest.read_text())
            dcp.load(self.checkpoint(), checkpoint_id=folder / str(self.num_saved))

    def checkpoint(self) -> dict[str, Any]:
        return {"training": self, "loader": self.loader}

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )

    def save(self) -> None:
        self.num_saved += 1
        dcp.save(self.checkpoint(), checkpoint_id=self.folder / str(self.num_saved))
        if dist.get_rank() == 0:
            (self.folder / "new").write_text(str(self.num_saved))
            (self.folder / "new").rename(self.folder / "latest")
        dist.barrier()

    def batches(self, num_epochs: int) -> Iterator[int]:
        """Train, and yield the number of the batch in this run after each; a checkpoint follows every second one."""
        log = os.open(self.folder / f"{dist.get_rank()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        number = 0
        for epoch in range(self.loader.next_epoch, num_epochs):
            if self.name == "sampler":
                self.loader.sampler.set_epoch(epoch)
            for batch in self.loader:
                served = numbers_of(batch)
                loss = self.model(torch.tensor(served, dtype=torch.float32).reshape(len(served), -1)[:, :1]).sum()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                step = self.loader.recipe.step
                os.write(log, (json.dumps([epoch, step, served, dist.get_world_size()]) + "\n").encode())
                number += 1
                if number % 2 == 0:
                    self.save()
                yield number
        os.close(log)


def global_batches(folder: Path) -> list[list[Any]]:
    """Return [epoch, samples of all ranks] for each step, as it was trained on last."""
    steps: dict[int, dict[int, tuple[int, list[Any], int]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            epoch, step, served, num_ranks = json.loads(line)
            steps.setdefault(step, {})[int(path.stem)] = (epoch, served, num_ranks)
    found = []
    for step in range(len(steps)):
        ranks = steps[step]
        num_ranks = ranks[0][2]  # rank 0 is always there
        shares = [ranks[rank] for rank in range(num_ranks)]
        assert {share[0] for share in shares} == {shares[0][0]}
        found.append([shares[0][0], sorted(sum((share[1] for share in shares), []))])
    return found


def plain_batches(name: str, num_epochs: int) -> list[list[Any]]:
    """Return the same of a loop without ranks."""
    loader = LOADERS[name](GLOBAL_BATCH)
    return [[epoch, sorted(numbers_of(batch))] for epoch in range(num_epochs) for batch in loader]


def main(folder: Path, wrap: str, names: list[str]) -> None:
    """Train on each loader; the rank of which a file `die_RANK` speaks is killed once in mid-epoch for each of its lines.

    With a file `grow`, a rank that is alone waits, after its third batch, until it is started again with others.
    """
    dist.init_process_group("gloo")
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        dist.barrier()
        training = Training(name, wrap, folder / name)
        deaths = folder / name / f"die_{dist.get_rank()}"
        for number in training.batches(2):
            lines = deaths.read_text().split() if deaths.exists() else []
            if lines and number == int(lines[0]):
                deaths.write_text("\n".join(lines[1:]))
                os.kill(os.getpid(), signal.SIGKILL)
            if number == 3 and dist.get_world_size() == 1 and (folder / "grow").exists():
                (folder / "alone").touch()
                signal.pause()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
