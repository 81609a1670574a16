"""One Ctrl-C is one interrupt, however many signals it comes as."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cli import terminal
from stoker.cli.terminal import steady_interrupts


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def strike() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_signals_that_come_together_interrupt_once() -> None:
    steady_interrupts()
    with pytest.raises(KeyboardInterrupt):
        strike()
    strike()
    strike()  # what is being printed is printed completely


def test_another_one_later_interrupts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SAME_SECONDS", 0.0)
    steady_interrupts()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            strike()


def test_an_interrupt_handler_that_is_already_installed_stays() -> None:
    struck = []
    signal.signal(signal.SIGINT, lambda *_: struck.append(1))
    steady_interrupts()
    strike()
    strike()
    assert struck == [1, 1]


def test_other_threads_may_not_and_do_not() -> None:
    thread = threading.Thread(target=steady_interrupts)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_command_line_sees_to_it(tmp_path: Path) -> None:
    """Interrupted thrice at once, it ends as one does that was interrupted."""
    (tmp_path / "slow.py").write_text(
        "import sys, time\n\n\ndef make_loader():\n    print('here', file=sys.stderr, flush=True)\n    time.sleep(60)\n"
        "\n\ndef make_step():\n    make_loader()\n"
    )
    command = [sys.executable, "-m", "stoker", "bench", "train", "slow.py:make_step"]
    child = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    assert child.stderr.readline() == "here\n"
    for _ in range(3):
        child.send_signal(signal.SIGINT)
    assert child.wait(30) == 130
    assert "Traceback" not in child.stderr.read()
    child.stderr.close()
