"""What every worker process gets, serialised once: the dataset and the functions that go with it.

`multiprocessing` pickles the arguments of a process again for every process, and each holds its own copy. A shared
pickle is made once, into an anonymous memory file, and every worker maps that file: the memory of arrays and tensors is
shared by all of them until one writes to it, and then only the page that was written is its own.

::

    | pickle stream | memory of arrays and tensors, aligned as in the trainer | where each piece of it lies |

Three kinds of objects go other ways. Arrays that are files already (`np.memmap`) travel as the name of the file. What
can only travel while a process starts, since it is a handle on something that the processes have in common (queues,
locks, sockets, tensors in shared memory or on an accelerator), is a *traveller*: the stream holds its number, and the
object goes with the arguments of the process. All else goes through the stream.
"""

from __future__ import annotations

import copyreg
import functools
import mmap
import os
import pickle
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.context import assert_spawning
from multiprocessing.reduction import DupFd, ForkingPickler
from operator import methodcaller
from typing import Any
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.engine.slots.arena import memory_file
from stoker.errors import NotPicklable
from stoker.foundation import torch_private

MIN_SHARED_BYTES = 4096
"""A page: smaller arrays stay in the stream, where they cost less than the note of where they lie."""

ALIGN_BYTES = 64
"""A cache line. Memory lies as far behind a multiple of it as it did in the trainer."""

Array = NDArray[Any]
Reducer = Callable[..., Any]


class SharedPickle:
    """What every worker gets, written once into an anonymous memory file that all of them map.

    Made in the trainer, it is an argument of each worker's `Process` (start methods spawn and forkserver), as which it
    travels as a descriptor; the worker calls `unpacked`. The load is one pickle: what is shared between the dataset and
    a function in the trainer is shared in the worker.
    """

    num_bytes: int
    """The size of the memory file."""

    def __init__(self, load: Any, *, parts: Mapping[str, Any], start_method: str) -> None:
        """Write `load`; `parts` are the pieces of it that an error can be blamed on, by what the user calls them.

        Raises `NotPicklable` with the first of the parts that is to blame, and `OSError` if there is no memory.
        """
        self._fd = memory_file("stoker-dataset")
        self._closing = finalize(self, os.close, self._fd)
        try:
            self._write(load)
        except (OSError, MemoryError):
            self.close()
            raise
        except Exception as error:
            self.close()
            for what, part in parts.items():
                if (reason := _why_not(part)) is not None:
                    described = f"{type(reason).__name__}: {reason}"
                    raise NotPicklable(what, reason=described, start_method=start_method) from error
            raise

    def _write(self, load: Any) -> None:
        packer = _Packer()
        with open(self._fd, "wb", closefd=False) as file:
            packer.pack(load, file)
            end = num_streamed = file.tell()
        self._travellers = packer.travellers
        views = [buffer.raw() for buffer in packer.buffers]
        addresses = [_address(np.frombuffer(view, np.uint8)) for view in views]
        spans = np.empty((len(views), 2), np.int64)
        pieces = []
        # In the order of addresses, so that memory that overlaps is written once, and overlaps in the workers, too.
        reach, generation = -1, 0
        for number in sorted(range(len(views)), key=addresses.__getitem__):
            view, address = views[number], addresses[number]
            if address > reach:
                end += (address - end) % ALIGN_BYTES
                reach, generation = address, end - address
            spans[number] = address + generation, view.nbytes
            if fresh := view[reach - address :]:
                pieces.append((fresh, reach + generation))
                reach = address + view.nbytes
                end = reach + generation
        self._index_at, self.num_bytes = end, end + spans.nbytes
        if hasattr(os, "posix_fallocate") and self.num_bytes > num_streamed:  # too little memory is an error right away
            os.posix_fallocate(self._fd, num_streamed, self.num_bytes - num_streamed)
        for view, at in [*pieces, (memoryview(spans.tobytes()), self._index_at)]:
            _write_all(self._fd, view, at)

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)
        if not self._closing.alive:
            raise ValueError("this shared pickle is closed and cannot be unpacked any more")
        return _arrived, (DupFd(self._fd), self.num_bytes, self._index_at, self._travellers)

    def unpacked(self) -> Any:
        """Return the object, in the worker, and close this. Its arrays are writable; what is written is private."""
        mapped = mmap.mmap(self._fd, self.num_bytes, access=mmap.ACCESS_COPY)
        self.close()  # the map stays
        memory = memoryview(mapped)
        index = iter(memory[self._index_at :].cast("q").tolist())
        buffers = (memory[at : at + num_bytes] for at, num_bytes in zip(index, index))
        travellers, self._travellers = self._travellers, []
        return _Unpacker(mapped, buffers, travellers).load()

    def close(self) -> None:
        """Give the descriptor back, once no more workers start. What was unpacked stays."""
        self._closing()


def _arrived(descriptor: Any, num_bytes: int, index_at: int, travellers: list[Any]) -> SharedPickle:
    """Return the shared pickle in the process that it was sent to."""
    shared = SharedPickle.__new__(SharedPickle)
    shared._fd = descriptor.detach()
    shared._closing = finalize(shared, os.close, shared._fd)
    shared.num_bytes, shared._index_at, shared._travellers = num_bytes, index_at, travellers
    return shared


class _Packer(dict[type, Reducer]):
    """A pickler's dispatch table that is filled as types come by, and what does not go through the stream.

    Built-in objects cost nothing that way, and others a look into a dict in C; a `persistent_id` or `reducer_override`
    would cost a call in Python for each.
    """

    def __init__(self) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        self.travellers: list[Any] = []
        self._files: dict[Any, _File] = {}

    def pack(self, load: Any, file: Any) -> None:
        """Write the stream to `file`, and keep the rest."""
        pickler = pickle.Pickler(file, protocol=5, buffer_callback=self._stays_in_the_stream)
        pickler.dispatch_table = self
        try:
            pickler.dump(load)
        finally:
            self.clear()  # the table holds methods of itself: a cycle

    def _stays_in_the_stream(self, buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < MIN_SHARED_BYTES:
            return True
        self.buffers.append(buffer)
        return False

    def __missing__(self, kind: type) -> Reducer:
        if issubclass(kind, type) and kind not in copyreg.dispatch_table:
            raise KeyError(kind)  # a metaclass: its instances are classes, which pickle takes by name
        reducer = self[kind] = self._reducer(kind)
        return reducer

    def _reducer(self, kind: type) -> Reducer:
        if issubclass(kind, torch.Tensor):
            return self._tensor
        if issubclass(kind, torch.UntypedStorage):
            return self._storage
        if issubclass(kind, torch.TypedStorage):
            return _typed_storage
        if kind is np.ndarray or issubclass(kind, np.memmap):
            return self._array
        if _travels_while_spawning(kind):
            return self._traveller
        found: Reducer = copyreg.dispatch_table.get(kind, _as_it_says)
        return found

    def _traveller(self, it: Any) -> Any:
        self.travellers.append(it)
        return _traveller, (len(self.travellers) - 1,)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type in ("cpu", "meta"):
            return _as_it_says(tensor)  # which comes down to its storage, once for all tensors that share it
        return self._traveller(tensor)

    def _storage(self, storage: torch.UntypedStorage) -> Any:
        if storage.device.type != "cpu" or storage.is_shared():
            return self._traveller(storage)
        if not storage.nbytes():
            return torch.UntypedStorage, (0,)
        memory: Any = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
        return _storage_over, (pickle.PickleBuffer(memory),)

    def _array(self, array: Array) -> Any:
        memmap = _memmap_beneath(array)
        if memmap is not None and array.size and (file := self._file(memmap)) is not None:
            at = _address(array) - _address(np.frombuffer(memmap._mmap, np.uint8))
            shape = array.dtype, array.shape, array.strides
            return _array_in_file, (file, at, type(array), *shape, array.flags.writeable)
        array = array.view(np.ndarray)
        if array.nbytes < MIN_SHARED_BYTES or array.dtype.hasobject:
            return array.__reduce_ex__(5)
        if not (flat := _flattened(array)).flags.c_contiguous:  # a step in a slice, say: there are gaps
            array = array.copy(order="K")
            flat = _flattened(array)
        # as bytes: not all types have a letter in the buffer protocol (dates, bfloat16)
        memory: Any = flat.reshape(-1).view(np.uint8)
        return _array_over, (pickle.PickleBuffer(memory), array.dtype, array.shape, array.strides)

    def _file(self, memmap: Any) -> _File | None:
        """Return the file of a memmap, the same for all slices of it; None where it must travel as content."""
        if (mapped := memmap._mmap) is None or memmap.filename is None:
            return None
        if mapped not in self._files:
            start = memmap.offset - memmap.offset % mmap.ALLOCATIONGRANULARITY  # as NumPy does
            mode = {"w+": "r+"}.get(memmap.mode, memmap.mode)
            file = _File(os.fspath(memmap.filename), mode, start, len(mapped))
            if not file.is_there():
                return None
            self._files[mapped] = file
        return self._files[mapped]


class _Unpacker(pickle.Unpickler):
    """Reads a stream, and puts the travellers where their numbers are."""

    def __init__(self, file: Any, buffers: Iterable[Any], travellers: list[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._travellers = travellers

    def find_class(self, module: str, name: str, /) -> Any:
        found = super().find_class(module, name)  # asked for once per name, not once per use
        if found is _traveller:
            return self._travellers.__getitem__
        return _rebuild_tensor_v3 if found is torch_private.rebuild_tensor_v3 else found


def _traveller(number: int) -> Any:
    """Stands in the stream for the traveller of that number."""
    raise AssertionError(f"traveller {number} was unpickled by another than the unpacker")


_as_it_says: Reducer = methodcaller("__reduce_ex__", 5)
"""What pickle does with an object that no table knows."""

_ORDINARY = {types.MethodType, types.MethodDescriptorType, types.WrapperDescriptorType, functools.partial}
"""What `multiprocessing` has reducers for, though it pickles at any time, and may hold much."""


def _travels_while_spawning(kind: type) -> bool:
    # a user's class that holds or extends one of multiprocessing's would refuse to be pickled now
    if any(str(base.__module__).partition(".")[0] == "multiprocessing" for base in kind.__mro__):
        return True
    return kind in ForkingPickler._extra_reducers and kind not in _ORDINARY  # type: ignore[attr-defined]


def _why_not(part: Any) -> Exception | None:
    """Return why `part` cannot be packed."""
    with open(os.devnull, "wb") as nowhere:
        try:
            _Packer().pack(part, nowhere)
        except Exception as error:
            return error
    return None


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _memmap_beneath(array: Any) -> Any:
    """Return the memmap that `array` is or views, or None."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return array
        array = array.base
    return None


def _flattened(array: Array) -> Array:
    """Return `array` with its axes in the order in which they lie in memory."""
    return array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


def _array_over(memory: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    return np.ndarray(shape, dtype, memory, strides=strides)


def _storage_over(memory: Any) -> torch.UntypedStorage:
    return torch.from_numpy(np.frombuffer(memory, np.uint8)).untyped_storage()


def _typed_storage(storage: torch.TypedStorage) -> Any:
    return _typed_storage_over, (torch_private.untyped_storage(storage), storage.dtype)


def _typed_storage_over(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    typed: Any = torch.TypedStorage
    return typed(wrap_storage=storage, dtype=dtype, _internal=True)


def _rebuild_tensor_v3(storage: torch.UntypedStorage, *rest: Any) -> Any:
    """Make a tensor of one of the newer types (uint16, ...).

    torch pickles their storages untyped, and counts on its own loader to give typed ones back.
    """
    rebuild: Reducer = torch_private.rebuild_tensor_v3
    return rebuild(_typed_storage_over(storage, torch.uint8), *rest)


@dataclass(frozen=True, slots=True)
class _File:
    """A stretch of a file that is mapped in the trainer; arrives as a map of it."""

    name: str
    mode: Any
    start: int
    num_bytes: int

    def is_there(self) -> bool:
        try:
            return os.stat(self.name).st_size >= self.start + self.num_bytes
        except OSError:
            return False

    def __reduce__(self) -> tuple[Any, ...]:
        return np.memmap, (self.name, np.uint8, self.mode, self.start, (self.num_bytes,))


def _array_in_file(
    whole: Any, at: int, kind: type, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], is_writable: bool
) -> Array:
    array: Array = np.ndarray(shape, dtype, whole, at, strides)
    if not is_writable:
        array.flags.writeable = False
    if kind is np.ndarray:
        return array
    array = array.view(kind)
    vars(array).update(vars(whole))
    return array


def _write_all(descriptor: int, view: memoryview, at: int) -> None:
    while view:  # one call writes 2 GiB at most
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
