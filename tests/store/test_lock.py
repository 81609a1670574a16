from __future__ import annotations

from pathlib import Path

import pytest

from stoker.errors import ArgumentError
from stoker.store.lock import locked


def test_a_lock_is_held_by_one_and_free_afterwards(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "a"),
        pytest.raises(ArgumentError, match="another process is writing"),
        locked(tmp_path / "a"),
    ):
        pass
    with locked(tmp_path / "a"):
        pass
