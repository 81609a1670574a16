"""Who runs it: inline, threads, worker processes; random numbers; the ledger of bad samples. Knows nothing of data."""

from __future__ import annotations
