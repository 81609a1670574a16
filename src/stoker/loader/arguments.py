"""What a loader refuses: arguments that cannot work, alone or together. torch's own checks come after these."""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import torch
from torch.utils.data import ConcatDataset, Subset

from stoker.deliver import check_nvjpeg
from stoker.errors import ArgumentError, BadLength, EmptyDataset, MissingExtra
from stoker.plan import Order, Sequential, Tail, order_named
from stoker.tuning.parallelism import AUTO, Choice, SearchSpace, search_space_for


def length_of(dataset: Any) -> int:
    """Return len(dataset), which must be there and positive."""
    check_length(dataset)
    try:
        length: int = len(dataset)
    except TypeError as error:
        what = type(dataset).__name__
        raise ArgumentError(
            f"the dataset ({what}) has no length, so its positions are not known",
            hint="give it a __len__, pass a sampler, or derive a stream from torch.utils.data.IterableDataset",
        ) from error
    if not length:
        raise EmptyDataset(type(dataset).__name__)
    return length


def check_length(dataset: Any) -> None:
    """Raise `BadLength` if `__len__` returns what is not a number of samples. Its own errors are left to the caller."""
    try:
        len(dataset)
    except (TypeError, ValueError, OverflowError) as error:
        trace = error.__traceback__
        is_own = trace is not None and trace.tb_next is not None  # raised by code of the user's
        if not is_own and hasattr(type(dataset), "__len__"):
            raise BadLength(type(dataset).__name__, returned=repr(type(dataset).__len__(dataset))) from error


def workers_for(dataset: Any, num_workers: Choice, num_threads: Choice) -> Choice:
    """Return the number of worker processes: one for threads that the dataset wants to have out of this process.

    Where there can be none, threads stay here.
    """
    wants_one = bool(num_threads) and num_workers == 0 and _prefers_process(dataset)
    return 1 if wants_one and _can_have_processes() else num_workers


def _can_have_processes() -> bool:
    """Return whether there can be workers: not on every system, and not in a daemon process, which must have none."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def check_choices(**choices: Any) -> None:
    """Refuse other words than "auto" for what is a number, or left to us."""
    for name, value in choices.items():
        if isinstance(value, str) and value != AUTO:
            raise ArgumentError(f"{name}={value!r} is not known", hint='give a number, or "auto" to have it measured')


def room_of(
    *,
    num_workers: Choice,
    num_threads: Choice,
    prefetch_factor: Choice | None,
    is_stream: bool,
    is_foreign: bool,
    may_be_inline: bool,
    num_cores: int,
) -> SearchSpace:
    """Return what a loader may choose from where these are its arguments.

    The number of workers that read an iterable dataset decides how it is shared out, and with it the order: one reads
    all of it, in its own order. Nobody but torch reads torch's DataPipes.
    """
    if is_stream or is_foreign:
        one = 1 if is_stream and not is_foreign and _can_have_processes() else 0
        num_workers = one if num_workers == AUTO else num_workers
        num_threads = 0 if num_threads == AUTO else num_threads
    room = search_space_for(
        num_workers=num_workers,
        num_threads=num_threads,
        prefetch_factor=prefetch_factor,
        num_cores=num_cores,
        has_processes=_can_have_processes(),
    )
    if not may_be_inline and (room.processes or room.threads):
        room = replace(room, can_be_inline=False)
    return room


def _prefers_process(dataset: Any) -> bool:
    return getattr(dataset, "prefers_process", False) is True or any(map(_prefers_process, _within(dataset)))


def _within(dataset: Any) -> list[Any]:
    """Return the datasets that torch has taken a part of, or put beside each other."""
    if isinstance(dataset, Subset):
        return [dataset.dataset]
    return dataset.datasets if isinstance(dataset, ConcatDataset) else []


def check_arguments(
    *,
    is_stream: bool,
    is_planned: bool,
    batch_size: int | None,
    shuffle: bool | None,
    order: str | Order | None,
    drop_last: bool,
    tail: Tail | None,
    num_ranks: int,
    seed: Any,
    shard: str | None,
    num_workers: int,
    num_threads: int,
    prefetch_factor: int | None,
    timeout: float,
    has_skip: bool,
    is_mixed: bool = False,
    sampler: str = "",
) -> None:
    """Raise `ArgumentError` for what cannot work."""
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise ArgumentError(
            f"batch_size={batch_size!r} is not a positive integer",
            hint="give the number of samples in a batch, or None to get samples without batching",
        )
    kinds = {name for name, given in (("order", order), ("skip", has_skip)) if given}
    if kinds and not is_planned:
        what = "an iterable dataset" if is_stream else f"another sampler ({sampler})"
        raise ArgumentError(
            f"{' and '.join(sorted(kinds))} cannot be used with {what}, which decides the order itself",
            hint="leave it out, or pass a map-style dataset without a sampler; if a trainer made this sampler, turn "
            "that off, or write stoker.DataLoader(..., distributed=True) yourself",
        )
    if is_mixed and (shuffle or order is not None or not is_planned):
        what = f"order={order!r}" if order is not None else "shuffle=True" if shuffle else "a sampler of your own"
        raise ArgumentError(
            f"{what}: a mixture has an order of its own, and another one would undo its shares",
            hint="leave it out; mix(order=..., seed=...) sets the order of its sources, which is shuffled by default",
        )
    if tail not in (None, *get_args(Tail)):
        raise ArgumentError(f"tail={tail!r} is not known", hint=f"choose one of {', '.join(get_args(Tail))}")
    if tail is not None and drop_last and tail != "drop":
        raise ArgumentError(f"drop_last=True contradicts tail={tail!r}", hint="pass only one of them")
    if tail is not None and not is_planned and not is_stream:
        raise ArgumentError(
            f"tail cannot be used with another sampler ({sampler})", hint="pass drop_last, or no sampler"
        )
    if order is not None and shuffle is not None and shuffle == isinstance(order_named(order), Sequential):
        raise ArgumentError(f"shuffle={shuffle} contradicts order={order!r}", hint="pass only order")
    if num_ranks > 1 and is_stream and shard is None:
        raise ArgumentError(
            f"each of the {num_ranks} ranks would read the whole iterable dataset",
            hint="pass shard='auto' to share it out, or leave out rank and num_ranks if the dataset does that itself",
        )
    if num_ranks > 1 and not is_stream and not is_planned:
        raise ArgumentError(
            f"rank and num_ranks cannot be used with another sampler ({sampler}), which decides what this rank reads",
            hint="leave out the sampler (no DistributedSampler is needed), or rank, num_ranks and distributed",
        )
    if shard not in (None, "auto"):
        raise ArgumentError(f"shard={shard!r} is not known", hint="pass shard='auto' or nothing")
    if shard is not None and not is_stream:
        raise ArgumentError(
            "shard='auto' is for iterable datasets; a map-style dataset is never read twice",
            hint="leave it out; several ranks are told by rank and num_ranks, or distributed=True",
        )
    if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__")):
        raise ArgumentError(f"seed={seed!r} is not an integer", hint="any integer will do")
    if isinstance(num_threads, bool) or not isinstance(num_threads, int):
        raise ArgumentError(f"num_threads={num_threads!r} is not an integer", hint="give a number of threads")
    if num_threads < 0:
        raise ArgumentError(f"num_threads={num_threads} is negative", hint="0 loads without threads")
    if num_workers and sys.platform != "linux":
        raise ArgumentError(
            f"num_workers={num_workers}: worker processes need Linux, and this is {sys.platform}",
            hint="use num_threads",
        )
    if num_threads and prefetch_factor is not None and prefetch_factor < 1:
        raise ArgumentError(f"prefetch_factor={prefetch_factor} leaves threads nothing to do", hint="give 1 or more")
    if timeout > 0 and not num_workers and not num_threads:
        raise ArgumentError(
            f"timeout={timeout} cannot be kept without workers: the batch is made by the caller itself",
            hint="leave it out, or pass num_threads or num_workers",
        )


def check_schedule(steps_of: int | None, batch_size: int) -> None:
    """Warn if a mixture's schedule counts other steps than a loader that begins with it."""
    if steps_of is not None and steps_of != batch_size:
        warnings.warn(
            f"the mixture's schedule counts steps of {steps_of} samples, and those of this loader have {batch_size} "
            "over all ranks: weights change at other steps than the schedule says\n"
            "hint: pass mix(batch_size=...), the loader's batch_size times the number of ranks",
            stacklevel=4,
        )


def resolved_decode(dataset: Any, device: torch.device | None, *, collates: bool) -> str:
    """Return who decodes the pictures of a dataset: "cpu", "device", or "auto" if the work is to be shared.

    A dataset that leaves all to the device is refused where it cannot be; one that leaves it to us is read by the CPU.
    """
    if any(getattr(inner, "decode", None) == "device" for inner in _within(dataset)):
        raise ArgumentError(
            f"decode='device' leaves whole batches to the device, and torch's {type(dataset).__name__} is read sample "
            "by sample",
            hint="choose pictures with images.subset(positions), or use decode='cpu' or 'auto'",
        )
    decode = getattr(dataset, "decode", None)
    if decode not in ("device", "auto") or not callable(getattr(dataset, "open_batch", None)):
        return "cpu"
    need = f"decode={decode!r}"
    if not collates and decode == "device":
        raise ArgumentError(
            f"{need} leaves whole batches of pictures to the device, and this loader does not make batches itself",
            hint="leave out collate_fn and batch_size=None, or use decode='cpu'",
        )
    try:
        check_nvjpeg(device, need=need)
    except (ArgumentError, MissingExtra):
        if decode == "device":
            raise
        return "cpu"
    is_possible = collates and getattr(dataset, "leaves_files", True) is True
    return decode if is_possible else "cpu"


def check_expected(dataset: Any, settings: Mapping[str, Any]) -> None:
    """Let a dataset that knows how it was made refuse what it was not made with."""
    expect = getattr(dataset, "expect", None)
    if not callable(expect):
        raise ArgumentError(
            f"{type(dataset).__name__} does not tell how it was made, so nothing can be expected of it",
            hint="expect= is for stores; leave it out, or prepare the data with `stoker prepare`",
        )
    expect(settings)
