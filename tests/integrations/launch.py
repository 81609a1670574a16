"""Run a function in several processes, as torchrun would start them.

Trainers take seconds to import, and every test would pay for each of its ranks. So a test module has one process that
has imported it, the *launcher*, and every rank is a fork of that.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ACCELERATE_USE_CPU": "true",
}
"""Read by libraries when they are imported."""

_launchers: dict[str, subprocess.Popen[str]] = {}


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    num_ranks: int = 2,
    killed: bool = False,
    timeout: float = 100,
    env: dict[str, str] | None = None,
) -> list[Any]:
    """Return what `function(*arguments)` returns on each rank: plain values, like the arguments, which travel as JSON.

    The function is one of the calling test module, and finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
    in the environment. With `killed`, all ranks are expected to be killed by SIGKILL, and nothing is returned.
    """
    launcher = _launchers[function.__module__]
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "function": function.__qualname__,
            "arguments": arguments,
            "num_ranks": num_ranks,
            "timeout": timeout,
            "env": env or {},
            "folder": folder,
        }
        launcher.stdin.write(json.dumps(request) + "\n")
        launcher.stdin.flush()
        answer = launcher.stdout.readline()
        assert answer, f"the launcher of {function.__module__} ended: {launcher.poll()}"
        expected = -signal.SIGKILL if killed else 0
        for rank, status in enumerate(json.loads(answer)):
            printed = Path(folder, f"{rank}.log").read_text()
            assert status == expected, f"rank {rank} ended with {status}:\n{printed}"
        return [] if killed else [json.loads(Path(folder, str(rank)).read_text()) for rank in range(num_ranks)]


def start_launcher(module: str) -> None:
    """Start the process that the ranks of a test module are forked from."""
    _launchers[module] = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.integrations.launch", module],
        cwd=ROOT,
        env=os.environ | SETTINGS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def stop_launcher(module: str) -> None:
    """End that process."""
    launcher = _launchers.pop(module)
    launcher.kill()
    launcher.communicate()


def rank_environment(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """Return what torchrun adds to the environment of a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
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


def _serve(name: str) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # what modules print is no answer
    module = import_module(name)
    gc.freeze()  # trainers collect garbage often, and a rank would copy all memory that it has from here
    for line in sys.stdin:
        request = json.loads(line)
        os.write(answers, (json.dumps(_run_ranks(module, request)) + "\n").encode())


def _run_ranks(module: Any, request: dict[str, Any]) -> list[int]:
    """Return how each rank ended, as `subprocess` would say it."""
    port, num_ranks = free_port(), request["num_ranks"]
    pids = [_forked_rank(module, request, rank, port) for rank in range(num_ranks)]
    end = time.monotonic() + request["timeout"]
    statuses: dict[int, int] = {}
    while len(statuses) < num_ranks:
        for pid in pids:
            done, status = (pid, 0) if pid in statuses else os.waitpid(pid, os.WNOHANG)
            if done and pid not in statuses:
                statuses[pid] = os.waitstatus_to_exitcode(status)
                if statuses[pid]:  # the others wait for it, maybe forever
                    end = min(end, time.monotonic() + 10)
        if time.monotonic() > end:
            for pid in set(pids) - set(statuses):
                os.kill(pid, signal.SIGABRT)  # with the stacks of all threads
                os.waitpid(pid, 0)
                statuses[pid] = -signal.SIGABRT
        time.sleep(0.005)
    return [statuses[pid] for pid in pids]


def _forked_rank(module: Any, request: dict[str, Any], rank: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        import faulthandler

        log = os.open(Path(request["folder"], f"{rank}.log"), os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable()
        os.environ.update(rank_environment(rank, request["num_ranks"], port) | request["env"])
        result = getattr(module, request["function"])(*request["arguments"])
        Path(request["folder"], str(rank)).write_text(json.dumps(result))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        Path(request["folder"], f"{rank}.done").touch()
        # rank 0 serves the store in which ranks find each other: one that starts later may still need it
        while rank == 0 and not _all_done(request):
            time.sleep(0.005)
        os._exit(status)


def _all_done(request: dict[str, Any]) -> bool:
    return all(Path(request["folder"], f"{rank}.done").exists() for rank in range(request["num_ranks"]))


if __name__ == "__main__":
    _serve(*sys.argv[1:])
