"""Load the images of the demo with `stoker.images`: draw a batch, and check claims."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from examples.demo.checks import Claim
from examples.demo.data import CLASSES
from stoker import view
from stoker.compose.images import Images, images
from stoker.loader import DataLoader
from stoker.transform import RandomHorizontalFlip, RandomResizedCrop

NUM_STEPS = 6


def image_claims(paths: list[Path], *, out: Path) -> list[Claim]:
    """Return the claims about image crops, after truncating one file; save a contact sheet."""
    broken = out / "broken.jpg"
    broken.write_bytes(paths[1].read_bytes()[:-2000])
    numbers = [number % len(CLASSES) for number in range(len(paths))]
    dataset = _crops([*paths[:1], broken, *paths[2:]], numbers)
    view.batch(_loader(_crops(paths, numbers))).save(out / "sheet.png")
    (inline, _), (workers, skipped) = (_load(dataset, num_workers) for num_workers in (0, 2))
    return [
        Claim(
            "workers produce the same crops",
            f"{NUM_STEPS} batches, bit-identical; only the crop of each file is decoded",
            all(bool((ours[0] == theirs[0]).all()) for ours, theirs in zip(inline, workers, strict=True)),
        ),
        Claim(
            "a truncated file is reported",
            f"skipped and replaced: {', '.join(skipped)}" if skipped else "not detected",
            skipped == [broken.name],
        ),
    ]


def _crops(paths: list[Path], numbers: list[int]) -> Images:
    transform = [RandomResizedCrop(112, scale=(0.3, 1.0)), RandomHorizontalFlip()]
    return images(paths, labels=numbers, classes=list(CLASSES), transform=transform)


def _loader(dataset: Images, num_workers: int = 0) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=24, seed=1, num_workers=num_workers, on_error="skip")


def _load(dataset: Images, num_workers: int) -> tuple[list[list[Tensor]], list[str]]:
    """Return the first batches, and the names of the bad files."""
    loader = _loader(dataset, num_workers)
    batches = [[part.clone() for part in batch] for batch in islice(loader, NUM_STEPS)]
    return batches, sorted({Path(entry.where or "").name for entry in loader.ledger})
