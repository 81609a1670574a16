"""Stores of these tests lie in memory, where that is possible: writing one waits for the disk several times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.places import folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder() as path:
        yield path
