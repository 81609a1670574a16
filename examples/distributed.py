"""Distributed: two ranks find out who they are, take equal numbers of steps, and together serve every sample once."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from stoker import DataLoader

NUM_RANKS, NUM_SAMPLES = 2, 1003  # 1003: the last batch does not come out even


def train(rank: int, meeting_place: str) -> None:
    """Run one rank. Under torchrun, only `init_process_group` changes: it needs no arguments then."""
    dist.init_process_group("gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=NUM_RANKS)
    try:
        # No DistributedSampler, no set_epoch. "pad" keeps every batch full; the recipe marks what only fills up.
        loader = DataLoader(range(NUM_SAMPLES), batch_size=16, shuffle=True, seed=1, distributed=True, tail="pad")
        seen, num_steps = torch.zeros(NUM_SAMPLES, dtype=torch.int64), 0
        for batch in loader:
            recipe = loader.recipe
            assert recipe is not None
            real = batch if recipe.padding is None else batch[~torch.from_numpy(recipe.padding)]
            seen[real] += 1
            dist.barrier()  # stands for the gradients' all-reduce: it would hang if a rank had a step less
            num_steps += 1
        steps = [torch.zeros(1, dtype=torch.int64) for _ in range(NUM_RANKS)]
        dist.all_gather(steps, torch.tensor([num_steps]))
        dist.all_reduce(seen)
        if rank == 0:
            print(
                f"steps on each rank: {[int(count) for count in steps]}; every sample once: {bool((seen == 1).all())}"
            )
        assert len({int(count) for count in steps}) == 1
        assert bool((seen == 1).all())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # both ranks are on this machine
    with tempfile.TemporaryDirectory() as folder:
        spawn(train, args=(str(Path(folder) / "meeting"),), nprocs=NUM_RANKS)  # type: ignore[no-untyped-call]
