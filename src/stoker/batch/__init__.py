"""Samples into a batch."""

from __future__ import annotations

from stoker.batch.collate import collate, plain_collate

__all__ = ["collate", "plain_collate"]
