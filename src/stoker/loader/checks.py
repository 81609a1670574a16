"""What a loader refuses: arguments that contradict each other, and datasets that do not fit them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from stoker.errors import ArgumentError, BadLength, EmptyDataset, MissingExtra
from stoker.loader.arguments import Arguments
from stoker.plan import Sequential, order_named
from stoker.source.protocols import decodes_on, knows_settings, leaves_files, wrapped_by_torch, writes_rows
from stoker.tuning.parallelism import AUTO


def check_together(
    arguments: Arguments, *, is_stream: bool, is_planned: bool, num_ranks: int, owns_order: bool, sampler: str
) -> None:
    """Raise `ArgumentError` for arguments that cannot work together. torch's own checks come after these.

    `owns_order` says that the dataset has an order of its own, `sampler` names the class of a sampler.
    """
    order, shuffle, tail = arguments.order, arguments.shuffle, arguments.tail
    num_workers, num_threads = arguments.num_workers, arguments.num_threads
    assert num_workers != AUTO
    assert num_threads != AUTO
    kinds = {name for name, given in (("order", order), ("skip", arguments.skip)) if given}
    if kinds and not is_planned:
        what = "an iterable dataset" if is_stream else f"another sampler ({sampler})"
        raise ArgumentError(
            f"{' and '.join(sorted(kinds))} cannot be used with {what}, which decides the order itself",
            hint="leave it out, or pass a map-style dataset without a sampler; if a trainer made this sampler, turn "
            "that off, or write stoker.DataLoader(..., distributed=True) yourself",
        )
    if owns_order and (shuffle or order is not None or not is_planned):
        name = type(arguments.dataset).__name__
        what = f"order={order!r}" if order is not None else "shuffle=True" if shuffle else "a sampler of your own"
        raise ArgumentError(
            f"{what}: a {name} has an order of its own, which another one would undo",
            hint="leave it out; for a mixture, mix(order=..., seed=...) sets the order of its sources, which is "
            "shuffled by default",
        )
    if tail is not None and arguments.drop_last and tail != "drop":
        raise ArgumentError(f"drop_last=True contradicts tail={tail!r}", hint="pass only one of them")
    if tail is not None and not is_planned and not is_stream:
        raise ArgumentError(
            f"tail cannot be used with another sampler ({sampler})", hint="pass drop_last, or no sampler"
        )
    if order is not None and shuffle is not None and shuffle == isinstance(order_named(order), Sequential):
        raise ArgumentError(f"shuffle={shuffle} contradicts order={order!r}", hint="pass only order")
    if num_ranks > 1 and is_stream and arguments.shard is None:
        raise ArgumentError(
            f"each of the {num_ranks} ranks would read the whole iterable dataset",
            hint="pass shard='auto' to share it out, or leave out rank and num_ranks if the dataset does that itself",
        )
    if num_ranks > 1 and not is_stream and not is_planned:
        raise ArgumentError(
            f"rank and num_ranks cannot be used with another sampler ({sampler}), which decides what this rank reads",
            hint="leave out the sampler (no DistributedSampler is needed), or rank, num_ranks and distributed",
        )
    if arguments.shard is not None and not is_stream:
        raise ArgumentError(
            "shard='auto' is for iterable datasets; a map-style dataset is never read twice",
            hint="leave it out; for several ranks pass rank and num_ranks, or distributed=True",
        )
    if num_workers and sys.platform != "linux":
        raise ArgumentError(
            f"num_workers={num_workers}: worker processes need Linux, and this is {sys.platform}",
            hint="use num_threads",
        )
    prefetch_factor = arguments.prefetch_factor
    if num_threads and isinstance(prefetch_factor, int) and prefetch_factor < 1:
        raise ArgumentError(f"prefetch_factor={prefetch_factor} leaves threads nothing to do", hint="give 1 or more")
    if arguments.timeout > 0 and not num_workers and not num_threads:
        raise ArgumentError(
            f"timeout={arguments.timeout} cannot be kept without workers: the batch is made by the caller itself",
            hint="leave it out, or pass num_threads or num_workers",
        )


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


def warn_of_other_steps(steps_of: int | None, batch_size: int) -> None:
    """Warn if a mixture's schedule counts other steps than a loader that begins with it."""
    if steps_of is not None and steps_of != batch_size:
        warnings.warn(
            f"the mixture's schedule counts steps of {steps_of} samples, and those of this loader have {batch_size} "
            "over all ranks: weights change at other steps than the schedule says\n"
            "hint: pass mix(batch_size=...), the loader's batch_size times the number of ranks",
            stacklevel=3,
        )


def check_epoch(mixture: Any, progress: Any) -> None:
    """Refuse an epoch that a mixture does not have, or has with another length: here, and not in a worker."""
    length = len(mixture.in_epoch(progress.epoch))
    if length != progress.plan.num_samples:
        raise ArgumentError(
            f"epoch {progress.epoch} of the mixture has {length} samples; since its terms changed, epochs have "
            f"{progress.plan.num_samples}",
            hint="load a state of that time to go back to it",
        )
    mixture.check_readable(progress.epoch, progress.ordinal)


def resolved_decode(dataset: Any, device: torch.device | None, *, collates: bool) -> str:
    """Return what decodes the images of a dataset: "cpu", "device", or "auto" if they share the work.

    A dataset that leaves all to the device is refused where it cannot be; one that leaves it to us is read by the CPU.
    """
    if any(decodes_on(inner) == "device" for inner in wrapped_by_torch(dataset)):
        raise ArgumentError(
            f"decode='device' leaves whole batches to the device, and torch's {type(dataset).__name__} is read sample "
            "by sample",
            hint="choose images with images.subset(positions), or use decode='cpu' or 'auto'",
        )
    decode = decodes_on(dataset)
    if decode not in ("device", "auto") or not writes_rows(dataset):
        return "cpu"
    from stoker.deliver import check_nvjpeg

    need = f"decode={decode!r}"
    if not collates and decode == "device":
        raise ArgumentError(
            f"{need} leaves whole batches of images to the device, and this loader does not make batches itself",
            hint="leave out collate_fn and batch_size=None, or use decode='cpu'",
        )
    try:
        check_nvjpeg(device, need=need)
    except (ArgumentError, MissingExtra):
        if decode == "device":
            raise
        return "cpu"
    is_possible = collates and leaves_files(dataset)
    return decode if is_possible else "cpu"


def check_expected(dataset: Any, settings: Mapping[str, Any]) -> None:
    """Let a dataset that knows how it was made refuse what it was not made with."""
    if not knows_settings(dataset):
        raise ArgumentError(
            f"{type(dataset).__name__} does not know the settings it was prepared with, so expect= cannot check them",
            hint="expect= is for stores; leave it out, or prepare the data with `stoker prepare`",
        )
    dataset.expect(settings)
