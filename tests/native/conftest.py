from __future__ import annotations

import os

import pytest

from stoker.native import library as loading
from stoker.native.building import NotBuilt, build, build_jpeg


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip where the library cannot be; fail where it can be and is not in use."""
    if os.environ.get(loading.SWITCH) == "0":
        pytest.skip(f"{loading.SWITCH} is 0")
    if loading.library() is None:
        try:
            build()
        except NotBuilt as reason:
            pytest.skip(str(reason))
        monkeypatch.setattr(loading, "_found", None)
    assert loading.library() is not None, loading.describe()


@pytest.fixture
def native_jpeg(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip where the decoder of JPEG files cannot be; fail where it can be and is not in use."""
    if loading.jpeg_library() is None:
        try:
            build_jpeg()
        except NotBuilt as reason:
            pytest.skip(str(reason))
        monkeypatch.setattr(loading, "_found_jpeg", None)
    assert loading.jpeg_library() is not None, loading.describe_jpeg()
