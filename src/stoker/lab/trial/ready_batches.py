"""Send cached batches through a loader like the user's, to measure the transfer of batches without their loading."""

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
"""Limits on the cached batches: their memory and their number."""

ENDLESS = 1 << 40


class ReadyBatches:
    """A dataset whose samples are whole batches, the same few again and again, at no cost.

    With `is_shared`, workers copy them into new shared memory each time, like the collating of torch's loader. Sending
    the same memory twice would cost nothing, which never happens in training.
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
    """Return a batch whose tensors, and objects with `to`, are on a device, and converted there."""

    def put(tensor: Tensor, field: str | None) -> Tensor:
        tensor = tensor.to(device)
        return tensor if widen is None else widen(tensor, field)

    def send(thing: Any, field: str | None) -> Any:
        thing = thing.to(device)
        return thing if widen is None else mapped(widen, thing, field=field)

    return mapped(put, batch, on_mover=send)


def widening_of(loader: Any) -> OnTensor | None:
    """Return the conversion that a loader does on the device; None if there is none."""
    return None if _decodes_there(loader) else getattr(loader, "_widening", None)


def device_of(batch: Any) -> torch.device | None:
    """Return the device of a batch; None if it has no tensors."""
    found: list[torch.device] = []

    def note(tensor: Tensor, _: str | None) -> Tensor:
        found.append(tensor.device)
        return tensor

    mapped(note, batch)
    return next((device for device in found if device.type != "cpu"), found[0] if found else None)


def take_batches(loader: Any) -> list[Any]:
    """Return copies of the first few batches of a loader, as its workers load them: not yet on the device."""
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
        if callable(close) and iterator is not loader:  # a generator continues from here
            close()
    if not batches:
        raise no_batch_error()
    return batches


def cached_loader(loader: Any, batches: list[Any]) -> Any | None:
    """Return a loader of these batches with the arguments of `loader`; None for an unknown kind of loader.

    Workers, threads, prefetching, pinned memory and the copy to the device are the same.
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
    if not _decodes_there(loader):  # else they were converted when they were decoded
        cached._device, cached._widening = loader._device, widening_of(loader)
    return cached


def _torch_class(loader: Any) -> Any:
    for kind in type(loader).__mro__:
        if kind.__module__.startswith("torchdata.stateful_dataloader"):
            return kind
    return torch.utils.data.DataLoader


def _decodes_there(loader: Any) -> bool:
    """Whether images are decoded on the device: workers then deliver encoded images."""
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
