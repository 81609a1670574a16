"""Run a function in several processes, as torchrun would start them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    num_ranks: int = 2,
    killed: bool = False,
    timeout: float = 100,
    env: dict[str, str] | None = None,
) -> list[Any]:
    """Return what `function(*arguments)` returns on each rank: plain values, like the arguments, which travel as JSON.

    The function is one of a test module, and finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in the
    environment. With `killed`, all ranks are expected to be killed by SIGKILL, and nothing is returned.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.integrations.launch", name, json.dumps(arguments), folder],
                cwd=ROOT,
                env=rank_environment(rank, num_ranks, port) | (env or {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for port in [free_port()]
            for rank in range(num_ranks)
        ]
        try:
            printed = [rank.communicate(timeout=timeout)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
        expected = -signal.SIGKILL if killed else 0
        for number, (rank, text) in enumerate(zip(ranks, printed)):
            assert rank.returncode == expected, f"rank {number} ended with {rank.returncode}:\n{text}"
        return [] if killed else [json.loads(Path(folder, str(rank)).read_text()) for rank in range(num_ranks)]


def rank_environment(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """Return the environment that torchrun gives a rank."""
    return os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def kill_this_process() -> None:
    """Die at once, as by `kill -9` or for lack of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def _run(name: str, arguments: str, folder: str) -> None:
    module, _, function = name.partition(":")
    result = getattr(import_module(module), function)(*json.loads(arguments))
    Path(folder, os.environ["RANK"]).write_text(json.dumps(result))


if __name__ == "__main__":
    _run(*sys.argv[1:])
