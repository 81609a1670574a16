"""Decode the files of batches on the device, in a thread: decoding waits for the device, and the training loop must
not.

Two loaders may decode on one device at a time. Their threads take turns, one batch each, and a turn ends when the
device is done with it: the decoder writes on a stream of its own, into memory that was freed on ours, and does not wait
for kernels that still read there.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, Protocol, TypeVar
from weakref import finalize

import torch
from torch import Tensor

from stoker.batch.encoded import Encoded
from stoker.deliver.cutting import Cuts, cut
from stoker.deliver.decoder import Decoder
from stoker.deliver.driver import driver
from stoker.deliver.structure import OnTensor
from stoker.errors import BadImage

_cuda: Any = torch.cuda  # parts of it have no types

T = TypeVar("T")

EXIT_SECONDS = 5.0
"""How long `stop` waits for a batch that is being decoded: a device that hangs must not hang the exit too."""


class FallbackReader(Protocol[T]):
    """Reads a sample whose file the device refuses, on the host."""

    def read(self, result: T, position: Any, row: int, /) -> tuple[Any, Any]:
        """Return a batch of that sample alone, and a note. Called in the decoding thread; may raise.

        `result` is the result that the file came with, without its batch; `row` is the sample's row in it.
        """
        ...

    def noted(self, result: T, notes: Sequence[Any], /) -> T:
        """Return `result` with the notes of `read` added to it."""
        ...


class DecodeJob:
    """Images of one batch that are to become a tensor. In the batch, it is in the place of that tensor."""

    __slots__ = (
        "_num_images",
        "encoded",
        "error",
        "event",
        "field",
        "is_done",
        "notes",
        "pixels",
        "ready",
        "rescued",
        "result",
        "tensor",
    )

    def __init__(self, encoded: Encoded, field: str | None, pixels: Tensor) -> None:
        self.encoded: Encoded | None = encoded
        self.field = field
        self.pixels: Tensor | None = pixels
        """Memory for them. Rows that are not files are there already, once `ready` is complete."""
        self.ready: Any = None
        self.result: Any = None
        """The result that the batch came with, without the batch."""
        self.is_done = False
        self.tensor: Tensor | None = None
        """The images, once `event` is complete."""
        self.event: Any = None
        self.rescued: list[tuple[int, Any]] = []
        """Rows to replace, each by a batch of one."""
        self.notes: list[Any] = []
        self._num_images = len(encoded)
        self.error: BaseException | None = None

    def __len__(self) -> int:
        """Return the number of images, those that were not files included."""
        return self._num_images


class DecodeRunner:
    """Does jobs, one at a time, in the calling thread."""

    def __init__(
        self,
        decoder: Decoder,
        device: torch.device,
        *,
        widen: OnTensor | None = None,
        rescue: FallbackReader[Any] | None = None,
    ) -> None:
        self._decoder, self._device, self._widen, self._rescue = decoder, device, widen, rescue
        self._is_cuda = device.type == "cuda"
        self.stream: Any = _stream_of(device.index) if self._is_cuda else None
        """The stream that jobs are queued on, if the device has streams."""
        self._most: int | None = None
        """The most files decoded at once, after memory was short; None before."""

    def turn(self) -> AbstractContextManager[None]:
        """Inside, no other thread decodes on the device, and work goes to our stream."""
        return _turn(self._device.index) if self._is_cuda else nullcontext()

    def do(self, job: DecodeJob) -> None:
        """Queue all work of a job on the stream."""
        encoded, pixels = job.encoded, job.pixels
        assert encoded is not None
        assert pixels is not None
        if self._is_cuda:
            pixels.record_stream(self.stream)  # of another stream's pool of memory
        refused = self._fill(encoded, pixels, job.ready)
        for number, reason in refused:
            self._save(job, encoded, number, reason)
        pixels = encoded.shaped(pixels)
        job.tensor = pixels if self._widen is None else self._widen(pixels, job.field)
        if self._is_cuda:
            job.event = _cuda.Event()
            job.event.record(self.stream)

    def settle(self, job: DecodeJob) -> None:
        """Wait until the device is done with a job, and release its files."""
        if job.event is not None:
            job.event.synchronize()
        elif self._is_cuda:  # it failed half-way
            torch.cuda.synchronize(self._device)
        job.encoded = job.pixels = None

    def _fill(self, encoded: Encoded, out: Tensor, ready: Any) -> list[tuple[int, str]]:
        """Decode all files into their rows; return the numbers of refused files, with the reasons.

        A batch that fails is halved until the file at fault is alone, or, when memory is short, until it fits.
        """
        files = torch.split(encoded.data, encoded.offsets.diff().tolist())
        sizes: list[list[int]] = encoded.sizes.tolist()
        cuts = Cuts(*(part.numpy() for part in (encoded.rows, encoded.regions, encoded.boxes, encoded.flips)))
        most = self._most or len(files)
        waiting = [range(start, min(start + most, len(files))) for start in range(0, len(files), most)][::-1]
        refused: list[tuple[int, str]] = []
        while waiting:
            part = waiting.pop()
            try:
                images = self._decoder.decode([files[number] for number in part], num_channels=out.shape[1])
            except RuntimeError as error:
                if self._is_cuda:  # work already queued may still write to memory that was freed
                    torch.cuda.synchronize(self._device)
                if len(part) > 1 and not _is_lost(error):
                    half = len(part) // 2
                    waiting += [part[half:], part[:half]]
                    if isinstance(error, torch.OutOfMemoryError):
                        self._most = half
                    continue
                if isinstance(error, torch.OutOfMemoryError):
                    error.add_note(
                        "raised while images were decoded on the device, in the end one by one\n"
                        "hint: use a smaller batch_size or model, or decode='cpu'"
                    )
                if isinstance(error, torch.OutOfMemoryError) or _is_lost(error):
                    raise
                refused.append((part[0], str(error).splitlines()[0]))
                continue
            found = [[image.shape[2], image.shape[1]] for image in images]
            right = [at for at, number in enumerate(part) if found[at] == sizes[number]]
            if len(right) < len(part):
                wrong = set(range(len(part))).difference(right)
                refused += [(part[at], "its size is not that of its header") for at in sorted(wrong)]
                images = [images[at] for at in right]
            if ready is not None:
                self.stream.wait_event(ready)
            cut(images, cuts.of([part[at] for at in right]), out)
            if waiting and self._is_cuda:
                self.stream.synchronize()
            del images
        return refused

    def _save(self, job: DecodeJob, encoded: Encoded, number: int, reason: str) -> None:
        position = encoded.positions[number]
        if self._rescue is None:
            raise BadImage(f"the image at position {position}", reason=reason)
        row = int(encoded.rows[number])
        one, note = self._rescue.read(job.result, position, row)
        job.rescued.append((row, one))
        job.notes.append(note)


def _is_lost(error: RuntimeError) -> bool:
    """Whether the error is about the device, which is lost to this process, and not about a file."""
    return "CUDA error" in str(error) or "CUDA driver" in str(error)


class _DecodeQueue:
    """What the thread shares with its owner. It refers to this, never to the `DecodeThread`, whose end ends it."""

    def __init__(self, bench: DecodeRunner) -> None:
        self.bench = bench
        self.jobs: deque[DecodeJob] = deque()
        self.process = os.getpid()
        # Reentrant: garbage collection may run a finalizer, and with it `stop`, in a thread that holds the lock.
        lock = threading.RLock()
        self.work = threading.Condition(lock)
        self.done = threading.Condition(lock)
        self.thread: threading.Thread | None = None
        self.is_closed = False
        self.file_seconds, self.num_timed = 0.0, 0
        self.shift = 0
        """The number of the current start. A thread that returns late, after a stop, sees that its own is over."""

    def start(self) -> None:
        # A daemon: otherwise the interpreter's exit would wait for it before our finalizers run. Its ordinary end is
        # `stop`.
        self.thread = threading.Thread(target=self.run, args=(self.shift,), name="stoker-decoding", daemon=True)
        self.thread.start()

    def run(self, shift: int) -> None:
        with self.work:
            while self.shift == shift:
                if self.jobs:
                    self.do(self.jobs.popleft())
                else:
                    self.work.wait()

    def do(self, job: DecodeJob) -> None:
        """Do a job. Called with the lock held, which is released meanwhile."""
        self.work.release()
        try:
            with self.bench.turn():
                began = time.perf_counter()
                error: BaseException | None = None
                try:
                    self.bench.do(job)
                except BaseException as caught:
                    error = caught.with_traceback(caught.__traceback__ and caught.__traceback__.tb_next)
                num_files = 0 if job.encoded is None else job.encoded.num_files
                if error is None:
                    self.tell(job)  # work is queued; `handed_over` makes the training stream wait for it
                try:
                    self.bench.settle(job)
                except BaseException as caught:  # the device is lost: every later call will raise too
                    error = error or caught.with_traceback(None)
                if not job.is_done:
                    job.error = error
                    self.tell(job)
                elif num_files:
                    self.timed((time.perf_counter() - began) / num_files)
                error = None
        finally:
            self.work.acquire()

    def timed(self, seconds: float) -> None:
        self.num_timed += 1
        # the first one is not counted: it loads libraries and compiles a kernel
        if self.num_timed > 1:
            self.file_seconds = seconds if self.num_timed == 2 else 0.8 * self.file_seconds + 0.2 * seconds

    def tell(self, job: DecodeJob) -> None:
        with self.done:
            job.is_done = True
            self.done.notify_all()

    def stop(self) -> None:
        """End the thread after its current batch. The other jobs stay for the next `start`."""
        if os.getpid() != self.process:
            return  # a forked child: thread and lock are the parent's
        with self.work:
            self.shift += 1
            thread, self.thread = self.thread, None
            self.work.notify_all()
            self.done.notify_all()
        if thread is not None and thread is not threading.current_thread() and thread.ident is not None:
            thread.join(EXIT_SECONDS)

    def close(self) -> None:
        """End the thread and forget all jobs."""
        if os.getpid() != self.process:
            return
        self.is_closed = True
        self.jobs.clear()
        self.stop()


class DecodeThread:
    """Does jobs in a thread, in their order.

    The thread starts with the first job. It ends with `stop`, and starts again when a job that is left is waited for.
    With `close`, and when this object is garbage-collected, it ends for good.
    """

    def __init__(self, bench: DecodeRunner) -> None:
        self._line = _DecodeQueue(bench)
        self.bench = bench
        finalize(self, self._line.close)

    @property
    def file_seconds(self) -> float:
        """Recent mean duration per file; 0 if unknown."""
        return self._line.file_seconds

    def add(self, jobs: Sequence[DecodeJob]) -> None:
        """Queue jobs."""
        line = self._line
        with line.work:
            line.is_closed = False
            line.jobs.extend(jobs)
            self._go_on()
            line.work.notify()

    def wait(self, jobs: Sequence[DecodeJob]) -> bool:
        """Wait until all of `jobs` are done or failed; return False if another thread has closed this."""
        line = self._line
        with line.done:
            while not all(job.is_done for job in jobs):
                if line.is_closed:
                    return False
                self._go_on()
                line.done.wait()
        return True

    def stop(self) -> None:
        """End the thread before returning."""
        self._line.stop()

    def close(self) -> None:
        """End the thread before returning, and release all batches."""
        self._line.close()

    def _go_on(self) -> None:
        if self._line.thread is None and self._line.jobs:
            self._line.start()


@lru_cache(maxsize=64)
def _stream_of(device: int) -> Any:
    """Return the stream for decoding on a device. High priority: its work is short, and training waits for it."""
    return _cuda.Stream(device, priority=-1)


_turns: dict[int, threading.Lock] = {}


@contextmanager
def _turn(device: int) -> Iterator[None]:
    cuda = driver()
    relaxed = nullcontext() if cuda is None else cuda.relaxed()  # the training loop may be capturing a graph meanwhile
    turn, stream = _turns.setdefault(device, threading.Lock()), _stream_of(device)
    with turn, torch.cuda.device(device), relaxed, torch.cuda.stream(stream):
        yield
