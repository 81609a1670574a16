"""The process that forks the ranks of a test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integrations.launch import start_launcher, stop_launcher


@pytest.fixture(scope="module", autouse=True)
def launcher(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start the launcher of a module that imports `launch`; every test is over before it ends."""
    name = request.module.__name__
    if not hasattr(request.module, "launch"):
        yield
        return
    start_launcher(name)
    yield
    stop_launcher(name)
