"""Ours: the loader of this project, as its guide has it."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from benchmarks.images.jobs import BATCH_SIZE, CROPS, PREFETCH_FACTOR, SIZE, Contender, Job


def transforms(job: Job) -> list[Any]:
    from stoker import transform as t

    names: Any = t
    return (
        [names.RandomResizedCrop(SIZE), names.RandomHorizontalFlip()]
        if job.is_cropped
        else [names.Resize((SIZE, SIZE))]
    )


def _stoker(format_name: str = "files", *, is_exact: bool = False, has_threads: bool = False) -> Callable[[Job], Any]:
    def make(job: Job) -> Any:
        import stoker

        offered: Any = stoker
        pictures = offered.images(job.photographs.at(format_name), transform=transforms(job), exact=is_exact)
        workers = (
            {"num_workers": 1, "num_threads": job.num_workers} if has_threads else {"num_workers": job.num_workers}
        )
        return offered.DataLoader(
            pictures,
            batch_size=BATCH_SIZE,
            shuffle=job.is_shuffled,
            drop_last=True,
            prefetch_factor=PREFETCH_FACTOR * (job.num_workers if has_threads else 1),
            persistent_workers=True,
            **workers,
        )

    return make


OURS, OURS_THREADS, OURS_EXACT = "stoker", "stoker, 1 worker with threads", "stoker, exact"
OURS_WHEELS, OURS_SMALL = "stoker, wheels alone", "stoker, shrunken store"
WHEELS_ALONE = (("STOKER_NATIVE_JPEG", "0"),)
_pair = itemgetter(0, 1)

CONTENDERS = {
    OURS: Contender(_stoker(), _pair, ("stoker", "PIL.Image"), is_ours=True),
    OURS_THREADS: Contender(_stoker(has_threads=True), _pair, ("stoker", "PIL.Image"), is_ours=True),
    OURS_WHEELS: Contender(_stoker(), _pair, ("stoker", "simplejpeg"), switches=WHEELS_ALONE, is_ours=True),
    OURS_EXACT: Contender(_stoker(is_exact=True), _pair, ("stoker", "PIL.Image"), is_ours=True),
    OURS_SMALL: Contender(
        _stoker("store-small"), _pair, ("stoker",), "store-small", jobs=(CROPS,), is_ours=True, is_shrunk=True
    ),
}
