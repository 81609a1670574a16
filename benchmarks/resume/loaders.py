"""Training loops around each loader, as in its documentation (cited in `contenders`).

Each loop is a class with the same few methods, so the code around them, `train`, is the same for all: epochs,
checkpoints every few steps, and killing the process. Accelerate and the Trainer are in `trainers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.peers import without_vision
from benchmarks.resume.jobs import NUM_EPOCHS, NUM_SAMPLES, SEED, Job, Place, Recorder, Samples, read_place, write_place


class Loop(Protocol):
    """What a training script does with its loader."""

    def __init__(self, job: Job) -> None:
        """Make the loader."""
        ...

    def load(self, folder: Path) -> None:
        """Load what `save` has written."""
        ...

    def batches(self, epoch: int, place: Place | None) -> Iterator[list[int]]:
        """Train for an epoch and yield the samples of each step; `place` is given in the epoch that is resumed."""
        ...

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        ...


def train(kind: type[Loop], job: Job, recorder: Recorder) -> None:
    """Train from the last checkpoint, or from the beginning, to the end or until the process is killed."""
    resumed = read_place(job)
    if resumed is not None:
        resumed = _as_counted(kind, resumed)
    place = Place() if resumed is None else replace(resumed)
    recorder.step = place.step
    loop = kind(job)
    if resumed is not None:
        loop.load(Path(resumed.folder))
        place.epoch = resumed.epoch = getattr(loop, "next_epoch", resumed.epoch)  # if the loader says it, ask it
    is_one_stream = getattr(kind, "is_one_stream", False)
    for epoch in range(place.epoch, 1 if is_one_stream else NUM_EPOCHS):
        is_resumed = resumed is not None and epoch == resumed.epoch
        place.epoch = epoch
        if not is_resumed:
            place.step_in_epoch = place.samples_in_epoch = 0
        for ids in loop.batches(epoch, resumed if is_resumed else None):
            recorder.trained(epoch, ids)
            place.step += 1
            place.step_in_epoch += 1
            place.samples_in_epoch += job.shape.batch_size
            if recorder.is_due():
                _save(loop, job, place, recorder)
            recorder.stop_if_due()
        if recorder.is_due_after(epoch):
            _save(loop, job, Place(epoch + 1, step=place.step), recorder)
            recorder.stop()


def _as_counted(kind: type[Loop], place: Place) -> Place:
    """Return the place of a checkpoint as the loader counts epochs, so that the loop of its epoch comes first."""
    if place.samples_in_epoch == NUM_SAMPLES and getattr(kind, "ends_with_last_batch", False):
        return replace(place, epoch=place.epoch + 1, step_in_epoch=0, samples_in_epoch=0)
    if place.step > 0 == place.step_in_epoch and getattr(kind, "begins_with_next_loop", False):
        return replace(place, epoch=place.epoch - 1)
    return place


def _save(loop: Loop, job: Job, place: Place, recorder: Recorder) -> None:
    folder = Path(job.folder, f"part-{job.part}-step-{place.step}")
    folder.mkdir(exist_ok=True)
    loop.save(folder)
    recorder.wait_for_ranks()  # the checkpoint counts when all ranks have written their part
    if job.rank == 0:
        write_place(job, replace(place, folder=str(folder)))
    recorder.saved()


def steps_to_skip(job: Job, place: Place | None) -> int:
    """Return how many batches of the present size the checkpoint's epoch had been trained on."""
    return 0 if place is None else place.samples_in_epoch // job.shape.batch_size


def join_group(job: Job) -> None:
    """Join the process group, where there are several ranks."""
    if job.shape.num_ranks > 1:
        torch.distributed.init_process_group("gloo")


class StateFiles:
    """Saves the state of `self.loader`, of each rank in a file of its own."""

    loader: Any

    def __init__(self, job: Job) -> None:
        self._rank = job.rank

    def load(self, folder: Path) -> None:
        mine = folder / f"loader-{self._rank}.pt"
        state = torch.load(mine if mine.exists() else folder / "loader-0.pt", weights_only=False)
        self.loader.load_state_dict(state)

    def save(self, folder: Path) -> None:
        torch.save(self.loader.state_dict(), folder / f"loader-{self._rank}.pt")


# ---------------------------------------------------------------- torch


class TorchFromStart:
    """torch's loader with no state: the epoch starts over. A script for several ranks has a `DistributedSampler`."""

    def __init__(self, job: Job) -> None:
        join_group(job)
        torch.manual_seed(SEED)
        self.job = job
        dataset: Any = Samples(job)
        self.sampler = _distributed_sampler(dataset, job) if job.is_distributed else None
        self.loader: Any = DataLoader(
            dataset,
            batch_size=job.shape.share,
            shuffle=self.sampler is None,
            sampler=self.sampler,
            num_workers=job.shape.num_workers,
        )

    def load(self, folder: Path) -> None:
        """There is nothing to load."""

    def save(self, folder: Path) -> None:
        """There is nothing to save."""

    def batches(self, epoch: int, place: Place | None) -> Iterator[list[int]]:
        if self.sampler is not None:
            self.sampler.set_epoch(epoch)
        num_skipped = self.num_skipped(place)
        for number, batch in enumerate(self.loader):
            if number >= num_skipped:
                yield batch["ids"].tolist()

    def num_skipped(self, place: Place | None) -> int:  # noqa: ARG002
        """Return how many batches to skip."""
        return 0


class TorchSkipping(TorchFromStart):
    """A new torch loader; the script skips as many batches as it had trained on."""

    def num_skipped(self, place: Place | None) -> int:
        return steps_to_skip(self.job, place)


class TorchSetEpoch(TorchSkipping):
    """The same with a sampler that knows its seed and epoch, even on one rank."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        dataset: Any = Samples(job)
        self.sampler = _distributed_sampler(dataset, job)
        self.loader = DataLoader(
            dataset, batch_size=job.shape.share, sampler=self.sampler, num_workers=job.shape.num_workers
        )


def _distributed_sampler(dataset: Any, job: Job) -> Any:
    return DistributedSampler(dataset, num_replicas=job.shape.num_ranks, rank=job.rank, shuffle=True, seed=SEED)


# ---------------------------------------------------------------- loaders with a state


class TorchData(StateFiles):
    """torchdata's `StatefulDataLoader`; in a script for several ranks, with its `StatefulDistributedSampler`."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        join_group(job)
        torch.manual_seed(SEED)
        stateful = import_module("torchdata.stateful_dataloader")
        samplers = import_module("torchdata.stateful_dataloader.sampler")
        dataset = Samples(job)
        self.sampler = None
        if job.is_distributed:
            self.sampler = samplers.StatefulDistributedSampler(
                dataset, num_replicas=job.shape.num_ranks, rank=job.rank, shuffle=True, seed=SEED
            )
        self.loader = stateful.StatefulDataLoader(
            dataset,
            batch_size=job.shape.share,
            shuffle=None if self.sampler is not None else True,
            sampler=self.sampler,
            num_workers=job.shape.num_workers,
        )

    def batches(self, epoch: int, place: Place | None) -> Iterator[list[int]]:  # noqa: ARG002
        if self.sampler is not None:
            self.sampler.set_epoch(epoch)
        for batch in self.loader:
            yield batch["ids"].tolist()


class LitData(StateFiles):
    """litdata's dataset and loader. A state saved after the last batch goes on with the next epoch.

    A script for several ranks sets `drop_last`, as the guide for them says. By default it depends on the number of
    ranks, and then a state from another number is an error.
    """

    ends_with_last_batch = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        join_group(job)
        litdata = import_module("litdata")
        dataset = litdata.StreamingDataset(
            str(Path(job.data, "litdata")), shuffle=True, drop_last=job.is_distributed or None, seed=SEED
        )
        self.loader = litdata.StreamingDataLoader(
            dataset, batch_size=job.shape.share, num_workers=job.shape.num_workers
        )

    def batches(self, epoch: int, place: Place | None) -> Iterator[list[int]]:  # noqa: ARG002
        for batch in self.loader:
            yield batch["ids"].tolist()


class Mosaic(StateFiles):
    """Mosaic's dataset and loader. A state saved after an epoch's loop resumes at its end: the first loop is empty."""

    begins_with_next_loop = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        join_group(job)
        without_vision()
        streaming = import_module("streaming")
        import_module("streaming.base.util").clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(
            local=str(Path(job.data, "mosaic")), shuffle=True, shuffle_seed=SEED, batch_size=job.shape.share
        )
        self.loader = streaming.StreamingDataLoader(
            dataset, batch_size=job.shape.share, num_workers=job.shape.num_workers
        )

    def batches(self, epoch: int, place: Place | None) -> Iterator[list[int]]:  # noqa: ARG002
        for batch in self.loader:
            yield batch["ids"].tolist()


class GrainLoader:
    """Grain's `DataLoader`: one iterator over all epochs, whose state is saved."""

    is_one_stream = True

    def __init__(self, job: Job) -> None:
        self.job = job
        self.iterator = self.make(import_module("grain"), job)

    def make(self, grain: Any, job: Job) -> Any:
        """Return the iterator."""
        sampler = grain.samplers.IndexSampler(
            num_records=NUM_SAMPLES,
            shuffle=True,
            seed=SEED,
            num_epochs=NUM_EPOCHS,
            shard_options=grain.sharding.ShardOptions(shard_index=job.rank, shard_count=job.shape.num_ranks),
        )
        return iter(
            grain.DataLoader(
                data_source=Samples(job),
                sampler=sampler,
                operations=[grain.transforms.Batch(batch_size=job.shape.share)],
                worker_count=job.shape.num_workers,
            )
        )

    def load(self, folder: Path) -> None:
        mine = folder / f"loader-{self.job.rank}.pt"
        state = torch.load(mine if mine.exists() else folder / "loader-0.pt", weights_only=False)
        self.iterator.set_state(state)

    def save(self, folder: Path) -> None:
        torch.save(self.iterator.get_state(), folder / f"loader-{self.job.rank}.pt")

    def batches(self, epoch: int, place: Place | None) -> Iterator[list[int]]:  # noqa: ARG002
        for batch in self.iterator:
            yield batch["ids"].tolist()


class GrainElastic(GrainLoader):
    """Grain's `ElasticIterator`, which is experimental, over a `MapDataset`."""

    def make(self, grain: Any, job: Job) -> Any:
        options = grain.MultiprocessingOptions(num_workers=job.shape.num_workers) if job.shape.num_workers else None
        return iter(
            grain.experimental.ElasticIterator(
                grain.MapDataset.source(Samples(job)).seed(SEED).shuffle().repeat(NUM_EPOCHS),
                job.shape.batch_size,
                grain.sharding.ShardOptions(shard_index=job.rank, shard_count=job.shape.num_ranks),
                multiprocessing_options=options,
            )
        )


class Stoker(StateFiles):
    """stoker.DataLoader. The script starts at its `next_epoch`."""

    @property
    def next_epoch(self) -> int:
        """The epoch to start at."""
        epoch: int = self.loader.next_epoch
        return epoch

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        import stoker

        join_group(job)
        torch.manual_seed(SEED)
        self.loader = stoker.DataLoader(
            Samples(job),
            batch_size=job.shape.share,
            shuffle=True,
            num_workers=job.shape.num_workers,
            distributed=job.shape.num_ranks > 1,
        )

    def batches(self, epoch: int, place: Place | None) -> Iterator[list[int]]:  # noqa: ARG002
        for batch in self.loader:
            yield batch["ids"].tolist()


# ---------------------------------------------------------------- datasets in formats of their own


def prepare_litdata(folder: Path) -> None:
    """Write the samples in litdata's format, in twenty chunks."""
    optimize = import_module("litdata").optimize
    optimize(
        fn=sample, inputs=list(range(NUM_SAMPLES)), output_dir=str(folder / "litdata"), chunk_size=50, num_workers=1
    )


def sample(number: int) -> dict[str, int]:
    """Return one sample."""
    return {"ids": number}


def prepare_mosaic(folder: Path) -> None:
    """Write the samples in Mosaic's format, in some twenty shards."""
    without_vision()
    writer = import_module("streaming").MDSWriter
    with writer(out=str(folder / "mosaic"), columns={"ids": "int"}, size_limit=1024) as out:
        for number in range(NUM_SAMPLES):
            out.write(sample(number))
