"""`breakpoint()` inside a dataset: in this process it stops there, in a worker the error says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from stoker import DataLoader

class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, position):
        if position == 2:
            breakpoint()
        return position

if __name__ == "__main__":
    start_method = sys.argv[2] if sys.argv[1] == "1" else None
    loader = DataLoader(
        Numbers(),
        batch_size=2,
        num_workers=int(sys.argv[1]),
        num_threads=int(sys.argv[3]),
        multiprocessing_context=start_method,
    )
    print([batch.tolist() for batch in loader])
"""


def debugged(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, script, *arguments],
        input="p position * 100\ncontinue\n",
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("num_threads", ["0", "2"])
def test_a_breakpoint_in_this_process_stops_there_and_goes_on(tmp_path: Path, num_threads: str) -> None:
    done = debugged(tmp_path, "0", "", num_threads)
    assert done.returncode == 0, done.stderr
    assert "(Pdb) 200" in done.stdout
    assert "[[0, 1], [2, 3]]" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_breakpoint_in_a_worker_is_an_error_that_says_what_to_do(tmp_path: Path, start_method: str) -> None:
    done = debugged(tmp_path, "1", start_method, "0")
    assert done.returncode == 1
    assert "bdb.BdbQuit" in done.stderr
    assert "raised while reading position 2 of Numbers, step 1, epoch 0" in done.stderr
    assert "hint: a worker process has no terminal for a debugger; set num_workers=0 while debugging" in done.stderr
