"""The child process that tries batch sizes, and may run out of memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError
from stoker.foundation import machine
from stoker.foundation.text import format_bytes
from stoker.lab.trial.batch_contents import num_samples_in, resize_batch, with_new_containers
from stoker.lab.trial.drive import batch_size_of, no_batch_error
from stoker.lab.trial.out_of_memory import is_out_of_memory, limit_memory
from stoker.lab.trial.step_target import BATCHED, SIZED, check_brings_batch, step_and_loader, takes, takes_batch_size
from stoker.lab.trial.target import call_with, resolve_function
from stoker.lab.trial.trial_child import IN_TRIAL

NUM_WARM = 2
"""Steps that are not timed: in the first one optimizers create their state, beside which the second must fit."""

MIN_TIMED, MAX_TIMED, ENOUGH_SECONDS = 3, 50, 0.5
"""Timed steps: at least the first number, and up to the second until the time is enough."""


def begin(
    target: str,
    loader: str | None,
    memory_bytes: int | None,
    host_bytes: int | None,
    margin: float,
    device: str | None,
) -> Callable[..., dict[str, Any]]:
    """Return the function that tries batch sizes, in all memory but the margin.

    The memory is `memory_bytes`, or all of the GPU; on the CPU at most `host_bytes`.
    """
    os.environ[IN_TRIAL] = "1"
    with contextlib.suppress(OSError):
        # if the machine runs out of memory after all, the kernel kills this process first
        Path("/proc/self/oom_score_adj").write_text("1000")
    _choose(device)  # before anything is made on it
    make_step, num_repeated = _sized(target, loader)
    cuda = _cuda(device)
    if cuda is not None:
        gc.collect()
        cuda.empty_cache()  # a loader's first batch may have needed a model
        total = cuda.mem_get_info()[1]
        memory_bytes = min(total, memory_bytes or total)
        cuda.set_per_process_memory_fraction((1 - margin) * memory_bytes / total)
        place = f"cuda ({cuda.get_device_name()})"
    else:
        known = [value for value in (memory_bytes, host_bytes) if value is not None]
        if not known:
            raise ArgumentError(
                "the amount of free memory is unknown on this system", hint="set a limit: --memory 8GiB"
            )
        memory_bytes = min(known)
        _leave(int((1 - margin) * memory_bytes))
        place = "cpu"

    def answer(batch_size: int | None, num_timed: int | None = None) -> dict[str, Any]:
        if batch_size is None:
            return {"device": place, "memory_bytes": memory_bytes, "num_repeated": num_repeated}
        return _tried(make_step, batch_size, num_timed, cuda)

    return answer


def _leave(memory_bytes: int) -> None:
    """Limit the memory of this process."""
    _start_threads()
    used, data = machine.anonymous_bytes() or 0, machine.data_bytes() or 0
    if used >= memory_bytes:
        raise ArgumentError(
            f"the limit of {format_bytes(memory_bytes)} is below the {format_bytes(used)} in use before the first step",
            hint="allow more with --memory",
        )
    # reserved memory such as thread stacks is unused, but counts towards the limit
    if not limit_memory(data + memory_bytes - used):
        raise ArgumentError(
            "this system cannot limit the memory of a process, so the search could bring down the machine",
            hint="run it on Linux",
        )


def _tried(make_step: Callable[..., Any], batch_size: int, num_timed: int | None, cuda: Any) -> dict[str, Any]:
    try:
        return _run(make_step, batch_size, num_timed, cuda)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return {"error": str(error).strip().partition("\n")[0] or type(error).__name__}
    finally:
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None:  # else code compiled for this size would be generalized for others, and be slower
            dynamo.reset()
        gc.collect()
        if cuda is not None:
            cuda.empty_cache()
        with contextlib.suppress(OSError, AttributeError):  # return freed memory to the system
            ctypes.CDLL(None).malloc_trim(0)


def _run(make_step: Callable[..., Any], batch_size: int, num_timed: int | None, cuda: Any) -> dict[str, Any]:
    if cuda is not None:
        cuda.reset_peak_memory_stats()
    counts_peak = machine.forget_peak() and cuda is None
    step = make_step(batch_size)
    if not callable(step):
        raise ArgumentError(
            f"{_name(make_step)}({batch_size}) returned {'None' if step is None else type(step).__name__}, expected a "
            "step",
            hint=f"write {SIZED}, which runs one training step of so many samples",
        )
    check_brings_batch(step, f"{_name(make_step)}({batch_size})")
    synchronize = cuda.synchronize if cuda is not None else lambda: None
    for _ in range(NUM_WARM):
        step()
    synchronize()
    if cuda is not None and not cuda.max_memory_reserved():
        raise ArgumentError(
            f"a step uses no memory of {cuda.get_device_name()}, so there is no limit to find",
            hint="choose the device it uses: --device cpu, or --device cuda:1",
        )
    times: list[float] = []
    while not _is_enough(times, num_timed):
        began = time.perf_counter()
        step()
        synchronize()
        times.append(time.perf_counter() - began)
    peak = cuda.max_memory_reserved() if cuda is not None else machine.peak_bytes() if counts_peak else None
    return {"step_seconds": times, "peak_bytes": peak}


def _is_enough(times: list[float], num_timed: int | None) -> bool:
    if num_timed is not None:
        return len(times) >= num_timed
    return len(times) >= MIN_TIMED and (len(times) >= MAX_TIMED or sum(times) >= ENOUGH_SECONDS)


def _sized(target: str, loader_target: str | None) -> tuple[Callable[[int], Any], int | None]:
    """Return the function that makes a step for a batch size, and the number of samples that are repeated.

    A step that takes a batch gets the first batch of its loader, with its samples repeated; for other steps the
    number is None.
    """
    make_step = resolve_function(target, what="a function that makes a step")
    if takes_batch_size(make_step):
        if not takes(make_step, 8):
            raise ArgumentError(f"{target} cannot be called with a batch size alone", hint=f"write {SIZED}")
        if loader_target is not None:
            raise ArgumentError(
                f"{target} takes a batch size, and {loader_target} would give batches of another",
                hint=f"leave one of them out: write {BATCHED} to train on what a loader gives",
            )
        return make_step, None
    batch, num_samples = _first_batch(target, loader_target)

    def make_sized(batch_size: int) -> Callable[[], Any]:
        made = call_with(make_step)
        step = made[1] if isinstance(made, tuple | list) else made
        sized = resize_batch(batch, num_samples=num_samples, size=batch_size)
        return lambda: step(with_new_containers(sized))

    resize_batch(batch, num_samples=num_samples, size=1)  # raises now if the batch cannot be resized
    return make_sized, num_samples


def _first_batch(target: str, loader_target: str | None) -> tuple[Any, int]:
    """Return the first batch of a step's loader, and its number of samples."""
    _, loader = step_and_loader(target, loader_target)
    iterator = iter(loader)
    try:
        batch = next(iterator)
    except StopIteration:
        raise no_batch_error() from None
    finally:
        close = getattr(iterator, "close", None)
        if callable(close):
            close()
    return batch, num_samples_in(batch, expected=batch_size_of(loader))


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "make_step"))


def _choose(device: str | None) -> None:
    """Make the requested device the current one."""
    if device in (None, "cpu"):
        return
    assert device is not None
    import torch

    hint = "leave it out, or use cuda, cuda:1 or cpu"
    try:
        chosen = torch.device("cuda", int(device)) if device.isdigit() else torch.device(device)
    except RuntimeError as error:
        raise ArgumentError(f"device {device!r}: {str(error).partition(chr(10))[0]}", hint=hint) from error
    if chosen.type != "cuda":
        raise ArgumentError(f"device {device!r} is not supported: memory of {chosen.type} cannot be limited", hint=hint)
    if not torch.cuda.is_available():
        raise ArgumentError(f"device {device!r}: CUDA is not available", hint="leave it out, or use cpu")
    if (chosen.index or 0) >= torch.cuda.device_count():
        raise ArgumentError(f"device {device!r} does not exist: there are {torch.cuda.device_count()}", hint=hint)
    torch.cuda.set_device(chosen.index or 0)


def _cuda(device: str | None) -> Any:
    """Return `torch.cuda` if steps run there; None on the CPU."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and device != "cpu" and torch.cuda.is_available() else None


def _start_threads() -> None:
    """Let torch start its compute threads, so that their stacks exist before memory is counted."""
    torch = sys.modules.get("torch")
    if torch is not None:
        values = torch.ones(1 << 20)
        values.add_(1).sum()
