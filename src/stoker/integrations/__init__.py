"""Trainers that drive a loader: one file for each, imported when the trainer is. See `stoker.trainers`."""

from __future__ import annotations
