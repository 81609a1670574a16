"""Trials in processes of their own: what they tell, and what becomes of those that go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.errors import ArgumentError
from stoker.lab.diagnose.verdict import diagnose
from stoker.lab.trial.drive import Pace
from stoker.lab.trial.process_memory import HELPERS, ProcessMemory, ProcessMemoryWatch
from stoker.lab.trial.trial import FAILED, HUNG, KILLED, OK, Trial, TrialRequest, record_run_of_trial, run_trial
from stoker.lab.watch.run import Run

pytestmark = pytest.mark.timed

PLAIN, TORCH = "tests.lab.plain_loaders", "tests.lab.torch_loaders"


def tried(target: str, *, step: str | None = None, limit_seconds: float = 60.0, **options: int) -> Trial:
    order = TrialRequest(
        target=target, options=dict(options), step=step, pace=Pace(seconds=0.15), limit_seconds=limit_seconds
    )
    return run_trial(order, options)


def test_a_trial_tells_how_fast_how_steady_and_at_what_cost() -> None:
    trial = tried(f"{PLAIN}:long", num_workers=2, batch_size=5)
    assert (trial.outcome, trial.error, trial.kind) == (OK, None, "iterable")
    assert trial.found == {"num_workers": 2, "batch_size": 5}
    assert trial.num_samples == 5 * trial.num_batches
    assert 0.002 <= trial.seconds_per_batch < 0.02
    assert trial.samples_per_second == pytest.approx(5 / trial.seconds_per_batch)
    assert 0.002 <= trial.batch_seconds.p50 <= trial.batch_seconds.p90 <= trial.batch_seconds.p99
    assert trial.cpu_seconds_per_sample is not None
    assert trial.cpu_seconds_per_sample < 0.002, "it sleeps most of the time"
    assert trial.trainer_bytes is not None and trial.trainer_bytes > 1e6
    assert (trial.workers_bytes, trial.num_processes) == (0, 1)
    startup = trial.startup
    assert 0 < startup.interpreter < 30
    assert 0 < startup.imports < 30
    assert startup.first_batch >= 0.002
    assert startup.total == startup.interpreter + startup.imports + startup.construction + startup.first_batch
    assert Trial.from_dict(json.loads(trial.as_json())) == trial


def test_nothing_heavy_is_imported_for_a_loader_that_does_without(tmp_path: Path) -> None:
    """Or its memory and its start-up would be those of torch."""
    file = tmp_path / "light.py"
    file.write_text(
        "import sys\n"
        "def make(num_workers=0):\n"
        "    assert not {'torch', 'numpy', 'stoker.loader'} & set(sys.modules), sorted(sys.modules)\n"
        "    return [[1, 2]] * 1000\n"
    )
    assert tried(f"{file}:make").error is None
    assert tried(f"{file}:make", num_workers=2).error is None


def test_torchs_loader_is_measured_unmodified_with_workers_that_are_seen() -> None:
    trial = tried(f"{TORCH}:unmodified", num_workers=2)
    assert (trial.error, trial.kind) == (None, "torch")
    assert (trial.found["num_workers"], trial.found["persistent_workers"]) == (2, True)
    assert trial.num_samples == 4 * trial.num_batches
    assert trial.num_bytes == trial.num_samples * (48 * 4 + 8)
    assert trial.num_processes >= 3
    assert trial.workers_bytes is not None and trial.workers_bytes > 1e6


def recorded(target: str, **options: int) -> Run:
    run = record_run_of_trial(TrialRequest(target=target, options=dict(options), pace=Pace(seconds=0.3)), options)
    assert run is not None
    assert Run.from_dict(json.loads(run.as_json())) == run
    return run


def test_our_loader_tells_its_own_counters_in_a_run_that_is_watched() -> None:
    run = recorded(f"{TORCH}:ours", num_workers=0, num_threads=2)
    assert run.title == f"{TORCH}:ours, num_workers=0, num_threads=2"
    (stats,) = run.loaders
    assert (stats.kind, stats.engine) == ("stoker", "threads")
    assert stats.num_batches > 5
    assert stats.stages["read"].busy_seconds > 0
    assert stats.import_seconds is not None and stats.import_seconds > 0
    assert run.moments[-1].trainer_pss_bytes


def test_torchs_loader_is_seen_to_wait_for_what_its_workers_read() -> None:
    run = recorded(f"{TORCH}:unmodified", num_workers=1)
    (stats,) = run.loaders
    assert (stats.kind, stats.engine, len(stats.workers)) == ("torch", "processes", 1)
    assert stats.making_seconds.p50 >= 0.02
    assert diagnose(run).verdict == "storage-bound", "it sleeps, as one does that waits for a disk"


def test_a_run_of_what_is_iterated_once_or_does_not_go_well() -> None:
    assert recorded(f"{PLAIN}:once").loaders[0].num_batches == 40
    for function in ("failing_later", "empty"):
        assert record_run_of_trial(TrialRequest(target=f"{PLAIN}:{function}", pace=Pace(seconds=0.1)), {}) is None
    killed = TrialRequest(target=f"{PLAIN}:killed", options={"num_workers": 2}, pace=Pace(seconds=0.1))
    assert record_run_of_trial(killed, {}) is None


def test_a_generator_that_builds_its_loader_when_it_is_iterated_is_reached() -> None:
    trial = tried(f"{TORCH}:lazily", num_workers=1)
    assert (trial.error, trial.kind, trial.found["num_workers"]) == (None, "torch", 1)


@pytest.mark.slow
def test_workers_that_are_spawned_find_the_users_module(tmp_path: Path) -> None:
    file = tmp_path / "spawning.py"
    file.write_text((Path(__file__).parent / "torch_loaders.py").read_text())
    trial = tried(f"{file}:spawned")
    assert (trial.error, trial.found["num_workers"]) == (None, 1)


def test_the_step_runs_between_batches() -> None:
    trial = tried(f"{PLAIN}:long", step=f"{PLAIN}:make_step")
    assert trial.error is None
    assert trial.step_seconds.p50 >= 0.006
    assert trial.wait_seconds.p50 >= 0.004
    assert trial.batch_seconds.p50 >= 0.010


def test_epochs_that_are_short_are_counted_whole_and_it_says_so() -> None:
    trial = tried(f"{PLAIN}:short")
    assert trial.error is None
    assert trial.counts_epoch_starts
    assert trial.epoch_start_seconds
    assert trial.seconds_per_batch >= 0.004


def test_what_user_code_prints_gets_into_nobodys_way() -> None:
    assert tried(f"{PLAIN}:chatty").outcome == OK


def test_a_failure_is_told_with_its_traceback() -> None:
    trial = tried(f"{PLAIN}:failing", num_workers=1)
    assert (trial.outcome, trial.error) == (FAILED, "RuntimeError: no luck with one")
    assert trial.trace is not None
    assert "in failing" in trial.trace
    later = tried(f"{PLAIN}:failing_later")
    assert (later.outcome, later.error) == (FAILED, "OSError: [Errno 5] the disk is gone: 'data.bin'")
    assert tried(f"{PLAIN}:exiting").error == "SystemExit: that is all"
    assert "the loader returned no batch" in (tried(f"{PLAIN}:empty").error or "")


@pytest.mark.parametrize("module", ["torch.utils.data", "stoker"])
def test_a_failure_in_a_worker_is_told_by_the_workers_own_traceback(module: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(
        f"from {module} import DataLoader\n"
        "class Broken:\n"
        "    def __len__(self): return 100\n"
        "    def __getitem__(self, position):\n"
        "        raise ValueError('no picture:\\nnone')\n"
        "def make(): return DataLoader(Broken(), batch_size=4, num_workers=1)\n"
    )
    trial = tried(f"{file}:make")
    assert (trial.outcome, trial.error) == (FAILED, "ValueError: no picture:\nnone")
    assert trial.trace is not None
    assert f'File "{file}", line 5, in __getitem__' in trial.trace
    assert "trial/drive.py" not in trial.trace


def test_arguments_that_cannot_be_set_are_a_failure_of_this_trial_alone() -> None:
    trial = tried(f"{PLAIN}:short", num_workers=2)
    assert trial.outcome == FAILED
    assert trial.error is not None
    assert trial.error.startswith("num_workers=2 could not be set: the function makes no DataLoader")
    assert trial.trace is None, "the message says it all"


def test_a_trial_that_hangs_is_given_up_and_tells_where_it_was() -> None:
    begin = time.monotonic()
    trial = tried(f"{PLAIN}:hanging", num_workers=2, limit_seconds=3.0)
    assert trial.outcome == HUNG
    assert trial.error == "hung while making the loader: aborted after 3 s"
    assert trial.trace is not None
    assert "in hanging" in trial.trace
    assert time.monotonic() - begin < 30


def test_a_trial_that_is_killed_says_so() -> None:
    trial = tried(f"{PLAIN}:killed", num_workers=2)
    assert trial.outcome == KILLED
    assert trial.error is not None
    assert trial.error.startswith("ended by SIGKILL while making the loader")


def test_what_cannot_be_imported_is_an_error_at_once() -> None:
    for spec, message in (
        (f"{PLAIN}:lnog", f"{PLAIN} has no 'lnog'\nhint: did you mean `long`"),
        (f"{PLAIN}:not_a_function", "must be a function, got an int"),
        ("no_module_of_this_name:make", "there is no module no_module_of_this_name"),
    ):
        with pytest.raises(ArgumentError) as caught:
            tried(spec)
        assert message in str(caught.value)
    with pytest.raises(ArgumentError, match=r"make_no_step returned int, which cannot be called with a batch"):
        tried(f"{PLAIN}:long", step=f"{PLAIN}:make_no_step")


def test_what_a_trial_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TEST_PID", str(tmp_path / "pid"))
    trial = tried(f"{PLAIN}:leaving_children")
    assert trial.error is None
    assert trial.num_processes == 2
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return  # dead, and only not yet noticed by whoever inherited it
            time.sleep(0.02)
        pytest.fail("a process that the trial had started is still there")


def test_a_script_that_measures_when_it_is_imported_does_not_measure_for_ever(tmp_path: Path) -> None:
    file = tmp_path / "unguarded.py"
    file.write_text(
        "from stoker.lab.trial.sweep import bench_loader\n"
        "def make(): return [[1]] * 1000\n"
        f"bench_loader('{file}:make', seconds=0.1, num_rounds=1)\n"
    )
    with pytest.raises(ArgumentError, match="started by a module that is itself being measured"):
        tried(f"{file}:make")


def own(memory: ProcessMemoryWatch) -> list[ProcessMemory]:
    """Return who was seen, without what other tests may have made Python start in this process."""
    return [one for one in memory.processes if one.name not in HELPERS.values()]


def test_the_memory_watch_sees_the_memory_of_a_process_and_its_children() -> None:
    with ProcessMemoryWatch(os.getpid()) as memory:
        memory.measure()
        held = bytearray(os.urandom(1 << 20) * 64)
        memory.measure()
        before = own(memory)
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            deadline = time.monotonic() + 10
            while len(own(memory)) < 2 and time.monotonic() < deadline:
                memory.measure()
        finally:
            child.communicate(b"\n")
    assert len(held) == 64 << 20
    [trainer] = before
    assert trainer.name == "trainer"
    assert trainer.peak_bytes > 64 << 20
    assert [one.name for one in own(memory)] == ["trainer", "worker 0"]
    together = sum(one.held_bytes or 0 for one in memory.processes)
    assert memory.private_bytes is not None
    assert 64 << 20 < memory.private_bytes < together, "pages of Python itself are a file's"


def test_a_worker_that_takes_the_place_of_another_counts_as_the_same() -> None:
    def seen(memory: ProcessMemoryWatch, num: int) -> None:
        """Look at so many children that come one after the other."""
        for _ in range(num):
            child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
            assert child.stdout is not None
            child.stdout.readline()
            memory.measure()
            child.communicate(b"\n")

    with ProcessMemoryWatch(os.getpid()) as memory:
        seen(memory, 3)
    assert [one.name for one in own(memory)] == ["trainer", "worker 0"]


@pytest.mark.parametrize("function", ["hoarding", "our_hoarding"])
def test_memory_is_told_process_by_process(function: str) -> None:
    trial = tried(f"{TORCH}:{function}")
    assert trial.error is None
    each = {one.name: one for one in trial.processes}
    assert list(each) == ["trainer", "worker 0", "worker 1"]
    assert each["worker 1"].peak_bytes > 25e6
    # at one and the same time: how much of what they share is whose changes as processes come and go
    held = {name: one.held_bytes or 0 for name, one in each.items()}
    assert 190e6 < held["worker 0"] - held["worker 1"] < 210e6
    assert all(0 < held[name] <= one.peak_bytes for name, one in each.items())
    assert sum(held.values()) == trial.memory_bytes, "they add up"
    assert held["trainer"] == trial.trainer_bytes
    assert trial.largest_worker_bytes == held["worker 0"]
    assert trial.worker_bytes == (held["worker 0"] + held["worker 1"]) / 2
    assert Trial.from_dict(json.loads(trial.as_json())) == trial


def test_workers_of_many_epochs_are_told_as_those_of_one() -> None:
    trial = tried(f"{TORCH}:short_epochs")
    assert trial.error is None
    assert len(trial.epoch_start_seconds) > 1
    names = [one.name for one in trial.processes]
    # those of one epoch may still be about to end when those of the next are there
    assert names[:3] == ["trainer", "worker 0", "worker 1"]
    assert len(names) <= 5


def test_what_python_starts_beside_workers_is_none() -> None:
    trial = tried(f"{TORCH}:from_a_server")
    assert trial.error is None
    assert sorted(one.name for one in trial.processes) == [
        "fork server", "resource tracker", "trainer", "worker 0", "worker 1"
    ]  # fmt: skip
