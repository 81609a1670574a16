"""Samples into a batch."""

from __future__ import annotations

from stoker.batch.collate import collate, plain_collate, stack_plainly
from stoker.batch.memory import placed
from stoker.batch.misfit import explain

__all__ = ["collate", "explain", "placed", "plain_collate", "stack_plainly"]
