"""Who is at what: shared memory that workers write to and the trainer reads, so that a death needs no last words."""

from __future__ import annotations

from stoker.engine.arena import Arena, Extent

LANES = 2
"""Batches a worker with several threads works on at once: while the last samples of one are read, the next is begun."""


class Board:
    """One cell for each lane of each worker, with the ticket of what it works on; one more says how many threads a
    worker should have.
    """

    def __init__(self, arena: Arena, extent: Extent, *, num_workers: int) -> None:
        self.extent = extent
        """Where it is, for workers."""
        self.threads_cell = LANES * num_workers
        """The number of the cell that tells about threads."""
        self._arena = arena
        self._cells = arena.numbers(extent)

    @staticmethod
    def num_bytes(num_workers: int) -> int:
        """Return how much memory a board for so many workers takes."""
        return 8 * (LANES * num_workers + 1)

    def clear(self, worker: int) -> None:
        """Nobody has this worker's seat yet, who could be at something."""
        self._cells[worker * LANES : (worker + 1) * LANES] = memoryview(bytes(8 * LANES)).cast("Q")

    def tickets(self, worker: int) -> list[int]:
        """Return what a worker is at, or was last; 0 where that is nothing."""
        return self._cells[worker * LANES : (worker + 1) * LANES].tolist()

    def tell(self, num_threads: int) -> None:
        """Say how many threads a worker should have from now on."""
        self._cells[self.threads_cell] = num_threads

    def close(self) -> None:
        """Give its memory back."""
        self._arena.empty(self.extent.offset, self.extent.stop)
