"""Ray actors: each has its rank's share, loaded by worker processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

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


@pytest.mark.slow
@pytest.mark.skipif(not can_unshare(), reason="needs a network namespace (unshare -n)")
def test_each_actor_has_its_share_and_any_actor_goes_on_from_the_state_of_another() -> None:
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", IN_A_NETWORK_OF_ITS_OWN, sys.executable, SCRIPT],
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    first, rest = json.loads(done.stdout.splitlines()[-1])
    assert [len(steps) for steps in first] == [3, 3]
    seen = [position for part in (first, rest) for steps in part for batch in steps for position in batch]
    assert sorted(seen) == list(range(50))
