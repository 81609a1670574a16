"""What an engine runs. Engines know nothing of data: a task has parts that can be done side by side, and an end."""

from __future__ import annotations

from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Task(Protocol[T_co]):
    """The making of one batch."""

    @property
    def size(self) -> int:
        """How many units of work it has; 0 when only `finish` is left."""
        ...

    def do(self, start: int, stop: int) -> None:
        """Do the units from `start` to before `stop`. Called from any thread, for each unit once."""
        ...

    def finish(self) -> T_co:
        """Return the result, when all units are done. Called once."""
        ...


class Engine(Protocol[T_co]):
    """Whoever runs the tasks: results come in the order of the tasks.

    An error is raised in the place of its result; the next call goes on with the task after it.
    """

    def __next__(self) -> T_co: ...

    @property
    def is_ready(self) -> bool:
        """Whether the next result, an error or the end can be had without waiting."""
        ...

    def close(self) -> None:
        """End threads and processes before control returns. May be called more than once."""
        ...
