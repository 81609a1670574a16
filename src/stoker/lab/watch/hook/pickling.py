"""The pickling of what travels through multiprocessing's queues, timed: torch's batches go that way."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

from stoker.lab.watch.hook import recording
from stoker.lab.watch.hook.patches import Patches

unsent: deque[int] = deque()
"""The rows of batches that this worker has made and not yet pickled."""


def install(patches: Patches) -> None:
    """Put a stopwatch into multiprocessing's queues, unless there is one."""
    import multiprocessing.queues as queues

    if not getattr(queues._ForkingPickler, "_stoker_times", False):  # type: ignore[attr-defined]
        patches.wrap(queues, "_ForkingPickler", _timed)


def note_pickled(message: Any) -> None:
    """Note that a message has been pickled in this process: perhaps a batch, on its way to the trainer."""
    now = recording.current
    if now is None or not unsent or not (type(message) is tuple and len(message) == 2 and type(message[0]) is int):
        return
    made = message[1]
    if type(made) is tuple and made:  # torchdata's workers tell who they are, and their state, behind what they made
        made = made[0]
    if type(made).__name__ not in ("ExceptionWrapper", "_IterableDatasetStopIteration"):
        now.put_sent(unsent.popleft(), perf_counter())


def _timed(original: Any) -> Any:
    original_loads = original.loads

    class TimedPickler(original):  # type: ignore[misc]
        _stoker_times = True

        @classmethod
        def dumps(cls, message: Any, protocol: Any = None) -> Any:
            content = original.dumps(message, protocol)
            try:
                note_pickled(message)
            except Exception:
                recording.give_up()
            return content

        @staticmethod
        def loads(content: Any, /, **named: Any) -> Any:
            now = recording.current
            if now is None or not now.here.is_asking:
                return original_loads(content, **named)
            began = perf_counter()
            message = original_loads(content, **named)
            now.here.unpack_seconds += perf_counter() - began
            return message

    return TimedPickler
