"""Preparations of pictures that lose workers, disk space, their user's patience or their life: what is done is kept."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from stoker import prepare
from stoker.errors import ArgumentError, StaleSource
from stoker.prepare import image_work
from stoker.source.images import open_images
from tests.prepare.corpora import contents
from tests.prepare.pictures import encoded, folder_of
from tests.prepare.stopped import StoppedCommand, check_full_disk


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
    real = image_work.prepare_image

    def deadly(data: Any, settings: Any, name: str) -> Any:
        mark = tmp_path / f"{Path(name).name}.mark"
        if name.endswith("7.jpg") and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(data, settings, name)

    monkeypatch.setattr(image_work, "prepare_image", deadly)
    with caplog.at_level(logging.WARNING, "stoker"):
        made(photos, tmp_path / "out")
    assert "died (SIGKILL) and is replaced" in caplog.text
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_picture_that_changes_meanwhile_is_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = image_work.prepare_image

    def meddling(data: Any, settings: Any, name: str) -> Any:
        (photos / "class1" / "37.jpg").write_bytes(encoded(90, 90, seed=5))
        return real(data, settings, name)

    with monkeypatch.context() as patch:
        patch.setattr(image_work, "prepare_image", meddling)
        with pytest.raises(StaleSource, match=r"37\.jpg .*changed since the preparation began"):
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
    assert len(open_images(out)) == 40


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs to mount a file system")
def test_a_full_disk_stops_cleanly_and_more_space_lets_it_go_on(photos: Path, tmp_path: Path) -> None:
    made(photos, tmp_path / "whole")
    check_full_disk(lambda out: made(photos, out), tmp_path / "disk", "2000k", whole=tmp_path / "whole")


# ---------------------------------------------------------------- the end

WAITING = """
import os, sys
from pathlib import Path
from stoker.prepare import image_work

def waiting(data, settings, name):
    if len(list(Path(os.environ["STORE"], ".build").glob("[0-9a-f]*.json"))) >= 2:  # two pieces are done
        os.write(1, b"working\\n")
        open(os.environ["GATE"]).read()  # nobody ever opens the other end
    return prepare_image(data, settings, name)

prepare_image, image_work.prepare_image = image_work.prepare_image, waiting
from stoker import prepare
from stoker.cli import prepare as prepare_images
images = prepare.images
prepare.images = lambda *given, **options: images(*given, **(options | {"piece_bytes": 8000, "cache": False}))
from stoker.cli import main
main()
"""


def running(photos: Path, out: Path, gate: Path) -> StoppedCommand:
    """Return the command, stopped when some of its pieces are done."""
    return StoppedCommand(WAITING, ["images", photos, "--max-side", 50], out=out, gate=gate, num_workers=1)


def test_a_killed_command_goes_on_where_it_was(photos: Path, tmp_path: Path) -> None:
    made(photos, tmp_path / "whole")
    with running(photos, tmp_path / "out", tmp_path / "gate") as command:
        with pytest.raises(ArgumentError, match="another process is writing"):
            made(photos, tmp_path / "out")
        command.kill()
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert made(photos, tmp_path / "out").num_reused >= 2
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_ctrl_c_ends_everything_and_says_how_to_go_on(photos: Path, tmp_path: Path) -> None:
    made(photos, tmp_path / "whole")
    with running(photos, tmp_path / "out", tmp_path / "gate") as command:
        command.interrupt()
    assert made(photos, tmp_path / "out").num_reused >= 2
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
