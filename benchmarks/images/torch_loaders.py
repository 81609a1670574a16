"""Torch's loader around decoders that people use, and what the other loaders take from there."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Sequence
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.images.jobs import BATCH_SIZE, PREFETCH_FACTOR, SIZE, Contender, Job

AREA, LOG_RATIO = (0.08, 1.0), (math.log(3 / 4), math.log(4 / 3))


def crop_of(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a crop, drawn as torchvision's RandomResizedCrop draws it."""
    for _ in range(10):
        area = width * height * random.uniform(*AREA)
        ratio = math.exp(random.uniform(*LOG_RATIO))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (width - w) // 2, (height - h) // 2, w, h


def by_pil(data: Any, is_cropped: bool) -> Any:
    """Return the picture as torchvision's transforms of PIL images make it, as an array [height, width, 3]."""
    from PIL import Image

    image: Any = Image.open(data).convert("RGB")
    if is_cropped:
        left, top, width, height = crop_of(*image.size)
        image = image.crop((left, top, left + width, top + height))
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    if is_cropped and random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(image)


def by_simplejpeg(data: bytes, is_cropped: bool) -> Any:
    """Return the picture decoded by libjpeg-turbo and resized by torch, antialiased, as a tensor [3, height, width]."""
    simplejpeg = import_module("simplejpeg")
    pixels = torch.from_numpy(simplejpeg.decode_jpeg(data, "RGB")).permute(2, 0, 1)
    if is_cropped:
        left, top, width, height = crop_of(pixels.shape[2], pixels.shape[1])
        pixels = pixels[:, top : top + height, left : left + width]
    small = torch.nn.functional.interpolate(pixels[None], (SIZE, SIZE), mode="bilinear", antialias=True)[0]
    return small.flip(-1) if is_cropped and random.random() < 0.5 else small


class Files:
    """Photographs by path, decoded by PIL."""

    def __init__(self, job: Job) -> None:
        self.paths, self.labels = job.photographs.entries()
        self.is_cropped = job.is_cropped

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: int) -> tuple[Any, int]:
        pixels = by_pil(self.paths[position], self.is_cropped)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), self.labels[position]


class QuickFiles(Files):
    """Photographs by path, decoded by simplejpeg."""

    def __getitem__(self, position: int) -> tuple[Any, int]:
        data = Path(self.paths[position]).read_bytes()
        return by_simplejpeg(data, self.is_cropped), self.labels[position]


class Order:
    """The positions of each batch; another order in each epoch."""

    def __init__(self, job: Job, num_samples: int) -> None:
        self.is_shuffled, self.num_samples = job.is_shuffled, num_samples

    def __iter__(self) -> Any:
        order = np.random.default_rng().permutation(self.num_samples) if self.is_shuffled else range(self.num_samples)
        for first in range(0, self.num_samples - BATCH_SIZE + 1, BATCH_SIZE):
            yield [int(position) for position in order[first : first + BATCH_SIZE]]


class Stacked:
    """Whole batches of photographs, for loaders that give each thread a batch to make."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def __call__(self, positions: Sequence[int]) -> tuple[Any, Any]:
        pictures, labels = zip(*(self.files[position] for position in positions))
        return torch.stack(pictures), torch.tensor(labels)


def options(job: Job) -> dict[str, Any]:
    """Return what all loaders with torch's arguments get for their workers."""
    return {"num_workers": job.num_workers, "prefetch_factor": PREFETCH_FACTOR, "persistent_workers": True}


def _of(files: Callable[[Job], Any]) -> Callable[[Job], Any]:
    def make(job: Job) -> Any:
        dataset = files(job)
        return torch.utils.data.DataLoader(dataset, BATCH_SIZE, shuffle=job.is_shuffled, drop_last=True, **options(job))

    return make


class Decoded:
    """A sample of a tar shard, decoded."""

    def __init__(self, is_cropped: bool, is_quick: bool) -> None:
        self.is_cropped, self.is_quick = is_cropped, is_quick

    def __call__(self, sample: dict[str, bytes]) -> tuple[Any, int]:
        if self.is_quick:
            return by_simplejpeg(sample["jpg"], self.is_cropped), int(sample["cls"])
        pixels = by_pil(io.BytesIO(sample["jpg"]), self.is_cropped)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), int(sample["cls"])


def _web(is_quick: bool) -> Callable[[Job], Any]:
    def make(job: Job) -> Any:
        """Shards are split among workers; shuffled in a buffer of 500, which a peer of files need not have."""
        wds = import_module("webdataset")
        shards = sorted(str(path) for path in job.photographs.at("tar").iterdir())
        dataset = wds.WebDataset(shards, shardshuffle=len(shards) if job.is_shuffled else False, empty_check=False)
        if job.is_shuffled:
            dataset = dataset.repeat().shuffle(500)
        dataset = dataset.map(Decoded(job.is_cropped, is_quick)).batched(BATCH_SIZE, partial=not job.is_shuffled)
        return torch.utils.data.DataLoader(dataset, batch_size=None, **options(job))

    return make


_pair = itemgetter(0, 1)
TORCH_PIL, TORCH_QUICK = "torch, PIL", "torch, simplejpeg"
WEB_PIL, WEB_QUICK = "WebDataset, PIL", "WebDataset, simplejpeg"

CONTENDERS = {
    TORCH_PIL: Contender(_of(Files), _pair, ("PIL.Image",)),
    TORCH_QUICK: Contender(_of(QuickFiles), _pair, ("simplejpeg",)),
    WEB_PIL: Contender(_web(False), _pair, ("webdataset", "PIL.Image"), "tar", is_endless=True),
    WEB_QUICK: Contender(_web(True), _pair, ("webdataset", "simplejpeg"), "tar", is_endless=True),
}
