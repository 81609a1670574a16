"""A notebook: classes that exist in its cells alone, cells that are run twice, interrupts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

NUMBERS = """
import os, signal
from stoker import DataLoader

class Numbers:
    def __len__(self):
        return 20
    def __getitem__(self, position):
        return position

def epoch(**options):
    return sorted(int(x) for batch in DataLoader(Numbers(), batch_size=4, num_workers=2, **options) for x in batch)

def children():
    tasks = os.listdir("/proc/self/task")
    pids = [pid for task in tasks for pid in open(f"/proc/self/task/{task}/children").read().split()]
    # the servers of spawn and forkserver stay with the interpreter
    return [pid for pid in pids if "from multiprocessing" not in open(f"/proc/{pid}/cmdline").read()]
"""

INTERRUPTED = """
loader, seen = DataLoader(Numbers(), batch_size=4, shuffle=True, seed=1, num_workers=2), []
for batch in loader:
    seen.append(batch)
    if len(seen) == 2:
        print("two batches", flush=True)
        while True:
            signal.sigtimedwait([signal.SIGUSR1], 0.1)
"""
RESUMED = """
again = DataLoader(Numbers(), batch_size=4, shuffle=True, seed=1)
again.load_state_dict(loader.state_dict())
print(sorted(int(x) for batch in seen + list(again) for x in batch) == list(range(20)))
"""


class Notebook:
    """A kernel that runs cells."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(folder / "kernel"))
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def start(self, cell: str) -> str:
        """Begin to run a cell, and return the number of the request."""
        return str(self.client.execute(cell))

    def result(self, request: str) -> str:
        """Return what a cell prints, and the error that it ends with."""
        printed = ""
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            content: dict[str, Any] = message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "error":
                printed += "\n".join([content["ename"], content["evalue"], *content["traceback"]])
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return printed

    def run(self, cell: str) -> str:
        """Run a cell and return what it prints."""
        return self.result(self.start(cell))

    def wait_for_output(self, text: str) -> None:
        """Wait until the cell that is running prints a text."""
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["msg_type"] == "stream" and text in message["content"]["text"]:
                return

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self.manager.context.destroy()


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    notebook = Notebook(tmp_path_factory.mktemp("notebook"))
    assert notebook.run(NUMBERS) == ""
    yield notebook
    notebook.close()


def test_a_class_of_a_cell_is_read_by_workers_and_a_cell_can_be_run_twice(notebook: Notebook) -> None:
    for _ in range(2):
        assert notebook.run("print(epoch() == list(range(20)), children())") == "True []\n"


def test_a_new_definition_of_a_class_is_what_workers_read(notebook: Notebook) -> None:
    changed = "Numbers.__getitem__ = lambda self, position: position + {}\nprint(epoch()[0])"
    assert notebook.run(changed.format(5)) == "5\n"
    assert notebook.run(changed.format(0)) == "0\n"


def test_a_persistent_loader_that_a_cell_makes_again_leaves_no_workers(notebook: Notebook) -> None:
    cell = (
        "loader = DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True)\nfor _ in loader: pass\n"
    )
    assert notebook.run(cell + "print(len(children()))") == "2\n"
    assert notebook.run(cell + "print(len(children()))") == "2\n"
    assert notebook.run("del loader, _\nprint(children())") == "[]\n"


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_class_of_a_cell_under_spawn_is_an_error_that_says_what_to_do(notebook: Notebook, start_method: str) -> None:
    shown = notebook.run(f"print(epoch(multiprocessing_context={start_method!r}))")
    assert "Can't get attribute 'Numbers' on <module '__main__'" in shown
    assert "move it to a module and import it from there, or use multiprocessing_context='fork'" in shown


def test_interrupting_a_cell_leaves_no_process_and_the_place_where_it_was(notebook: Notebook) -> None:
    request = notebook.start(INTERRUPTED)
    notebook.wait_for_output("two batches")
    notebook.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in notebook.result(request)
    assert notebook.run("print(children())") == "[]\n"
    assert notebook.run(RESUMED) == "True\n"
