"""Describe what was observed of a loader: sentences that several verdicts have in common."""

from __future__ import annotations

from stoker.engine.stats import Sampled
from stoker.foundation.text import (
    format_bytes,
    format_cores,
    format_count,
    format_duration,
    format_number,
    format_percent,
)
from stoker.lab.diagnose.loader_profile import LoaderProfile, setting

MIN_STEP_SAMPLES = 10
"""Samples of a training loop needed to say where it spends its time."""

NO_STEP = 0.02
"""A training step shorter than this share of loading a batch means that the loader was run by itself."""


def describe_waiting(loader: LoaderProfile) -> list[str]:
    """Return how long the training loop waits, and how full the queue was."""
    stats = loader.stats
    num_threads = setting(stats, "num_threads")
    workers = {
        "inline": "no workers",
        "threads": format_count(loader.concurrency, "thread"),
        "processes": format_count(setting(stats, "num_workers"), "worker")
        + (f" of {num_threads} threads" if num_threads > 1 else ""),
    }[stats.engine]
    name = f"the loader of {stats.name}" if stats.name else "the loader"
    share = format_percent(loader.wait / loader.period if loader.period else 0.0)
    evidence = [
        f"the training loop waits {format_duration(loader.wait)} of {format_duration(loader.period)} from batch to "
        f"batch, {share} of the time; {name} ({workers}) delivers {stats.samples_per_second:,.0f} samples/s"
    ]
    if stats.queue_depth is not None and stats.engine != "inline":
        depth = f"{format_number(stats.queue_depth, 2)} batches ready on average"
        empty = stats.queue_empty_share
        evidence.append(
            f"the queue held {depth}"
            if empty is None
            else f"the queue was empty at {format_percent(empty)} of requests ({depth})"
        )
    return evidence


def describe_step(loader: LoaderProfile) -> list[str]:
    """Return where the training loop spends its time between batches, if that was sampled."""
    steps = loader.stats.steps_sampled
    known = steps is not None and steps.num >= MIN_STEP_SAMPLES
    return ["the training step: " + _format_places(steps)] if steps is not None and known else []


def _format_places(sampled: Sampled) -> str:
    places = sorted(sampled.places.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{place} {format_percent(share)}" for place, share in places)


def workers_were(loader: LoaderProfile) -> str:
    """Return who loads the batches, with a verb: `the 2 workers were`."""
    if loader.stats.engine == "inline":
        return "the trainer, which loads batches itself, was"
    kind = "thread" if loader.has_threads else "worker"
    return f"the {kind} was" if loader.concurrency == 1 else f"the {loader.concurrency} {kind}s were"


def describe_work(loader: LoaderProfile) -> list[str]:
    """Return what the workers did."""
    stats = loader.stats
    if not loader.was_observed:
        cores = format_cores(loader.cpu_share * loader.concurrency)
        used = f"; {loader.concurrency} of them used {cores}" if loader.work_seconds else ""
        return [
            "the workers were not observed: they were started before watching began, or belong to a loader that is "
            f"neither torch's nor Stoker's{used}"
        ]
    loading = f"loading a batch takes {format_duration(loader.making)}, the training step"
    needed = format_number(loader.making / loader.step, 2) if loader.step > NO_STEP * loader.making else ""
    gil = " or waiting for the GIL" if loader.is_python and setting(stats, "num_threads") > 1 else ""
    evidence = [
        f"{loading} {format_duration(loader.step)}: about {needed} batches must be in progress at once to keep up"
        if needed
        else f"{loading} almost nothing",
        f"{workers_were(loader)} busy {format_percent(loader.occupancy)} of the time",
        f"loading time: {format_percent(loader.cpu_share)} on a core{gil}, {format_percent(loader.blocked_share)} "
        f"blocked, {format_percent(loader.delay_in_work_share)} ready but without a core",
    ]
    stages = {
        name: stats.stages[name].busy_seconds for name in ("read", "transform", "collate") if name in stats.stages
    }
    if (whole := sum(stages.values())) > 0:
        parts = [f"{name} {format_percent(seconds / whole)}" for name, seconds in stages.items() if seconds]
        evidence.append("stages: " + ", ".join(parts))
    if loader.gil_share is not None:
        evidence.append(f"the GIL was held in {format_percent(loader.gil_share)} of samples")
    if stats.sampled is not None and stats.sampled.places:
        # the sampling thread gets the GIL, and sees the others, only where they release it
        where = "where the GIL was released" if loader.is_python else "where"
        evidence.append(f"{where}: {_format_places(stats.sampled)}")
    processes = [*stats.workers, *([stats.trainer] if stats.trainer else [])]
    read_bytes = sum(process.read_bytes or 0 for process in processes)
    if stats.seconds > 0 and read_bytes / stats.seconds > 1e6:
        evidence.append(f"{format_bytes(read_bytes / stats.seconds)}/s were read from disk rather than from memory")
    return evidence


def describe_gain(loader: LoaderProfile, seconds: float, share: float) -> tuple[str, float]:
    """Return the possible gain, in words and as a share of the run."""
    gain = f"up to {format_duration(seconds)} of {format_duration(loader.period)} per step"
    if loader.period and abs(share - seconds / loader.period) > 0.02:  # first batches are not part of steps
        return f"{gain}; {format_percent(share)} of the time, including the first batch of each epoch", share
    return f"{gain}, {format_percent(share)} of the time", share
