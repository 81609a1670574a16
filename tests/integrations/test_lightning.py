"""Lightning drives our loader: what comes, what its checkpoints have, on one and on two processes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint
from lightning.pytorch.tuner.tuning import Tuner
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

import stoker
from stoker.errors import ArgumentError, StateError
from tests.integrations.launch import kill_this_process, launch
from tests.loader.datasets import Broken, Numbers

LENGTH = 21
DOCUMENTS = [np.full(size, number) for number, size in enumerate([5, 9, 3, 7, 6, 8, 4, 10, 2, 11] * 3)]

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("lightning.fabric").setLevel(logging.ERROR)


class Stream(IterableDataset[int]):
    """The numbers up to a limit; nobody knows how many."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class SizedStream(Stream):
    """A stream with a length."""

    def __len__(self) -> int:
        return self.length


class OwnShare(IterableDataset[int]):
    """Shares itself out by the rank, and knows where it is."""

    def __init__(self, length: int = 48) -> None:
        self.length, self.at = length, 0

    def __iter__(self) -> Iterator[int]:
        rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        while self.at * num_ranks + rank < self.length:
            self.at += 1
            yield (self.at - 1) * num_ranks + rank
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "rank": int(os.environ["RANK"])}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state["rank"] == int(os.environ["RANK"]), "a place of another rank"
        self.at = state["at"]


class Bytes(Numbers):
    """Numbers in small types."""

    def __getitem__(self, position: int) -> Any:
        return np.array(super().__getitem__(position), dtype=np.uint8)


class Wrapped:
    """A user's wrapper, as for a mask."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __len__(self) -> int:
        return len(self.inside)

    def __getitem__(self, position: int) -> Any:
        return self.inside[position]["tokens"]


def packed() -> Any:
    return stoker.pack(DOCUMENTS, length=16)


def mixed() -> Any:
    return stoker.mix({"a": (Numbers(40), 0.7), "b": (list(range(100, 130)), 0.3)}, stop=24, seed=5)


class Subclass(stoker.DataLoader[Any]):
    """A user's own, whose iterator is a generator."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            yield batch + 1000


Make = Callable[..., Any]

PLANNED: dict[str, Make] = {
    "shuffled": lambda **o: stoker.DataLoader(Numbers(LENGTH), **{"batch_size": 4, "shuffle": True, **o}),
    "even": lambda **o: stoker.DataLoader(Numbers(48), **{"batch_size": 4, "shuffle": True, **o}),
    "sequential": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, **o),
    "dropping": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, drop_last=True, shuffle=True, **o),
    "padded": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, tail="pad", shuffle=True, **o),
    "window": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, order="window", **o),
    "threads": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, shuffle=True, num_threads=2, **o),
    "workers": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, shuffle=True, num_workers=2, **o),
    "persistent": lambda **o: stoker.DataLoader(
        Numbers(LENGTH), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True, **o
    ),
    "unbatched": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=None, shuffle=True, **o),
    "broken": lambda **o: stoker.DataLoader(Broken(LENGTH, {3}), batch_size=4, shuffle=True, on_error="skip", **o),
    "widened": lambda **o: stoker.DataLoader(Bytes(LENGTH), batch_size=4, shuffle=True, to=torch.float64, **o),
    "skipping": lambda **o: stoker.DataLoader(Numbers(LENGTH), batch_size=4, shuffle=True, skip=[(1, 3), (7, 8)], **o),
    "pack": lambda **o: stoker.DataLoader(packed(), batch_size=2, shuffle=True, **o),
    "mixture": lambda **o: stoker.DataLoader(mixed(), batch_size=4, **o),
    "wrapped pack": lambda **o: stoker.DataLoader(Wrapped(packed()), batch_size=2, shuffle=True, **o),
}
"""Loaders whose order is their own."""


def combined(mode: str, **options: Any) -> Any:
    """Two loaders side by side, the second of which is shorter."""
    parts = {"long": stoker.DataLoader(Numbers(LENGTH), batch_size=4, shuffle=True, **options)}
    parts["short"] = stoker.DataLoader(list(range(100, 109)), batch_size=4, shuffle=True, **options)
    return CombinedLoader(parts, mode)


COMBINED: dict[str, Make] = {mode: partial(combined, mode) for mode in ("max_size_cycle", "max_size", "min_size")}

LOADERS: dict[str, Make] = {
    **PLANNED,
    **COMBINED,
    "subclass": lambda **o: Subclass(Numbers(LENGTH), batch_size=4, shuffle=True, **o),
    "stream": lambda **o: stoker.DataLoader(Stream(), batch_size=4, **o),
    "shared stream": lambda **o: stoker.DataLoader(Stream(), batch_size=4, shard="auto", num_workers=2, **o),
    "sized stream": lambda **o: stoker.DataLoader(SizedStream(), batch_size=4, shard="auto", **o),
    "own share": lambda **o: stoker.DataLoader(OwnShare(), batch_size=4, **o),
    "random sampler": lambda **o: stoker.DataLoader(
        Numbers(LENGTH),
        batch_size=4,
        sampler=RandomSampler(Numbers(LENGTH), generator=torch.Generator().manual_seed(9)),
        **o,
    ),
    "batch sampler": lambda **o: stoker.DataLoader(
        Numbers(LENGTH), batch_sampler=BatchSampler(SequentialSampler(Numbers(LENGTH)), 4, False), **o
    ),
    "distributed sampler": lambda **o: stoker.DataLoader(
        Numbers(LENGTH), batch_size=4, sampler=DistributedSampler(Numbers(LENGTH), *ranks_in_environment()), **o
    ),
    "torch": lambda **o: torch.utils.data.DataLoader(Numbers(LENGTH), batch_size=4),
}


def ranks_in_environment() -> tuple[int, int]:
    return int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


# ---------------------------------------------------------------- a model that notes what it gets


def numbers(batch: Any) -> Any:
    """Return what identifies the samples of a batch."""
    if isinstance(batch, list | tuple):
        return [numbers(part) for part in batch]
    if isinstance(batch, dict) and "tokens" not in batch:
        return {name: numbers(part) for name, part in batch.items()}
    if isinstance(batch, dict):
        batch = batch["tokens"]
    return None if batch is None else np.atleast_1d(np.asarray(batch)).tolist()


def real(loader: Any, samples: Any) -> Any:
    """Return the samples of the loader's last batch without those that only fill it up."""
    recipe = getattr(loader, "recipe", None)
    if recipe is None or recipe.padding is None:
        return samples
    return [sample for sample, is_padding in zip(samples, recipe.padding.tolist(), strict=True) if not is_padding]


class Model(pl.LightningModule):  # type: ignore[misc]
    """Trains a number, and notes which batches it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: dict[str, list[Any]] = {name: [] for name in ("train", "validate", "test", "predict", "sanity")}
        self.log_path: Path | None = None

    def note(self, stage: str, batch: Any) -> torch.Tensor:
        samples = real(self.trainer.train_dataloader, numbers(batch)) if stage == "train" else numbers(batch)
        self.seen[stage].append([self.current_epoch, samples])
        return self.weight.sum()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.note("train", batch)
        if self.log_path is not None:
            with self.log_path.open("a") as log:
                log.write(json.dumps(self.seen["train"][-1]) + "\n")
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.note("sanity" if self.trainer.sanity_checking else "validate", batch)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.note("test", batch)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.note("predict", batch)
        return batch["tokens"] if isinstance(batch, dict) else batch

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def epochs(self, stage: str = "train") -> list[list[Any]]:
        """Return the batches of each epoch."""
        found: dict[int, list[Any]] = {}
        for epoch, batch in self.seen[stage]:
            found.setdefault(epoch, []).append(batch)
        return list(found.values())


class Hooked(Model):
    """Has its loaders from hooks."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.make = lambda: LOADERS[name](**options)

    def train_dataloader(self) -> Any:
        return self.make()  # type: ignore[no-untyped-call]

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Data(pl.LightningDataModule):  # type: ignore[misc]
    """The same in a module for data."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.make = lambda: LOADERS[name](**options)

    def train_dataloader(self) -> Any:
        return self.make()  # type: ignore[no-untyped-call]

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


def trainer_of(**options: Any) -> pl.Trainer:
    """Return a Trainer that does nothing but train."""
    os.environ |= {"TORCHELASTIC_RUN_ID": "tests", "GROUP_RANK": "0"}  # what torchrun sets
    num_ranks = ranks_in_environment()[0]
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    processes = {"devices": num_ranks, "strategy": "ddp" if num_ranks > 1 else "auto"}
    return pl.Trainer(**{**quiet, **processes, "enable_checkpointing": False, "max_epochs": 3, **options})


def fitted(name: str, options: dict[str, Any], trainer: dict[str, Any] | None = None, is_hooked: bool = False) -> Any:
    """Run on each rank: the epochs that are trained on, or the error."""
    try:
        model = Hooked(name, options) if is_hooked else Model()
        loader = None if is_hooked else LOADERS[name](**options)
        trainer_of(**{"limit_val_batches": 0, **(trainer or {})}).fit(model, loader)
        return model.epochs()
    except (ArgumentError, StateError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def many_fitted(cases: list[Any]) -> list[Any]:
    return [fitted(*case) for case in cases]


def plain(name: str, num_epochs: int, batch_size: int | None = None, **options: Any) -> list[list[Any]]:
    """Return the batches of the plain loop, cut as several processes together do."""
    loader = LOADERS[name](**options)
    if batch_size is not None:
        loader.adapt(batch_size=batch_size)
    epochs: list[list[Any]] = []
    for epoch in range(num_epochs):
        if name == "distributed sampler":
            loader.set_epoch(epoch)
        epochs.append([real(loader, numbers(batch)) for batch in loader])
    return epochs


def together(ranks: list[Any]) -> list[list[list[Any]]]:
    """Return the global batches of each epoch, with the samples of the ranks in turn, as the loader deals them out."""
    found = []
    for epochs in zip(*ranks, strict=True):
        assert len({len(epoch) for epoch in epochs}) == 1, "ranks have different numbers of steps"
        found.append([dealt(shares) for shares in zip(*epochs, strict=True)])
    return found


def dealt(shares: tuple[Any, ...]) -> list[Any]:
    longest = max(map(len, shares))
    return [share[at] for at in range(longest) for share in shares if at < len(share)]


def flat(epoch: list[list[Any]]) -> list[Any]:
    return sum(epoch, [])


# ---------------------------------------------------------------- what is trained on


ONE_RANK = sorted(set(LOADERS) - set(COMBINED) - {"torch"})


def options_of(name: str) -> dict[str, Any]:
    return {"seed": 3} if name in PLANNED or name == "subclass" else {}


@pytest.mark.parametrize("is_hooked", [False, True])
def test_one_process_trains_on_what_the_plain_loop_gets(is_hooked: bool) -> None:
    cases: list[Any] = [(name, options_of(name), {}, is_hooked) for name in ONE_RANK]
    [found] = launch(many_fitted, cases, num_ranks=1)
    [expected] = launch(many_plain, [(name, 3, options_of(name)) for name in ONE_RANK], num_ranks=1)
    for name, ours, theirs in zip(ONE_RANK, found, expected, strict=True):
        assert ours == theirs, name
        assert ours[0] != ours[1] or name in ("sequential", "batch sampler") or "stream" in name or "share" in name


def many_plain(cases: list[Any]) -> list[Any]:
    return [plain(name, num_epochs, **options) for name, num_epochs, options in cases]


@pytest.mark.parametrize("is_hooked", [False, True])
def test_two_processes_train_on_the_global_batches_of_the_plain_loop(is_hooked: bool) -> None:
    names = sorted(PLANNED)
    ranks = launch(many_fitted, [(name, {"seed": 3}, {}, is_hooked) for name in names])
    for name, *epochs in zip(names, *ranks, strict=True):
        size = {"unbatched": None, "pack": 4, "wrapped pack": 4}.get(name, 8)
        if name == "unbatched":
            assert sorted(sum((flat(epoch[0]) for epoch in epochs), [])) == list(range(LENGTH))
            continue
        assert together(epochs) == plain(name, 3, size, seed=3), name


def test_streams_that_are_shared_out_come_once() -> None:
    names = ["shared stream", "sized stream", "own share"]
    ranks = launch(many_fitted, [(name, {}) for name in names])
    for name, *epochs in zip(names, *ranks, strict=True):
        for epoch in zip(*epochs, strict=True):
            assert len({len(batches) for batches in epoch}) == 1, "ranks have different numbers of steps"
            assert sorted(sum(map(flat, epoch), [])) == list(range(48 if name == "own share" else LENGTH)), name


# ---------------------------------------------------------------- what checkpoints have


class StopNow(Exception):
    """Ends a run in the middle of an epoch."""


class SaveAndStop(pl.Callback):  # type: ignore[misc]
    """Saves a checkpoint in a hook, after so many batches of this run, and ends the run at the next batch."""

    def __init__(self, path: str, num_batches: int, hook: str = "on_train_batch_end") -> None:
        self.path, self.num_batches, self.is_saved = path, num_batches, False
        setattr(self, hook, self.save)

    def save(self, trainer: Any, model: Any, *_: Any) -> None:
        if len(model.seen["train"]) == self.num_batches and not self.is_saved:
            trainer.save_checkpoint(self.path)
            self.is_saved = True

    def on_train_batch_start(self, trainer: Any, model: Any, *_: Any) -> None:
        if self.is_saved:
            raise StopNow

    def on_exception(self, trainer: Any, model: Any, exception: BaseException) -> None:
        if not isinstance(exception, StopNow):
            raise exception


def one_run(
    name: str,
    options: dict[str, Any],
    trainer: dict[str, Any],
    *,
    resumed_from: str | None = None,
    save_to: str | None = None,
    stop_after: int = 0,
    hook: str = "on_train_batch_end",
) -> Any:
    """Return the batches that were trained on, each with its epoch, until a checkpoint is saved or to the end."""
    model = Model()
    stop = [] if save_to is None else [SaveAndStop(save_to, stop_after, hook)]
    loader = LOADERS[name](**options)
    try:
        with suppress(StopNow):
            options = {"limit_val_batches": 0, **trainer, "callbacks": [*stop, *trainer.get("callbacks", [])]}
            trainer_of(**options).fit(model, loader, ckpt_path=resumed_from)
    except (ArgumentError, StateError) as error:
        return f"{type(error).__name__}: {error}"
    num_trained = stop_after - (hook == "on_before_zero_grad")
    return model.seen["train"][: num_trained if stop else None]


def runs(
    name: str, options: dict[str, Any], trainer: dict[str, Any], stops: list[int], hook: str, folder: str
) -> list[Any]:
    """Return the batches of a run that is stopped after so many batches, and resumed, again and again."""
    seen: list[Any] = []
    checkpoint = None
    for number, stop_after in enumerate(stops):
        path = f"{folder}/{name} {number}.ckpt"
        seen += one_run(name, options, trainer, resumed_from=checkpoint, save_to=path, stop_after=stop_after, hook=hook)
        checkpoint = path
    return [*seen, *one_run(name, options, trainer, resumed_from=checkpoint)]


def many_runs(cases: list[Any]) -> list[Any]:
    return [runs(*case) for case in cases]


def by_epoch(seen: list[Any]) -> list[list[Any]]:
    """Return the batches of each epoch."""
    found: dict[int, list[Any]] = {}
    for epoch, batch in seen:
        found.setdefault(epoch, []).append(batch)
    return [found[epoch] for epoch in sorted(found)]


HOOKS = [
    ("on_train_batch_end", [3, 5, 1]),  # the last of these at the end of an epoch
    ("on_train_batch_end", [6, 6]),
    ("on_train_epoch_end", [6]),
    ("on_train_epoch_start", [6]),
    ("on_before_zero_grad", [2]),  # in the middle of a step: it is taken again
]


def test_one_process_resumes_exactly_wherever_a_checkpoint_is_saved(tmp_path: Path) -> None:
    names = [name for name in ONE_RANK if name not in ("even", "threads", "persistent", "widened", "wrapped pack")]
    cases: list[Any] = [
        (name, options_of(name), {}, [3, 9, 1] if name == "own share" and len(stops) == 3 else stops, hook, tmp_path)
        for name in names
        for hook, stops in HOOKS
    ]
    [found] = launch(many_runs, [(*case[:-1], str(tmp_path)) for case in cases], num_ranks=1)
    [expected] = launch(many_plain, [(name, 3, options_of(name)) for name in names], num_ranks=1)
    plain_of = dict(zip(names, expected, strict=True))
    for (name, *case), seen in zip(cases, found, strict=True):
        assert by_epoch(seen) == plain_of[name], (name, case)


def test_two_processes_resume_exactly(tmp_path: Path) -> None:
    names = ["broken", "mixture", "pack", "padded", "persistent", "shuffled", "skipping", "window"]
    cases: list[Any] = [
        (name, {"seed": 3}, {}, stops, "on_train_batch_end", str(tmp_path)) for name in names for stops in ([2, 2], [3])
    ]
    ranks = launch(many_runs, cases)
    for (name, *case), *runs_of_ranks in zip(cases, *ranks, strict=True):
        size = 4 if name == "pack" else 8
        assert together([by_epoch(run) for run in runs_of_ranks]) == plain(name, 3, size, seed=3), (name, case)


def test_each_process_goes_on_in_its_own_stream_or_sampler(tmp_path: Path) -> None:
    names = ["own share", "shared stream", "sized stream", "distributed sampler", "random sampler"]
    ranks = launch(many_runs, [(name, {}, {}, [2, 2], "on_train_batch_end", str(tmp_path)) for name in names])
    whole = launch(many_fitted, [(name, {}) for name in names])
    for rank in (0, 1):
        for name, seen, epochs in zip(names, ranks[rank], whole[rank], strict=True):
            assert by_epoch(seen) == epochs, name


def one_stage(cases: list[Any]) -> list[Any]:
    return [one_run(*positional, **named) for *positional, named in cases]


def test_a_run_goes_on_with_other_ranks_batch_sizes_and_workers(tmp_path: Path) -> None:
    """Two ranks, one, two, one: each stage saves after some of the 48 samples of an epoch."""
    stages: list[tuple[int, dict[str, Any]]] = [
        *((2, {}), (1, {"num_workers": 2}), (2, {"num_workers": 1}), (1, {"batch_size": 6})),
    ]
    kinds: list[tuple[str, list[int]]] = [("on_train_batch_end", [3, 4, 1]), ("on_train_epoch_end", [6, 12, 6])]
    seen: list[list[Any]] = [[], []]
    for number, (num_ranks, options) in enumerate(stages):
        cases = []
        for hook, stops in kinds:
            save = {"save_to": f"{tmp_path}/{hook} {number}.ckpt", "stop_after": [*stops, 0][number], "hook": hook}
            load = {"resumed_from": f"{tmp_path}/{hook} {number - 1}.ckpt"} if number else {}
            cases.append(("even", {"seed": 3, **options}, {"max_epochs": 4}, load | (save if number < 3 else {})))
        ranks = launch(one_stage, cases, num_ranks=num_ranks)
        for kind in range(2):
            steps = zip(*(rank[kind] for rank in ranks), strict=True)
            seen[kind] += [[step[0][0], dealt(tuple(batch for _, batch in step))] for step in steps]
    for found in seen:
        assert [flat(epoch) for epoch in by_epoch(found)] == [flat(epoch) for epoch in plain("even", 4, seed=3)]
    assert [len(batch) for _, batch in seen[0]][:8] == [8, 8, 8, 4, 4, 4, 4, 8]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_checkpoints_at_the_end_of_an_epoch_that_is_cut_short_repeated_or_combined_resume_exactly(
    tmp_path: Path, num_ranks: int
) -> None:
    """Also twice in a row: what Lightning counts as the second of these epochs is not the first once more."""
    size = 6 // num_ranks
    kinds: list[tuple[str, dict[str, Any], int]] = [
        ("shuffled", {"limit_train_batches": 2}, 2),
        ("shuffled", {"limit_train_batches": 0.5}, size // 2),
        ("shuffled", {"overfit_batches": 2}, 2),
        ("shuffled", {}, size),
        ("max_size_cycle", {}, size),
        ("max_size", {}, size),
        ("min_size", {}, (3 + num_ranks - 1) // num_ranks),
    ]
    cases = [
        (name, {"seed": 3}, trainer, stops, "on_train_batch_end", str(tmp_path))
        for name, trainer, last in kinds
        for stops in ([], [last], [last, last], [last, 1], [last + 1, last - 1])
    ]
    for runs_of_rank in launch(many_runs, cases, num_ranks=num_ranks):
        whole: list[Any] = []
        for (name, _, trainer, stops, *_), seen in zip(cases, runs_of_rank, strict=True):
            whole = whole if stops else seen
            assert seen == whole, (name, trainer, stops)
            assert {epoch for epoch, _ in seen} == {0, 1, 2}, (name, trainer, stops)


def begun_epochs(folder: str) -> list[list[int]]:
    """Return the epochs whose start is announced, in a run that is stopped at the end of two of them."""
    found: list[list[int]] = []

    class Started(pl.Callback):  # type: ignore[misc]
        def on_train_epoch_start(self, trainer: Any, model: Any) -> None:
            found[-1].append(trainer.current_epoch)

    for number in range(3):
        found.append([])
        resumed_from = f"{folder}/{number - 1}.ckpt" if number else None
        save_to = f"{folder}/{number}.ckpt" if number < 2 else None
        trainer = {"callbacks": [Started()]}
        one_run("shuffled", {"seed": 3}, trainer, resumed_from=resumed_from, save_to=save_to, stop_after=6)
    return found


def test_an_epoch_that_a_resume_begins_with_is_announced_to_callbacks(tmp_path: Path) -> None:
    [found] = launch(begun_epochs, str(tmp_path), num_ranks=1)
    assert found == [[0, 1], [1, 2], [2]]  # a run that is stopped at the end of an epoch has begun the next one


def killed_run(folder: str, is_resumed: bool) -> Any:
    """Train with checkpoints after every second step, and die in the second epoch."""
    model, rank = Model(), os.environ["RANK"]
    model.log_path = Path(folder, f"{rank}.log")

    class Killer(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            if not is_resumed and len(module.seen["train"]) == 9:
                trainer.strategy.barrier()
                kill_this_process()

    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=2, save_top_k=-1, save_last=True)
    trainer = trainer_of(callbacks=[saving, Killer()], enable_checkpointing=True, limit_val_batches=0)
    trainer.fit(model, LOADERS["even"](num_workers=1), ckpt_path="last")
    return model.epochs()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_killed_run_resumes_exactly_from_its_last_checkpoint(tmp_path: Path, num_ranks: int) -> None:
    batches = 48 // 4 // num_ranks
    launch(killed_run, str(tmp_path), False, num_ranks=num_ranks, killed=True)
    logs = [
        [json.loads(line) for line in (tmp_path / f"{rank}.log").read_text().splitlines()] for rank in range(num_ranks)
    ]
    assert {len(log) for log in logs} == {9}
    rest = launch(killed_run, str(tmp_path), True, num_ranks=num_ranks)
    for log, epochs in zip(logs, rest, strict=True):
        assert sum(map(len, epochs)) == 3 * batches - 8  # the ninth is taken again
        assert [batch for _, batch in log][8] == epochs[0][0]
    seen = [
        log[:8] + [[3, batch] for epoch in epochs for batch in epoch] for log, epochs in zip(logs, rest, strict=True)
    ]
    samples = flat([dealt(shares) for shares in zip(*([batch for _, batch in run] for run in seen), strict=True)])
    epochs = [sorted(samples[start : start + 48]) for start in range(0, 144, 48)]
    assert epochs == [list(range(48))] * 3
    assert samples[:48] != samples[48:96] != samples[96:]


# ---------------------------------------------------------------- validate, test, predict


class Writer(BasePredictionWriter):  # type: ignore[misc]
    """Keeps which positions Lightning believes the predictions to be of."""

    def __init__(self) -> None:
        super().__init__(write_interval="batch_and_epoch")
        self.by_batch: list[Any] = []
        self.by_epoch: Any = None

    def write_on_batch_end(self, trainer: Any, model: Any, prediction: Any, indices: Any, *_: Any) -> None:
        self.by_batch.append([numbers(prediction), list(indices)])

    def write_on_epoch_end(self, trainer: Any, model: Any, predictions: Any, indices: Any) -> None:
        self.by_epoch = indices


def evaluated(names: list[str], is_hooked: bool) -> Any:
    """Return what each stage but training gets, and which positions are predicted."""
    found = []
    for name in names:
        options = options_of(name)
        stages: dict[str, Any] = {}
        for stage in ("validate", "test", "predict"):
            model = Hooked(name, options) if is_hooked else Model()
            writer = Writer()
            trainer = trainer_of(callbacks=[writer])
            loader = None if is_hooked else LOADERS[name](**options)
            arguments: dict[str, Any] = {"return_predictions": True} if stage == "predict" else {"verbose": False}
            getattr(trainer, stage)(model, loader, **arguments)
            stages[stage] = model.epochs(stage)
            if stage == "predict":
                stages["positions"], stages["all positions"] = writer.by_batch, writer.by_epoch
        found.append(stages)
    return found


EVALUATED = [name for name in ONE_RANK if name not in ("own share", "distributed sampler")]


@pytest.mark.parametrize("is_hooked", [False, True])
def test_every_stage_gets_the_first_epoch_of_the_plain_loop(is_hooked: bool) -> None:
    """From the first batch to the last, each once."""
    [found] = launch(evaluated, EVALUATED, is_hooked, num_ranks=1)
    assert len(found[0]["predict"][0]) == 6
    for name, stages in zip(EVALUATED, found, strict=True):
        # nothing is left out while it predicts: a prediction is wanted of each sample
        expected = plain("shuffled" if name == "dropping" else name, 1, **options_of(name))
        if name == "padded":  # predictions are of each sample once; other stages see what fills the last batch up
            assert stages["predict"] == plain("shuffled", 1, **options_of(name))
            continue
        kept = plain(name, 1, **options_of(name))
        assert (stages["validate"], stages["test"]) == (kept, kept), name
        assert stages["predict"] == expected, name
        if name in ("shuffled", "sequential", "dropping", "workers", "random sampler", "batch sampler", "window"):
            assert stages["positions"] == [[batch, batch] for batch in expected[0]], name
            assert stages["all positions"] == [expected[0]], name


def test_two_processes_evaluate_each_sample_once() -> None:
    names = ["shuffled", "sequential", "dropping", "workers", "sized stream", "random sampler", "batch sampler"]
    ranks = launch(evaluated, names, False)
    for name, *stages in zip(names, *ranks, strict=True):
        for stage in ("validate", "test", "predict"):
            samples = sorted(sum((flat(rank[stage][0]) for rank in stages), []))
            whole = list(range(LENGTH))
            if stage == "predict" or name not in ("random sampler", "batch sampler", "dropping"):
                assert samples == whole, (name, stage)  # torch's sampler repeats one of them
        if name != "sized stream":
            for rank in stages:
                assert all(batch == positions for batch, positions in rank["positions"]), name


# ---------------------------------------------------------------- the Trainer's options


def option_cases(cases: list[Any]) -> list[Any]:
    """Return what is seen in each stage with some options of the Trainer."""
    found = []
    for name, options, trainer, is_validated in cases:
        model = Model()
        evaluation = LOADERS[name](**options) if is_validated else None
        trainer_of(**trainer).fit(model, LOADERS[name](**options), evaluation)
        found.append({stage: model.epochs(stage) for stage in ("train", "validate", "sanity")})
    return found


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_options_of_the_trainer_cut_epochs_and_never_change_the_order(num_ranks: int) -> None:
    epochs = plain("even", 3, 4 * num_ranks, seed=3)
    ordered = [list(range(start, start + 4 * num_ranks)) for start in range(0, 48, 4 * num_ranks)]
    number = 12 // num_ranks
    cases: list[tuple[dict[str, Any], list[Any], list[Any], list[Any]]] = [
        ({"num_sanity_val_steps": 2}, epochs, epochs, [epochs[0][:2]]),
        ({"num_sanity_val_steps": -1}, epochs, epochs, [epochs[0]]),
        ({"num_sanity_val_steps": 0, "accumulate_grad_batches": 4}, epochs, epochs, []),
        (
            {"num_sanity_val_steps": 0, "limit_train_batches": 3, "limit_val_batches": 2},
            [epoch[:3] for epoch in epochs],
            [epoch[:2] for epoch in epochs],
            [],
        ),
        (
            {"num_sanity_val_steps": 0, "limit_train_batches": 0.5, "limit_val_batches": 0.5},
            [epoch[: number // 2] for epoch in epochs],
            [epoch[: number // 2] for epoch in epochs],
            [],
        ),
        ({"num_sanity_val_steps": 0, "val_check_interval": 0.5}, epochs, [epoch * 2 for epoch in epochs], []),
        ({"num_sanity_val_steps": 0, "val_check_interval": number // 3}, epochs, [epoch * 3 for epoch in epochs], []),
        ({"num_sanity_val_steps": 0, "check_val_every_n_epoch": 2}, epochs, [epochs[1]], []),
        ({"fast_dev_run": 2}, [epochs[0][:2]], [epochs[0][:2]], []),
        ({"num_sanity_val_steps": 0, "overfit_batches": 2}, [ordered[:2]] * 3, [ordered[:2]] * 3, []),
        (
            {"num_sanity_val_steps": 0, "overfit_batches": 0.5},
            [ordered[: number // 2]] * 3,
            [ordered[: number // 2]] * 3,
            [],
        ),
        ({"num_sanity_val_steps": 0, "reload_dataloaders_every_n_epochs": 1}, epochs, epochs, []),
        (
            {"num_sanity_val_steps": 0, "max_epochs": -1, "max_steps": number + 2},
            [epochs[0], epochs[1][:2]],
            epochs[:1],
            [],
        ),
    ]
    ranks = launch(option_cases, [("even", {"seed": 3}, trainer, True) for trainer, *_ in cases], num_ranks=num_ranks)
    for (trainer, *expected), *found in zip(cases, *ranks, strict=True):
        for stage, wanted in zip(("train", "validate", "sanity"), expected, strict=True):
            assert together([rank[stage] for rank in found]) == wanted, (trainer, stage)


# ---------------------------------------------------------------- one loader, one model, several calls


class Growing(Model):
    """Lets the Tuner find its batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size, self.lr = 2, 0.1

    def train_dataloader(self) -> Any:
        return stoker.DataLoader(Numbers(64), batch_size=self.batch_size, shuffle=True, seed=3)

    val_dataloader = train_dataloader


def tuned() -> Any:
    """Return what is trained on by the Tuner, and behind it."""
    model = Growing()
    trainer = trainer_of(max_epochs=1, num_sanity_val_steps=0, limit_val_batches=0)
    Tuner(trainer).scale_batch_size(model, steps_per_trial=2, max_trials=3)
    tried = [len(batch) for _, batch in model.seen["train"]]
    model.seen["train"].clear()
    trainer.fit(model)
    searched = Growing()
    trainer = trainer_of(max_epochs=2, num_sanity_val_steps=0)
    loader = LOADERS["shuffled"](seed=3)
    Tuner(trainer).lr_find(searched, loader, LOADERS["sequential"](), num_training=9)
    num_searched = len(searched.seen["train"])
    searched.seen["train"].clear()
    trainer.fit(searched, loader, LOADERS["sequential"]())
    return [tried, model.epochs(), num_searched, searched.epochs()]


def test_the_tuner_leaves_the_order_of_the_run_behind_it_alone() -> None:
    [[tried, sized, num_searched, searched]] = launch(tuned, num_ranks=1)
    assert tried == [2, 2, 4, 4, 8, 8]
    loader = stoker.DataLoader(Numbers(64), batch_size=8, shuffle=True, seed=3)
    assert sized == [[batch.tolist() for batch in loader]]
    assert num_searched == 9
    assert searched == plain("shuffled", 2, seed=3)


def called_again() -> Any:
    loader, model = LOADERS["shuffled"](seed=3), Model()
    trainer = trainer_of(max_epochs=2, limit_val_batches=0)
    trainer.fit(model, loader)
    found = [model.epochs(), loader.next_epoch, [batch.tolist() for batch in loader]]
    trainer.fit_loop.max_epochs = 4
    trainer.fit(model, loader)
    found.append(model.epochs())
    model = Model()
    trainer_of(max_epochs=2, limit_val_batches=0).fit(model, loader)
    return [*found, model.epochs()]


def test_one_loader_serves_several_calls_of_fit() -> None:
    epochs = plain("shuffled", 4, seed=3)
    [[first, following, looked_at, longer, another]] = launch(called_again, num_ranks=1)
    assert first == epochs[:2]
    assert (following, looked_at) == (2, epochs[2])  # the user's own loader goes on behind the Trainer
    assert longer == epochs
    assert another == epochs[:2]  # a new Trainer counts from epoch 0


def several_at_once() -> Any:
    def two() -> list[Any]:
        return [LOADERS["sequential"](), stoker.DataLoader(list(range(100, 105)), batch_size=4)]

    model = Model()
    trainer = trainer_of(max_epochs=1, num_sanity_val_steps=0)
    trainer.fit(model, LOADERS["shuffled"](seed=3), two())
    trainer.test(model, two(), verbose=False)
    trainer.predict(model, two())
    return model.seen


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_several_loaders_in_one_stage_are_each_read_once(num_ranks: int) -> None:
    ranks = launch(several_at_once, num_ranks=num_ranks)
    for stage in ("validate", "test", "predict"):
        samples: list[int] = sum((batch for rank in ranks for _, batch in rank[stage]), [])
        assert sorted(set(samples)) == [*range(LENGTH), *range(100, 105)]
        assert len(samples) == LENGTH + 5, stage


def errors_of(cases: list[Any]) -> list[Any]:
    return [fitted("shuffled", {"seed": 3, **options}, trainer) for options, trainer in cases]


def test_ranks_that_contradict_lightning_are_refused_with_the_line_to_write() -> None:
    cases: list[Any] = [
        ({"distributed": True}, {}),
        ({"mesh": {"dp": 2}}, {}),
        ({"mesh": {"tp": 2}}, {"use_distributed_sampler": False}),
        ({"mesh": {"tp": 2}}, {}),
        ({"rank": 1, "num_ranks": 4}, {}),
    ]
    ranks = launch(errors_of, cases)
    for found in zip(*(rank[:2] for rank in ranks), strict=True):
        assert together(list(found)) == plain("shuffled", 3, 8, seed=3)
    assert ranks[0][2] == ranks[1][2] == plain("shuffled", 3, seed=3)
    for found in ranks[0][3:]:
        assert "Lightning expects that of rank 0 of 2" in found
        assert "use_distributed_sampler=False to Trainer" in found
