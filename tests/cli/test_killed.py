"""`kill -9` of a program that runs others: they end with it, with all that they have started, and no folder stays."""

from __future__ import annotations

import ast
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stoker.lab.watch.shared_folder import PREFIX
from stoker.lab.watch.supervised_process import SupervisedProcess
from stoker.lab.watch.watched_command import watch_command

STARTING = """
    import json, os, subprocess, sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 100_000

        def __getitem__(self, position):
            time.sleep(0.01)
            return torch.tensor([position, os.getpid()])

    def tell(path, pids):
        with open(path + ".part", "w") as file:
            json.dump(sorted(pids), file)
        os.rename(path + ".part", path)

    def escaped():
        # a daemon: of another session, and nobody's child
        code = "import os, time; print(os.getpid(), flush=True); os.close(1); time.sleep(1000)"
        shell = f'exec setsid "{sys.executable}" -c "{code}" &'
        return int(subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, check=True).stdout)

    def make(num_workers=2):
        return DataLoader(Slow(), batch_size=4, num_workers=2)

    def make_step():
        seen = {os.getpid(), os.getppid()}
        seen.add(escaped())

        def step(batch):
            if (told := os.environ["PIDS"]) and not os.path.exists(told):
                seen.update(batch[:, 1].tolist())
                if len(seen) >= 5:
                    tell(told, seen)

        return step
"""


def written(folder: Path, code: str = "") -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(STARTING) + textwrap.dedent(code))
    return path


TRAINING = """
    if __name__ == "__main__":
        step = make_step()
        for batch in make():
            step(batch)
"""


class Started:
    """A program in a session of its own, and the processes that it says it has started."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        shown = folder / "pids.json"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stoker", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PIDS": str(shown)},
        )
        own = os.pidfd_open(self.process.pid)
        try:
            while not shown.exists():
                # no event says that a file is there; that the program has ended is one
                assert not select.select([own], [], [], 0.05)[0], "the program has ended by itself"
        finally:
            os.close(own)
        self.pids: list[int] = [pid for pid in json.loads(shown.read_text()) if pid != self.process.pid]
        self.watched = {pid: os.pidfd_open(pid) for pid in self.pids}

    def wait_for_all(self) -> None:
        """Return when every process is gone; fail if one stays."""
        left = dict(self.watched)
        while left:
            ready, _, _ = select.select(list(left.values()), [], [], 60)
            assert ready, f"still there: {list(left)}"
            left = {pid: number for pid, number in left.items() if number not in ready}

    def close(self) -> None:
        """End whatever is still there."""
        for number in self.watched.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(number, signal.SIGKILL)
            os.close(number)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def folders_of(pid: int) -> list[str]:
    return [name for place in ("/dev/shm", "/tmp") for name in os.listdir(place) if name.startswith(f"{PREFIX}{pid}-")]


@pytest.mark.parametrize("verb", ["doctor", "top"])
@pytest.mark.parametrize("with_group", [False, True], ids=["alone", "with its process group"])
def test_a_watched_command_dies_with_the_one_that_watches(tmp_path: Path, verb: str, with_group: bool) -> None:
    """Its workers, a daemon that it has started, and the supervisor, too; and the folder is gone."""
    started = Started(tmp_path, verb, "--", sys.executable, written(tmp_path, TRAINING))
    try:
        assert len(started.pids) >= 5
        assert folders_of(started.process.pid)
        kill = os.killpg if with_group else os.kill
        kill(started.process.pid, signal.SIGKILL)
        started.process.wait()
        started.wait_for_all()
        assert folders_of(started.process.pid) == []
    finally:
        started.close()


def test_the_command_dies_though_the_supervisor_is_killed_too(tmp_path: Path) -> None:
    script = written(tmp_path, 'tell(os.environ["PIDS"], [os.getpid(), os.getppid()])\ntime.sleep(1000)')
    started = Started(tmp_path, "doctor", "--", sys.executable, script)
    try:
        os.kill(started.process.pid, signal.SIGSTOP)  # or it would see the end of the supervisor, and end as usual
        for pid in started.pids:
            if b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        os.kill(started.process.pid, signal.SIGKILL)
        started.wait_for_all()
    finally:
        started.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "loader", "TRAIN:make", "--step", "TRAIN:make_step", "--seconds", "200"),
        ("tune", "TRAIN:make", "--step", "TRAIN:make_step", "--seconds", "200"),
    ],
    ids=["bench loader", "tune"],
)
def test_a_loader_that_is_measured_dies_with_the_one_that_measures(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    script = written(tmp_path)
    started = Started(tmp_path, *(part.replace("TRAIN", str(script)) for part in arguments))
    try:
        assert len(started.pids) >= 5
        os.kill(started.process.pid, signal.SIGKILL)
        started.process.wait()
        started.wait_for_all()
        assert folders_of(started.process.pid) == []
    finally:
        started.close()


def test_a_command_that_ends_by_itself_leaves_alive_what_it_has_left_running(tmp_path: Path) -> None:
    script = written(tmp_path, "print(escaped())")
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "doctor", "--", sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    daemon = os.pidfd_open(int(done.stdout))
    try:
        assert not select.select([daemon], [], [], 0)[0], "it was killed"
        signal.pidfd_send_signal(daemon, signal.SIGKILL)
        assert select.select([daemon], [], [], 60)[0]
    finally:
        os.close(daemon)


def test_a_command_has_the_environment_and_the_open_files_that_it_would_have() -> None:
    code = "import os, sys; os.write(1, os.read(int(sys.argv[1]), 9)); print(sorted(os.environ.items()))"
    shown = []
    for doctor in ([], ["-m", "stoker", "doctor", "--", sys.executable]):
        read, write = os.pipe()
        os.write(write, b"passed on")
        os.close(write)
        done = subprocess.run(
            [sys.executable, *doctor, "-c", code, str(read)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[read],
            check=True,
            env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYTHONCOERCECLOCALE": "0", "LANG": "C"},
        )
        os.close(read)
        shown.append(done.stdout.decode())
        assert shown[-1].startswith("passed on")
    plain, watched = (set(ast.literal_eval(one[len("passed on") :])) for one in shown)
    assert {name for name, _ in plain ^ watched} == {"PYTHONPATH", "STOKER_DOCTOR"}


def test_a_failure_of_ours_does_not_end_the_command(tmp_path: Path) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("cannot be drawn")

    go_on = tmp_path / "go_on"
    script = tmp_path / "wait.py"
    script.write_text(
        "import os, sys, time\n"
        "os.mkfifo(sys.argv[1])\n"
        "open(sys.argv[1]).read()\n"
        "open(sys.argv[1] + '.done', 'w').close()\n"
    )
    # what fails is the first telling, which comes at once; the command is let go on after that
    opener = SupervisedProcess(
        ["sh", "-c", f'until [ -p "{go_on}" ]; do sleep 0.05; done; echo > "{go_on}"'], ends_all=True
    )
    try:
        with pytest.raises(RuntimeError, match="cannot be drawn"):
            watch_command([sys.executable, str(script), str(go_on)], on_run=fail)
        assert (tmp_path / "go_on.done").exists()
    finally:
        opener.close()


def test_a_supervised_process_ends_in_the_way_that_it_does() -> None:
    for command, code in ((["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -TERM $$"], -signal.SIGTERM)):
        process = SupervisedProcess(command)
        status = process.wait()
        assert status is not None and os.waitstatus_to_exitcode(status) == code
        assert process.poll() == status
        process.close()
    with pytest.raises(FileNotFoundError):
        SupervisedProcess(["/nowhere/at/all"])


def test_a_supervised_process_has_our_group_and_signals_or_a_group_of_its_own(tmp_path: Path) -> None:
    code = (
        "import json, os, signal, sys; blocked = sorted(map(int, signal.pthread_sigmask(0, [])))\n"
        "json.dump([os.getpgrp() == os.getpid(), os.getpgrp(), blocked], open(sys.argv[1], 'w'))"
    )
    path = tmp_path / "told"
    for has_own_group in (False, True):
        process = SupervisedProcess(
            [sys.executable, "-c", code, str(path)], has_own_group=has_own_group, blocked_signals=[signal.SIGUSR1]
        )
        assert process.wait() == 0
        leads, group, blocked = json.loads(path.read_text())
        assert leads == has_own_group
        assert has_own_group or group == os.getpgrp()
        assert blocked == [signal.SIGUSR1]
