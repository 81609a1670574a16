"""Count copies of batches to the device, where the trainer requests them: `tensor.to("cuda")`, `tensor.cuda()`.

Nothing is patched before this process uses CUDA.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

from stoker.lab.watch.hook import recording
from stoker.lab.watch.hook.patches import Patches

MIN_BYTES = 16 * 1024
"""Smaller tensors are not batches, and copying them costs what any call does."""

TIMED_EVERY = 16
"""One of so many copies is timed on the device."""

_timed: list[tuple[Any, Any]] = []


def install(patches: Patches, torch: Any) -> None:
    """Count copies from the first use of CUDA in this process on.

    torch's lock for calls queued until then is not taken: a worker forked meanwhile by another thread would inherit it
    locked, and wait for it forever when it seeds its random numbers.
    """

    def begin() -> None:
        if recording.current is None or getattr(torch.Tensor.to, "_stoker_counts", False):
            return
        try:
            patches.wrap(torch.Tensor, "to", lambda original: counted(original, torch, goes=_goes_to_device))
            patches.wrap(torch.Tensor, "cuda", lambda original: counted(original, torch, goes=lambda *_: True))
        except Exception:
            recording.give_up()

    if torch.cuda.is_initialized():
        begin()
    else:
        torch.cuda._queued_calls.append((begin, []))  # the list is the stack that torch would show with an error of it


def counted(original: Any, torch: Any, *, goes: Callable[[Any, Any], bool]) -> Any:
    """Return a method that copies as `original` does, and counts copies from the host to the device.

    `goes` says of a call's arguments whether that is where it copies to.
    """
    plain, is_compiling, is_capturing = (
        torch.Tensor,
        torch.compiler.is_compiling,
        torch.cuda.is_current_stream_capturing,
    )
    is_overridden, overridden = torch.overrides.has_torch_function, torch.overrides.handle_torch_function

    def call_original(self: Any, args: Any, named: Any) -> Any:
        # subclasses and modes compare the called function with torch's own methods, so they must get to see those
        involved = (self, *args, *named.values())
        if is_overridden(involved):
            return overridden(original, involved, self, *args, **named)
        return original(self, *args, **named)

    def copy(self: Any, *args: Any, **named: Any) -> Any:
        now = recording.current
        if now is None or type(self) is not plain or not goes(args, named) or self.is_cuda or is_compiling():
            return call_original(self, args, named)
        # a copy captured into a CUDA graph must not be synchronized with, and is not executed yet
        if threading.get_native_id() != now.trainer_note.get("thread") or now.here.is_delivering or is_capturing():
            return call_original(self, args, named)
        began = perf_counter()
        events = _begun(now, torch)
        result = call_original(self, args, named)
        try:
            if result is not self and result.is_cuda and self.numel() * self.element_size() >= MIN_BYTES:
                # events are recorded on the current device's stream
                if events is not None and result.device.index == torch.cuda.current_device():
                    events[1].record()
                    _timed.append(events)
                # the first flag of all that `to` and `cuda` take is non_blocking
                flags = [value for value in args if isinstance(value, bool)]
                is_blocking = not (named.get("non_blocking", False) or (flags and flags[0]))
                _count(now, self, perf_counter() - began, is_blocking=is_blocking)
        except Exception:
            recording.give_up()
        return result

    copy._stoker_counts = True  # type: ignore[attr-defined]
    return copy


def _goes_to_device(args: Any, named: Any) -> bool:
    for value in (*args, *named.values()):
        kind = type(value).__name__  # by name: tensor subclasses could notice other checks
        if (
            (kind == "str" and value.startswith("cuda"))
            or (kind == "device" and value.type == "cuda")
            or kind == "int"  # the number of a device
            or (kind in ("Tensor", "Parameter") and value.is_cuda)
        ):
            return True
    return False


def _begun(now: recording.Recording, torch: Any) -> tuple[Any, Any] | None:
    """Return two events, of which the first is recorded, if this copy is to be timed."""
    num = now.trainer_note.get("copies", {}).get("num", 0)
    try:
        if num % TIMED_EVERY != 1 or len(_timed) > 8:  # not the first, which allocates memory
            return None
        events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        events[0].record()
    except Exception:
        return None
    return events


def _count(now: recording.Recording, tensor: Any, seconds: float, *, is_blocking: bool) -> None:
    totals = now.trainer_note.setdefault(
        "copies", {"num": 0, "pageable": 0, "blocking": 0, "seconds": 0.0, "timed": 0, "device_seconds": 0.0}
    )
    totals["num"] += 1
    totals["pageable"] += not tensor.is_pinned()
    totals["blocking"] += is_blocking
    totals["seconds"] += seconds
    now.here.copy_seconds += seconds
    while _timed and _timed[0][1].query():
        first, second = _timed.pop(0)
        totals["timed"] += 1
        totals["device_seconds"] += first.elapsed_time(second) / 1000
