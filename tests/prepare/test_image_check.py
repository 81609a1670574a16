"""Pictures checked before a run: every way in which a file can be bad is found and named, and nothing else is."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stoker.errors import ArgumentError
from stoker.prepare import check_images
from stoker.prepare.image_check import PIECE


def photo(height: int = 64, width: int = 80) -> Image.Image:
    coarse = np.random.default_rng(1).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


JPEG = encoded(photo())


def kinds_of(folder: Path, num_workers: int = 0, **options: Any) -> dict[str, str]:
    found = check_images(folder, num_workers=num_workers, **options)
    return {Path(bad.path).name: bad.kind for bad in found.bad}


def test_every_way_of_being_bad_has_its_name(tmp_path: Path) -> None:
    files = {
        "cut.jpg": JPEG[: len(JPEG) // 2],
        "empty.jpg": b"",
        "fine.jpg": JPEG,
        "page.jpg": b"<!DOCTYPE html><html>not found</html>",
        "header.jpg": JPEG[:30],
        "cut.png": encoded(photo(), "PNG")[:-200],
        "cut.webp": encoded(photo(), "WEBP")[:-50],
        "fine.webp": encoded(photo(), "WEBP"),
        "large.png": encoded(Image.new("1", (400, 300)), "PNG"),
        "large.jpg": encoded(Image.new("L", (400, 300))),
        "zeros.jpg": bytes(500),
    }
    damaged = bytearray(encoded(photo(), "PNG"))
    damaged[len(damaged) // 2] ^= 0x55
    files["damaged.png"] = bytes(damaged)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nothing.jpg")
    found = kinds_of(tmp_path, max_pixels=100_000)
    assert found.pop("header.jpg") in ("not an image", "truncated", "damaged")
    assert found.pop("cut.webp") in ("truncated", "damaged")
    assert found == {
        "cut.jpg": "truncated",
        "cut.png": "truncated",
        "damaged.png": "damaged",
        "empty.jpg": "empty",
        "gone.jpg": "unreadable",
        "large.jpg": "too large",
        "large.png": "too large",
        "page.jpg": "not an image",
        "zeros.jpg": "not an image",
    }


@given(share=st.floats(0.05, 0.99))
def test_no_cut_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    folder = tmp_path_factory.mktemp("cut")
    (folder / "a.jpg").write_bytes(JPEG[: int(share * len(JPEG))])
    assert set(kinds_of(folder)) == {"a.jpg"}


@given(share=st.floats(0.1, 0.9))
def test_a_file_that_was_reserved_and_not_written_to_its_end_is_cut_short(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    folder = tmp_path_factory.mktemp("reserved")
    noise = np.random.default_rng(1).integers(0, 255, (96, 128, 3), dtype=np.uint8)
    whole = encoded(Image.fromarray(noise), quality=95)  # with so much to say, zeros are enough for all that is missing
    size = int(len(whole) * share)
    (folder / "a.jpg").write_bytes(whole[:size] + bytes(len(whole) - size))
    assert len(check_images(folder, num_workers=0).bad) == 1


def test_what_follows_a_picture_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(JPEG + b"and more" * 10)
    assert check_images(tmp_path, num_workers=0).is_sound


def test_odd_pictures_are_told_and_good(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    frames = [photo(), photo().rotate(90)]
    photo().convert("CMYK").save(tmp_path / "print.jpg")
    photo().save(tmp_path / "turned.jpg", exif=turned)
    (tmp_path / "named.jpg").write_bytes(encoded(photo(), "PNG"))
    Image.fromarray(np.full((9, 9), 40_000, np.uint16)).save(tmp_path / "deep.png")
    Image.fromarray(np.linspace(-1, 9, 81, dtype=np.float32).reshape(9, 9)).save(tmp_path / "floats.tif")
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "pages.tif", save_all=True, append_images=frames[1:])
    Image.new("L", (8000, 6500)).save(tmp_path / "wide.png")
    (tmp_path / "plain.jpeg").write_bytes(JPEG)
    found = check_images(tmp_path, num_workers=0)
    assert found.is_sound
    odd = {what: [Path(path).name for path in paths] for what, paths in found.odd.items()}
    assert odd == {
        "CMYK": ["print.jpg"],
        "turned by EXIF": ["turned.jpg"],
        "PNG named .jpg": ["named.jpg"],
        "16-bit": ["deep.png"],
        "32-bit": ["floats.tif"],
        "animated": ["moving.gif"],
        "several pages": ["pages.tif"],
        "huge": ["wide.png"],
    }
    assert found.formats == {"JPEG": 3, "PNG": 3, "GIF": 1, "TIFF": 2}
    assert found.num_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.parametrize("num_workers", [0, 1, 3, None])
def test_any_number_of_workers_finds_the_same_in_the_same_order(tmp_path: Path, num_workers: int | None) -> None:
    for number in range(3 * PIECE + 5):
        (tmp_path / f"{number}.jpg").write_bytes(JPEG if number % 7 else JPEG[: 500 + number])
    seen = []
    found = check_images(tmp_path, num_workers=num_workers, watch=lambda *told: seen.append(told))
    assert [Path(bad.path).name for bad in found.bad] == [f"{number}.jpg" for number in range(0, 3 * PIECE + 5, 7)]
    assert seen[-1] == (found.num_images, found.num_bytes, 3 * PIECE + 5)
    assert [told[0] for told in seen] == sorted(told[0] for told in seen)


def test_odd_numbers_of_workers_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="num_workers must be a number of processes, got -1"):
        check_images(tmp_path, num_workers=-1)
    with pytest.raises(ArgumentError, match="no images"):
        check_images(tmp_path)


def test_a_list_of_files_is_checked_as_well(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(JPEG)
    (tmp_path / "b.jpg").write_bytes(JPEG[:100])
    found = check_images([tmp_path / "b.jpg", tmp_path / "a.jpg"], num_workers=0)
    assert [Path(bad.path).name for bad in found.bad] == ["b.jpg"]


def test_ctrl_c_ends_it_and_leaves_no_process(tmp_path: Path) -> None:
    for number in range(2 * PIECE):
        (tmp_path / f"{number}.jpg").write_bytes(JPEG)
    # A picture that is a pipe makes a worker wait for ever.
    os.mkfifo(tmp_path / "pipe")
    code = (
        "import os, sys\nfrom stoker.cli import main\n"
        "from stoker.prepare import image_check\n"
        "def slow(self, positions, counts):\n"
        f"    os.write(1, b'at work\\n'); open({str(tmp_path / 'pipe')!r}).read()\n"
        "image_check._Check.__call__ = slow\nmain()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "verify", "images", str(tmp_path), "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
