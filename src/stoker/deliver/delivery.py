"""The last stage: move an engine's batches to the device, ahead of the training loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import finalize

import torch
from torch import Tensor

from stoker.batch.encoded import Encoded
from stoker.deliver.copy_counter import CopyCounter
from stoker.deliver.copy_stream import CopyStream, DeviceCopy
from stoker.deliver.decode_thread import DecodeJob, DecodeRunner, DecodeThread, FallbackReader
from stoker.deliver.decoder import Decoder
from stoker.deliver.split import DecodeSplit
from stoker.deliver.structure import OnTensor, mapped, moved, put_row, tensors_in
from stoker.engine.engine_protocols import Engine
from stoker.errors import ArgumentError

T = TypeVar("T")


def checked_device(device: str | int | torch.device | None) -> torch.device | None:
    """Return the device as a `torch.device`; raise `ArgumentError` if it is not available. None leaves batches unmoved.

    "cuda" without a number stays so: it means the device that is current when an iteration begins.
    """
    if device is None:
        return None
    hint = 'give "cuda", "cuda:1", "cpu", a number, a torch.device, or None to leave batches where they are'
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise ArgumentError(f"device={device!r} is not a device", hint=hint)
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        module: Any = None if found.type == "cpu" else torch.get_device_module(found)
    except (RuntimeError, ValueError) as error:
        raise ArgumentError(f"device={device!r} is not a device: {str(error).splitlines()[0]}", hint=hint) from None
    if module is None:
        return found
    if not module.is_available():
        built = found.type != "cuda" or torch.version.cuda or torch.version.hip
        raise ArgumentError(
            f"device={device!r} cannot be used: torch {torch.__version__} finds none on this machine",
            hint='check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use device="cpu"'
            if built
            else 'this torch is built without CUDA; install one with it, or use device="cpu"',
        )
    if found.index is not None and not 0 <= found.index < module.device_count():
        raise ArgumentError(
            f"device={device!r} does not exist: this process sees {module.device_count()}, numbered from 0",
            hint="use a smaller number, or check CUDA_VISIBLE_DEVICES",
        )
    return found


class _PendingResult(Generic[T]):
    """A result taken from the engine, or the error or end in its place."""

    __slots__ = ("copy", "error", "is_end", "result")

    def __init__(self, result: T | None = None, *, error: Exception | None = None, is_end: bool = False) -> None:
        self.result, self.error, self.is_end = result, error, is_end
        self.copy: DeviceCopy | None = None


def _whole(result: Any) -> Any:
    return result


def _replaced(result: Any, batch: Any) -> Any:  # noqa: ARG001
    return batch


class Delivery(Generic[T]):
    """An engine whose batches are on `device`.

    On a CUDA device, up to `depth` batches more than the one that is returned are being copied: each call takes
    whatever the engine has ready, without waiting for more. Order, errors and the end are the engine's, each in its
    turn. A batch is returned at once, even if its copy is not complete: the caller's current stream waits for the copy,
    the caller does not. To use the batch on another stream, let that stream wait for the current one, as for any
    tensor.

    `of` returns the batch of a result (None: the result has none and is passed on), `replaced` the result with another
    batch in its place. `on_rest` is called once, before the first batch that leaves parts on the host, which the caller
    may want to copy itself.

    With a `decoder`, called with the device, images of a batch that are still files are decoded there, in a thread, and
    a batch is returned when its files are decoded. Files that it refuses are read by `rescue`; without one they are
    errors. `split` is given the waits for workers and device, `counter` the durations of copies.
    """

    def __init__(
        self,
        engine: Engine[T],
        device: torch.device,
        *,
        depth: int,
        widen: OnTensor | None = None,
        of: Callable[[T], Any] = _whole,
        replaced: Callable[[T, Any], T] = _replaced,
        on_rest: Callable[[], None] | None = None,
        decoder: Callable[[torch.device], Decoder] | None = None,
        rescue: FallbackReader[T] | None = None,
        split: DecodeSplit | None = None,
        counter: CopyCounter | None = None,
    ) -> None:
        self._engine, self._depth, self._widen = engine, depth, widen
        self._of, self._replaced, self._on_rest = of, replaced, on_rest
        self._ahead: deque[_PendingResult[T]] = deque()
        self._device = device
        self._counter = CopyCounter() if counter is None else counter
        self._copies: CopyStream | None = None
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self._copies = CopyStream(index, widen, decodes=decoder is not None, counter=self._counter)
            # If this is dropped in mid-epoch, the latest batch may still be in use: its copy must complete.
            finalize(self, self._copies.in_flight.settle)
            self._device = device = torch.device("cuda", index)
        self._decoding: DecodeThread | None = None
        self._rescue, self._split = rescue, split
        self._num_images = 0
        if split is not None:
            split.begin()
        if decoder is not None:
            # on the host, decoded files are converted together with the rest, in `_delivered`
            widen = widen if device.type == "cuda" else None
            self._decoding = DecodeThread(DecodeRunner(decoder(device), device, widen=widen, rescue=rescue))

    @property
    def is_ready(self) -> bool:
        """Whether the next result is available without waiting."""
        if not self._ahead:
            return self._engine.is_ready
        copy = self._ahead[0].copy
        return copy is None or all(job.is_done for job in copy.jobs)

    def __next__(self) -> T:
        if self._decoding is None:
            return self._next()
        try:
            return self._next()
        except BaseException:
            self._decoding.stop()  # the end, an error or Ctrl-C: leave no thread running
            raise

    def _next(self) -> T:
        ahead, copies = self._ahead, self._copies
        if copies is not None:
            copies.in_flight.release()
        began = time.perf_counter()
        is_late = not ahead
        if is_late:
            self._take()
        while len(ahead) <= self._depth and self._goes_on(ahead[-1]) and self._engine.is_ready:
            self._take()
        if copies is not None or self._decoding is not None:
            self._begin(copies)
        if self._decoding is not None:
            self._wait(self._decoding, began, is_late=is_late)
        # Removed only now: Ctrl-C up to here loses nothing.
        entry = ahead.popleft()
        if entry.is_end:
            raise StopIteration
        error, entry.error = entry.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or error and frame would hold each other
        return self._delivered(entry)

    def close(self) -> None:
        """End the engine, and release all batches when their copies are complete."""
        try:
            self._engine.close()
        finally:
            if self._decoding is not None:
                self._decoding.close()
            if self._copies is not None:
                self._copies.in_flight.settle()
            self._ahead.clear()

    def _take(self) -> None:
        """Take one more result from the engine, or the error it raises."""
        try:
            entry = _PendingResult(next(self._engine))
        except StopIteration:
            entry = _PendingResult(is_end=True)
        except Exception as error:
            # without this frame, which would hold this object and with it the engine's threads
            entry = _PendingResult(error=error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        self._ahead.append(entry)

    @staticmethod
    def _goes_on(entry: _PendingResult[T]) -> bool:
        """Whether to ask the engine for more: after an error or the end, only the caller does."""
        return entry.error is None and not entry.is_end

    def _wait(self, decoding: DecodeThread, began: float, *, is_late: bool) -> None:
        """Wait until the files of the first batch are decoded, and note what was waited for since `began`.

        If the batch itself came only in this call, decoding could not start before: then the workers were late.
        """
        copy = self._ahead[0].copy
        came = time.perf_counter()
        if copy is not None and copy.jobs and not decoding.wait(copy.jobs):
            raise StopIteration  # closed by another thread
        if self._split is not None and self._goes_on(self._ahead[0]):
            now = time.perf_counter()
            if copy is not None and copy.jobs:
                self._num_images = sum(len(job) for job in copy.jobs)
            self._split.note(
                now,
                for_workers=now - began if is_late else 0.0,
                for_device=0.0 if is_late else now - came,
                whole=decoding.file_seconds * self._num_images,
            )

    def _begin(self, copies: CopyStream | None) -> None:
        """Start the copies of all batches taken so far, and the decoding of their files."""
        for entry in self._ahead:
            if entry.copy is not None or not self._goes_on(entry):
                continue
            result: Any = entry.result
            batch = self._of(result)
            if batch is None:
                continue
            began = time.perf_counter()
            try:
                entry.copy = _kept(batch) if copies is None else copies.begin(batch)
            except Exception:
                if entry is not self._ahead[0]:
                    return  # it is tried again in its turn: device memory may be free by then
                self._ahead.popleft()
                raise
            if copies is not None:
                self._counter.add(time.perf_counter() - began)
            if copies is not None and copies.leaves_some and self._on_rest is not None:
                self._on_rest()
                self._on_rest = None
            # from here on, only the copy holds the host's batch, until it is complete
            entry.result = self._replaced(result, None)
            if entry.copy.jobs and self._decoding is not None:
                for job in entry.copy.jobs:
                    job.result = entry.result
                self._decoding.add(entry.copy.jobs)

    def _delivered(self, entry: _PendingResult[T]) -> T:
        result: Any = entry.result
        copy = entry.copy
        if copy is not None and copy.jobs and self._decoding is not None:
            return self._decoded(copy, result)
        if self._copies is not None:
            if copy is None:
                return result  # type: ignore[no-any-return]
            return self._replaced(result, self._copies.handed_over(copy))
        batch = self._of(result) if copy is None else copy.batch
        if batch is None:
            return result  # type: ignore[no-any-return]
        if self._device.type == "cpu" and self._widen is None:
            return result if copy is None else self._replaced(result, batch)
        began = time.perf_counter()
        batch = mapped(self._moved, batch, on_mover=self._sent)
        self._counter.add(time.perf_counter() - began)
        return self._replaced(result, batch)

    def _decoded(self, copy: DeviceCopy, result: T) -> T:
        """Return a result with files, after their decoding."""
        jobs, copy.jobs = copy.jobs, []
        for job in jobs:
            error, job.error = job.error, None
            if error is not None:
                try:
                    raise error
                finally:
                    del error, job, jobs
        batch = copy.batch if self._copies is None else self._copies.handed_over(copy, jobs)
        batch = mapped(_same, batch, on_mover=_same, on_kind={DecodeJob: lambda job, _: job.tensor})
        if self._copies is None:
            batch = mapped(self._moved, batch, on_mover=self._sent)
        for job in jobs:
            for row, one in job.rescued:
                put_row(batch, row, mapped(self._moved, one, on_mover=self._sent))
            if job.notes and self._rescue is not None:
                result = self._rescue.noted(result, job.notes)
        return self._replaced(result, batch)

    # ---------------------------------------------------------------- without streams: the host, and other devices

    def _moved(self, tensor: Tensor, field: str | None) -> Tensor:
        tensor = tensor.to(self._device)
        return tensor if self._widen is None else self._widen(tensor, field)

    def _sent(self, thing: Any, field: str | None) -> Any:
        if tensors_in(thing) == []:
            return thing
        thing = moved(thing, self._device, is_blocking=True)
        return thing if self._widen is None else mapped(self._widen, thing, field=field)


def _same(part: Any, _: str | None) -> Any:
    return part


def _kept(batch: Any) -> DeviceCopy:
    """Return a batch that stays on the host, with jobs that decode its files there."""
    copy = DeviceCopy(batch)

    def laid_out(encoded: Encoded, field: str | None) -> DecodeJob:
        job = DecodeJob(encoded, field, encoded.pixels.clone())
        copy.jobs.append(job)
        return job

    copy.batch = mapped(_same, batch, on_mover=_same, on_kind={Encoded: laid_out})
    return copy
