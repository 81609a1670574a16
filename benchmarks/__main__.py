"""Run benchmarks: all, or those that are named."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from importlib import import_module
from pathlib import Path

from rich.console import Console

from benchmarks.peers import ENVIRONMENT, IMAGE_ENVIRONMENT, is_elsewhere, run_there
from benchmarks.report import OUT, Setting, save, show, write

NAMES = {
    "overhead": "what the loader itself costs per batch, beside torch and torchdata",
    "counters": "what the counters cost that are always on",
    "plan_cost": "what it costs to know the order, from a thousand samples to a million million",
    "doctor": "faults built on purpose, on a quiet and on a busy machine, and whether the doctor names them",
    "state_cost": "what it costs to save the state at every step, and to resume",
    "resume": "samples lost and repeated when training is killed and resumed, with thirteen other ways",
    "transport": "batches from worker processes, beside torch, torchdata, SPDL and Grain; into a GPU if there is one",
    "startup": "time to the first batch with worker processes and a large dataset, beside torch",
    "memory": "what a large dataset costs in every worker, beside torch",
    "tokens": "rows of tokens and labels, beside nine other ways to load them and the physical limit",
    "prepare": "text to tokens, beside the bare tokenizer and other tools",
    "masks": "masks of packed rows, and packed rows against padded ones in training; on a GPU if there is one",
    "packing": "documents into rows: planning beside TRL, LLaMA-Factory, Grain and C; batches of packed rows",
    "lines": "lines of a text file: at random, in order, and the index",
    "images": "photographs to batches of pixels, beside twelve other ways, libjpeg-turbo alone, and a bad file",
    "image_training": "ResNet-50 fed from JPEG files, beside torch and batches that lie there already; needs a GPU",
}

WITH_PEERS = {
    "tokens": ENVIRONMENT,
    "prepare": ENVIRONMENT,
    "packing": ENVIRONMENT,
    "resume": ENVIRONMENT,
    "images": IMAGE_ENVIRONMENT,
}
"""These run in an environment of the peers, if `make peers` or `make image-peers` made it."""
NEED_DEVICE = ("image_training",)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="which ones (default: all)")
    parser.add_argument("--list", action="store_true", help="tell what there is")
    parser.add_argument("--quick", action="store_true", help="a smoke run of a few seconds; its numbers mean nothing")
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "none"),
        default="auto",
        help="where `transport` delivers to (default: a GPU if there is one)",
    )
    parser.add_argument("--save", action="store_true", help="keep plot, record and findings in benchmarks/results")
    parser.add_argument("--text", action="append", default=[], metavar="FILE", help="text for `prepare` (repeatable)")
    parser.add_argument("--photos", metavar="FOLDER", help="photographs for `images` and `image_training`")
    parser.add_argument("--faces", metavar="FOLDER", help="faces of 250 x 250 for `images`")
    parser.add_argument("--workers", type=int, default=2, help="workers of each loader in `images` (default: 2)")
    chosen = parser.parse_args()
    console = Console(width=None if Console().is_terminal else 160)
    if chosen.list:
        for name, what in NAMES.items():
            console.print(f"{name:15}{what}")
        return
    unknown = [name for name in chosen.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    if chosen.quick and chosen.save:
        parser.error("numbers of a quick run are not worth saving")
    warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # torchdata's, at every construction
    device = _device() if chosen.device == "auto" else None if chosen.device == "none" else chosen.device
    for name in chosen.names or NAMES:
        if name in NEED_DEVICE and device is None:
            console.print(f"{name}: left out, for it needs a GPU\n")
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
