from __future__ import annotations

import platform

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import stoker
from stoker.cli.app import app
from stoker.cli.words import bytes_told, seconds_told


def test_about_tells_versions_and_limits() -> None:
    result = CliRunner().invoke(app, ["about"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    told = {line.split("  ")[0]: line for line in result.output.splitlines()}
    assert {"native helpers", "native JPEG decoder", "cores", "memory", "/dev/shm", "open files", "CUDA"} <= set(told)
    for name, version in (
        ("stoker", stoker.__version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("numpy", np.__version__),
    ):
        assert version in told[name]


@pytest.mark.parametrize(
    ("num_bytes", "told"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_have_binary_units(num_bytes: int, told: str) -> None:
    assert bytes_told(num_bytes) == told


@pytest.mark.parametrize(("seconds", "told"), [(0.0003, "0.3 ms"), (0.041, "41 ms"), (2.1, "2.10 s")])
def test_durations_have_a_unit_that_suits_them(seconds: float, told: str) -> None:
    assert seconds_told(seconds) == told
