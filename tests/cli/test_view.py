"""`stoker view`: batches as images, and clear errors where there is nothing to show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import stoker
from stoker import DataLoader
from stoker.cli.app import app
from stoker.store import Column, Writer
from stoker.transform import RandomHorizontalFlip, RandomResizedCrop


def run(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["view", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(1)
    for number in range(12):
        place = tmp_path / "photos" / ("cats" if number % 2 else "dogs")
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8))
        coarse.resize((80, 60), Image.Resampling.BICUBIC).save(place / f"{number}.jpg")
    return tmp_path / "photos"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Writer(tmp_path / "corpus", {"tokens": Column.ragged("uint16")}) as writer:
        for number in range(200):
            writer.append({"tokens": np.arange(5 + number % 70)})
    return tmp_path / "corpus"


def test_a_sheet_shows_the_batch_that_a_loader_gives(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    shown = run("images", folder, "-o", out, "--size", "48", "--batch-size", "6", "--seed", "5", "--step", "1")
    sheet = np.asarray(Image.open(out))
    assert shown.startswith(f"{out}: {sheet.shape[1]} x {sheet.shape[0]} pixels")
    dataset = stoker.images(folder, transform=[RandomResizedCrop(48), RandomHorizontalFlip()])
    loader: DataLoader[stoker.compose.images.LabeledImage] = DataLoader(dataset, 6, shuffle=True, seed=5)
    _, batch = loader
    assert loader.recipe is not None
    expected = stoker.view.batch(
        batch,
        classes=["cats", "dogs"],
        positions=loader.recipe.positions.tolist(),
        title="photos: 12 images, step 1, seed 5, augmented",
    )
    assert np.array_equal(sheet, np.asarray(expected))


def test_without_augmentation_the_seed_only_shuffles(folder: Path, tmp_path: Path) -> None:
    kinds: dict[str, Any] = {}
    for name in ("--augment", "--no-augment"):
        run("images", folder, "-o", tmp_path / "sheet.png", name, "--size", "32", "--columns", "12")
        kinds[name] = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert not np.array_equal(kinds["--augment"], kinds["--no-augment"])
    assert kinds["--augment"].shape == kinds["--no-augment"].shape


def test_other_kinds_of_images_are_written(folder: Path, tmp_path: Path) -> None:
    for ending in ("jpg", "webp"):
        run("images", folder, "-o", tmp_path / f"sheet.{ending}", "--size", "32")
        with Image.open(tmp_path / f"sheet.{ending}") as image:
            assert image.format in ("JPEG", "WEBP")


def test_rows_and_masks_of_a_store_are_drawn(store: Path, tmp_path: Path) -> None:
    run("tokens", store, "-o", tmp_path / "rows.png", "--length", "128", "--batch-size", "5")
    run("tokens", store, "-o", tmp_path / "cut.png", "--length", "128", "--batch-size", "5", "--strategy", "concat")
    run("mask", store, "-o", tmp_path / "mask.png", "--length", "128", "--batch-size", "2")
    rows, cut, mask = (np.asarray(Image.open(tmp_path / f"{name}.png")) for name in ("rows", "cut", "mask"))
    assert rows.shape == cut.shape
    assert not np.array_equal(rows, cut)
    assert mask.shape[1] > 2 * 384  # two masks, three pixels for a token


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ("sheet.xyz", "unsupported image format '.xyz'"),
        ("sheet", "has no file extension to set the image format"),
        ("nowhere/sheet.png", "does not exist"),
    ],
    ids=["suffix", "none", "folder"],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(out: str, expected: str) -> None:
    output = run("images", "no-such-folder", "-o", out, code=1)
    assert expected in output
    assert "hint: " in output


def test_a_folder_without_images_and_a_step_too_far_are_reported(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "contains no images" in run("images", tmp_path / "empty", "-o", tmp_path / "a.png", code=1)
    shown = run("images", folder, "-o", tmp_path / "a.png", "--batch-size", "5", "--step", "3", code=1)
    assert "step 3 is out of range: an epoch has 3 steps of 5" in shown
    assert not (tmp_path / "a.png").exists()


def test_labels_are_left_out_or_given_by_a_table(folder: Path, tmp_path: Path) -> None:
    (folder / "cats" / "1.jpg").rename(folder / "1.jpg")
    assert "classes are ambiguous" in run("images", folder, "-o", tmp_path / "s.png", code=1)
    run("images", folder, "-o", tmp_path / "s.png", "--labels", "none")
    (tmp_path / "t.csv").write_text("file,label\n" + "".join(f"{number},{number % 3}\n" for number in range(12)))
    run("images", folder, "-o", tmp_path / "t.png", "--labels", str(tmp_path / "t.csv"))
    assert (tmp_path / "s.png").read_bytes() != (tmp_path / "t.png").read_bytes()


def test_a_bad_image_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "cats" / "1.jpg").write_bytes(b"<html>404</html>")
    shown = run("images", folder, "-o", tmp_path / "a.png", code=1)
    assert f"{folder}/cats/1.jpg cannot be decoded: it looks like a web page" in shown
    assert "stoker verify images" in shown
