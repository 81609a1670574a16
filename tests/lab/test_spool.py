"""Files that watched processes write: whole rows, also of a process that was killed, and never more than they may."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from stoker.lab.watch.hook.recording import Recording
from stoker.lab.watch.hook.spool import CAPACITY, NOTE_BYTES, SpoolReader, SpoolWriter
from stoker.lab.watch.shared_folder import PREFIX, new_folder, remove_stale


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "1-2.work")


def test_rows_are_read_once_and_in_order(path: str) -> None:
    writer = SpoolWriter(path, 3)
    reader = SpoolReader(path)
    assert reader.rows() == []
    assert [writer.add(number * 1.0, number / 2) for number in range(3)] == [0, 1, 2]
    assert reader.rows() == [(0, 0, 0), (1, 1, 0.5), (2, 2, 1)]
    assert reader.rows() == []
    writer.add(7.0, 8.0)
    assert reader.rows() == [(3, 7, 8)]
    writer.close()
    reader.close()


def test_what_was_written_over_is_left_out(path: str) -> None:
    writer = SpoolWriter(path, 2)
    reader = SpoolReader(path)
    for number in range(CAPACITY + 10):
        writer.add(float(number))
    rows = reader.rows()
    assert len(rows) == CAPACITY
    assert list(rows[0]) == [10, 10]
    assert reader.row(5) is None
    writer.close()
    reader.close()


def test_a_number_may_come_later(path: str) -> None:
    writer = SpoolWriter(path, 3)
    serial = writer.add(1.0, 0.0)
    reader = SpoolReader(path)
    assert reader.rows() == [(0, 1, 0)]
    writer.put(serial, 2, 5.0)
    assert reader.row(serial) == (0, 1, 5)
    writer.close()
    reader.close()


def test_notes_are_whole_while_they_are_written(path: str) -> None:
    writer = SpoolWriter(path, 2)
    reader = SpoolReader(path)
    assert reader.note() == {}
    enough = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not enough.is_set():
            written += 1
            writer.note({"number": written, "padding": "x" * (written % 700)})

    thread = threading.Thread(target=write)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # they get into each other's way as often as can be
    thread.start()
    try:
        numbers: list[int] = []
        while len(set(numbers)) < 200:
            note = reader.note()
            if note:
                assert len(note["padding"]) == note["number"] % 700
                numbers.append(note["number"])
    finally:
        enough.set()
        thread.join()
        sys.setswitchinterval(before)
    assert numbers == sorted(numbers)
    assert reader.note()["number"] == written
    writer.close()
    reader.close()


def test_a_note_that_is_too_long_is_not_written(path: str) -> None:
    writer = SpoolWriter(path, 2)
    assert writer.note({"a": 1})
    assert not writer.note({"a": "x" * NOTE_BYTES})
    reader = SpoolReader(path)
    assert reader.note() == {"a": 1}
    writer.close()
    reader.close()


def test_threads_write_rows_of_their_own(path: str) -> None:
    writer = SpoolWriter(path, 2)
    serials: list[list[int]] = [[], []]

    def write(number: int) -> None:
        serials[number] += [writer.add(float(number)) for _ in range(CAPACITY // 2)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    reader = SpoolReader(path)
    rows = reader.rows()
    assert [row[0] for row in rows] == list(range(CAPACITY))
    assert all(row[1] == (row[0] in set(serials[1])) for row in rows)
    writer.close()
    reader.close()


@pytest.mark.parametrize("num_loaders", [10, 50, 120])
def test_what_is_told_of_many_loaders_gets_shorter_and_none_is_left_out(tmp_path: Path, num_loaders: int) -> None:
    now = Recording(str(tmp_path))
    config = {"num_workers": 2, "batch_size": 8, "prefetch_factor": None, "collate_fn": "default_collate" * 10}
    for number in range(num_loaders):
        shown = {"name": f"train.py:{number}", "config": config, "facts": {"dataset": "x" * 300}}
        now.trainer_note.setdefault("loaders", {})[str(number)] = shown
    now.write_trainer_note()
    now.close()
    reader = SpoolReader(str(next(tmp_path.glob("*.laps"))))
    loaders = reader.note()["loaders"]
    reader.close()
    assert [shown["name"] for shown in loaders.values()] == [f"train.py:{number}" for number in range(num_loaders)]
    assert all(shown["config"]["num_workers"] == 2 for shown in loaders.values())
    assert ("facts" in loaders["0"]) == (num_loaders == 10)
    assert ("collate_fn" in loaders["0"]["config"]) == (num_loaders <= 50)


def test_what_a_killed_process_has_written_is_there(path: str) -> None:
    code = f"""
import os, signal
from stoker.lab.watch.hook.spool import SpoolWriter
writer = SpoolWriter({path!r}, 2)
writer.note({{"who": "me"}})
for number in range(5): writer.add(number)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    reader = SpoolReader(path)
    assert [row[1] for row in reader.rows()] == [0, 1, 2, 3, 4]
    assert reader.note() == {"who": "me"}
    reader.close()


def test_a_full_disk_is_noticed_when_the_file_is_made(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        SpoolWriter(path, 2)
    assert not os.path.exists(path)


def test_other_files_are_refused(path: str) -> None:
    Path(path).write_bytes(bytes(1 << 20))
    with pytest.raises(ValueError, match="was not written by a version"):
        SpoolReader(path)


def test_the_folder_of_a_doctor_that_was_killed_is_removed_by_the_next() -> None:
    code = (
        "from stoker.lab.watch.shared_folder import new_folder; import os, signal; own = new_folder(); "
        "print(own.path, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    left = Path(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    )
    assert left.name.startswith(PREFIX)
    assert left.is_dir()
    own = new_folder()
    try:
        assert not left.exists()
        other = new_folder()
        assert own.path.exists()  # whose owner lives
        other.remove()
    finally:
        own.remove()
    assert not own.path.exists()


def test_a_folder_is_in_use_as_long_as_its_lock_is_held_whatever_its_name_says() -> None:
    """In another container, or when a process id is used again, the process in the name means nothing."""
    own = new_folder()
    renamed = own.path.with_name(f"{PREFIX}999999999-test")
    own.path.rename(renamed)
    remove_stale()
    assert renamed.exists()
    own.remove()  # there is no folder of that name; the lock is released
    remove_stale()
    assert not renamed.exists()


def test_a_folder_that_another_process_takes_for_a_stale_one_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    make = tempfile.mkdtemp

    def raced(**how: str) -> str:
        path = make(**how)
        if not taken:  # between its making and its lock
            remove_stale()
            taken.append(path)
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", raced)
    own = new_folder()
    assert not os.path.exists(taken[0])
    assert own.path.is_dir() and str(own.path) != taken[0]
    own.remove()
