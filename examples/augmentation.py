"""Augmentation: `stoker.rng()` gives a sample the same numbers inline, in threads and in processes, new each epoch."""

import numpy as np
import torch
from numpy.typing import NDArray

import stoker
from stoker import DataLoader


class Photos:
    """Images that are cropped and flipped at random."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, position: int) -> NDArray[np.float32]:
        image = np.arange(36 * 36, dtype=np.float32).reshape(36, 36) + np.float32(position)
        random = stoker.rng()
        top, left = random.integers(0, 5, size=2)
        cropped = image[top : top + 32, left : left + 32]
        return cropped[:, ::-1].copy() if random.random() < 0.5 else cropped


def epochs(num_threads: int = 0, num_workers: int = 0) -> list[torch.Tensor]:
    loader = DataLoader(Photos(), batch_size=16, shuffle=True, seed=1, num_threads=num_threads, num_workers=num_workers)
    return [torch.cat(list(loader)) for _ in range(2)]


if __name__ == "__main__":
    inline, threads, processes = epochs(), epochs(num_threads=2), epochs(num_workers=2)
    for name, augmented in (("threads", threads), ("processes", processes)):
        are_equal = [torch.equal(ours, theirs) for ours, theirs in zip(inline, augmented)]
        print(f"{name}: same pixels as inline in epochs 0 and 1: {are_equal}")
        assert all(are_equal)
    assert not torch.equal(inline[0].sort(0).values, inline[1].sort(0).values)  # another epoch, other crops

    # One sample of that run, had again without a loader: the first of epoch 1.
    plan = DataLoader(Photos(), batch_size=16, shuffle=True, seed=1).plan
    assert plan is not None
    position = int(plan.recipe(plan.first_step(1)).positions[0])
    with stoker.sample_context(position, epoch=1, seed=1):
        again = Photos()[position]
    print(f"position {position} as epoch 1 saw it, without a loader: {np.array_equal(again, inline[1][0].numpy())}")
    assert np.array_equal(again, inline[1][0].numpy())
