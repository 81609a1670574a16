"""What no loader can beat: libjpeg-turbo alone on all cores, on bytes in memory, and nobody waits for what it makes."""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.images.jobs import BATCH_SIZE, SIZE, Job
from benchmarks.images.torch_loaders import crop_of
from benchmarks.peers import is_installed
from benchmarks.turns import Turn
from stoker.foundation.machine import tree_cpu_seconds

WHOLE, PART = "libjpeg-turbo, whole files", "libjpeg-turbo, crop and resize"
NUM_VIEWS = 8
"""Crops that are drawn of each photograph beforehand."""


def limits_there() -> list[str]:
    """Return which limits can be measured here."""
    found = [WHOLE] if is_installed("simplejpeg") else []
    from stoker import native

    if getattr(native, "has_jpeg", bool)():
        found.append(PART)
    return found


@contextmanager
def serving(name: str, job: Job) -> Iterator[Callable[[float], Turn]]:
    """Decode in as many processes as others have workers, for so many seconds."""
    files = [path.read_bytes() for path in job.photographs.originals()]
    decoding = {WHOLE: _whole, PART: _part}[name](files, job)

    def turn(seconds: float) -> Turn:
        context = mp.get_context("fork")
        cpu = tree_cpu_seconds(os.getpid())
        answers = []
        processes = []
        for number in range(job.num_workers):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(decoding, len(files), number, seconds, theirs))
            process.start()
            theirs.close()
            answers.append(ours)
            processes.append(process)
        done = [answer.recv() for answer in answers]
        for process in processes:
            process.join()
        rate = sum(num_images / taken for num_images, taken in done)
        num_images = sum(num for num, _ in done)
        return Turn(num_images / BATCH_SIZE, num_images / rate, tree_cpu_seconds(os.getpid()) - cpu)

    yield turn


def _work(decode: Callable[[int], None], num_files: int, number: int, seconds: float, answer: Any) -> None:
    order = np.random.default_rng(number).permutation(num_files).tolist()
    for position in order[:20]:
        decode(position)
    num_images, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for position in order[:50]:
            decode(position)
        num_images += min(50, num_files)
        order = order[50:] + order[:50]
    answer.send((num_images, time.perf_counter() - begin))


def _whole(files: list[bytes], job: Job) -> Callable[[int], None]:  # noqa: ARG001
    simplejpeg = import_module("simplejpeg")
    buffers: dict[int, Any] = {}

    def decode(position: int) -> None:
        if position not in buffers:
            height, width, *_ = simplejpeg.decode_jpeg_header(files[position])
            buffers[position] = np.empty((height, width, 3), np.uint8)
        simplejpeg.decode_jpeg(files[position], "RGB", buffer=buffers[position])

    return decode


def _part(files: list[bytes], job: Job) -> Callable[[int], None]:
    """Only what a crop needs, made smaller: all that has to be done to a photograph, with no loader around it."""
    from stoker import native

    offered: Any = native
    chance = random.Random(0)
    random.seed(0)
    views = []
    for data in files:
        header = offered.jpeg_header(data)
        for _ in range(NUM_VIEWS):
            left, top, width, height = (
                crop_of(header.width, header.height) if job.is_cropped else (0, 0, header.width, header.height)
            )
            views.append((left, top, left + width, top + height))
    out = np.empty((3, SIZE, SIZE), np.uint8).transpose(1, 2, 0)

    def decode(position: int) -> None:
        region = views[position * NUM_VIEWS + chance.randrange(NUM_VIEWS)]
        offered.decode_jpeg(files[position], region, region, out)

    return decode
