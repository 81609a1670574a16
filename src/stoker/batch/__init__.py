"""Samples into a batch."""

from __future__ import annotations

from stoker.batch.collate import collate, plain_collate, stack_plainly
from stoker.batch.placing import placed

__all__ = ["collate", "placed", "plain_collate", "stack_plainly"]
