"""Who is at what: shared memory that workers write to and the trainer reads, so that a death needs no last words."""

from __future__ import annotations

from stoker.engine.slots.ring import Ring

LANES = 2
"""Batches a worker with several threads works on at once: while the last samples of one are read, the next is begun."""


class InFlightTable:
    """One cell for each lane of each worker, with the ticket of what it works on; one more says how many threads a
    worker should have.
    """

    def __init__(self, ring: Ring, *, num_workers: int) -> None:
        self.extent = ring.reserve(8 * (LANES * num_workers + 1))
        """Where it is, for workers."""
        self.threads_cell = LANES * num_workers
        """The number of the cell that tells about threads."""
        self._ring, self._is_closed = ring, False
        self._cells = ring.arena.numbers(self.extent)

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
        """Give its memory back, once: it is somebody else's then."""
        if self._is_closed:
            return
        self._is_closed = True
        self._ring.release(self.extent)
