"""Pictures into a store: as they are or smaller, with their labels, and again only where something changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from typer.testing import CliRunner

import stoker
from stoker import prepare
from stoker.cli.app import app
from stoker.errors import ArgumentError, BadImage, DataError
from stoker.prepare import image_work
from stoker.prepare.image_inputs import ImageInputs
from stoker.prepare.image_work import ImageSettings
from stoker.source.images import open_images
from stoker.source.parquet import Parquet
from stoker.store import Build
from tests.prepare.pictures import encoded, folder_of, opened, turned


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def made(source: Any, out: Path, **options: Any) -> prepare.ImageReport:
    return prepare.images(source, out=out, **{"workers": 0, "piece_bytes": 8000, "cache": False, **options})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def stored(folder: Path) -> dict[str, Any]:
    """Return the pictures of a store by name."""
    return {sample["name"].decode(): sample["image"] for sample in stoker.open(folder)}


# ------------------------------------------------------------ as they are


def test_images_stay_as_they_are_byte_for_byte(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos")
    (folder / "class1" / "x.png").write_bytes(encoded(30, 20, "PNG", mode="RGBA"))
    (folder / "class1" / "y.webp").write_bytes(encoded(31, 21, "WEBP"))
    (folder / "class2" / "z.jpg").write_bytes(turned(40, 24, 6))
    report = made(folder, tmp_path / "out")
    source, store = open_images(folder, cache=False), open_images(tmp_path / "out")
    assert report.pictures == len(source) == len(store) == 15
    assert [bytes(store.read(number)) for number in range(15)] == [bytes(source.read(number)) for number in range(15)]
    assert store.classes == source.classes == ["class0", "class1", "class2"]
    assert store.labels is not None and source.labels is not None
    assert store.labels.tolist() == source.labels.tolist()
    assert (report.reencoded, report.skipped, report.classes) == (0, 0, 3)
    assert report.source_bytes == report.image_bytes == sum(len(source.read(number)) for number in range(15))
    assert report.num_pieces > 1 and report.before is not None and report.after is not None
    sizes = {sample["name"]: (int(sample["width"]), int(sample["height"])) for sample in stoker.open(tmp_path / "out")}
    assert sizes[b"class1/x.png"] == (30, 20) and sizes[b"class2/z.jpg"] == (24, 40)
    assert store.name(0) == f"{tmp_path / 'out'}: class0/0.jpg"


def test_workers_and_pieces_of_other_runs_change_nothing(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos")
    made(folder, tmp_path / "one", max_side=40)
    made(folder, tmp_path / "two", max_side=40, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("kind", ["tar", "parquet", "list", "store"])
def test_every_source_of_images_can_be_prepared(tmp_path: Path, kind: str) -> None:
    import tarfile

    folder = folder_of(tmp_path / "photos", 6)
    paths = sorted(folder.rglob("*.jpg"))
    source: Any = [(path, path.parent.name) for path in paths]
    if kind == "tar":
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            for number, path in enumerate(paths):
                archive.add(path, f"{number}.jpg")
        source = tmp_path / "a.tar"
    elif kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"image": [path.read_bytes() for path in paths]}), tmp_path / "a.parquet")
        source = tmp_path / "a.parquet"
    elif kind == "store":
        made(folder, tmp_path / "first")
        source = tmp_path / "first"
    report = made(source, tmp_path / "out")
    store = open_images(tmp_path / "out")
    assert sorted(bytes(store.read(number)) for number in range(6)) == sorted(path.read_bytes() for path in paths)
    assert (store.classes is not None) == (kind in ("list", "store"))
    assert report.pictures == 6
    assert made(source, tmp_path / "out").is_up_to_date


def test_rows_of_a_table_are_not_read_to_be_cut_into_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"image": [bytes([number]) * 5000 for number in range(20)]}), tmp_path / "a.parquet")
    pictures = open_images(tmp_path / "a.parquet")
    monkeypatch.setattr(Parquet, "_decoded", None)
    stock = ImageInputs(pictures, tmp_path / "a.parquet")
    pieces = stock.pieces(20_000)
    assert len(pieces) > 1 and len({piece.key for piece in pieces}) == len(pieces) and stock.digest
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]


# ------------------------------------------------------------ smaller


@given(
    width=st.integers(1, 9000),
    height=st.integers(1, 9000),
    max_side=st.none() | st.integers(1, 5000),
    short_side=st.none() | st.integers(1, 5000),
)
def test_sides_are_limited_and_never_enlarged(
    width: int, height: int, max_side: int | None, short_side: int | None
) -> None:
    settings = ImageSettings(max_side=max_side, short_side=short_side, piece_bytes=1)
    new_width, new_height = settings.size(width, height)
    assert 1 <= new_width <= width and 1 <= new_height <= height
    assert max_side is None or max(new_width, new_height) <= max_side
    assert short_side is None or min(new_width, new_height) <= short_side
    if (max_side is None or max(width, height) <= max_side) and (
        short_side is None or min(width, height) <= short_side
    ):
        assert (new_width, new_height) == (width, height)
    share = new_width / width
    assert abs(new_height - height * share) <= max(1.0, height / width)


def test_large_images_become_smaller_jpegs_and_small_ones_stay(tmp_path: Path) -> None:
    files = {
        "big.jpg": encoded(400, 200, quality=95),
        "small.jpg": encoded(40, 20),
        "small.png": encoded(40, 20, "PNG"),
        "grey.jpg": encoded(400, 200, mode="L"),
        "grey.png": encoded(400, 200, "PNG", mode="L"),
        "alpha.png": encoded(400, 200, "PNG", mode="RGBA"),
        "cmyk.jpg": encoded(400, 200, mode="CMYK"),
        "turned.jpg": turned(40, 20, 6),
        "turned big.jpg": turned(400, 200, 8),
    }
    (tmp_path / "in").mkdir()
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
    report = made(tmp_path / "in", tmp_path / "out", max_side=100)
    found = {name: opened(data) for name, data in stored(tmp_path / "out").items()}
    assert all(image.format == "JPEG" for image in found.values())
    assert {name: image.size for name, image in found.items()} == {
        "big.jpg": (100, 50), "small.jpg": (40, 20), "small.png": (40, 20), "grey.jpg": (100, 50),
        "grey.png": (100, 50), "alpha.png": (100, 50), "cmyk.jpg": (100, 50), "turned.jpg": (20, 40),
        "turned big.jpg": (50, 100),
    }  # fmt: skip
    assert stored(tmp_path / "out")["small.jpg"] == files["small.jpg"]
    assert report.reencoded == len(files) - 1
    for name, image in found.items():
        assert image.mode == ("L" if name.startswith("grey") else "RGB"), name
        assert image.getexif().get(0x0112, 1) == 1
        assert image.mode == "L" or name == "small.jpg" or image.layer[1][1:3] == (1, 1)  # type: ignore[attr-defined]
        upright = ImageOps.exif_transpose(opened(files[name])).convert(image.mode)
        # in gray: edges of color alone are not sharp any more
        expected = np.asarray(upright.resize(image.size, Image.Resampling.BILINEAR).convert("L"), np.float64)
        error = np.mean((np.asarray(image.convert("L"), np.float64) - expected) ** 2)
        assert error < 25, name  # turned or mirrored, it would be hundreds


def test_quality_and_the_shorter_side_decide_how_large_files_are(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos", 3, side=200)
    fine = made(folder, tmp_path / "fine", short_side=100, quality=95)
    coarse = made(folder, tmp_path / "coarse", short_side=100, quality=30)
    assert coarse.image_bytes < fine.image_bytes < fine.source_bytes
    assert {min(opened(data).size) for data in stored(tmp_path / "coarse").values()} == {100}


def test_pillow_encodes_where_simplejpeg_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "photos", 3, side=200)
    made(folder, tmp_path / "one", max_side=50)
    monkeypatch.setattr(image_work, "jpeg_encoder", lambda: "pillow")
    monkeypatch.setattr("stoker.prepare.image_preparation.jpeg_encoder", lambda: "pillow")
    report = made(folder, tmp_path / "one", max_side=50)
    assert report.num_made == report.num_pieces  # other bytes, so other pieces
    for data in stored(tmp_path / "one").values():
        assert opened(data).size[0] == 50


# ------------------------------------------------------------ again


def test_a_second_run_makes_nothing_and_a_changed_image_its_own_piece(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos", 40)
    first = made(folder, tmp_path / "out", max_side=50)
    before = contents(tmp_path / "out")
    again = made(folder, tmp_path / "out", max_side=50)
    assert again.is_up_to_date and again.num_made == 0 and contents(tmp_path / "out") == before
    (folder / "class1" / "1.jpg").write_bytes(encoded(300, 200, seed=99))
    changed = made(folder, tmp_path / "out", max_side=50)
    assert not changed.is_up_to_date and 1 <= changed.num_made <= 2 < first.num_pieces
    made(folder, tmp_path / "fresh", max_side=50)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    (folder / "class0" / "new.jpg").write_bytes(encoded(100, 100))
    (folder / "class2" / "2.jpg").unlink()
    assert made(folder, tmp_path / "out", max_side=50).num_made < first.num_pieces / 2
    os.utime(folder / "class0" / "0.jpg", ns=(1, 1))
    assert not made(folder, tmp_path / "out", max_side=50).is_up_to_date


def test_other_settings_or_labels_make_another_store(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos")
    made(folder, tmp_path / "out", max_side=50)
    for options in ({"max_side": 40}, {"short_side": 50}, {"max_side": 50, "quality": 80}, {}, {"labels": False},
                    {"classes": ["class2", "class1", "class0"]}):  # fmt: skip
        assert not made(folder, tmp_path / "out", **options).is_up_to_date
        assert made(folder, tmp_path / "out", **options).is_up_to_date
    assert open_images(tmp_path / "out").classes == ["class2", "class1", "class0"]


def test_labels_of_any_shape_are_kept(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos", 4)
    boxes = np.arange(16, dtype=np.float32).reshape(4, 4)
    made(folder, tmp_path / "out", labels=boxes)
    labels = open_images(tmp_path / "out").labels
    assert labels is not None and labels.dtype == np.float32 and np.array_equal(labels, boxes)


# ------------------------------------------------------------ bad pictures


def spoiled(path: Path) -> Path:
    folder = folder_of(path)
    whole = (folder / "class0" / "3.jpg").read_bytes()
    (folder / "class0" / "3.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "class1" / "4.jpg").write_bytes(b"")
    (folder / "class2" / "5.jpg").write_bytes(b"<html>not found</html>")
    (folder / "class2" / "6.jpg").symlink_to(folder / "nothing")
    return folder


@pytest.mark.parametrize("options", [{}, {"max_side": 50}], ids=["as they are", "smaller"])
def test_bad_images_stop_it_or_are_left_out_and_listed(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = spoiled(tmp_path / "photos")
    with pytest.raises(BadImage, match=r"3\.jpg cannot be decoded"):
        made(folder, tmp_path / "out", **options)
    report = made(folder, tmp_path / "out", on_error="skip", **options)
    assert report.pictures == 9 and report.skipped == 4
    assert report.reasons == {"cannot be decoded": 2, "cannot be read": 1, "empty": 1}
    assert sorted(line.partition(":")[0] for line in report.bad) == [
        "class0/3.jpg", "class1/4.jpg", "class2/5.jpg", "class2/6.jpg"]  # fmt: skip
    store = open_images(tmp_path / "out")
    assert store.labels is not None and store.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    ledger = (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()
    assert len(ledger) == 4 and "looks like a web page" in "".join(ledger)
    assert made(folder, tmp_path / "out", on_error="skip", **options).bad == report.bad
    with pytest.raises(BadImage, match=r"3\.jpg cannot be decoded"):
        made(folder, tmp_path / "out", **options)
    assert len(open_images(tmp_path / "out")) == 9  # what was there is still there


def test_a_file_with_zeros_in_place_of_its_end_is_bad(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos", 2)
    noise = np.random.default_rng(1).integers(0, 255, (96, 128, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "class1" / "1.jpg", quality=95)
    whole = (folder / "class1" / "1.jpg").read_bytes()
    (folder / "class1" / "1.jpg").write_bytes(whole[: len(whole) // 2] + bytes(len(whole) // 2))
    for options in ({}, {"max_side": 50}):
        with pytest.raises(BadImage, match=r"1\.jpg cannot be decoded: it ends in zero bytes"):
            made(folder, tmp_path / f"out{len(options)}", **options)


def test_a_image_longer_than_jpeg_can_be_is_shown_by_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos", 2)
    Image.new("L", (70_000, 2)).save(folder / "class0" / "long.png")
    with pytest.raises(BadImage, match=r"long\.png .*its longer side would be 70,000 pixels.*limit max_side"):
        made(folder, tmp_path / "out", short_side=32)
    assert made(folder, tmp_path / "out", short_side=32, on_error="skip").skipped == 1
    assert made(folder, tmp_path / "out", max_side=32).skipped == 0


def test_a_store_of_nothing_but_bad_images_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="none of 1 images could be used"):
        made(tmp_path / "in", tmp_path / "out", on_error="skip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": 80}, "quality=80 is only for images that are downscaled"),
        ({"max_side": 0}, "max_side must be a number of pixels, got 0"),
        ({"short_side": 70000}, "short_side must be a number of pixels, got 70000"),
        ({"max_side": 10, "quality": 101}, "quality must be from 1 to 100, got 101"),
        ({"on_error": "no"}, "unknown on_error='no'"),
        ({"workers": -1}, "workers must not be negative, got -1"),
        ({"piece_bytes": 0}, "piece_bytes must be positive, got 0"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_arguments_that_cannot_work_are_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        made(folder_of(tmp_path / "photos", 1), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos", 2)
    with pytest.raises(ArgumentError, match="exists already, and is not a store"):
        made(folder, folder)
    (tmp_path / "a.txt").write_text("some text")
    prepare.tokens(tmp_path / "a.txt", tokenizer="bytes", out=tmp_path / "tokens", workers=0)
    with pytest.raises(ArgumentError, match="was not made by `stoker prepare images`"):
        made(folder, tmp_path / "tokens")
    made(folder, tmp_path / "pictures")
    before = contents(tmp_path / "pictures")
    with pytest.raises(ArgumentError, match="is both the source and the target"):
        made(tmp_path / "pictures", tmp_path / "pictures", max_side=8)
    assert contents(tmp_path / "pictures") == before
    with pytest.raises(ArgumentError, match="was not made by `stoker prepare tokens`"):
        prepare.tokens(tmp_path / "a.txt", tokenizer="bytes", out=tmp_path / "pictures", workers=0)


def test_an_unfinished_preparation_of_another_kind_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("some text")
    folder = folder_of(tmp_path / "photos", 2)

    def make_images() -> Any:
        return made(folder, tmp_path / "images", workers=0)

    def make_tokens() -> Any:
        return prepare.tokens(tmp_path / "a.txt", tokenizer="bytes", out=tmp_path / "tokens", workers=0)

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Build, "finish", stop)
        for make in (make_images, make_tokens):
            with pytest.raises(KeyboardInterrupt):
                make()
    before = contents(tmp_path / "images"), contents(tmp_path / "tokens")
    with pytest.raises(ArgumentError, match="was not made by `stoker prepare tokens`"):
        prepare.tokens(tmp_path / "a.txt", tokenizer="bytes", out=tmp_path / "images", workers=0)
    with pytest.raises(ArgumentError, match="was not made by `stoker prepare images`"):
        made(folder, tmp_path / "tokens", workers=0)
    assert (contents(tmp_path / "images"), contents(tmp_path / "tokens")) == before
    assert (make_images().num_made, make_tokens().num_made) == (0, 0)  # each still continues its own


# ------------------------------------------------------------ the command


def test_the_command_keeps_images_as_stored_and_classes_without_images(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for name in ("ant", "bee"):
        (folder / name).mkdir(parents=True)
    (folder / "bee" / "a.jpg").write_bytes(turned(80, 48, 6))
    run = ["prepare", "images", str(folder), "--out", str(tmp_path / "out"), "--max-side", "40", "--workers", "0"]
    refused = CliRunner().invoke(app, run)
    assert refused.exit_code == 1
    assert "without images: ant" in " ".join(refused.output.split()) and "(--allow-empty)" in refused.output
    result = CliRunner().invoke(app, [*run, "--allow-empty", "--no-apply-exif-orientation"])
    assert result.exit_code == 0, result.output
    store = stoker.images(tmp_path / "out")
    assert store.classes == ["ant", "bee"] and store.targets == [1]
    assert store[0].image.shape == (3, 24, 40)


def test_the_command_tells_size_and_cost_before_and_after(tmp_path: Path) -> None:
    folder = spoiled(tmp_path / "photos")
    out = str(tmp_path / "out")
    arguments = ["prepare", "images", str(folder), "--out", out, "--short-side", "40", "--workers", "2"]
    stopped = CliRunner().invoke(app, arguments)
    assert stopped.exit_code == 1 and "cannot be decoded" in stopped.output
    done = CliRunner().invoke(app, [*arguments, "--on-error", "skip"])
    assert done.exit_code == 0, done.output
    for words in ("9 (9 re-encoded, 0 copied)", "ms before", "ms now", "classes", "4 (2 cannot be decoded",
                  "skipped class0/3.jpg: ", "stoker.images("):  # fmt: skip
        assert words in " ".join(done.output.split()), done.output
    again = CliRunner().invoke(app, [*arguments, "--on-error", "skip"])
    assert "is up to date" in " ".join(again.output.split())
    table = tmp_path / "t.csv"
    names = [f"class{number % 3}/{number}.jpg" for number in range(12)] + ["class2/6.jpg"]
    table.write_text("name,kind\n" + "".join(f"{name},{name[5]}\n" for name in sorted(set(names))))
    labelled = CliRunner().invoke(
        app, ["prepare", "images", str(folder), "--out", out, "--labels", str(table), "--columns", "name,kind",
              "--on-error", "skip", "--workers", "0"],
    )  # fmt: skip
    assert labelled.exit_code == 0, labelled.output
    assert open_images(out).classes is None
