"""Samples into a batch."""

from __future__ import annotations

from stoker.batch.collate import collate, plain_collate, stack_plainly
from stoker.batch.misfit import explain
from stoker.batch.placing import placed
from stoker.batch.tray import Tray, Trays
from stoker.batch.whole import Gathering

__all__ = ["Gathering", "Tray", "Trays", "collate", "explain", "placed", "plain_collate", "stack_plainly"]
