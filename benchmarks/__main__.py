"""Run benchmarks: all of them, or those that are named."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from importlib import import_module
from pathlib import Path

from rich.console import Console

from benchmarks.peers import ENVIRONMENT, IMAGE_ENVIRONMENT, is_elsewhere, run_there
from benchmarks.report import OUT, RESULTS, Setting, redraw, save, show, write

NAMES = {
    "overhead": "cost of the loader per batch, compared with torch and torchdata",
    "counters": "cost of the counters that are always on",
    "plan_cost": "cost of a deterministic order, from a thousand samples to a million million",
    "doctor": "faults built on purpose, on an idle and on a busy machine, and whether the doctor names them",
    "state_cost": "cost of saving the state at every step, and of resuming",
    "resume": "samples lost and repeated when training is killed and resumed, compared with thirteen other ways",
    "transport": "batches from worker processes, compared with torch, torchdata, SPDL, Grain; into a GPU if available",
    "startup": "time to the first batch with worker processes and a large dataset, compared with torch",
    "memory": "memory of a large dataset in every worker, compared with torch",
    "tokens": "rows of tokens and labels, compared with nine other ways to load them and the physical limit",
    "prepare": "text to tokens, compared with the bare tokenizer and other tools",
    "masks": "masks of packed rows, and packed rows against padded ones in training; on a GPU if available",
    "packing": "documents into rows: planning, compared with TRL, LLaMA-Factory, Grain and C; batches of packed rows",
    "lines": "lines of a text file: at random, in order, and the index",
    "images": "photographs to batches of pixels, compared with twelve other ways and libjpeg-turbo; a corrupt file",
    "image_training": "ResNet-50 fed from JPEG files, compared with torch and with batches on the device; needs a GPU",
}

WITH_PEERS = {
    "tokens": ENVIRONMENT,
    "prepare": ENVIRONMENT,
    "packing": ENVIRONMENT,
    "resume": ENVIRONMENT,
    "images": IMAGE_ENVIRONMENT,
}
"""These run in an environment with other loaders, if `make peers` or `make image-peers` made it."""
NEED_DEVICE = ("image_training",)
MODULES = {"transport_device": "transport"}
"""Modules of results that are named differently."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="which ones (default: all)")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    parser.add_argument("--quick", action="store_true", help="a smoke test of a few seconds; its numbers mean nothing")
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "none"),
        default="auto",
        help="where `transport` delivers to (default: a GPU if available)",
    )
    parser.add_argument("--save", action="store_true", help="write plot, record and findings to benchmarks/results")
    parser.add_argument("--draw", action="store_true", help="redraw the plots of saved results; nothing is measured")
    parser.add_argument("--text", action="append", default=[], metavar="FILE", help="text for `prepare`; repeatable")
    parser.add_argument("--photos", metavar="FOLDER", help="photographs for `images` and `image_training`")
    parser.add_argument("--faces", metavar="FOLDER", help="faces of 250 x 250 for `images`")
    parser.add_argument("--workers", type=int, default=2, help="workers of each loader in `images` (default: 2)")
    chosen = parser.parse_args()
    console = Console(width=None if Console().is_terminal else 160)
    if chosen.list:
        for name, what in NAMES.items():
            console.print(f"{name:15}{what}")
        return
    unknown = [name for name in chosen.names if name not in NAMES and not (chosen.draw and name in MODULES)]
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    if chosen.quick and chosen.save:
        parser.error("--quick and --save exclude each other: numbers of a quick run mean nothing")
    if chosen.draw:
        for name in chosen.names or sorted(path.stem for path in RESULTS.glob("*.json")):
            module = import_module(f"benchmarks.{MODULES.get(name, name)}")
            console.print(f"drawn: {redraw(name, module.draw)}")
        return
    warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # torchdata's, at every construction
    device = _device() if chosen.device == "auto" else None if chosen.device == "none" else chosen.device
    for name in chosen.names or NAMES:
        if name in NEED_DEVICE and device is None:
            console.print(f"{name}: skipped, because it needs a GPU\n")
            continue
        if name in WITH_PEERS and is_elsewhere(WITH_PEERS[name]):
            flags = [f"--{flag}" for flag in ("quick", "save") if getattr(chosen, flag)]
            flags += [f"--text={Path(text).absolute()}" for text in chosen.text]
            flags += [f"--{of}={Path(path).absolute()}" for of in ("photos", "faces") if (path := getattr(chosen, of))]
            status = run_there([name, *flags, f"--workers={chosen.workers}"], WITH_PEERS[name])
            if status:
                raise SystemExit(status)
            continue
        begin, load = time.perf_counter(), os.getloadavg()[0]
        report = import_module(f"benchmarks.{name}").run(
            Setting(
                is_quick=chosen.quick,
                device=device,
                texts=tuple(chosen.text),
                photos=chosen.photos,
                faces=chosen.faces,
                num_workers=chosen.workers,
            )
        )
        report.load.extend((round(load, 2), round(os.getloadavg()[0], 2)))
        show(report, console)
        write(report, OUT)
        if chosen.save:
            save(report)
        console.print(f"[dim]{name}: {time.perf_counter() - begin:.0f} s, plot and record in out/benchmarks[/dim]\n")


def _device() -> str | None:
    import torch

    return "cuda" if torch.cuda.is_available() else None


if __name__ == "__main__":
    main()
