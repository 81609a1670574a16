"""Samples into a batch."""

from __future__ import annotations

from stoker.batch.collate import collate, plain_collate, stack_plainly
from stoker.batch.misfit import explain
from stoker.batch.placing import placed
from stoker.batch.row_writer import RowWriter, RowWriters
from stoker.batch.whole import Gathering

__all__ = ["Gathering", "RowWriter", "RowWriters", "collate", "explain", "placed", "plain_collate", "stack_plainly"]
