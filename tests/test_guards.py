"""The guards of the test suite work: what is left behind fails a test, and a hang fails with every stack shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LEAKS = {
    "thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "process": "import subprocess; global child; child = subprocess.Popen(['sleep', '30'])",
    "descriptor": "import os; os.open('/etc/hostname', os.O_RDONLY)",
    "shared memory": "import os; open(f'/dev/shm/torch_{os.getpid()}_left', 'w').close()",
}


def outcome(test: str, folder: Path, *arguments: str) -> str:
    path = folder / "test_it.py"
    path.write_text(test)
    (folder / "conftest.py").write_text(
        (ROOT / "tests" / "conftest.py").read_text().replace("GRACE_SECONDS = 5.0", "GRACE_SECONDS = 0.2")
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
        *arguments,
        str(path),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder).stdout


@pytest.mark.parametrize("what", LEAKS)
def test_what_is_left_behind_fails_a_test(what: str, tmp_path: Path) -> None:
    shown = outcome(f"def test_it():\n    {LEAKS[what]}\n", tmp_path)
    assert "left behind:" in shown
    assert f"{what} " in shown
    assert "1 error" in shown
    for path in Path("/dev/shm").glob("torch_*_left"):
        path.unlink()


def test_a_clean_test_passes(tmp_path: Path) -> None:
    assert "1 passed" in outcome("def test_it():\n    assert True\n", tmp_path)


def test_a_hang_fails_with_every_stack_shown(tmp_path: Path) -> None:
    test = (
        "import threading\n"
        "def waits_in_a_thread(event): event.wait(20)\n"
        "def test_it():\n"
        "    event = threading.Event()\n"
        "    thread = threading.Thread(target=waits_in_a_thread, args=(event,), daemon=True)\n"
        "    thread.start()\n"
        "    thread.join()\n"
    )
    shown = outcome(test, tmp_path, "--timeout", "1", "-s")
    assert "waits_in_a_thread" in shown
    assert "thread.join()" in shown
    assert "1 failed" in shown or "1 error" in shown
