"""Batches that are there already, sent through a loader like the user's: what its way costs, without the making."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data
from torch import Tensor

from stoker.deliver.structure import OnTensor, mapped
from stoker.lab.trial.batch_contents import num_bytes_in
from stoker.lab.trial.drive import kind_of, no_batch_error
from stoker.loader import DataLoader

MAX_BYTES, MAX_BATCHES = 256 << 20, 8
"""So many batches are kept at the most, and so many that they take no more memory than that."""

ENDLESS = 1 << 40


class ReadyBatches:
    """A dataset whose samples are whole batches, the same few again and again, at no cost.

    With `is_shared`, workers copy them into new shared memory each time, as the collating of torch's loader would put
    them there: to send the same memory a second time costs nothing, which is never so in training.
    """

    def __init__(self, batches: list[Any], *, is_shared: bool = False) -> None:
        self._batches, self._is_shared = batches, is_shared

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, position: int) -> Any:
        batch = self._batches[position % len(self._batches)]
        is_away = self._is_shared and torch.utils.data.get_worker_info() is not None
        return mapped(_shared if is_away else _itself, batch)


def as_it_is(batch: Any) -> Any:
    """Collate nothing."""
    return batch


def on_device(batch: Any, device: torch.device, widen: OnTensor | None = None) -> Any:
    """Return a batch whose tensors, and objects that can move themselves, are on a device, and widened there."""

    def put(tensor: Tensor, field: str | None) -> Tensor:
        tensor = tensor.to(device)
        return tensor if widen is None else widen(tensor, field)

    def send(thing: Any, field: str | None) -> Any:
        thing = thing.to(device)
        return thing if widen is None else mapped(widen, thing, field=field)

    return mapped(put, batch, on_mover=send)


def widening_of(loader: Any) -> OnTensor | None:
    """Return what a loader does to the batches of `take_batches` on the device; None if nothing."""
    return None if _decodes_there(loader) else getattr(loader, "_widening", None)


def device_of(batch: Any) -> torch.device | None:
    """Return where the tensors of a batch are; None if it has none."""
    found: list[torch.device] = []

    def note(tensor: Tensor, _: str | None) -> Tensor:
        found.append(tensor.device)
        return tensor

    mapped(note, batch)
    return next((device for device in found if device.type != "cpu"), found[0] if found else None)


def take_batches(loader: Any) -> list[Any]:
    """Return the first few batches of a loader, as workers make them: before they are copied, widened or normalised.

    They are copies: what they lay in is the loader's.
    """
    if kind_of(loader) == "stoker" and not _decodes_there(loader):
        loader = copy.copy(loader)
        loader._device = loader._widening = None
    batches: list[Any] = []
    iterator: Iterator[Any] = iter(loader)
    try:
        for batch in iterator:
            batches.append(mapped(_copied, batch))
            if len(batches) >= MAX_BATCHES or (len(batches) + 1) * num_bytes_in(batches[0]) > MAX_BYTES:
                break
    finally:
        close = getattr(iterator, "close", None)
        if callable(close) and iterator is not loader:  # a generator goes on from here
            close()
    if not batches:
        raise no_batch_error()
    return batches


def cached_loader(loader: Any, batches: list[Any]) -> Any | None:
    """Return a loader with the arguments of another one that hands out these batches; None if it is of no known kind.

    Workers, threads, prefetching, page-locked memory and the copy to the device are those of `loader`.
    """
    kind = kind_of(loader)
    if kind == "iterable":
        return None
    names = ("num_workers", "pin_memory", "timeout", "pin_memory_device", "in_order")
    options = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    if loader.num_workers:
        options |= {
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    dataset: Any = ReadyBatches(batches, is_shared=kind == "torch")
    if kind == "torch":
        return _torch_class(loader)(dataset, batch_size=None, collate_fn=as_it_is, **options)
    if not loader.num_workers:
        options["prefetch_factor"] = loader.prefetch_factor
    cached: Any = DataLoader(
        dataset,
        batch_size=None,
        collate_fn=as_it_is,
        num_threads=loader.num_threads,
        device=loader.device,
        **options,
    )
    if not _decodes_there(loader):  # otherwise they have been widened together with being decoded
        cached._device, cached._widening = loader._device, widening_of(loader)
    return cached


def _torch_class(loader: Any) -> Any:
    for kind in type(loader).__mro__:
        if kind.__module__.startswith("torchdata.stateful_dataloader"):
            return kind
    return torch.utils.data.DataLoader


def _decodes_there(loader: Any) -> bool:
    """Whether pictures are decoded on the device: what comes from workers is then no batch yet."""
    return getattr(loader, "_decode", "cpu") != "cpu"


def _itself(tensor: Tensor, _: str | None) -> Tensor:
    return tensor


def _copied(tensor: Tensor, _: str | None) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _shared(tensor: Tensor, _: str | None) -> Tensor:
    if tensor.device.type != "cpu" or not tensor.numel() or tensor.layout != torch.strided:
        return tensor
    storage = tensor._typed_storage()._new_shared(tensor.numel())  # type: ignore[no-untyped-call]
    return tensor.new(storage).view(tensor.shape).copy_(tensor)
