from __future__ import annotations

import platform

import numpy as np
import torch
from typer.testing import CliRunner

import stoker
from stoker.cli.app import app


def test_about_shows_versions_and_limits() -> None:
    result = CliRunner().invoke(app, ["about"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    shown = {line.split("  ")[0]: line for line in result.output.splitlines()}
    assert {"native helpers", "native JPEG decoder", "cores", "memory", "/dev/shm", "open files", "CUDA"} <= set(shown)
    for name, version in (
        ("stoker", stoker.__version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("numpy", np.__version__),
    ):
        assert version in shown[name]
