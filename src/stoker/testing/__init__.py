"""Suites to run on datasets of your own: does everything they offer agree with `__getitem__`?"""

from __future__ import annotations

from stoker.errors import CheckFailed
from stoker.testing.dataset_checks import check_dataset

__all__ = ["CheckFailed", "check_dataset"]
