"""Copy batches to a CUDA device on a side stream, while the training stream computes.

A copy is queued now and runs later, so two kinds of memory must outlive it:

- The host's tensors are held until the copy is complete (`InFlight`): they may be views of a slot, which a worker
  refills as soon as they are gone.
- The device's tensors come from the copy stream's memory pool. `record_stream` makes torch wait for the training stream
  before it reuses them; otherwise the next copy would overwrite memory that a training kernel still reads.

The training stream waits for a copy by an event (`handed_over`); the training loop itself never does.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from stoker.batch.encoded import Encoded
from stoker.deliver.copy_counter import CopyCounter
from stoker.deliver.decode_thread import DecodeJob
from stoker.deliver.structure import OnTensor, mapped, moved, tensors_in

_cuda: Any = torch.cuda  # parts of it have no types
_UNTIMED = nullcontext()


class DeviceCopy:
    """One batch that is being copied."""

    __slots__ = (
        "batch",
        "clocks",
        "event",
        "has_more",
        "is_blind",
        "is_pageable",
        "is_timed",
        "jobs",
        "sent",
        "sources",
        "tensors",
    )

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.event: Any = None
        """An event that is complete when the copy is; None once that is known."""
        self.is_timed = False
        """Its duration on the device is measured."""
        self.clocks: list[tuple[Any, Any]] = []
        """If so, events at the beginning and the end of each tensor's copy."""
        self.is_pageable = False
        """Some of it came from pageable memory."""
        self.sources: list[Tensor] = []
        """The tensors on the host."""
        self.tensors: list[Tensor] = []
        """The tensors on the device."""
        self.sent: list[Any] = []
        """Objects moved by their own `to` method."""
        self.has_more = False
        """Some of it can only be moved on the training stream, in `handed_over`."""
        self.is_blind = False
        """Some moved tensors cannot be found inside their objects, so `record_stream` cannot be called for them."""
        self.jobs: list[DecodeJob] = []
        """Images in it that are still files; in the batch, a job is in the place of the tensor that it makes."""


class CopyStream:
    """Copies batches to the device with number `device`, and converts their dtypes there (`widen`).

    With `decodes`, images that are still files become jobs, whose results are converted when they are done.
    """

    def __init__(
        self, device: int, widen: OnTensor | None, *, decodes: bool = False, counter: CopyCounter | None = None
    ) -> None:
        self._decodes = decodes
        self._counter = CopyCounter() if counter is None else counter
        self._device, self._widen = torch.device("cuda", device), widen
        self._index = device
        self._stream = _stream_of(device)
        self._in_flight = InFlight(self._counter)
        self.leaves_some = False
        """Some batches had parts that stay on the host, in the memory of their slot."""
        self._can_pin = self._follows = False
        with suppress(RuntimeError):
            self._can_pin = torch.empty(1).pin_memory().is_pinned()

    @property
    def in_flight(self) -> InFlight:
        """The copies in flight. Holds no reference to this object, so that a finalizer of it can wait for them."""
        return self._in_flight

    def begin(self, batch: Any) -> DeviceCopy:
        """Start the copy of a batch."""
        copy = DeviceCopy(batch)
        is_elsewhere = torch.cuda.current_device() != self._index
        with torch.cuda.device(self._index) if is_elsewhere else nullcontext():
            before = torch.cuda.current_stream(self._index)
            torch.cuda.set_stream(self._stream)
            try:
                if self._follows:  # memory that may still be read without torch's knowledge: see `is_blind`
                    self._stream.wait_stream(before)
                copy.is_timed = self._counter.is_to_be_timed
                copy.batch = mapped(
                    lambda tensor, field: self._copied(copy, tensor, field),
                    batch,
                    on_mover=lambda thing, field: self._sent(copy, thing, field),
                    on_rest=self._stays,
                    on_kind={Encoded: lambda encoded, field: self._laid_out(copy, encoded, field)}
                    if self._decodes
                    else None,
                )
                self._counter.num_pageable += copy.is_pageable
                copy.event = self._in_flight.recorded(
                    self._stream
                )  # last, so that the timing events are complete when it is
                # not the copy's event, which is reused as soon as it is complete
                for job in copy.jobs:
                    job.ready = _cuda.Event()
                    job.ready.record(self._stream)
            except BaseException:
                self._stream.synchronize()  # some of it may be in flight, and its memory is about to be released
                raise
            finally:
                torch.cuda.set_stream(before)
        self._in_flight.add(copy)
        self._follows = self._follows or copy.is_blind
        return copy

    def handed_over(self, copy: DeviceCopy, jobs: Sequence[DecodeJob] = ()) -> Any:
        """Return the batch, for work that the caller queues on its current stream from now on. `jobs` are done."""
        stream = torch.cuda.current_stream(self._index)
        if copy.event is not None:
            stream.wait_event(copy.event)
        for tensor in copy.tensors:
            tensor.record_stream(stream)
        batch = self._late(copy, copy.batch) if copy.has_more else copy.batch
        for job in jobs:
            if job.event is not None:
                stream.wait_event(job.event)
            if job.tensor is not None:
                job.tensor.record_stream(stream)
        copy.batch, copy.tensors, copy.sent = None, [], []
        return batch

    # ---------------------------------------------------------------- parts of a batch

    def _stays(self, _: Any) -> None:
        self.leaves_some = True

    def _copied(self, copy: DeviceCopy, tensor: Tensor, field: str | None) -> Tensor:
        if not _is_plain(tensor):
            copy.has_more = True
            return tensor
        if self._can_pin and type(tensor) is Tensor and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        if not self._can_pin or (type(tensor) is not Tensor and not tensor.is_pinned()):
            copy.is_pageable = True
        copied = self._on_device(copy, tensor)
        if self._widen is not None:
            copied = self._widen(copied, field)
        copy.tensors.append(copied)
        return copied

    def _on_device(self, copy: DeviceCopy, tensor: Tensor) -> Tensor:
        """Queue the copy of a tensor and return it on the device; hold the host's until the copy is complete."""
        copy.sources.append(tensor)
        with self._timed(copy) if copy.is_timed else _UNTIMED:
            return tensor.to(self._device, non_blocking=True)

    @contextmanager
    def _timed(self, copy: DeviceCopy) -> Iterator[None]:
        """Measure how long the copies in the block take on the device."""
        begin, end = _cuda.Event(enable_timing=True), _cuda.Event(enable_timing=True)
        begin.record(self._stream)
        yield
        end.record(self._stream)
        copy.clocks.append((begin, end))

    def _laid_out(self, copy: DeviceCopy, encoded: Encoded, field: str | None) -> DecodeJob:
        """Return the job that decodes the files into memory on the device; images that are pixels already are copied
        there.
        """
        pixels = encoded.pixels
        if encoded.num_files == len(pixels):
            on_device = torch.empty_like(pixels, device=self._device)
        else:
            if self._can_pin and not pixels.is_pinned():
                pixels = pixels.pin_memory()
            on_device = self._on_device(copy, pixels)
        job = DecodeJob(encoded, field, on_device)
        copy.jobs.append(job)
        return job

    def _sent(self, copy: DeviceCopy, thing: Any, field: str | None) -> Any:
        """Move an object by its own `to` method, if its tensors can be found: it may drop the old ones at once."""
        sources = tensors_in(thing)
        if sources is None or not all(map(_is_plain, sources)):
            copy.has_more = True
            return thing
        if not sources:
            return thing  # nothing to move, or a `to` that is not about devices
        copy.sources.extend(sources)
        with self._timed(copy) if copy.is_timed else _UNTIMED:
            sent = moved(thing, self._device, is_blocking=False)
        if self._widen is not None:
            sent = mapped(self._widen_here, sent, field=field)
        copy.sent.append(sent)
        tensors = tensors_in(sent)
        if tensors is None:
            copy.is_blind = True
        else:
            copy.tensors.extend(tensor for tensor in tensors if tensor.is_cuda)
        return sent

    def _widen_here(self, tensor: Tensor, field: str | None) -> Tensor:
        assert self._widen is not None
        return self._widen(tensor, field) if tensor.is_cuda else tensor

    def _late(self, copy: DeviceCopy, batch: Any) -> Any:
        """Move the rest, blocking, on the training stream: sparse tensors, tensors of another device, and objects
        whose tensors cannot be found.
        """
        done = {id(thing) for thing in (*copy.tensors, *copy.sent)}

        def on_tensor(tensor: Tensor, field: str | None) -> Tensor:
            if id(tensor) in done:
                return tensor
            tensor = tensor.to(self._device)
            return tensor if self._widen is None else self._widen(tensor, field)

        def on_mover(thing: Any, field: str | None) -> Any:
            if id(thing) in done or tensors_in(thing) == []:
                return thing
            thing = moved(thing, self._device, is_blocking=True)
            return thing if self._widen is None else mapped(self._widen_here, thing, field=field)

        with torch.cuda.device(self._index):
            return mapped(on_tensor, batch, on_mover=on_mover)


class InFlight:
    """Copies that may not be complete yet, in the order of their stream."""

    def __init__(self, counter: CopyCounter) -> None:
        self._counter = counter
        self._copies: deque[DeviceCopy] = deque()
        self._spare: list[Any] = []
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._copies)

    def recorded(self, stream: Any) -> Any:
        """Return an event that completes after everything queued on `stream` so far."""
        event = self._spare.pop() if self._spare else _cuda.Event()
        event.record(stream)
        return event

    def add(self, copy: DeviceCopy) -> None:
        """Hold the host's tensors of a copy that has begun."""
        self._copies.append(copy)

    def release(self) -> None:
        """Release the host's tensors of complete copies."""
        copies = self._copies
        while copies and copies[0].event.query():
            copy = copies.popleft()
            self._spare.append(copy.event)
            if copy.clocks:
                self._counter.add_timed(sum(begin.elapsed_time(end) for begin, end in copy.clocks) / 1000)
            copy.event, copy.sources, copy.clocks = None, [], []

    def settle(self) -> None:
        """Wait until all copies are complete, and release the host's tensors."""
        if os.getpid() != self._process:
            return  # a forked child: the copies and CUDA are the parent's
        with suppress(Exception):  # the device may be lost, or CUDA gone at the interpreter's end
            if self._copies:
                self._copies[-1].event.synchronize()
        self._copies.clear()


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested


@lru_cache(maxsize=64)
def _stream_of(device: int) -> Any:
    """Return the copy stream of a device, one for all loaders: memory that torch frees stays in the pool of its
    stream, so a new stream every epoch would leave as many pools behind.
    """
    return _cuda.Stream(device)
