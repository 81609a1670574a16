"""The contenders by name, and the process that runs each of them.

Every training process is forked from one that has imported what the contender needs, and nothing more: imports take
seconds, and each contender needs dozens of processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers import without_vision
from benchmarks.resume import loaders, trainers
from benchmarks.resume.jobs import Job, Recorder
from benchmarks.resume.scenarios import FEWER, FROM_NONE, MORE, WORKERS
from stoker.foundation.machine import tree

LIMIT_SECONDS = 240
"""Time limit for a training process before it counts as hanging. They take one to ten seconds on an idle machine."""
RANKS_SECONDS = 60
"""Time limit for the other ranks after one has ended."""

Train = Callable[[Job, Recorder], None]


@dataclass(frozen=True, slots=True)
class Contender:
    """A loader, and a way to resume it."""

    train: Train
    modules: tuple[str, ...] = ()
    """Modules that must be installed; they are imported before the runs."""
    prepare: Callable[[Path], None] | None = None
    """Writes the samples in the loader's own format."""
    is_one_stream: bool = False
    """Whether there is one iterator over all epochs, without a boundary between them."""
    documented: str = ""
    """What its documentation says about resuming, and where."""
    outside: tuple[str, ...] = ()
    """Scenarios that its documentation excludes: it asks for the same number of workers or ranks."""


def _loop(kind: type[loaders.Loop]) -> Train:
    return partial(loaders.train, kind)


_TORCH = "https://docs.pytorch.org/docs/stable/data.html"
_TORCHDATA = "https://github.com/meta-pytorch/data/blob/v0.11.0/torchdata/stateful_dataloader/README.md"
_LITDATA = "README of litdata 0.2.76, 'Pause, resume data streaming'"
_MOSAIC = "https://docs.mosaicml.com/projects/streaming/en/stable/distributed_training/"
_GRAIN = "https://google-grain.readthedocs.io/en/latest/tutorials/data_loader_tutorial.html"
_ACCELERATE = "https://huggingface.co/docs/accelerate/v1.15.0/en/usage_guides/checkpoint"
_TRAINER = "https://huggingface.co/docs/transformers/v5.23.0/en/main_classes/trainer"
_SAME_SCRIPT = "states come from the same training script"

OURS = "stoker"
OURS_ACCELERATED, OURS_IN_TRAINER = "stoker, Accelerate", "stoker, Trainer"
CONTENDERS = {
    "torch, from the epoch's start": Contender(
        _loop(loaders.TorchFromStart), documented=f"{_TORCH}: the loader has no state"
    ),
    "torch, skipping batches": Contender(
        _loop(loaders.TorchSkipping), documented=f"{_TORCH}: the loader has no state; the script skips"
    ),
    "torch, set_epoch and skipping": Contender(
        _loop(loaders.TorchSetEpoch),
        documented=f"{_TORCH}: DistributedSampler.set_epoch before each epoch; the script skips",
    ),
    "StatefulDataLoader": Contender(
        _loop(loaders.TorchData),
        ("torchdata.stateful_dataloader",),
        documented=f"{_TORCHDATA}: state_dict and load_state_dict; aggregated across workers, not across ranks",
        outside=(FEWER, MORE),
    ),
    "litdata": Contender(
        _loop(loaders.LitData),
        ("litdata",),
        loaders.prepare_litdata,
        documented=f"{_LITDATA}: num_workers and world_size may change; keep the global batch size. "
        "https://lightning.ai/docs/litdata/features/mulit-gpu-multi-node: with several ranks, drop_last",
    ),
    "Mosaic Streaming": Contender(
        _loop(loaders.Mosaic),
        ("streaming",),
        loaders.prepare_mosaic,
        documented=f"{_MOSAIC}fast_resumption.html, elastic_determinism.html: the order does not depend on "
        "the number of GPUs, nodes and workers",
    ),
    "Grain, DataLoader": Contender(
        _loop(loaders.GrainLoader),
        ("grain",),
        is_one_stream=True,
        documented=f"{_GRAIN}, 'Checkpointing': same sampler and data source; an error asks for the same worker_count",
        outside=(FROM_NONE, WORKERS, FEWER, MORE),
    ),
    "Grain, ElasticIterator": Contender(
        _loop(loaders.GrainElastic),
        ("grain",),
        is_one_stream=True,
        documented="docstring of grain.experimental.ElasticIterator 0.2.18: shards and global batch size may change, "
        "and the state of any shard fits all; experimental",
    ),
    "Accelerate, skip_first_batches": Contender(
        _loop(trainers.Accelerated),
        ("accelerate",),
        documented=f"{_ACCELERATE}: load_state, then skip_first_batches; {_SAME_SCRIPT}",
        outside=(FEWER, MORE),
    ),
    "Accelerate, seedable sampler": Contender(
        _loop(trainers.AcceleratedSeedable),
        ("accelerate",),
        documented=f"{_ACCELERATE}: the same with use_seedable_sampler, set_seed and set_epoch; {_SAME_SCRIPT}",
        outside=(FEWER, MORE),
    ),
    "Accelerate, stateful loader": Contender(
        _loop(trainers.AcceleratedStateful),
        ("accelerate", "torchdata.stateful_dataloader"),
        documented=f"{_ACCELERATE}: use_stateful_dataloader, load_state, and no skipping; {_SAME_SCRIPT}",
        outside=(FEWER, MORE),
    ),
    "Accelerate, stateful and seedable": Contender(
        _loop(trainers.AcceleratedBoth),
        ("accelerate", "torchdata.stateful_dataloader"),
        documented=f"{_ACCELERATE}: both options, set_seed and set_epoch; {_SAME_SCRIPT}",
        outside=(FEWER, MORE),
    ),
    "Trainer": Contender(
        trainers.train_by_trainer,
        ("transformers", "accelerate"),
        documented=f"{_TRAINER}: train(resume_from_checkpoint=True); with ignore_data_skip=False, the default, it "
        "'skips seen data (slower resume but exact continuation)'",
    ),
    OURS: Contender(
        _loop(loaders.Stoker),
        ("stoker",),
        documented="docs/guides/resuming.md: ranks, workers, threads and batch size may change",
    ),
    OURS_ACCELERATED: Contender(
        _loop(trainers.AcceleratedStoker),
        ("stoker", "accelerate"),
        documented="docs/guides/accelerate.md: processes, workers, threads and batch size may change",
    ),
    OURS_IN_TRAINER: Contender(
        trainers.train_by_trainer_with_stoker,
        ("stoker", "transformers", "accelerate"),
        documented="docs/guides/trainer.md: processes, workers, threads and batch size may change",
    ),
}


@contextmanager
def serving(name: str, data: str) -> Iterator[Callable[..., Any]]:
    """Run training processes of a contender, in a child (see `benchmarks.turns`)."""
    import torch

    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", ACCELERATE_USE_CPU="true")
    torch.set_num_threads(1)
    contender = CONTENDERS[name]
    if "streaming" in contender.modules:
        without_vision()
    for module in contender.modules:
        import_module(module)
    if "stoker" in contender.modules:
        _ = import_module("stoker").DataLoader
    if "transformers" in contender.modules:
        _ = import_module("transformers").Trainer
    _adopt_orphans()
    if contender.prepare is not None:
        _forked(partial(contender.prepare, Path(data)))
    yield partial(run_part, name)


@dataclass(frozen=True, slots=True)
class Ending:
    """How the processes of a part ended."""

    kind: str
    """"stopped", "finished", "error" or "hang"."""
    text: str = ""
    """The error: its class and message."""
    trace: str = ""


def run_part(name: str, jobs: Sequence[Job]) -> Ending:
    """Run the training processes of one part of a run, one for each rank, and return how they ended."""
    barrier = multiprocessing.get_context("fork").Barrier(len(jobs))
    port = _free_port()
    errors = [job.record(job.part, job.rank).with_suffix(".error") for job in jobs]
    pids = [_fork(name, job, barrier, port, error) for job, error in zip(jobs, errors)]
    statuses: dict[int, int] = {}
    end = time.monotonic() + LIMIT_SECONDS
    while len(statuses) < len(pids) and time.monotonic() < end:
        for pid in pids:
            if pid not in statuses and os.waitpid(pid, os.WNOHANG)[0]:
                statuses[pid] = 1
                end = min(end, time.monotonic() + RANKS_SECONDS)
        time.sleep(0.005)
    _end_descendants()
    texts = [error.read_text() for error in errors if error.exists()]
    texts = sorted(texts, key=lambda text: "Connection closed by peer" in text or "BrokenBarrier" in text)
    if texts:
        first, _, trace = texts[0].partition("\n")
        return Ending("error", first[:300], trace[-4000:])
    if len(statuses) < len(pids):
        return Ending("hang", f"no end after {LIMIT_SECONDS} s")
    ends = {_last_word(job) for job in jobs}
    if len(ends) > 1 or "died" in ends:
        return Ending("error", "the process died without an error")
    return Ending(ends.pop())


def _last_word(job: Job) -> str:
    text = job.record(job.part, job.rank).read_text()
    last = text.rstrip().rpartition("\n")[2]
    if '"stopped"' in last:
        return "stopped"
    return "finished" if '"finished"' in last else "died"


def _fork(name: str, job: Job, barrier: Any, port: int, error: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.environ.update(
            RANK=str(job.rank),
            LOCAL_RANK=str(job.rank),
            WORLD_SIZE=str(job.shape.num_ranks),
            LOCAL_WORLD_SIZE=str(job.shape.num_ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        if job.shape.num_ranks == 1:  # a plain `python script.py`
            for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                del os.environ[key]
        recorder = Recorder(job, barrier)
        CONTENDERS[name].train(job, recorder)
        recorder.finished()
        recorder.wait_for_ranks()
        status = 0
    except BaseException as failure:
        error.write_text(f"{format_error(failure)}\n{traceback.format_exc()}")
        barrier.abort()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def format_error(failure: BaseException) -> str:
    """Return class and message in one line, without paths; of an error in torch's workers, the error itself."""
    text = "".join(traceback.format_exception_only(failure)).strip()
    if "Original Traceback" in text:
        text = text.splitlines()[-1]
    return re.sub(r"(?<![\w/])/(?:[\w.+-]+/)+", "…/", " ".join(text.split()))


def _forked(function: Callable[[], None]) -> None:
    """Call a function in a process of its own, so that it leaves no threads here."""
    pid = os.fork()
    if not pid:
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the dataset could not be prepared")
    _end_descendants()


def _adopt_orphans() -> None:
    """Become the parent of all processes that lose theirs: workers of trainers that were killed."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _end_descendants() -> None:
    """Kill what the training processes have left behind; what cleans up shared memory may end by itself."""
    end = time.monotonic() + 2
    while True:
        _reap()
        left = list(tree(os.getpid()))[1:]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"resource_tracker" not in command or time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
