"""Preparations of pictures that lose workers, disk space, their user's patience or their life: what is done is kept."""

from __future__ import annotations

import errno
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stoker import prepare
from stoker.errors import ArgumentError, StaleSource
from stoker.prepare import images_work
from stoker.source.images import open_pictures
from tests.prepare.corpora import contents
from tests.prepare.pictures import encoded, folder_of


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "photos", 40)


def made(source: Any, out: Path, **options: Any) -> prepare.ImageReport:
    given = {"workers": 2, "piece_bytes": 8000, "max_side": 50, "cache": False}
    return prepare.images(source, out=out, **(given | options))


def test_killed_workers_leave_no_trace_in_the_store(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made(photos, tmp_path / "whole")
    real = images_work.made_of

    def deadly(data: Any, settings: Any, name: str) -> Any:
        mark = tmp_path / f"{Path(name).name}.mark"
        if name.endswith("7.jpg") and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(data, settings, name)

    monkeypatch.setattr(images_work, "made_of", deadly)
    with caplog.at_level(logging.WARNING, "stoker"):
        made(photos, tmp_path / "out")
    assert "has ended (SIGKILL) and is replaced" in caplog.text
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_picture_that_changes_meanwhile_is_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = images_work.made_of

    def meddling(data: Any, settings: Any, name: str) -> Any:
        (photos / "class1" / "37.jpg").write_bytes(encoded(90, 90, seed=5))
        return real(data, settings, name)

    with monkeypatch.context() as patch:
        patch.setattr(images_work, "made_of", meddling)
        with pytest.raises(StaleSource, match=r"37\.jpg .*written to since the preparation began"):
            made(photos, tmp_path / "out", workers=0, on_error="skip")
    made(photos, tmp_path / "out")
    made(photos, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("lost", ["manifest.json", "pieces.json", "a shard"])
def test_what_is_lost_of_a_store_is_made_again(photos: Path, tmp_path: Path, lost: str) -> None:
    out = tmp_path / "out"
    made(photos, out)
    whole = contents(out)
    file = next(out.glob("*.safetensors")) if lost == "a shard" else out / lost
    file.unlink()
    if lost == "manifest.json":
        (out / "manifest.json").write_text("{")
    made(photos, out)
    if lost != "pieces.json":  # nothing is missed that the store needs
        assert contents(out) == whole
    assert len(open_pictures(out)) == 40


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs to mount a file system")
def test_a_full_disk_stops_cleanly_and_more_space_lets_it_go_on(photos: Path, tmp_path: Path) -> None:
    made(photos, tmp_path / "whole")
    disk = tmp_path / "disk"
    with small_disk(disk, "2000k"):
        with pytest.raises(OSError, match="No space left on device") as raised:
            made(photos, disk / "out")
        assert raised.value.errno == errno.ENOSPC
        assert "what was finished is kept" in raised.value.__notes__
        assert not (disk / "out" / "manifest.json").exists()
        subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
        assert made(photos, disk / "out").num_reused > 0
        assert contents(disk / "out") == contents(tmp_path / "whole")


# ---------------------------------------------------------------- the end

WAITING = """
import os, sys
from pathlib import Path
from stoker.prepare import images_work

def waiting(data, settings, name):
    if len(list(Path(os.environ["STORE"], ".build").glob("[0-9a-f]*.json"))) >= 2:  # two pieces are done
        os.write(1, b"working\\n")
        open(os.environ["GATE"]).read()  # nobody ever opens the other end
    return made_of(data, settings, name)

made_of, images_work.made_of = images_work.made_of, waiting
from stoker import prepare
from stoker.cli import prepare_images
images = prepare.images
prepare.images = lambda *given, **options: images(*given, **(options | {"piece_bytes": 8000, "cache": False}))
from stoker.cli import main
main()
"""


class Running:
    """The command, stopped when some of its pieces are done."""

    def __init__(self, photos: Path, out: Path, gate: Path) -> None:
        os.mkfifo(gate)
        arguments = ["prepare", "images", photos, "--max-side", "50", "--out", out, "--workers", "1"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WAITING, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"GATE": str(gate), "STORE": str(out)},
        )

    def __enter__(self) -> Running:
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        if told != "working\n":
            os.killpg(self.process.pid, signal.SIGKILL)
            pytest.fail(f"it said {told} {self.process.communicate()}")
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def family(self) -> list[int]:
        """Return the processes of its group that are there."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.process.pid and fields[0] != "Z":
                    found.append(int(entry.name))
        return found


def test_a_killed_command_goes_on_where_it_was(photos: Path, tmp_path: Path) -> None:
    made(photos, tmp_path / "whole")
    with Running(photos, tmp_path / "out", tmp_path / "gate") as running:
        with pytest.raises(ArgumentError, match="somebody else is writing"):
            made(photos, tmp_path / "out")
        family = [os.pidfd_open(pid) for pid in running.family()]
        assert len(family) == 2
        running.process.kill()
        for process in family:
            assert select.select([process], [], [], 30)[0], "a worker goes on without its command"
            os.close(process)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert made(photos, tmp_path / "out").num_reused >= 2
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_ctrl_c_ends_everything_and_says_how_to_go_on(photos: Path, tmp_path: Path) -> None:
    made(photos, tmp_path / "whole")
    with Running(photos, tmp_path / "out", tmp_path / "gate") as running:
        os.killpg(running.process.pid, signal.SIGINT)
        _, errors = running.process.communicate(timeout=30)
        assert running.process.returncode == 130
        assert "run the same command again to go on" in errors and "Traceback" not in errors
        assert running.family() == []
    assert made(photos, tmp_path / "out").num_reused >= 2
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
