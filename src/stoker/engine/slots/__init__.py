"""Shared memory that batches are written into: the arena, the ring of slots, the writer in a worker."""
