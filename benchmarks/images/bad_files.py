"""What becomes of a file that ends in the middle, among others that are whole."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np

from benchmarks.images.contenders import CONTENDERS, imported
from benchmarks.images.jobs import BATCH_SIZE, Job
from benchmarks.images.photographs import BAD_NAME, made, with_bad_file
from benchmarks.turns import run_alone
from stoker.lab.trial.child import ChildSlow, describe_failure

NUM_ENTRIES = 2 * BATCH_SIZE
LIMIT_SECONDS = 45
SKIPPED = "stoker, on_error='skip'"


def outcomes(names: list[str], job: Job) -> dict[str, str]:
    """Return in a few words what each contender does with the bad file."""
    bad = job.over(with_bad_file(job.photographs, NUM_ENTRIES))
    formats = sorted({CONTENDERS[name].format_name for name in names} - {"files"})
    unmade = made(bad.photographs, formats, notify=lambda _: None, limit_seconds=LIMIT_SECONDS)
    found = {}
    for name in names:
        error = unmade.get(CONTENDERS[name].format_name)
        if error is not None:
            found[name] = f"its copy cannot be made: {_fate(error)}"
            continue
        found[name] = _asked(partial(met, name, bad))
        if name == "stoker":
            found[SKIPPED] = _asked(partial(skipped, bad))
    return found


def _asked(ask: Any) -> str:
    try:
        return str(run_alone(ask, limit_seconds=LIMIT_SECONDS))
    except Exception as error:
        return _fate(error)


def _fate(error: Exception) -> str:
    if isinstance(error, ChildSlow):
        return f"hangs (for {LIMIT_SECONDS} s, then ended)"
    return (
        "raises, and names the file"
        if BAD_NAME in f"{error}\n{describe_failure(error)}"
        else "raises, without the name of the file"
    )


def met(name: str, job: Job) -> str:
    """Go through one epoch, and tell what became of the picture with label 1."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    contender = imported(name)
    num_images, shown = 0, []
    for batch in contender.make(job):
        pictures, labels = (np.asarray(part) for part in contender.split(batch))
        num_images += len(pictures)
        shown += list(pictures[labels.reshape(-1) == 1])
        if num_images >= NUM_ENTRIES:
            break
    if not shown:
        what = "it" if num_images > NUM_ENTRIES - BATCH_SIZE else "its batch"
        return f"drops {what}, and goes on ({num_images} of {NUM_ENTRIES} pictures)"
    return "hands out a half-grey picture" if _is_blank_below(shown[0]) else "hands out something else"


def _is_blank_below(picture: Any) -> bool:
    pixels = picture if picture.shape[-1] == 3 else picture.transpose(1, 2, 0)
    return bool(pixels[-20:].astype(float).std(axis=(0, 1)).max() < 3)


def skipped(job: Job) -> str:
    """Go through one epoch with the file left out, and tell whether batches are full and the file is named."""
    import stoker
    from benchmarks.images.own import transforms

    offered: Any = stoker
    pictures = offered.images(job.photographs.folder, transform=transforms(job))
    loader = offered.DataLoader(
        pictures, batch_size=BATCH_SIZE, drop_last=True, num_workers=job.num_workers, on_error="skip"
    )
    num_images = sum(len(batch[0]) for batch in loader)
    summary = " ".join(map(str, loader.ledger))
    named = "the ledger names the file" if BAD_NAME in summary else "the ledger does not name the file"
    return f"{num_images} of {NUM_ENTRIES} pictures, {named}"
