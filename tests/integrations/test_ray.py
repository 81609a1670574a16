"""Ray: actors load the share of their rank in worker processes of their own, and Ray Train keeps the loader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler

import stoker
from stoker.errors import ArgumentError
from tests.loader.datasets import Numbers

SCRIPT = """
import json
import ray
from stoker import DataLoader


@ray.remote(num_cpus=1)
class Trainer:
    def start(self, rank, state):
        self.loader = DataLoader(
            list(range(50)), batch_size=4, shuffle=True, seed=1, rank=rank, num_ranks=2, num_workers=1
        )
        if state is not None:
            self.loader.load_state_dict(state)
        self.iterator = iter(self.loader)

    def steps(self, num_steps):
        return [batch.tolist() for _, batch in zip(range(num_steps), self.iterator)]

    def state(self):
        return self.loader.state_dict()


ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
trainers = [Trainer.remote() for _ in range(2)]
ray.get([trainer.start.remote(rank, None) for rank, trainer in enumerate(trainers)])
first = ray.get([trainer.steps.remote(3) for trainer in trainers])
state = ray.get(trainers[0].state.remote())
ray.get([trainer.start.remote(1 - rank, state) for rank, trainer in enumerate(trainers)])  # ranks change places
rest = ray.get([trainer.steps.remote(99) for trainer in trainers])
print(json.dumps([first, rest]))
ray.shutdown()
"""
# Ray's processes listen on all interfaces: here there is only one
IN_A_NETWORK_OF_ITS_OWN = "ip link set lo up && exec " + '"$0" -c "$1"'


def can_unshare() -> bool:
    try:
        return not subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True).returncode
    except OSError:
        return False


def printed_by(script: str) -> Any:
    """Return what the script prints last, from JSON."""
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", IN_A_NETWORK_OF_ITS_OWN, sys.executable, script],
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not can_unshare(), reason="needs a network namespace (unshare -n)")
def test_each_actor_has_its_share_and_any_actor_goes_on_from_the_state_of_another() -> None:
    first, rest = printed_by(SCRIPT)
    assert [len(steps) for steps in first] == [3, 3]
    seen = [position for part in (first, rest) for steps in part for batch in steps for position in batch]
    assert sorted(seen) == list(range(50))


TRAIN_SCRIPT = """
import json
import tempfile
from pathlib import Path
import ray
import ray.train.torch
from ray.train import RunConfig, ScalingConfig


def train(config):
    import json
    from pathlib import Path
    import ray.train.torch
    import torch
    from stoker import DataLoader

    rank = ray.train.get_context().get_world_rank()

    def prepared(state=None, **options):
        loader = DataLoader(list(range(21)), batch_size=4, shuffle=True, seed=1, **options)
        if state is not None:
            loader.load_state_dict(state)
        return ray.train.torch.prepare_data_loader(loader)

    found = {}
    for name, options in (("shared", {}), ("distributed", {"distributed": True})):
        loader = prepared(**options)
        found[name] = []
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)  # as the guide of Ray Train says
            found[name].append([batch.tolist() for batch in loader])
    loader = prepared()
    found["before"] = next(iter(loader)).tolist()
    found["after"] = [batch.tolist() for batch in prepared(loader.state_dict())]
    torchs = torch.utils.data.DataLoader(list(range(8)), batch_size=2)
    found["torch"] = [batch.tolist() for batch in ray.train.torch.prepare_data_loader(torchs)]
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(found))


folder = tempfile.mkdtemp()
ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
ray.train.torch.TorchTrainer(
    train,
    train_loop_config={"folder": folder},
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
    run_config=RunConfig(storage_path=folder),
).fit()
print(json.dumps([json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]))
ray.shutdown()
"""


def dealt(first: list[int], second: list[int]) -> list[int]:
    """Return a global batch, whose samples two ranks have in turn."""
    return [share[at] for at in range(len(first)) for share in (first, second) if at < len(share)]


@pytest.mark.slow
@pytest.mark.skipif(not can_unshare(), reason="needs a network namespace (unshare -n)")
def test_ray_train_keeps_the_loader_its_order_and_its_state() -> None:
    ranks = printed_by(TRAIN_SCRIPT)
    plain = stoker.DataLoader(list(range(21)), batch_size=8, shuffle=True, seed=1)
    epochs = [[batch.tolist() for batch in plain] for _ in range(2)]
    for name in ("shared", "distributed"):
        for number, epoch in enumerate(epochs):
            steps = zip(*(rank[name][number] for rank in ranks), strict=True)
            assert [dealt(*shares) for shares in steps] == epoch, name
    for rank in ranks:
        assert [rank["before"], *rank["after"]] == rank["shared"][0]
    assert sorted(sum((batch for rank in ranks for batch in rank["torch"]), [])) == list(range(8))


class Context:
    """What Ray Train tells a worker, without a cluster."""

    def get_world_size(self) -> int:
        return 2

    def get_world_rank(self) -> int:
        return 1


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(21))


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return Ray Train's function, called as in the second of two workers."""
    import ray.train
    import ray.train.torch

    monkeypatch.setattr(ray.train, "get_context", Context)
    monkeypatch.setattr(ray.train.torch, "get_device", lambda: torch.device("cpu"))
    return ray.train.torch.prepare_data_loader


def test_ray_train_gives_each_kind_of_loader_its_share(prepare: Any) -> None:
    data = Numbers(21)
    shared = prepare(stoker.DataLoader(data, batch_size=4, shuffle=True, seed=1, on_error="skip", num_threads=2))
    assert (type(shared), shared.rank, shared.num_ranks) == (stoker.DataLoader, 1, 2)
    assert (shared.on_error, shared.num_threads) == ("skip", 2)
    stream = prepare(stoker.DataLoader(Stream(), batch_size=4, shard="auto"))
    assert (stream.rank, stream.num_ranks) == (1, 2)
    documents = [np.full(size, number) for number, size in enumerate([5, 9, 3, 7, 6, 8, 4, 10, 2, 11] * 3)]
    pack = prepare(stoker.DataLoader(stoker.pack(documents, length=16), batch_size=2, shuffle=True))
    first, second = ([batch["tokens"].tolist() for batch in pack] for _ in range(2))
    assert first != second
    whole = stoker.DataLoader(data, batch_size=4)
    assert prepare(whole, add_dist_sampler=False) is whole
    own = stoker.DataLoader(data, batch_size=4, sampler=DistributedSampler(data, num_replicas=2, rank=1))
    assert prepare(own) is own


def test_what_ray_train_would_change_is_refused_with_the_line_to_write(prepare: Any) -> None:
    data = Numbers(21)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"rank": 0, "num_ranks": 4}, "Ray Train expects that of rank 1 of 2"),
        ({"mesh": {"tp": 1}}, "Ray Train expects that of rank 1 of 2"),
        ({"sampler": RandomSampler(data)}, "Ray Train would replace .*RandomSampler by a DistributedSampler"),
        (
            {"batch_size": 1, "batch_sampler": BatchSampler(RandomSampler(data), 4, False)},
            "would replace .*BatchSampler",
        ),
    ]
    for options, message in refused:
        loader = stoker.DataLoader(data, **options)
        with pytest.raises(ArgumentError, match=message) as caught:
            prepare(loader)
        assert "add_dist_sampler=False" in str(caught.value)
        assert prepare(loader, add_dist_sampler=False) is loader
