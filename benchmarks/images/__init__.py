"""Photographs to batches of pixels, beside other loaders and the physical limit.

    make image-peers                           # once: an environment with the peers
    .venv/bin/python -m benchmarks images      # runs there, if it is there; --quick to see that all works
    .venv/bin/python -m benchmarks images --photos FOLDER --faces FOLDER --save

Two jobs, both to uint8 batches of 64 pictures with labels: `crops` takes photographs (about 110 kB) to
RandomResizedCrop(224) and a flip at random; `faces` takes pictures of 250 x 250 to 224 x 224. Photographs are those of
a folder, or made up. Each contender runs in a process of its own (see `benchmarks.turns`), and they take turns.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.images.bad_files import outcomes
from benchmarks.images.contenders import CONTENDERS, is_there
from benchmarks.images.findings import COLUMNS, draw, limits, shows
from benchmarks.images.jobs import BATCH_SIZE, CROPS, FACES, PREFETCH_FACTOR, SIZE, Job
from benchmarks.images.limit import limits_there
from benchmarks.images.measuring import Pace, starts, turns
from benchmarks.images.others import show_ffmpeg
from benchmarks.images.own import OURS, OURS_WHEELS
from benchmarks.images.photographs import NUM_ENTRIES_QUICK, NUM_PACKED_QUICK, made, photographs
from benchmarks.images.quality import likenesses, summed_up
from benchmarks.images.torch_loaders import TORCH_PIL
from benchmarks.report import Report, Setting
from benchmarks.turns import Failures, Turn, failure_of, run_alone, series_of
from stoker.lab.trial.rounds import Measurement, measurement_of

PACKAGES = (
    "torch",
    "pillow",
    "simplejpeg",
    "spdl",
    "grain",
    "webdataset",
    "nvidia-dali-cuda130",
    "tensorflow-cpu",
    "ffcv",
    "numpy",
    "stoker",
)
QUICK = Pace(num_rounds=1, seconds=0.5, warm_up_seconds=0.5, num_starts=1)
FULL = Pace(num_rounds=3, seconds=2.0, warm_up_seconds=2.0, num_starts=1)
NUM_VIEWS = {CROPS: 4, FACES: 1}
"""Pictures made of each photograph to see how near they are to Pillow's."""


def run(setting: Setting) -> Report:
    pace = QUICK if setting.is_quick else FULL
    console = Console()
    show_ffmpeg()
    given = {CROPS: ("photos", setting.photos), FACES: ("faces", setting.faces)}
    numbers = {"num_entries": NUM_ENTRIES_QUICK, "num_packed": NUM_PACKED_QUICK} if setting.is_quick else {}
    jobs = {
        name: Job(
            name,
            photographs(folder, Path(path) if path else None, **numbers),
            setting.num_workers,
        )
        for name, (folder, path) in given.items()
    }
    missing = [name for name in CONTENDERS if not is_there(name)]
    failures, records, likeness = Failures(), [], {}
    for job in jobs.values():
        names = [name for name in CONTENDERS if name not in missing and job.name in CONTENDERS[name].jobs]
        formats = sorted({CONTENDERS[name].format_name for name in names} - {"files"})
        for format_name, error in made(job.photographs, formats, notify=console.print).items():
            failures.reasons[f"{format_name} of {job.name}"] = failure_of(error)
            names = [name for name in names if CONTENDERS[name].format_name != format_name]
        console.print(f"[dim]{job.name}: {len(names)} loaders[/dim]")
        taken, peaks = turns([*names, *limits_there()], job, pace, failures)
        begun = starts([name for name in names if name in taken], job, pace, failures)
        records += _records(job, taken, peaks, begun)
        for name in (OURS, OURS_WHEELS):
            if name in taken:
                views = 1 if setting.is_quick else NUM_VIEWS[job.name]
                decoder, found = run_alone(partial(likenesses, name, job, views))
                likeness[f"{job.name}, {decoder}"] = summed_up(found)
    console.print("[dim]a file that ends in the middle[/dim]")
    fates = outcomes([name for name in CONTENDERS if name not in missing], jobs[FACES])
    sources = {name: job.photographs.describe() for name, job in jobs.items()}
    return Report(
        name="images",
        title=f"Photographs to batches of {BATCH_SIZE} pictures of {SIZE} x {SIZE}",
        records=records,
        shows=shows(records, sources, likeness, fates, missing, failures.reasons),
        limits=limits(setting.num_workers),
        draw=draw,
        columns=COLUMNS,
        extra={
            "photographs": sources,
            "batch_size": BATCH_SIZE,
            "prefetch_factor": PREFETCH_FACTOR,
            "num_workers": setting.num_workers,
            "quality": likeness,
            "bad_file": fates,
            "left_out": missing,
            "failed": failures.reasons,
        },
        packages=PACKAGES,
    )


def _records(
    job: Job, taken: dict[str, list[Turn]], peaks: dict[str, int], begun: dict[str, list[float]]
) -> list[Measurement]:
    series = {name: series_of(found, BATCH_SIZE) for name, found in taken.items()}
    base = series[TORCH_PIL].wall if TORCH_PIL in series else None
    records = []
    for name, found in taken.items():
        times = np.array([seconds for turn in found for seconds in turn.batch_seconds])
        more: dict[str, Any] = {
            "images_per_second": 1e6 / median(series[name].wall),
            "lowest": 1e6 / max(series[name].wall),
            "highest": 1e6 / min(series[name].wall),
            "cpu_per_1000": median(series[name].cpu) / 1e3,
            "rounds": series[name].wall,
            "num_images": round(BATCH_SIZE * sum(turn.num_batches for turn in found)),
        }
        if base is not None:
            more["times_torch"] = median(theirs / ours for ours, theirs in zip(series[name].wall, base))
        if len(times):
            more["p50_seconds"], more["p99_seconds"] = (float(np.quantile(times, part)) for part in (0.5, 0.99))
        if name in begun:
            more["start_seconds"] = median(begun[name])
        if name in peaks:
            more["peak_bytes"] = peaks[name]
        if name in CONTENDERS:
            more["is_antialiased"] = CONTENDERS[name].is_antialiased
        records.append(measurement_of(name, series[name], base, {"job": job.name}, "image", more))
    return records
