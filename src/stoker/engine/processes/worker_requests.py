"""Requests of an iteration to its worker processes: where they come from, and how far each is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from stoker.engine.processes.launch import STREAM_PATIENCE_SECONDS
from stoker.engine.processes.messages import Reply
from stoker.engine.slots.ring import Slot
from stoker.engine.timing import HandoverTimes
from stoker.foundation.processes import PATIENCE_SECONDS

T = TypeVar("T")


class RequestSource(Protocol[T]):
    """Supplies the recipes of an iteration, encodes them for workers, and decodes their answers."""

    def __next__(self) -> Any:
        """Return the next recipe."""
        ...

    def content(self, recipe: Any, /) -> Any:
        """Return what a worker needs to know of a recipe. An error is raised in the place of its result."""
        ...

    def result(self, recipe: Any, answer: Any, handover: HandoverTimes, /) -> T:
        """Return the result that a worker's answer stands for, with how it came here."""
        ...

    def worker_of(self, recipe: Any, /) -> int:
        """Return the worker that has to build it, where requests are assigned."""
        ...

    def restarted(self, lost: list[Any], received: list[T], /) -> list[Any]:
        """Return the recipes to be sent to a new worker for those that were lost with the old one, in their order.

        `received` are the results of the old one that were not yet handed over. Only called where requests are assigned
        to workers.
        """
        ...

    def described(self, recipe: Any, /) -> str:
        """Return what is in a recipe, for an error."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How many workers there are, and how they run."""

    num_workers: int
    num_threads: int
    prefetch_factor: int
    context: Any
    seed: int
    timeout: float = 0
    in_order: bool = True
    is_assigned: bool = False
    """Each recipe belongs to one worker, instead of any free one."""
    small_bytes: int
    pins_small: bool = False
    most_workers: int = 0
    """The largest number there may be, if it or the number of threads may change; 0 if neither does."""

    @property
    def patience_seconds(self) -> float:
        """How long a worker may take to end by itself. One that reads a stream has to close it."""
        return STREAM_PATIENCE_SECONDS if self.is_assigned else PATIENCE_SECONDS

    @property
    def start_method(self) -> str:
        """How processes are started."""
        method = self.context.get_start_method()
        assert isinstance(method, str)
        return method


class Pending:
    """A request in flight."""

    __slots__ = ("ends", "error", "is_suspected", "queue", "recipe", "reply", "result", "slot", "ticket", "worker")

    def __init__(self, queue: Queue[Any]) -> None:
        self.queue = queue
        self.recipe: Any = None
        self.ticket = 0
        self.slot: Slot | None = None
        self.worker = 0
        self.reply: Reply | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.ends: list[str] = []
        """How workers died that were building this and nothing else."""
        self.is_suspected = False

    @property
    def is_done(self) -> bool:
        """Whether there is an answer or an error."""
        return self.reply is not None or self.error is not None


class Queue(Generic[T]):
    """What one iteration has requested and not yet handed over, in order."""

    def __init__(self, source: RequestSource[T], *, in_order: bool) -> None:
        self.source, self.in_order = source, in_order
        self.entries: deque[Pending] = deque()
        self.is_exhausted = self.is_over = False
        self.is_closing = False
        """Another thread wants to close the iteration: a waiting thread must leave."""

    def note(self, pending: Pending) -> bool:
        """Note that a request is done; return whether anyone waits for it."""
        if not self.in_order and not self.is_over:  # first come, first served
            self.entries.remove(pending)
            at = next((at for at, entry in enumerate(self.entries) if not entry.is_done), len(self.entries))
            self.entries.insert(at, pending)
        return not self.is_over
