"""ResNet-50 trained from JPEG files: how much of what the GPU can do is left when loaders have to feed it.

    python -m benchmarks image_training --photos FOLDER --save
    python -m benchmarks.image_training --photos FOLDER --rounds 3 --steps 64 --workers 16 --out FOLDER
    python -m benchmarks.image_training --device cpu --quick      # sees that all works; its numbers mean nothing

One model (bf16, compiled, channels last, batches of 256, SGD) is trained in turns by batches that lie on the device
already, by ours (decode="auto", "device" and "cpu" from the files as they are, and from a prepared store of small
ones), and by torch's DataLoader with torchvision's transforms of PIL images. Each loader lives through all rounds. A
turn begins an epoch, throws away the batches that workers make all at once then, trains some steps that do not count,
lets the clock run, and ends well before the epoch does: what was ready at its beginning is ready again at its end.
Workers that make a batch each at the same pace end at the same time, so the steps that count should be a multiple of
the workers.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.images.jobs import CROPS, SIZE, Job
from benchmarks.images.photographs import Photographs, made, photographs
from benchmarks.images.torch_loaders import Files
from benchmarks.report import INK, OUT, Column, Report, Saved, Setting, only, save, show, write
from benchmarks.turns import failure_of
from stoker.foundation.machine import tree_cpu_seconds
from stoker.lab.trial.rounds import Measurement, Series, in_turn, measurement_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESIDENT, TORCH = "resident", "torch, PIL"
AUTO, DEVICE, CPU, STORE = (
    'stoker, decode="auto"',
    'stoker, decode="device"',
    'stoker, decode="cpu"',
    "stoker, store of 256 pixels",
)
GOALS = {AUTO: 0.97, CPU: 0.70, STORE: 0.97}
"""The share of the resident rate that is wanted."""
INKS = {
    RESIDENT: "black",
    AUTO: INK["stoker"],
    DEVICE: "#dd6a50",
    CPU: "#e59a86",
    STORE: "#8e2712",
    TORCH: INK["torch"],
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NUM_RESIDENT = 4
"""Batches that lie on the device for the resident contender."""
PREFETCH_FACTOR = 2


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured, and with how much help."""

    device: str = "cuda"
    batch_size: int = 256
    num_rounds: int = 3
    num_steps: int = 64
    """In one turn."""
    num_workers: int = 16
    num_threads: int = 0
    """In each worker of ours; 0 is none beside its own."""
    limit_seconds: float = 330.0
    """No round is begun that would end later than this."""
    is_quick: bool = False

    @property
    def num_ahead(self) -> int:
        """Batches that loaders have ready."""
        return self.num_workers * PREFETCH_FACTOR

    @property
    def num_entries(self) -> int:
        """Pictures of an epoch: enough for one turn, and for workers to be as busy at its end as at its beginning."""
        return (2 * self.num_ahead + self.num_workers + self.num_steps + 2) * self.batch_size


def quick(size: Size) -> Size:
    """Return a size with which all is seen to work in a few seconds."""
    return replace(size, batch_size=32, num_rounds=2, num_steps=4, num_workers=2, is_quick=True)


@dataclass(slots=True)
class Turns:
    """What a contender did, a number for each round."""

    seconds_per_image: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    """The part of the time in which the device had no step to do."""
    trainer_cores: list[float] = field(default_factory=list)
    worker_cores: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    """Between one step's end and the next one's, as the trainer sees it."""


def run(setting: Setting) -> Report:
    size = Size(device=setting.device or "cpu")
    return measured(quick(size) if setting.is_quick else size, Path(setting.photos) if setting.photos else None)


def measured(size: Size, folder: Path | None) -> Report:
    begin = time.perf_counter()
    console = Console()
    given = photographs("photos", folder, num_entries=size.num_entries, num_packed=size.num_entries)
    trainer = Trainer(size)
    failed = {}
    for error in made(given, ["store-short"], notify=console.print).values():
        failed[STORE] = failure_of(error)
    contenders = _contenders(given, size, trainer)
    turns: dict[str, Turns] = {name: Turns() for name in contenders}
    try:
        for number in range(-1, size.num_rounds):
            if number > 0 and (time.perf_counter() - begin) * (number + 2) / (number + 1) > size.limit_seconds:
                console.print(f"[dim]{number} rounds, for more would take too long[/dim]")
                break
            for name in in_turn(list(contenders), max(0, number)):
                if name in failed:
                    continue
                try:
                    trainer.turn(contenders[name], turns[name] if number >= 0 else Turns())
                except Exception as error:
                    traceback.print_exc()
                    failed[name] = failure_of(error)
            console.print(f"[dim]round {number + 1}: {time.perf_counter() - begin:.0f} s[/dim]")
    finally:
        shares = {name: contender.share for name, contender in contenders.items()}
        for contender in contenders.values():
            contender.close()
    num_rounds = min(len(turns[name].seconds_per_image) for name in turns if name not in failed)
    records = [
        _record(name, turns[name], turns[RESIDENT], num_rounds, shares[name])
        for name in contenders
        if name not in failed
    ]
    return Report(
        name="image_training",
        title=f"{trainer.name} fed from JPEG files, batches of {size.batch_size}",
        records=records,
        shows=_shows(records, given, size, failed, trainer),
        limits=[
            "a disk: all bytes are in the page cache. The photographs are few, each under many names.",
            "several GPUs, or a model that takes longer for a picture: the rate of the device would be lower, and "
            "loaders would reach it more easily.",
            "accuracy: labels mean nothing here.",
            "idle as what a profiler says: it is the time outside of steps, from the end of one on the device to the "
            "beginning of the next. Pictures decoded on the device make steps longer instead.",
            *([] if size.device == "cuda" else ["a GPU: this ran on a CPU, with sizes that mean nothing."]),
        ],
        draw=draw,
        columns=COLUMNS,
        extra={
            "photographs": given.describe(),
            "model": trainer.name,
            "workers": size.num_workers,
            "threads": size.num_threads,
            "steps": size.num_steps,
            "failed": failed,
        },
        packages=("torch", "torchvision", "pillow", "simplejpeg", "numpy", "stoker"),
    )


# ---------------------------------------------------------------- the trainer


class Trainer:
    """A model that is trained on whatever comes."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.is_device = size.device == "cuda"
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        model, self.name = _model(size)
        placed: Any = model.to(size.device)
        placed.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=self.is_device or None)
        self.mean = torch.tensor(MEAN, device=size.device).view(1, 3, 1, 1) * 255
        self.scale = 1 / (torch.tensor(STD, device=size.device).view(1, 3, 1, 1) * 255)
        self.model = model

        def loss_of(pictures: Tensor, labels: Tensor) -> Tensor:
            with torch.autocast(size.device, torch.bfloat16, enabled=self.is_device):
                logits = model((pictures.float() - self.mean) * self.scale)
            return nn.functional.cross_entropy(logits.float(), labels)

        self.loss_of: Any = torch.compile(loss_of) if self.is_device else loss_of

    def step(self, pictures: Tensor, labels: Tensor) -> None:
        self.loss_of(pictures.contiguous(memory_format=torch.channels_last), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def turn(self, fed: Fed, turns: Turns) -> None:
        """Train some steps, and add what came of it."""
        size = self.size
        fed.begin()
        for _ in range(size.num_workers):
            self.step(*fed.drawn())
        self.synchronize()
        marks, ends = [], []
        tree, own, begin = tree_cpu_seconds(os.getpid()), time.process_time(), time.perf_counter()
        for _ in range(size.num_steps):
            pictures, labels = fed.drawn()
            first = self.mark()
            self.step(pictures, labels)
            marks.append((first, self.mark()))
            ends.append(time.perf_counter())
        self.synchronize()
        seconds = time.perf_counter() - begin
        own, tree = time.process_time() - own, tree_cpu_seconds(os.getpid()) - tree
        fed.end()
        turns.seconds_per_image.append(seconds / (size.num_steps * size.batch_size))
        turns.trainer_cores.append(own / seconds)
        turns.worker_cores.append(max(0.0, tree - own) / seconds)
        turns.idle.append(_idle(marks) if self.is_device else 0.0)
        turns.step_seconds += np.diff([begin, *ends]).tolist()

    def mark(self) -> Any:
        if not self.is_device:
            return None
        make: Any = torch.cuda.Event
        event = make(enable_timing=True)
        event.record()
        return event

    def synchronize(self) -> None:
        if self.is_device:
            torch.cuda.synchronize()


def _idle(marks: list[tuple[Any, Any]]) -> float:
    """Return the part of the time between the first step's beginning and the last one's end that is in no step."""
    busy = sum(float(first.elapsed_time(last)) for first, last in marks)
    return max(0.0, 1 - busy / float(marks[0][0].elapsed_time(marks[-1][1])))


def _model(size: Size) -> tuple[nn.Module, str]:
    if size.device == "cuda" and find_spec("torchvision") is not None:
        found: nn.Module = import_module("torchvision.models").resnet50()
        return found, "ResNet-50"
    layers = [nn.Conv2d(3, 8, 7, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1000)]
    return nn.Sequential(*layers), "a tiny model"


# ---------------------------------------------------------------- who feeds it


class Fed:
    """Batches from a loader, epoch after epoch, on the device."""

    def __init__(self, make: Callable[[], Any], size: Size, num_ahead: int) -> None:
        self._make, self._size, self._num_ahead = make, size, num_ahead
        self._loader: Any = None
        self._epoch: Iterator[Any] | None = None

    def drawn(self) -> tuple[Tensor, Tensor]:
        assert self._epoch is not None
        batch = next(self._epoch)
        device = self._size.device
        return batch[0].to(device, non_blocking=True), batch[1].to(device, non_blocking=True)

    def begin(self) -> None:
        """Begin an epoch, and let go of its first batches."""
        if self._loader is None:
            self._loader = self._make()
        self._epoch = iter(self._loader)
        for _ in range(self._num_ahead):
            self.drawn()

    def end(self) -> None:
        """Draw what is left of the epoch, so that nobody works while others are measured."""
        assert self._epoch is not None
        for _ in self._epoch if self._num_ahead else ():
            pass

    @property
    def share(self) -> float | None:
        """The part of the pictures that was left to the device, where the loader decides it."""
        split = getattr(self._loader, "split", None)
        found = getattr(split, "share", None)
        return None if found is None else float(found)

    def close(self) -> None:
        close = getattr(self._epoch, "close", None)
        if close is not None:
            close()
        self._epoch = self._loader = None


class Still(Fed):
    """The same few batches, which lie on the device."""

    def __init__(self, size: Size) -> None:
        super().__init__(lambda: self._endless(), size, 0)

    def _endless(self) -> Iterator[Any]:
        shape = (self._size.batch_size, 3, SIZE, SIZE)
        batches = [
            (
                torch.randint(0, 256, shape, dtype=torch.uint8, device=self._size.device).contiguous(
                    memory_format=torch.channels_last
                ),
                torch.randint(0, 10, shape[:1], device=self._size.device),
            )
            for _ in range(NUM_RESIDENT)
        ]
        while True:
            yield from batches


def _contenders(given: Photographs, size: Size, trainer: Trainer) -> dict[str, Fed]:
    def ours(format_name: str = "files", decode: str = "cpu") -> Fed:
        return Fed(lambda: _stoker(given, size, format_name, decode), size, size.num_ahead)

    found: dict[str, Fed] = {RESIDENT: Still(size)}
    if trainer.is_device:
        found |= {AUTO: ours(decode="auto"), DEVICE: ours(decode="device")}
    found |= {CPU: ours(), STORE: ours("store-short")}
    found[TORCH] = Fed(lambda: _torch(given, size), size, size.num_ahead)
    return found


def _stoker(given: Photographs, size: Size, format_name: str, decode: Any) -> Any:
    import stoker
    from stoker.transform import RandomHorizontalFlip, RandomResizedCrop

    pictures = stoker.images(
        given.at(format_name),
        transform=[RandomResizedCrop(SIZE), RandomHorizontalFlip()],
        decode=decode,
        layout="channels_last",
    )
    options: dict[str, Any] = {"device": "cuda"} if size.device == "cuda" else {}
    return stoker.DataLoader(
        pictures,
        batch_size=size.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=size.num_workers,
        num_threads=size.num_threads,
        prefetch_factor=PREFETCH_FACTOR,
        persistent_workers=True,
        **options,
    )


def _torch(given: Photographs, size: Size) -> Any:
    """torchvision's transforms of PIL images where it is installed, else the same written out."""
    dataset: Any
    if find_spec("torchvision") is not None:
        datasets, transforms = import_module("torchvision.datasets"), import_module("torchvision.transforms")
        change = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        dataset = datasets.ImageFolder(str(given.folder), transforms.Compose(change))
    else:
        dataset = Files(Job(CROPS, given, size.num_workers))
    return torch.utils.data.DataLoader(
        dataset,
        size.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=size.num_workers,
        prefetch_factor=PREFETCH_FACTOR,
        persistent_workers=True,
        pin_memory=size.device == "cuda",
    )


# ---------------------------------------------------------------- telling


def _record(name: str, turns: Turns, still: Turns, num_rounds: int, share: float | None) -> Measurement:
    wall = [seconds * 1e6 for seconds in turns.seconds_per_image[:num_rounds]]
    base = [seconds * 1e6 for seconds in still.seconds_per_image[:num_rounds]]
    cores = [own + workers for own, workers in zip(turns.trainer_cores, turns.worker_cores)]
    series = Series(wall, [seconds * many for seconds, many in zip(wall, cores)])
    shares = [theirs / ours for ours, theirs in zip(wall, base)]
    more: dict[str, Any] = {
        "images_per_second": 1e6 / median(wall),
        "of_resident": median(shares),
        "lowest": min(shares),
        "highest": max(shares),
        "idle": median(turns.idle),
        "trainer_cores": median(turns.trainer_cores),
        "worker_cores": median(turns.worker_cores),
        "p50_seconds": float(np.quantile(turns.step_seconds, 0.5)),
        "p99_seconds": float(np.quantile(turns.step_seconds, 0.99)),
        "rounds": wall,
    }
    if share is not None:
        more["share_of_device"] = share
    return measurement_of(name, series, base, {}, "image", more)


def _format(key: str, form: str, scale: float = 1.0) -> Callable[[Measurement], str]:
    def cell(record: Measurement) -> str:
        return f"{record.more[key] * scale:{form}}" if key in record.more else ""

    return cell


COLUMNS = (
    Column("images/s", _format("images_per_second", ",.0f")),
    Column("of resident", _format("of_resident", ".3f")),
    Column("GPU idle", _format("idle", ".1%")),
    Column("trainer, cores", _format("trainer_cores", ".2f")),
    Column("workers, cores", _format("worker_cores", ".1f")),
    Column("step p50, ms", _format("p50_seconds", ".1f", 1e3)),
    Column("p99, ms", _format("p99_seconds", ".1f", 1e3)),
    Column("left to the GPU", _format("share_of_device", ".0%")),
)


def _shows(
    records: list[Measurement], given: Photographs, size: Size, failed: dict[str, str], trainer: Trainer
) -> list[str]:
    [still] = only(records, RESIDENT)
    sentences = [
        f"{trainer.name} trains {still.more['images_per_second']:,.0f} images/s from batches that lie on the device, "
        f"fed from {given.describe()}; {size.num_workers} workers"
        + (f" of {size.num_threads} threads." if size.num_threads else ".")
    ]
    for record in records:
        if record is still:
            continue
        share = record.more["of_resident"]
        goal = GOALS.get(record.contender) if trainer.is_device else None
        verdict = f" The goal of {goal} is {'reached' if share >= goal else 'not reached'}." if goal else ""
        sentences.append(
            f"{record.contender}: {record.more['images_per_second']:,.0f} images/s, {share:.3f} of resident; the GPU "
            f"is idle {record.more['idle']:.1%} of the time, the trainer uses {record.more['trainer_cores']:.2f} cores "
            f"and its workers {record.more['worker_cores']:.1f}.{verdict}"
        )
    sentences += [f"Failed: {name}: {reason}." for name, reason in failed.items()]
    return sentences


def draw(records: list[Measurement], saved: Saved) -> Figure:
    model = saved.get("model", "ResNet-50")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.6), layout="constrained", width_ratios=(1.4, 1))
    names = [record.contender for record in records]
    for place, record in enumerate(records):
        share, low, high = (record.more[key] for key in ("of_resident", "lowest", "highest"))
        left.barh(
            place,
            share,
            color=INKS[record.contender],
            xerr=[[max(0.0, share - low)], [max(0.0, high - share)]],
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#555555"},
        )
        left.annotate(
            f"{record.more['images_per_second']:,.0f}/s, {share:.2f}",
            (0, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color="white",
        )
        goal = GOALS.get(record.contender)
        if goal:
            left.plot([goal, goal], [place - 0.42, place + 0.42], color="black", linestyle=":", linewidth=1.4)
        right.barh(place, record.more["trainer_cores"], color=INKS[record.contender])
        right.barh(
            place,
            record.more["worker_cores"],
            left=record.more["trainer_cores"],
            color=INKS[record.contender],
            alpha=0.45,
        )
        cores = record.more["trainer_cores"] + record.more["worker_cores"]
        right.annotate(
            f"{record.more['trainer_cores']:.2f} + {record.more['worker_cores']:.1f} cores, "
            f"GPU idle {record.more['idle']:.1%}",
            (cores, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
        )
    left.axvline(1.0, color="black", linestyle="--", linewidth=1)
    left.set_xlabel("share of the resident rate (median of rounds, and their range; dotted: the goal)")
    left.set_title(f"{model} trained from JPEG files", fontsize=10)
    right.set_xlabel("cores in use: trainer, and (lighter) its workers")
    right.set_title("What feeding costs", fontsize=10)
    right.set_xlim(0, 1.8 * max(record.more["trainer_cores"] + record.more["worker_cores"] for record in records))
    left.set_yticks(range(len(names)), names, fontsize=8)
    right.set_yticks(range(len(names)), [""] * len(names))
    for axis in (left, right):
        axis.invert_yaxis()
        axis.grid(alpha=0.3, axis="x")
        axis.set_axisbelow(True)
    return figure


def main() -> None:
    usual = Size()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.image_training", description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=Path, help="a folder of photographs (default: made up)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=usual.num_rounds)
    parser.add_argument("--steps", type=int, default=usual.num_steps)
    parser.add_argument("--workers", type=int, default=usual.num_workers)
    parser.add_argument("--threads", type=int, default=usual.num_threads, help="in each worker of ours")
    parser.add_argument("--limit", type=float, default=usual.limit_seconds, help="seconds after which no round begins")
    parser.add_argument("--quick", action="store_true", help="see that all works")
    parser.add_argument("--out", type=Path, default=OUT, help="where record and plot go")
    parser.add_argument("--save", action="store_true", help="keep them in benchmarks/results too")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here; --device cpu --quick sees whether all works")
    size = Size(
        device=chosen.device,
        num_rounds=chosen.rounds,
        num_steps=chosen.steps,
        num_workers=chosen.workers,
        num_threads=chosen.threads,
        limit_seconds=chosen.limit,
    )
    load = os.getloadavg()[0]
    report = measured(quick(size) if chosen.quick else size, chosen.photos)
    report.load.extend((round(load, 2), round(os.getloadavg()[0], 2)))
    show(report, Console(width=160))
    write(report, chosen.out)
    if chosen.save:
        save(report)


if __name__ == "__main__":
    main()
