"""What a user would start with torchrun: DDP and FSDP2, and a checkpoint of everything after every second round.

A round trains on the next batch of every loader, so that one start of the processes, and one death, is the start and
death of many loaders. Each rank appends what it trained on to a file, so that a test sees it however the rank ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, IterableDataset

import stoker
from tests.loader.datasets import Numbers

GLOBAL_BATCH = 8
NUM_EPOCHS = 2
DOCUMENTS = [np.full(size, number) for number, size in enumerate([5, 9, 3, 7, 6, 8, 4, 10, 2, 11] * 7)]


class Stream(IterableDataset[int]):
    """The numbers up to 45, without a state of its own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(45))


class Counting(Numbers):
    """Counts what was read, and each rank from another number on."""

    def __init__(self) -> None:
        super().__init__(50)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.num_read = 1000 * self.rank

    def __getitem__(self, position: int) -> int:
        self.num_read += 1
        return super().__getitem__(position)

    def state_dict(self) -> dict[str, int]:
        return {"num_read": self.num_read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_read = state["num_read"]
        assert self.rank == self.num_read // 1000, "the state of another rank"
        assert self.num_read % 1000, "a state from the beginning"


def _sampled(batch_size: int) -> Any:
    ranks: dict[str, Any] = {} if dist.is_initialized() else {"num_replicas": 1, "rank": 0}
    numbers = Numbers(48)
    return stoker.DataLoader(numbers, batch_size=batch_size, sampler=DistributedSampler(numbers, seed=3, **ranks))


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
    "dataset with a state": lambda size: _loader(Counting(), size),
}


def read(name: str, loader: Any) -> Iterator[tuple[int, list[Any]]]:
    """Read a loader to the end of the last epoch, and yield the epoch and samples of each batch."""
    for epoch in range(loader.next_epoch, NUM_EPOCHS):
        if name == "sampler":
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            yield epoch, (batch["tokens"][:, ::5] if isinstance(batch, dict) else batch).tolist()


class Training:
    """Two models that are trained on the same batches, and a checkpoint that has them, their optimizers and loaders."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = folder
        self.loaders = {name: LOADERS[name](GLOBAL_BATCH // dist.get_world_size()) for name in names}
        torch.manual_seed(0)
        self.ddp = DistributedDataParallel(nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 2)))
        self.fsdp = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 2))
        for layer in self.fsdp:
            fully_shard(layer)
        fully_shard(self.fsdp)
        self.models: list[tuple[nn.Module, torch.optim.Optimizer]] = [
            (model, torch.optim.AdamW(model.parameters(), lr=1e-3)) for model in (self.ddp, self.fsdp)
        ]
        latest = folder / "latest"
        self.num_rounds = int(latest.read_text()) if latest.exists() else 0
        if self.num_rounds:
            load(self.checkpoint(), checkpoint_id=folder / str(self.num_rounds))
        self.log = os.open(folder / f"{dist.get_rank()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def checkpoint(self) -> dict[str, Any]:
        """Return what a checkpoint holds: all of it has `state_dict` and `load_state_dict`."""
        return {"models": self, **self.loaders}

    def state_dict(self) -> dict[str, Any]:
        names = ("model", "optimizer")  # not a tuple: a checkpoint would have it whole, from one rank
        return {str(number): dict(zip(names, get_state_dict(*pair))) for number, pair in enumerate(self.models)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for number, (model, optimizer) in enumerate(self.models):
            of = state[str(number)]
            set_state_dict(model, optimizer, model_state_dict=of["model"], optim_state_dict=of["optimizer"])

    def save(self) -> None:
        save(self.checkpoint(), checkpoint_id=self.folder / str(self.num_rounds))
        if dist.get_rank() == 0:
            (self.folder / "new").write_text(str(self.num_rounds))
            (self.folder / "new").rename(self.folder / "latest")
        dist.barrier()

    def train(self, name: str) -> Iterator[None]:
        """Train a batch at a time to the last epoch, from where the loader is, and log each batch."""
        loader, start = self.loaders[name], self.num_rounds
        for epoch, samples in read(name, loader):
            self.step(torch.tensor([np.ravel(sample)[0] for sample in samples], dtype=torch.float32)[:, None])
            line = [name, start, epoch, loader.recipe.step, samples, dist.get_world_size()]
            os.write(self.log, (json.dumps(line) + "\n").encode())
            yield

    def step(self, inputs: torch.Tensor) -> None:
        for model, optimizer in self.models:
            model(inputs).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def rounds(self) -> Iterator[int]:
        """Train to the end, and yield the number of rounds in this run after each."""
        trained = [self.train(name) for name in self.loaders]
        for number in count(1):
            trained = [batches for batches in trained if next(batches, self) is not self]
            if not trained:
                return
            self.num_rounds += 1
            if number % 2 == 0:
                self.save()
            yield number


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, names: list[str]) -> None:
    """Train. A rank with a file `die_RANK` is killed once after each number of rounds in it.

    With a file `grow`, a rank that is alone says so after its third round, and waits to be started again with others.
    With DIE_WITH_AGENT in the environment, torchrun is killed, too, after that number of rounds.
    """
    dist.init_process_group("gloo")
    deaths = folder / f"die_{dist.get_rank()}"
    for number in Training(folder, names).rounds():
        rounds = deaths.read_text().split() if deaths.exists() else []
        if rounds and number == int(rounds[0]):
            deaths.write_text(" ".join(rounds[1:]))
            die()
        if number == int(os.environ.get("DIE_WITH_AGENT", 0)):
            os.kill(os.getppid(), signal.SIGKILL)
            die()
        if number == 3 and dist.get_world_size() == 1 and (folder / "grow").exists():
            (folder / "grow").unlink()
            sys.stdout.write("alone\n")
            sys.stdout.flush()
            signal.pause()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
