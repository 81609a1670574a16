"""Measure, watch, diagnose, compare and draw: everything that records how loading performs."""

from __future__ import annotations
