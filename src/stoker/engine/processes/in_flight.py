"""Shared table of the request that each worker is building; the trainer reads it after a crash."""

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
        """The number of the cell with the number of threads."""
        self._ring, self._is_closed = ring, False
        self._cells = ring.arena.numbers(self.extent)

    def clear(self, worker: int) -> None:
        """Reset a worker's cells, before a process gets its number."""
        self._cells[worker * LANES : (worker + 1) * LANES] = memoryview(bytes(8 * LANES)).cast("Q")

    def tickets(self, worker: int) -> list[int]:
        """Return the tickets that a worker is building, or was last; 0 where there is none."""
        return self._cells[worker * LANES : (worker + 1) * LANES].tolist()

    def set_num_threads(self, num_threads: int) -> None:
        """Set how many threads each worker should have from now on."""
        self._cells[self.threads_cell] = num_threads

    def close(self) -> None:
        """Give its memory back. A second call does nothing: the memory has another owner by then."""
        if self._is_closed:
            return
        self._is_closed = True
        self._ring.release(self.extent)
