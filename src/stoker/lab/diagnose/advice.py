"""Suggest changes that several verdicts have in common."""

from __future__ import annotations

from typing import Any

from stoker.lab.diagnose.loader_profile import LoaderProfile, setting

MANY_OBJECTS = 500_000
IMPORT = "`from stoker import DataLoader`"
OWN_THREADS = (
    "`torch.set_num_threads(1)` in code that uses torch, and `OMP_NUM_THREADS=1` for other libraries: threads without "
    "a core hold each other up"
)


def loader_call(**arguments: Any) -> str:
    """Return a loader's call with these arguments, as code."""
    return f"`DataLoader(..., {', '.join(f'{name}={value!r}' for name, value in arguments.items())})`"


def most_sampled_place(loader: LoaderProfile) -> str | None:
    """Return the line at which the workers were sampled most often, if that is a fifth of the samples or more."""
    sampled = loader.stats.sampled
    if sampled is None or not sampled.places:
        return None
    place, share = max(sampled.places.items(), key=lambda item: item[1])
    return place if share >= 0.2 else None


def read_stream_with(loader: LoaderProfile, num_workers: int) -> list[str] | None:
    """Return how more workers can read an iterable dataset; None if the dataset is not one.

    Threads do not help, as one reads the stream. Workers that do not split it all read the same samples.
    """
    stats = loader.stats
    if not stats.config.get("is_iterable"):
        return None
    if stats.facts.get("looked_at_worker") or stats.config.get("worker_init_fn"):
        return [
            f"{loader_call(num_workers=num_workers)}: the dataset asks which worker it is in, so each reads its share"
        ]
    advice = [
        f"{'' if loader.is_ours else f'{IMPORT}, '}{loader_call(num_workers=num_workers, shard='auto')} and a dataset "
        f"with `split(index, count)`, which returns one of its parts: {num_workers} parts are read at a time, and "
        "every sample comes once"
    ]
    if not loader.is_ours:
        advice.append(
            f"or {loader_call(num_workers=num_workers)} and a dataset that reads its share, using "
            f"`get_worker_info()`: otherwise every sample comes {num_workers} times"
        )
    if not stats.config.get("num_workers"):
        advice.append(f"{loader_call(num_workers=1)} without any of this: it reads while the training computes")
    return advice


def fewer_workers_than_cores(loader: LoaderProfile, cores: int) -> list[str]:
    """Return advice against more workers than there are cores, if they compute."""
    num_workers = setting(loader.stats, "num_workers")
    if not 0 < cores < num_workers or loader.blocked_share > 0.3 or loader.stats.config.get("is_iterable"):
        return []
    return [f"{loader_call(num_workers=cores)}: {num_workers} workers that compute take turns on {cores} cores"]


def less_work(cores: int) -> str:
    """Return what is left where all cores are used."""
    return f"all {cores} cores may be in use already: what helps is less work per sample"
