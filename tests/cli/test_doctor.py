"""`stoker doctor`: commands that are watched run as they would, whatever becomes of them; records are judged."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import stoker
from stoker.cli.app import app
from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.watch.run import Moment, Run
from stoker.lab.watch.shared_folder import PREFIX
from tests.lab.pathologies import Sleeping
from tests.lab.test_verdict import ranked, stats
from tests.lab.test_verdict import run as record

pytestmark = pytest.mark.timed

SLEEPING = """
    import os, signal, sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset


    class Sleeping(Dataset):
        def __len__(self):
            return 240

        def __getitem__(self, position):
            time.sleep(0.002)
            return torch.full((4,), float(position))


    def main(num_workers=1, method=None):
        return DataLoader(Sleeping(), batch_size=8, num_workers=num_workers, multiprocessing_context=method)
"""


def written(folder: Path, code: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(SLEEPING) + textwrap.dedent(code))
    return path


def doctor(*arguments: str | Path, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stoker", "doctor", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=os.environ | (env or {}), **more
    )


@pytest.fixture(autouse=True)
def no_folder_is_left() -> Iterator[None]:
    """Fail a test whose doctor is gone and its folder is not."""
    yield
    left = [name for place in ("/dev/shm", "/tmp") for name in os.listdir(place) if name.startswith(PREFIX)]
    assert [name for name in left if not Path(f"/proc/{name.removeprefix(PREFIX).partition('-')[0]}").exists()] == []


# -------------------------------------------------------------------- commands


def test_a_command_runs_unchanged_and_gets_its_verdict(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """
        if __name__ == "__main__":
            print("read:", sys.stdin.readline().strip())
            print(sys.argv[1:], [entry for entry in sys.path if "door" in entry])
            for epoch in range(1):
                for number, batch in enumerate(main()):
                    time.sleep(0.001)
            print(number, file=sys.stderr)
        """,
    )
    saved = tmp_path / "run.json"
    done = doctor("--save", saved, "--", sys.executable, "-W", "error", script, "--lr", "3", input="hello\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["read: hello", "['--lr', '3'] []"]
    assert done.stderr.startswith("29\n")
    assert "storage-bound: " in done.stderr
    assert "num_workers=" in done.stderr
    run = Run.load(saved)
    (seen,) = run.loaders
    assert (seen.num_batches, seen.num_samples, seen.kind) == (30, 240, "torch")
    assert seen.name == f"train.py:{script.read_text().splitlines().index('def main(num_workers=1, method=None):') + 2}"
    assert seen.construction_seconds is not None
    assert run.moments
    assert run.title.endswith("train.py --lr 3")
    again = doctor(saved)
    assert again.returncode == 0
    assert "storage-bound: " in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_that_are_spawned_are_watched_too(tmp_path: Path, num_workers: int) -> None:
    script = written(
        tmp_path,
        f"""
        if __name__ == "__main__":
            for epoch in range(1):
                for batch in main({num_workers}, "spawn" if {num_workers} else None):
                    time.sleep(0.001)
        """,
    )
    saved = tmp_path / "run.json"
    done = doctor("--save", saved, "--json", "--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    (seen,) = Run.load(saved).loaders
    assert seen.making_seconds.p50 >= 0.016
    assert len(seen.workers) == num_workers
    assert seen.sampled is not None
    assert any("__getitem__" in place for place in seen.sampled.places)
    verdict = json.loads(done.stdout)["verdict"]
    assert verdict in ("storage-bound", "start-up-bound")


STATEFUL = """
    import hashlib, json, warnings

    warnings.simplefilter("ignore")
    from torchdata.stateful_dataloader import StatefulDataLoader


    def told(state):
        content = json.dumps(state, sort_keys=True, default=lambda value: value.tolist())
        return hashlib.sha256(content.encode()).hexdigest()


    if __name__ == "__main__":
        torch.manual_seed(3)
        data = Sleeping()
        more = {"num_workers": 2, "persistent_workers": True} if sys.argv[1] == "2" else {}
        train = StatefulDataLoader(data, batch_size=8, shuffle=True, **more)
        print(told(train.state_dict()))
        for epoch in range(2):
            for number, batch in enumerate(train):
                time.sleep(0.001)
                print(batch[:, 0].tolist())
                if epoch and number == 9:
                    state = train.state_dict()
                    break
        print(told(state))
        again = StatefulDataLoader(data, batch_size=8, shuffle=True, **more)
        again.load_state_dict(state)
        print([batch[:, 0].tolist() for batch in again], told(again.state_dict()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdatas_loader_is_watched_and_goes_on_where_it_was(tmp_path: Path, num_workers: int) -> None:
    script = written(tmp_path, STATEFUL)
    command = [sys.executable, str(script), str(num_workers)]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    saved = tmp_path / "run.json"
    done = doctor("--save", saved, "--", *command)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    train, again = Run.load(saved).loaders
    assert (train.kind, train.num_iterations, train.num_batches, train.num_samples) == ("torch", 2, 40, 320)
    assert (again.num_iterations, again.num_batches, again.num_samples) == (1, 20, 160)
    assert train.name.startswith("train.py:") and train.name != again.name
    for seen in (train, again):
        assert seen.making_seconds.p50 >= 0.016
        assert len(seen.workers) == num_workers
        assert seen.sampled is not None
        assert any("__getitem__" in place for place in seen.sampled.places)
    assert "storage-bound: " in done.stderr or "noisy-neighbour: " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("maker", ["DataLoader", "stoker.DataLoader"])
def test_a_loader_that_is_made_again_for_every_epoch_is_one_loader(tmp_path: Path, maker: str) -> None:
    script = written(
        tmp_path,
        f"""
        import stoker

        def make(data, num_workers=1):
            return {maker}(data, batch_size=8, num_workers=num_workers)

        if __name__ == "__main__":
            class Short(Sleeping):
                def __len__(self):
                    return 32

            for epoch in range(5):
                for batch in make(Sleeping()):
                    time.sleep(0.001)
                for batch in make(Short()):
                    pass
            kept = [make(Short(), 0) for number in range(60)]
            for loader in kept:
                for batch in loader:
                    pass
        """,
    )
    saved = tmp_path / "run.json"
    done = doctor("--save", saved, "--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    train, short, *kept = Run.load(saved).loaders
    assert (train.num_iterations, train.num_batches, train.num_samples) == (5, 150, 1200)
    assert (short.num_iterations, short.num_batches, short.num_samples) == (5, 20, 160)
    for seen in (train, short):
        assert len(seen.first_batch_seconds) == 5
        assert [worker.num_batches for worker in seen.workers] == [seen.num_batches]
        assert seen.making_seconds.num == seen.num_batches
        assert seen.making_seconds.p50 >= 0.016
        assert seen.facts["dataset"] in ("Sleeping", "Short")
    assert len(kept) == 8  # as many as are told apart of those that look the same
    assert sum(seen.num_batches for seen in kept) == 240


LAUNCHER = """
import torch.utils.data

def prepared(dataset, **options):
    return torch.utils.data.DataLoader(dataset, **options)
"""


def test_a_loader_is_named_by_the_line_that_had_it_made(tmp_path: Path) -> None:
    """Not by that of a library which makes loaders for others."""
    library = tmp_path / "lib" / "site-packages"
    library.mkdir(parents=True)
    (library / "launcher.py").write_text(LAUNCHER)
    script = written(
        tmp_path,
        """
        import launcher

        if __name__ == "__main__":
            for batch in launcher.prepared(Sleeping(), batch_size=8):
                pass
        """,
    )
    saved = tmp_path / "run.json"
    done = doctor("--save", saved, "--", sys.executable, script, env={"PYTHONPATH": str(library)})
    assert done.returncode == 0, done.stderr
    line = next(number for number, text in enumerate(script.read_text().splitlines(), 1) if ".prepared(" in text)
    assert [seen.name for seen in Run.load(saved).loaders] == [f"train.py:{line}"]


def test_our_own_loader_is_watched_and_what_it_counted_survives_a_kill(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """
        import stoker

        if __name__ == "__main__":
            loader = stoker.DataLoader(Sleeping(), batch_size=8, num_workers=1)
            began = time.perf_counter()
            while True:
                for batch in loader:
                    time.sleep(0.001)
                    if time.perf_counter() - began > 2.5:
                        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    saved = tmp_path / "run.json"
    done = doctor("--save", saved, "--", sys.executable, script)
    assert done.returncode == 128 + signal.SIGKILL
    assert "storage-bound: " in done.stderr
    (seen,) = Run.load(saved).loaders
    assert seen.kind == "stoker"
    assert seen.num_batches >= 30
    assert seen.sampled is not None
    assert any("__getitem__" in place for place in seen.sampled.places)
    assert seen.facts["dataset"] == "Sleeping"


def test_a_training_that_is_killed_is_diagnosed_all_the_same(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """
        if __name__ == "__main__":
            for number, batch in enumerate(main()):
                time.sleep(0.001)
                if number == 25:
                    os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    saved = tmp_path / "run.json"
    done = doctor("--save", saved, "--", sys.executable, script)
    assert done.returncode == 128 + signal.SIGKILL
    assert "storage-bound: " in done.stderr
    assert Run.load(saved).loaders[0].num_batches >= 25


def test_a_script_that_fails_is_shown_as_it_fails(tmp_path: Path) -> None:
    script = written(tmp_path, 'raise SystemExit("no data")')
    done = doctor("--fail", "--", sys.executable, script)
    assert done.returncode == 1
    assert "no data" in done.stderr
    assert "nothing-seen: " in done.stderr
    assert "note:" not in done.stderr  # torch was there to be watched


def test_a_command_without_loaders_is_told_so(tmp_path: Path) -> None:
    done = doctor("--", "sh", "-c", "echo out; exit 5")
    assert done.returncode == 5
    assert done.stdout == "out\n"
    assert "nothing-seen: " in done.stderr
    assert "no process of the command has imported" in done.stderr
    assert "with the PYTHONPATH that the doctor gives it?" in " ".join(done.stderr.split())


def test_a_command_that_does_not_exist_is_told_so(tmp_path: Path) -> None:
    done = doctor("--", "no-such-program")
    assert done.returncode == 127  # as of a shell
    assert "cannot run 'no-such-program': it does not exist, nor is it on the PATH" in done.stderr
    assert "hint: check the spelling" in done.stderr
    done = doctor("no-such-program")
    assert "after two dashes" in done.stderr
    done = doctor(tmp_path)
    assert done.returncode == 126
    assert "it is a folder" in done.stderr
    done = doctor(tmp_path / "none.json")
    assert done.returncode == 1
    assert "there is no file" in done.stderr
    assert "--save run.json" in done.stderr


@pytest.mark.slow
def test_modules_are_run_by_their_name_and_their_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    written(tmp_path, "for batch in main(0): pass", "training.py")
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.stdout.write('mine\\n')")
    saved = tmp_path / "run.json"
    done = doctor(
        "--save",
        saved,
        "--json",
        "--",
        sys.executable,
        "-m",
        "training",
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
    )
    # the doctor is Python too, and has it on its path
    assert done.stdout.splitlines()[:2] == ["mine", "mine"]
    assert Run.load(saved).loaders[0].num_batches == 30


def test_an_environment_without_stoker_can_be_watched(tmp_path: Path) -> None:
    """The hook brings what it needs; and where torch is not what it expects, the script does not notice."""
    venv.create(tmp_path / "venv", with_pip=False)
    for place in ("torch", "torch/utils", "torch/utils/data"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "__init__.py").write_text("")
    (tmp_path / "train.py").write_text(
        "import torch.utils.data, sys\n"
        "print([entry for entry in sys.path if 'stoker' in entry], 'stoker.lab.watch.hook.install' in sys.modules)\n"
    )
    done = doctor("--", tmp_path / "venv/bin/python", tmp_path / "train.py")
    assert done.returncode == 0
    assert done.stdout == "[] True\n"
    assert "watching failed in a process, which continued without it (AttributeError" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_seconds_end_a_command_after_its_first_batch(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """
        if __name__ == "__main__":
            try:
                while True:
                    for batch in main():
                        time.sleep(0.001)
            except KeyboardInterrupt:
                print("interrupted")
        """,
    )
    done = doctor("--seconds", "0.5", "--fail", "--", sys.executable, script)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "interrupted\n"
    assert "storage-bound: " in done.stderr


def started(script: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stoker", "doctor", "--", sys.executable, str(script)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_signal_to_the_doctor_reaches_the_command(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """
        def end(number, frame):
            print("asked to end", flush=True)
            sys.exit(9)

        if __name__ == "__main__":
            signal.signal(signal.SIGTERM, end)
            for number, batch in enumerate(main(0)):
                if number == 10:
                    print("running", flush=True)
        """,
    )
    process = started(script)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert out == "asked to end\n"
    assert process.returncode == 9
    assert "storage-bound: " in err


@pytest.mark.slow
def test_a_script_that_watches_by_itself_is_watched_too(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """
        import stoker

        if __name__ == "__main__":
            with stoker.watch(main(1)) as watched:
                for batch in watched:
                    time.sleep(0.001)
                print(watched.run().loaders[0].num_batches)
            for batch in main(1):
                pass
        """,
    )
    saved = tmp_path / "run.json"
    done = doctor("--save", saved, "--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "30\n"
    assert [seen.num_batches for seen in Run.load(saved).loaders] == [30, 30]


@pytest.mark.slow
def test_ctrl_c_reaches_the_command_once(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """
        if __name__ == "__main__":
            interrupts = []
            signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(time.monotonic()))
            print("running", flush=True)
            while not interrupts or time.monotonic() - interrupts[0] < 1.0:
                for batch in main(0):
                    pass
            print("interrupts:", len(interrupts), flush=True)
            sys.exit(4)
        """,
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "stoker", "doctor", "--", sys.executable, str(script)])
    shown = b""
    was_interrupted = False
    over = time.monotonic() + 60
    try:
        while time.monotonic() < over:
            if select.select([terminal], [], [], 1)[0]:
                try:
                    part = os.read(terminal, 4096)
                except OSError:  # how a terminal tells that the other side is closed
                    break
                if not part:
                    break
                shown += part
            if b"running" in shown and not was_interrupted:
                was_interrupted = True
                os.write(terminal, b"\x03")
        else:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    text = shown.decode()
    assert "interrupts: 1\r\n" in text, text
    assert "storage-bound" in text
    assert os.waitstatus_to_exitcode(status) == 4


RANKS = """
    import torch.distributed as dist

    if __name__ == "__main__":
        dist.init_process_group("gloo")
        rank = dist.get_rank()

        class Uneven(Sleeping):
            def __getitem__(self, position):
                if rank == 1:
                    time.sleep(0.003)
                return torch.full((4,), float(position))

        for batch in DataLoader(Uneven(), batch_size=8):
            time.sleep(0.005)
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_rank_that_others_wait_for_is_named(tmp_path: Path) -> None:
    script = written(tmp_path, RANKS)
    saved = tmp_path / "run.json"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    done = doctor("--save", saved, "--", *launcher, "--standalone", script)
    assert done.returncode == 0, done.stderr
    run = Run.load(saved)
    assert sorted((seen.rank, seen.num_ranks, seen.num_batches) for seen in run.loaders) == [(0, 2, 30), (1, 2, 30)]
    assert "slow-rank: rank 1 waits" in " ".join(done.stderr.split())


# -------------------------------------------------------------------- records


def judged(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["doctor", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    record(stats(wait=0.03, cpu=0.01)).save(path)
    return path


def test_a_record_is_judged(saved: Path) -> None:
    shown = judged(saved)
    assert shown.strip().startswith("storage-bound: ")
    assert "what to do" in shown
    diagnosis = Diagnosis.from_dict(json.loads(judged(saved, "--json")))
    assert diagnosis.verdict == "storage-bound"
    assert judged(saved, "--fail", code=3)


def test_a_healthy_record_passes_in_ci(tmp_path: Path) -> None:
    record(stats(wait=0.0005)).save(tmp_path / "run.json")
    assert judged(tmp_path / "run.json", "--fail").strip().startswith("compute-bound: the loader keeps up")


def test_records_of_several_machines_are_one_run(tmp_path: Path) -> None:
    for rank in range(3):
        one = ranked(rank, wait=0.03 if rank == 1 else 0.0005, step=0.02 if rank == 1 else 0.0495)
        record(one).save(tmp_path / f"{rank}.json")
    assert "slow-rank: rank 1" in judged(*(tmp_path / f"{rank}.json" for rank in range(3)))


def test_what_is_no_record_is_refused(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "other.json").write_text("[1, 2]")
    assert "is not a record of a run" in judged(tmp_path / "other.json", code=1)
    assert "there is no file" in judged(tmp_path / "nothing.json", code=1)
    assert "work with a command" in judged(saved, "--save", tmp_path / "b.json", code=1)
    assert "there is no folder" in judged("--save", tmp_path / "no" / "b.json", "--", "true", code=1)
    assert "Missing argument" in judged(code=2)


def test_what_is_found_in_the_configuration_is_reported(tmp_path: Path) -> None:
    seen = stats(wait=0.0005)
    record(replace(seen, config=seen.config | {"batch_size": 100})).save(tmp_path / "run.json")
    shown = judged(tmp_path / "run.json")
    assert "also" in shown
    assert "batch_size=104" in shown


def test_what_cannot_be_saved_costs_no_verdict(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """
        if __name__ == "__main__":
            print("begun")
            for batch in main():
                time.sleep(0.001)
            os.rmdir(sys.argv[1])
        """,
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    done = doctor("--save", tmp_path, "--", sys.executable, script)
    assert done.returncode == 1
    assert "is a folder" in done.stderr
    assert done.stdout == ""  # nothing was run
    done = doctor("--save", folder / "run.json", "--", sys.executable, script, folder)
    assert done.returncode == 1
    assert done.stdout == "begun\n"
    assert "evidence" in done.stderr
    assert "No such file or directory" in done.stderr


def test_a_log_of_counters_is_judged_by_what_it_told_last(tmp_path: Path) -> None:
    log = tmp_path / "live.jsonl"
    loader: Any = stoker.DataLoader(Sleeping(0.002, 320), batch_size=8)
    loader.log_stats(log, every=0.1)
    for _ in loader:
        pass
    done = doctor(log)
    assert done.returncode == 0
    assert "storage-bound: " in done.stdout
    log.write_text("{}\n")
    done = doctor(log)
    assert done.returncode == 1
    assert "error: " in done.stderr


def test_the_exit_code_is_the_commands_also_if_nobody_reads_what_is_said() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "stoker", "doctor", "--", "sh", "-c", "exit 5"]
    done = subprocess.run(command, stderr=write, check=False)
    os.close(write)
    assert done.returncode == 5


def test_a_record_is_written_though_nobody_reads_the_line_of_json(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    saved = tmp_path / "run.json"
    command = [sys.executable, "-m", "stoker", "doctor", "--json", "--save", str(saved), "--", "sh", "-c", "exit 5"]
    done = subprocess.run(command, stdout=write, check=False)
    os.close(write)
    assert done.returncode == 5
    assert Run.load(saved).loaders == []


def test_two_dashes_mean_a_command_whatever_it_is_called(tmp_path: Path) -> None:
    script = tmp_path / "train.json"
    script.write_text("#!/bin/sh\nexit 9\n")
    script.chmod(0o755)
    assert doctor("--", script).returncode == 9
    done = doctor(script)
    assert done.returncode == 1
    assert "is not a record of a run" in done.stderr


def test_parts_of_a_run_are_the_same_in_any_order(tmp_path: Path) -> None:
    parts = [tmp_path / f"{number}.json" for number in range(2)]
    record(replace(stats(wait=0.03), rank=0)).save(parts[0])
    replace(record(replace(stats(wait=0.03), rank=1), moments=[Moment(at=1.0)]), seconds=30.0).save(parts[1])
    shown = doctor(*parts).stdout
    assert "outside of loops over these loaders" in " ".join(shown.split())
    assert doctor(*reversed(parts)).stdout == shown
