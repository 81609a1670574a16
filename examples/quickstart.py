"""Quickstart: a dataset, a loader, a loop, and a state that is saved and resumed in the middle of an epoch."""

import json
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from stoker import DataLoader, rng


class Noisy:
    """Any class with `__len__` and `__getitem__` is a dataset. `rng()` gives each sample random numbers of its own."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, position: int) -> NDArray[np.float64]:
        return position + rng().normal(size=4)


loader = DataLoader(Noisy(), batch_size=32, shuffle=True, seed=1, num_threads=2)
for _batch in islice(loader, 10):
    pass  # your training step
saved = json.dumps(loader.state_dict())

# Later, perhaps on another machine: the same dataset and seed; batch size and threads may be others.
resumed = DataLoader(Noisy(), batch_size=50, shuffle=True, seed=1)
resumed.load_state_dict(json.loads(saved))
num_left = sum(len(batch) for batch in resumed)

print(f"{10 * 32} samples before the stop, {num_left} after it: {10 * 32 + num_left} of {len(Noisy())}")
assert 10 * 32 + num_left == len(Noisy())
