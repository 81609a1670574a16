"""Training scripts with Accelerate and the Transformers `Trainer`: their own ways to resume, and stoker in them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.resume.jobs import NUM_EPOCHS, SEED, Job, Place, Recorder, Samples
from benchmarks.resume.loaders import steps_to_skip


class Accelerated:
    """Accelerate's `save_state`, `load_state` and `skip_first_batches`, as in its examples.

    These divide the step by the batches of an epoch, so after an epoch's last batch they go on with the next epoch.
    """

    ends_with_last_batch = True
    configuration: dict[str, Any] = {}

    def __init__(self, job: Job) -> None:
        accelerate = import_module("accelerate")
        self.job = job
        self.accelerator = accelerate.Accelerator(
            cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(**self.configuration)
        )
        accelerate.utils.set_seed(SEED)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, self.make(job))

    def make(self, job: Job) -> Any:
        """Return the loader to prepare."""
        dataset: Any = Samples(job)
        return DataLoader(dataset, batch_size=job.shape.share, shuffle=True, num_workers=job.shape.num_workers)

    def load(self, folder: Path) -> None:
        self.accelerator.load_state(str(folder))

    def save(self, folder: Path) -> None:
        self.accelerator.save_state(str(folder))

    def active(self, epoch: int, place: Place | None) -> Any:  # noqa: ARG002
        """Return the loader to train on in this epoch."""
        num_skipped = steps_to_skip(self.job, place)
        return self.accelerator.skip_first_batches(self.loader, num_skipped) if num_skipped else self.loader

    def batches(self, epoch: int, place: Place | None) -> Iterator[list[int]]:
        for batch in self.active(epoch, place):
            yield batch["ids"].tolist()


class AcceleratedSeedable(Accelerated):
    """The same with Accelerate's seedable sampler, whose epoch the script sets."""

    configuration = {"use_seedable_sampler": True}

    def active(self, epoch: int, place: Place | None) -> Any:
        self.loader.set_epoch(epoch)
        return super().active(epoch, place)


class AcceleratedStateful(Accelerated):
    """The state of torchdata's loader, saved by `save_state`; nothing is skipped."""

    configuration = {"use_stateful_dataloader": True}

    def active(self, epoch: int, place: Place | None) -> Any:  # noqa: ARG002
        return self.loader


class AcceleratedBoth(AcceleratedStateful):
    """Both: a stateful loader with the seedable sampler, whose epoch the script sets."""

    configuration = {"use_stateful_dataloader": True, "use_seedable_sampler": True}

    def active(self, epoch: int, place: Place | None) -> Any:
        self.loader.set_epoch(epoch)
        return super().active(epoch, place)


class AcceleratedStoker(Accelerated):
    """A stoker.DataLoader, prepared; `save_state` includes its state. The script starts at its `next_epoch`."""

    @property
    def next_epoch(self) -> int:
        """The epoch to start at."""
        epoch: int = self.loader.next_epoch
        return epoch

    def make(self, job: Job) -> Any:
        import stoker

        return stoker.DataLoader(
            Samples(job), batch_size=job.shape.share, shuffle=True, num_workers=job.shape.num_workers
        )

    def active(self, epoch: int, place: Place | None) -> Any:  # noqa: ARG002
        return self.loader


# ---------------------------------------------------------------- the Trainer


def train_by_trainer(job: Job, recorder: Recorder) -> None:
    """Train with the Trainer and its own loader, from the last checkpoint that it finds."""
    _run_trainer(import_module("transformers").Trainer, job, recorder)


def train_by_trainer_with_stoker(job: Job, recorder: Recorder) -> None:
    """Train with a Trainer that gets a stoker.DataLoader."""
    import stoker

    base: Any = import_module("transformers").Trainer

    class TrainerWithStoker(base):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return stoker.DataLoader(
                Samples(job), batch_size=job.shape.share, shuffle=True, num_workers=job.shape.num_workers
            )

    _run_trainer(TrainerWithStoker, job, recorder)


class Model(nn.Module):
    """Collects the samples that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.ids: list[int] = []

    def forward(self, ids: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:  # noqa: ARG002
        self.ids.extend(ids.tolist())
        return {"loss": (self.weight * ids.float().mean()).sum()}


def _run_trainer(kind: Any, job: Job, recorder: Recorder) -> None:
    transformers = import_module("transformers")
    base: Any = transformers.TrainerCallback
    model = Model()

    class Callback(base):  # type: ignore[misc]
        """Records each step, requests checkpoints, and kills the process when it is due."""

        epoch = -1

        def on_train_begin(self, _arguments: Any, state: Any, _control: Any, **_: Any) -> None:
            recorder.step = state.global_step
            self.epoch = state.global_step // (state.max_steps // NUM_EPOCHS) - 1

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self.epoch += 1

        def on_step_end(self, _arguments: Any, _state: Any, control: Any, **_: Any) -> None:
            recorder.trained(self.epoch, model.ids)
            model.ids = []
            if recorder.is_due():
                control.should_save = True
            else:
                recorder.stop_if_due()

        def on_epoch_end(self, _arguments: Any, _state: Any, control: Any, **_: Any) -> None:
            if recorder.is_due_after(self.epoch):
                control.should_save = True

        def on_save(self, *_: Any, **__: Any) -> None:
            recorder.saved()
            if recorder.job.saved_after is not None:
                recorder.stop()
            recorder.stop_if_due()

    arguments = transformers.TrainingArguments(
        output_dir=str(Path(job.folder, "trainer")),
        per_device_train_batch_size=job.shape.share,
        num_train_epochs=NUM_EPOCHS,
        dataloader_num_workers=job.shape.num_workers,
        remove_unused_columns=False,
        save_strategy="no",  # the callback says when
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=SEED,
    )
    trainer = kind(model=model, args=arguments, train_dataset=Samples(job), callbacks=[Callback()])
    trainer.train(resume_from_checkpoint=job.part > 0)
