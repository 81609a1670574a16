"""A batch on its way from a worker: the structure as pickle protocol 5, large buffers apart, in a slot.

Tensors and arrays that were collated straight into the slot are only named in the pickle; others are copied in. In the
trainer they become views on the slot's lease. Small ones travel inside the pickle: keeping the labels of every
batch must not keep every slot.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.multiprocessing import reductions

from stoker.engine.slots.slot_writer import SlotWriter
from stoker.foundation.torch_private import untyped_storage

SMALL_BYTES = 16 << 10
"""Buffers up to this size are copied out of the batch; for larger ones the copy would begin to show."""

_CARRIERS: list[tuple[torch.dtype, Any]] = [
    (torch.uint8, np.uint8),
    (torch.int8, np.int8),
    (torch.int16, np.int16),
    (torch.int32, np.int32),
    (torch.int64, np.int64),
    (torch.uint16, np.uint16),
    (torch.uint32, np.uint32),
    (torch.uint64, np.uint64),
    (torch.bool, np.bool_),
    (torch.float16, np.float16),
    (torch.float32, np.float32),
    (torch.float64, np.float64),
    (torch.complex64, np.complex64),
    (torch.complex128, np.complex128),
    (torch.bfloat16, np.int16),  # NumPy does not know these, so they travel as what has their size
    (torch.float8_e4m3fn, np.uint8),
    (torch.float8_e5m2, np.uint8),
]
_CODES = {dtype: code for code, (dtype, _) in enumerate(_CARRIERS)}
_NATIVE = 14
"""Codes below this are the same in NumPy."""


class _Opening(threading.local):
    """What is being unpacked in this thread."""

    lease: Any = None
    pins: bool = False


_opening = _Opening()


class _Table(dict[type, Callable[[Any], Any]]):
    """How to take objects apart: ours, and what libraries have registered with `copyreg`, by now or later."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        return copyreg.dispatch_table[kind]


class BatchPickler:
    """Packs batches onto one writer. Tensors of up to `small_bytes` stay in the pickle."""

    def __init__(self, writer: SlotWriter, *, small_bytes: int = SMALL_BYTES) -> None:
        self._writer, self._small_bytes = writer, small_bytes
        self._spans: list[int] = []
        table = _Table(ForkingPickler._extra_reducers)  # type: ignore[attr-defined]
        table |= {
            torch.Tensor: self._tensor,
            np.ndarray: self._array,
            torch.storage.TypedStorage: self._storage,
            torch.storage.UntypedStorage: self._untyped_storage,
        }
        table.pop(torch.nn.parameter.Parameter, None)
        self._table = table

    def packed(self, batch: Any) -> bytes:
        """Return what `unpacked` makes into `batch` again, where the slot is."""
        self._spans.clear()
        file = io.BytesIO()
        pickler = pickle.Pickler(file, 5, buffer_callback=self._buffer)
        pickler.dispatch_table = self._table
        pickler.dump(batch)
        spans = self._spans
        return struct.pack(f"<I{len(spans)}Q", len(spans), *spans) + file.getbuffer()

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "cpu":
            return reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        code = _CODES.get(tensor.dtype)
        is_plain = (
            code is not None
            and tensor.layout is torch.strided
            and not tensor.is_nested
            and not tensor.requires_grad
            and not tensor.is_conj()
            and not tensor.is_neg()
        )
        if not is_plain:
            return _reduced(tensor)  # its parts, or its storage, are reduced next
        assert code is not None
        shape, num_bytes = tuple(tensor.shape), tensor.nbytes
        is_contiguous, is_small = tensor.is_contiguous(), num_bytes <= self._small_bytes
        if is_contiguous and not is_small:
            offset = self._writer.offset_of(tensor.data_ptr(), num_bytes)
            if offset >= 0:
                return _viewed_tensor, (offset, code, shape)
        elif num_bytes > tensor.untyped_storage().nbytes():
            return _reduced(tensor)  # expanded: the storage is smaller than what it shows
        elif not is_small:  # a part of what is in the slot, such as all tokens of each row but the last
            span = 1 + sum((size - 1) * stride for size, stride in zip(shape, tensor.stride()))
            offset = self._writer.offset_of(tensor.data_ptr(), span * tensor.element_size())
            if offset >= 0:
                return _viewed_tensor, (offset, code, shape, tensor.stride())
        if is_contiguous and is_small and code < _NATIVE:
            return _own_tensor, (bytearray(tensor.numpy().data), code, shape, None)
        strides = None if is_contiguous else torch.empty_like(tensor, device="meta").stride()
        if is_small:
            content = bytearray(num_bytes)
            _tensor_at(content, 0, code, shape, strides).copy_(tensor)
            return _own_tensor, (content, code, shape, strides)
        memory, offset = self._writer.take(num_bytes)
        _tensor_at(memory, offset, code, shape, strides).copy_(tensor)
        return _viewed_tensor, (offset, code, shape, strides)

    def _array(self, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype.hasobject or array.dtype.kind == "V" or array.nbytes <= SMALL_BYTES:
            return array.__reduce_ex__(5)
        strides = None if array.flags.c_contiguous else np.empty_like(array).strides
        memory, offset = self._writer.take(array.nbytes)
        np.ndarray(array.shape, array.dtype, memory, offset, strides)[...] = array
        return _viewed_array, (offset, array.dtype.str, array.shape, strides)

    def _storage(self, storage: Any) -> Any:
        return _typed_storage, (untyped_storage(storage), storage.dtype)

    def _untyped_storage(self, storage: Any) -> Any:
        if storage.device.type != "cpu":
            return reductions.reduce_storage(storage)  # type: ignore[no-untyped-call]
        whole = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        if storage.nbytes() <= self._small_bytes:
            return _own_storage, (bytearray(whole.tobytes()),)
        memory, offset = self._writer.take(storage.nbytes())
        np.ndarray(whole.shape, np.uint8, memory, offset)[...] = whole
        return _viewed_storage, (offset, storage.nbytes())

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Put a buffer of anything else into the slot. Returns whether it is to stay in the pickle."""
        raw = np.frombuffer(buffer.raw(), np.uint8)
        if raw.nbytes <= SMALL_BYTES:
            return True
        memory, offset = self._writer.take(raw.nbytes)
        np.ndarray(raw.shape, np.uint8, memory, offset)[...] = raw
        self._spans += (offset, raw.nbytes)
        return False


def unpickle_batch(pickled: Any, lease: Any, *, pins: bool = False) -> Any:
    """Return the batch; its large buffers are views on `lease`. With `pins`, small tensors are page-locked by torch."""
    (count,) = struct.unpack_from("<I", pickled)
    _opening.lease, _opening.pins = lease, pins
    try:
        if not count:
            return pickle.loads(memoryview(pickled)[4:])
        spans = struct.unpack_from(f"<{count}Q", pickled, 4)
        whole = memoryview(lease).cast("B")
        buffers = [whole[start : start + size] for start, size in zip(spans[::2], spans[1::2], strict=True)]
        return pickle.loads(memoryview(pickled)[4 + 8 * count :], buffers=buffers)
    finally:
        _opening.lease = None


def _tensor_at(memory: Any, offset: int, code: int, shape: Any, strides: Any) -> torch.Tensor:
    dtype, carrier = _CARRIERS[code]
    if strides is not None:
        size = np.dtype(carrier).itemsize
        strides = tuple(size * stride for stride in strides)
    tensor = torch.from_numpy(np.ndarray(shape, carrier, memory, offset, strides))
    return tensor if code < _NATIVE else tensor.view(dtype)


def _viewed_tensor(offset: int, code: int, shape: Any, strides: Any = None) -> torch.Tensor:
    return _tensor_at(_opening.lease, offset, code, shape, strides)


def _own_tensor(content: bytearray, code: int, shape: Any, strides: Any) -> torch.Tensor:
    tensor = _tensor_at(content, 0, code, shape, strides)
    return tensor.pin_memory() if _opening.pins else tensor


def _viewed_array(offset: int, dtype: str, shape: Any, strides: Any) -> Any:
    return np.ndarray(shape, dtype, _opening.lease, offset, strides)


def _viewed_storage(offset: int, num_bytes: int) -> Any:
    return torch.from_numpy(np.ndarray((num_bytes,), np.uint8, _opening.lease, offset)).untyped_storage()


def _own_storage(content: bytearray) -> Any:
    return torch.from_numpy(np.ndarray((len(content),), np.uint8, content)).untyped_storage()


def _typed_storage(storage: Any, dtype: torch.dtype) -> Any:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def _reduced(tensor: torch.Tensor) -> Any:
    return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
