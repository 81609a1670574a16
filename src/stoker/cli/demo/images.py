"""The pictures of the demo as `stoker.images`: a batch to look at, and what holds of it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from stoker import view
from stoker.cli.demo.checks import Claim
from stoker.cli.demo.data import CLASSES
from stoker.compose.images import Images, images
from stoker.loader import DataLoader
from stoker.transform import RandomHorizontalFlip, RandomResizedCrop

NUM_STEPS = 6


def image_claims(paths: list[Path], *, out: Path) -> list[Claim]:
    """Return what crops of the pictures show, one of which is cut short for it; leave a sheet of them to look at."""
    broken = out / "broken.jpg"
    broken.write_bytes(paths[1].read_bytes()[:-2000])
    numbers = [number % len(CLASSES) for number in range(len(paths))]
    dataset = _crops([*paths[:1], broken, *paths[2:]], numbers)
    view.batch(_loader(_crops(paths, numbers))).save(out / "sheet.png")
    (inline, _), (workers, skipped) = (_served(dataset, num_workers) for num_workers in (0, 2))
    return [
        Claim(
            "crops are the same in workers",
            f"{NUM_STEPS} batches, bit for bit; of each file only its crop is decoded",
            all(bool((ours[0] == theirs[0]).all()) for ours, theirs in zip(inline, workers, strict=True)),
        ),
        Claim(
            "a file cut short is named",
            f"skipped and replaced: {', '.join(skipped)}" if skipped else "nobody has noticed",
            skipped == [broken.name],
        ),
    ]


def _crops(paths: list[Path], numbers: list[int]) -> Images:
    transform = [RandomResizedCrop(112, scale=(0.3, 1.0)), RandomHorizontalFlip()]
    return images(paths, labels=numbers, classes=list(CLASSES), transform=transform)


def _loader(dataset: Images, num_workers: int = 0) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=24, seed=1, num_workers=num_workers, on_error="skip")


def _served(dataset: Images, num_workers: int) -> tuple[list[list[Tensor]], list[str]]:
    """Return the first batches, and the names of the files that were bad."""
    loader = _loader(dataset, num_workers)
    batches = [[part.clone() for part in batch] for batch in islice(loader, NUM_STEPS)]
    return batches, sorted({Path(entry.where or "").name for entry in loader.ledger})
