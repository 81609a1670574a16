"""What the machine tells of itself and of processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stoker.foundation import machine


def test_cores_are_those_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    assert 1 <= machine.num_cores() <= len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert machine.num_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}, 0.5),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_outer", [False, True])
def test_a_containers_quota_counts(
    files: dict[str, str], cores: float | None, is_outer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    inner = groups / "job" / "task"
    (proc / "self").mkdir(parents=True)
    inner.mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/job/task\n")
    for name, text in files.items():
        ((groups / "job" if is_outer else inner) / name).write_text(text)
    (inner / "memory.max").write_text("1000000")
    (proc / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable: 1500 kB\n")
    monkeypatch.setattr(machine, "_PROC", proc)
    monkeypatch.setattr(machine, "_CGROUP", groups)
    ((groups / "job" if is_outer else inner) / "cpu.stat").write_text("usage_usec 2500000\nnr_periods 3\n")
    assert machine.quota_cores() == cores
    assert machine.quota_used_seconds() == (None if cores is None else 2.5)
    assert machine.num_cores() >= 1
    if cores is not None:
        assert machine.num_cores() <= -(-cores // 1)
    assert machine.memory_bytes() == 1_000_000
    assert machine.available_bytes() == 1_500 * 1024


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("4:cpu,cpuacct:/box\n5:memory:/box\n")
    for controller in ("cpu,cpuacct", "memory"):
        (tmp_path / controller / "box").mkdir(parents=True)
    (tmp_path / "cpu,cpuacct" / "box" / "cpu.cfs_quota_us").write_text("300000")
    (tmp_path / "cpu,cpuacct" / "box" / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "memory" / "box" / "memory.limit_in_bytes").write_text("5000")
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.quota_used_seconds() is None
    (tmp_path / "cpu,cpuacct" / "box" / "cpuacct.usage").write_text("1500000000")
    (tmp_path / "cpu,cpuacct" / "box" / "cpu.stat").write_text("nr_periods 3\n")
    assert machine.quota_cores() == 3
    assert machine.quota_used_seconds() == 1.5
    assert machine.memory_bytes() == 5000


def test_where_nothing_is_told_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.usage_of() is None
    assert machine.pss_bytes() is None
    assert machine.thread_delay_seconds() is None
    assert machine.memory_bytes() is None
    assert machine.quota_cores() is None
    assert not machine.children(os.getpid())
    assert not machine.core_seconds()
    assert machine.described()["cores"] >= 1


def test_a_process_that_works_uses_cpu_time() -> None:
    before = machine.usage_of()
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    after = machine.usage_of()
    assert before is not None
    assert after is not None
    assert after.cpu_seconds - before.cpu_seconds >= 0.15
    assert after.delay_seconds >= before.delay_seconds
    assert machine.thread_delay_seconds() is not None


def test_children_and_their_children_are_found() -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE);"
        "print(p.pid, flush=True); input(); p.communicate(b'\\n')"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert child.pid in machine.children(os.getpid())
        assert set(machine.tree(child.pid)) == {child.pid, grandchild}
        until = time.monotonic() + 30
        while (machine.pss_bytes(grandchild) or 0) < 100_000:  # it has still to become what it is to be
            assert time.monotonic() < until
        child.communicate(b"\n")
    assert machine.usage_of(grandchild) is None
    assert machine.children(grandchild) == []


def test_the_command_line_of_a_process_is_shown_word_by_word() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()", "two words", ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # by then it is no longer a copy of this process
        assert machine.command_of(child.pid)[1:] == command[1:]
        child.communicate(b"\n")
    assert machine.command_of(child.pid) == []


def test_cpu_time_of_a_tree_is_finer_than_ticks_and_keeps_that_of_threads_that_ended() -> None:
    def work(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    before = machine.tree_cpu_seconds(os.getpid())
    work(0.004)
    assert machine.tree_cpu_seconds(os.getpid()) - before >= 0.0039
    thread = threading.Thread(target=work, args=(0.2,))
    thread.start()
    thread.join()
    assert machine.tree_cpu_seconds(os.getpid()) - before >= 0.18


def test_every_core_is_told_of() -> None:
    cores = machine.core_seconds()
    assert len(cores) >= len(os.sched_getaffinity(0))
    assert all(0 <= busy <= there for busy, there in cores)


def test_the_cores_that_we_may_use_are_told_of_together() -> None:
    shown = machine.our_core_seconds()
    assert shown is not None
    busy, there = shown
    assert 0 <= busy <= there
    assert there <= sum(seconds for _, seconds in machine.core_seconds()) + 1


def test_what_a_process_opens_and_starts_is_held(tmp_path: Path) -> None:
    before = machine.held()
    assert machine.held() == before
    free = threading.Event()
    thread = threading.Thread(target=free.wait)
    (tmp_path / "open").touch()
    with open(tmp_path / "open"), open(tmp_path / "log", "w"):
        thread.start()
        more = machine.held() - before
        free.set()
        thread.join()
    assert {what.split()[0] for what in more} == {"file", "thread"}
    assert any(what.endswith("/open") for what in more)
    assert not any(what.endswith("/log") for what in more)  # nobody reads from there


LOOKING = """
import gc, sys, threading, time
from stoker.foundation.machine import current_frames

class Node: pass

def litter():
    one = Node()
    one.itself, one.local = one, threading.local()
    one.local.value = 1

def nap(): time.sleep(1e-5)

def work():
    while not over.is_set(): nap()

over = threading.Event()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
seen = set()
for number in range(3000):
    gc.set_threshold(number % 12 + 1)
    time.sleep(2e-5)
    litter()
    seen |= set(current_frames())
over.set()
for thread in threads: thread.join()
print(len(seen), gc.isenabled())
"""


def test_looking_where_threads_are_does_not_deadlock_with_the_garbage_collector() -> None:
    done = subprocess.run([sys.executable, "-c", LOOKING], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["5", "True"], done.stderr


def test_looking_where_threads_are_leaves_the_garbage_collector_as_it_was() -> None:
    gc.disable()
    try:
        assert threading.get_ident() in machine.current_frames()
        assert not gc.isenabled()
    finally:
        gc.enable()
