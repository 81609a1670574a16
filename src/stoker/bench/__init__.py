"""Measure, compare, tune, diagnose. Everything here returns plain records; `stoker.view` draws them."""

from __future__ import annotations
