"""Faces: the classic exercise. A folder of faces becomes batches; look at one, and time the loader over its workers.

    python faces.py --data lfw -visualize_batch
    python faces.py --data lfw -get_timing -num_workers 2 -batches_to_check 20
    python faces.py --data lfw -get_timing              # sweeps the workers and draws the plot

`lfw` is Labeled Faces in the Wild, or any other folder that has a folder for each person. Without --data, faces are
drawn at random into a temporary folder. Each measurement is made twice: with a dataset of one's own and torch's loader,
and with `stoker.images`.
"""

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import stoker
from stoker import DataLoader

SIDE = 224
NUM_RUNS = 5

# ---------------------------------------------------------------- the exercise, by hand


class Faces(Dataset[tuple[Tensor, int]]):
    """The faces below a folder: `folder/Ada_Lovelace/Ada_Lovelace_0001.jpg` is one of Ada Lovelace."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*/*.jpg"))
        self.classes = sorted({path.parent.name for path in self.paths})
        self.numbers = {name: number for number, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        path = self.paths[position]
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        return torch.from_numpy(pixels).permute(2, 0, 1), self.numbers[path.parent.name]


def by_hand(folder: Path, batch_size: int, num_workers: int) -> Any:
    """Return torch's loader of these faces."""
    return TorchDataLoader(
        Faces(folder), batch_size, shuffle=True, drop_last=True, num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )  # fmt: skip


# ---------------------------------------------------------------- the same with stoker


def by_stoker(folder: Path, batch_size: int, num_workers: int) -> Any:
    """Return our loader of our faces: the folder is the dataset, and a batch is written where it belongs."""
    faces = stoker.images(folder, transform=stoker.transform.Resize((SIDE, SIDE)))
    return DataLoader(
        faces, batch_size, shuffle=True, seed=1, drop_last=True, num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )  # fmt: skip


# ---------------------------------------------------------------- look at it, and time it


def visualize_batch(loader: Any, path: Path) -> None:
    """Save a contact sheet of the loader's next batch, with names and positions."""
    stoker.view.batch(loader, title=f"{len(loader.dataset)} faces of {len(loader.dataset.classes)} people").save(path)
    print(f"a batch: {path}")


Timing = tuple[float, float]
"""Mean and standard deviation over the runs, in milliseconds per batch."""


def timed(loader: Any, num_batches: int) -> float:
    """Return the milliseconds that a batch of a new loader takes, the start of its workers shared among them."""
    begin = time.perf_counter()
    batches = endless(loader)
    for _batch in itertools.islice(batches, num_batches):
        pass
    milliseconds = 1000 * (time.perf_counter() - begin) / num_batches
    batches.close()
    return milliseconds


def endless(loader: Any) -> Generator[Any, None, None]:
    """Yield batches, epoch after epoch."""
    while True:
        yield from loader


WAYS = {"torch DataLoader + PIL": by_hand, "stoker.images": by_stoker}


def measured(folder: Path, batch_size: int, workers: list[int], num_batches: int) -> dict[str, list[Timing]]:
    """Return, and print, the timings of each way for each number of workers."""
    found: dict[str, list[Timing]] = {name: [] for name in WAYS}
    for num_workers in workers:
        times: dict[str, list[float]] = {name: [] for name in WAYS}
        for _ in range(NUM_RUNS):
            for name, way in WAYS.items():  # in turns: whatever else this machine does disturbs both alike
                times[name].append(timed(way(folder, batch_size, num_workers), num_batches))
        for name, runs in times.items():
            mean, deviation = float(np.mean(runs)), float(np.std(runs))
            found[name].append((mean, deviation))
            print(
                f"{num_workers} workers, {name:22}  {mean:7.1f} ms per batch, standard deviation {deviation:5.1f} ms, "
                f"{1000 * batch_size / mean:6,.0f} faces/s",
                flush=True,
            )
    return found


def draw(path: Path, workers: list[int], found: dict[str, list[Timing]], *, batch_size: int, num_batches: int) -> None:
    """Save the plot: mean and standard deviation of the runs over the number of workers."""
    from matplotlib.figure import Figure

    ink, faint = "#22262b", "#6b737c"
    figure = Figure(figsize=(8, 4.8), dpi=150, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    for number, ((name, timings), color, mark) in enumerate(zip(found.items(), ("#e8833a", "#2a9d6f"), "os")):
        means, deviations = zip(*timings)
        x = np.array(workers) + (number - 0.5) * 0.06  # side by side, so that no bar hides another
        axes.errorbar(
            x, means, deviations, color=color, marker=mark, markersize=7, linewidth=2.2, capsize=5, capthick=1.6,
            elinewidth=1.6, label=name,
        )  # fmt: skip
        for at, mean, deviation in zip(x, means, deviations):
            side = (8, 8) if number == 0 else (8, -16)
            top = mean + deviation if number == 0 else mean - deviation
            axes.annotate(f"{mean:.0f}", (at, top), xytext=side, textcoords="offset points", color=color, fontsize=10)
    axes.set_title(f"Time to load a batch of {batch_size} faces", loc="left", fontsize=14, color=ink, pad=22)
    axes.text(
        0, 1.025, f"mean and standard deviation of {NUM_RUNS} runs of {num_batches} batches, start of workers included",
        transform=axes.transAxes, fontsize=10, color=faint,
    )  # fmt: skip
    axes.set_xlabel("worker processes", color=ink, fontsize=11)
    axes.set_ylabel("milliseconds per batch", color=ink, fontsize=11)
    axes.set_xticks(workers)
    axes.set_xlim(workers[0] - 0.3, workers[-1] + 0.4)
    axes.set_ylim(0, 1.15 * max(mean + deviation for timings in found.values() for mean, deviation in timings))
    axes.grid(axis="y", color="#e6e8ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b9c0c7")
    axes.tick_params(colors=faint)
    axes.legend(frameon=False, fontsize=11, labelcolor=ink, loc="upper right")
    figure.savefig(path)
    print(f"the plot: {path}")


# ---------------------------------------------------------------- generated faces

SKINS = ("#f6d7bf", "#edb98a", "#d99f73", "#b5754b", "#8d5524", "#5c3a21")
HAIRS = ("#2b1b12", "#4a2f1d", "#8a5a2b", "#c99a4b", "#6b6b6b", "#a33b20", "#111111")
EYES = ("#5b3a1e", "#3c6e8f", "#4d7a4a", "#333333")
FIRST = ("Ada", "Boris", "Chen", "Dalia", "Emre", "Fatou", "Goran", "Hana", "Iris", "Jonas", "Kiri", "Luz")
LAST = ("Keel", "Boiler", "Anchor", "Lantern", "Rudder", "Mast", "Harbour", "Tender", "Compass", "Capstan")


def write(folder: Path, num_people: int, *, most: int = 5, seed: int = 1) -> Path:
    """Write images of people who do not exist, up to `most` of each, in the layout of LFW."""
    rng = np.random.default_rng(seed)
    for number in range(num_people):
        name = f"{FIRST[number % len(FIRST)]}_{LAST[number // len(FIRST) % len(LAST)]}"
        person = folder / name
        person.mkdir(parents=True, exist_ok=True)
        looks = {kind: str(rng.choice(choice)) for kind, choice in (("skin", SKINS), ("hair", HAIRS), ("eyes", EYES))}
        shape = rng.uniform((0.86, 0.9, 0.0), (1.1, 1.12, 1.0))
        for count in range(1, int(rng.integers(1, most + 1)) + 1):
            face(looks, shape, rng).save(person / f"{name}_{count:04}.jpg", quality=90)
    return folder


def face(looks: dict[str, str], shape: NDArray[np.float64], rng: np.random.Generator) -> Image.Image:
    """Return a face, 250 x 250: drawn at twice the size, turned a little, and lit from one side."""
    side = 500
    low, high = rng.integers(20, 130, 3), rng.integers(110, 240, 3)
    way = np.linspace(0, 1, side)[:, None, None] * rng.uniform(0.3, 1) + np.linspace(0, 0.5, side)[None, :, None]
    image = Image.fromarray((low + (high - low) * way.clip(0, 1)).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(2, 7))):  # something behind
        x, y, radius = rng.uniform(0, side, 3) * (1, 1, 0.25)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=tuple(rng.integers(30, 230, 3).tolist()))
    image = image.filter(ImageFilter.GaussianBlur(9))
    layer = Image.new("RGBA", (side, side))
    draw = ImageDraw.Draw(layer)
    wide, high_, long_hair = 105 * shape[0], 138 * shape[1], shape[2] > 0.55
    x, y = 250, 255
    skin, hair = looks["skin"], looks["hair"]
    shirt = "#{:02x}{:02x}{:02x}".format(*rng.integers(20, 220, 3))
    draw.ellipse(
        (x - 1.2 * wide, y - 1.25 * high_, x + 1.2 * wide, y + (1.1 if long_hair else 0.25) * high_), fill=hair
    )
    draw.rounded_rectangle((x - 48, y + 70, x + 48, y + 225), 30, fill=shade(skin, 0.86))
    draw.ellipse((x - 215, y + 175, x + 215, y + 480), fill=shirt)
    for left in (-1, 1):
        draw.ellipse((x + left * wide - 18, y - 25, x + left * wide + 18, y + 35), fill=shade(skin, 0.9))
    draw.ellipse((x - wide, y - high_, x + wide, y + high_), fill=skin)
    draw.chord((x - wide, y - high_ - 4, x + wide, y + 0.5 * high_), 196, 344, fill=hair)
    look, smile = rng.uniform(-5, 5), rng.uniform(0.1, 1)
    for left in (-1, 1):
        eye = x + left * 0.42 * wide
        draw.ellipse((eye - 20, y - 32, eye + 20, y - 10), fill="#fbfbf8")
        draw.ellipse((eye + look - 10, y - 32, eye + look + 10, y - 11), fill=looks["eyes"])
        draw.ellipse((eye + look - 5, y - 27, eye + look + 5, y - 16), fill="#111111")
        draw.arc((eye - 26, y - 60, eye + 26, y - 26), 205, 335, fill=shade(hair, 0.8), width=7)
    draw.polygon(((x, y - 10), (x - 15, y + 38), (x + 15, y + 38)), fill=shade(skin, 0.88))
    draw.chord((x - 42, y + 62 - 22 * smile, x + 42, y + 74 + 18 * smile), 10, 170, fill="#a9433f")
    layer = layer.rotate(
        float(rng.uniform(-12, 12)), Image.Resampling.BILINEAR, translate=tuple(rng.integers(-22, 23, 2))
    )
    image.paste(layer, (0, 0), layer)
    pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(2)).resize((250, 250)), np.float64)
    light = np.linspace(rng.uniform(0.75, 1.2), rng.uniform(0.75, 1.2), 250)[None, :, None]
    return Image.fromarray((pixels * light + rng.normal(0, 4, pixels.shape)).clip(0, 255).astype(np.uint8))


def shade(color: str, by: float) -> str:
    """Return a darker color."""
    return "#" + "".join(f"{int(int(color[at : at + 2], 16) * by):02x}" for at in (1, 3, 5))


# ---------------------------------------------------------------- from the command line


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads a number that must not be smaller."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def main(folder: Path, chosen: argparse.Namespace) -> None:
    # every batch is full, or its time would not be that of a batch
    chosen.batch_size = min(chosen.batch_size, len(Faces(folder)))
    if not chosen.visualize_batch and not chosen.get_timing:
        ours, theirs = by_stoker(folder, chosen.batch_size, 0), by_hand(folder, chosen.batch_size, 0)
        print(f"{len(ours.dataset)} faces of {len(ours.dataset.classes)} people")
        pixels, labels = next(iter(ours))
        print(f"a batch of stoker.images: {tuple(pixels.shape)} {pixels.dtype}, labels {labels[:6].tolist()}...")
        assert pixels.shape == next(iter(theirs))[0].shape
        print("now try -visualize_batch, or -get_timing with or without -num_workers K; -h lists all options")
    if chosen.visualize_batch:
        visualize_batch(by_stoker(folder, chosen.batch_size, 0), chosen.out / "faces_batch.png")
    if chosen.get_timing and chosen.num_workers is not None:
        measured(folder, chosen.batch_size, [chosen.num_workers], chosen.batches_to_check)
    elif chosen.get_timing:
        workers = list(range(1 + min(4, len(os.sched_getaffinity(0)))))  # torch warns of more than there are cores
        found = measured(folder, chosen.batch_size, workers, chosen.batches_to_check)
        path = chosen.out / "faces_timing.png"
        draw(path, workers, found, batch_size=chosen.batch_size, num_batches=chosen.batches_to_check)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-visualize_batch", action="store_true", help="save a contact sheet of a batch")
    parser.add_argument("-get_timing", action="store_true", help=f"time a batch: mean and deviation of {NUM_RUNS} runs")
    parser.add_argument(
        "-num_workers", type=at_least(0), metavar="K", help="for the timing; without it, sweep them and plot"
    )
    parser.add_argument("-batches_to_check", type=at_least(1), default=10, metavar="N", help="batches in each run (10)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="LFW, or any folder with a folder for each person")
    parser.add_argument("--batch_size", type=at_least(1), default=32)
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="folder for plots (default: here)")
    chosen = parser.parse_args()
    if chosen.data is not None and not any(chosen.data.glob("*/*.jpg")):
        parser.error(f"there are no faces in {chosen.data}: it should hold a folder of .jpg files for each person")
    try:
        chosen.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"{chosen.out} cannot be a folder: {error.strerror}")
    if chosen.data is not None:
        main(chosen.data, chosen)
    else:
        with tempfile.TemporaryDirectory() as name:
            main(write(Path(name), 24), chosen)
