"""What an engine runs, and what it offers. Engines know nothing of data: a batch has parts that can be done side by
side, and an end.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)


class BatchBuilder(Protocol[T_co]):
    """Builds one batch."""

    @property
    def size(self) -> int:
        """How many parts it has; 0 when only `finish` is left."""
        ...

    def do(self, start: int, stop: int) -> None:
        """Do the parts from `start` to before `stop`. Called from any thread, for each part once."""
        ...

    def finish(self) -> T_co:
        """Return the batch, when all parts are done. Called once."""
        ...


class BuilderFactory(Protocol[S_contra]):
    """Creates the builders of a worker process. `S_contra` is the writer of the slot that a batch is built in."""

    def builder(self, content: Any, slot: S_contra, /) -> BatchBuilder[Any]:
        """Return the builder for the content of a request, for several threads."""
        ...

    def build(self, content: Any, slot: S_contra, /) -> Any:
        """Return what a request asks for, built by the main thread alone."""
        ...

    def encode(self, result: Any, /) -> Any:
        """Return a result in the form in which it is pickled."""
        ...

    def close(self, *, at_exit: bool = False) -> None:
        """Let go of what is being read: the iteration is over. `at_exit` if the process is about to end."""
        ...


class Engine(Protocol[T_co]):
    """Runs builders: batches come in the order of the recipes.

    An error is raised in the place of its batch; the next call continues with the batch after it.
    """

    def __next__(self) -> T_co: ...

    @property
    def is_ready(self) -> bool:
        """Whether the next batch, an error or the end can be had without waiting."""
        ...

    def close(self) -> None:
        """End threads and processes before control returns. May be called more than once."""
        ...
