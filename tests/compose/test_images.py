"""Pictures as a dataset: samples, batches in place, layouts, labels, files left for the device, bad files."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import stoker
from stoker.batch.encoded import Encoded
from stoker.compose.images import Images, LabeledImage
from stoker.errors import ArgumentError, BadImage, BatchError, PositionError
from stoker.transform import (
    CenterCrop,
    ColorJitter,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from stoker.transform.image.decoding import decode
from stoker.transform.image.view import View
from tests.compose.picture_sets import InMemory
from tests.transform.pictures import photograph

CROP = [RandomResizedCrop((24, 20)), RandomHorizontalFlip(), RandomVerticalFlip()]


def batches(dataset: Any, batch_size: int = 8, **options: Any) -> list[Any]:
    loader: Any = stoker.DataLoader(dataset, batch_size=batch_size, shuffle=True, seed=7, **options)
    return [
        LabeledImage(*(part.clone() for part in batch)) if isinstance(batch, LabeledImage) else batch.clone()
        for batch in loader
    ]


def test_a_sample_is_a_image_and_its_label() -> None:
    images = Images(InMemory(), transform=CenterCrop(30))
    sample = images[4]
    assert isinstance(sample, LabeledImage)
    assert (sample.image.dtype, sample.image.shape, sample.label) == (np.uint8, (3, 30, 30), 1)
    assert sample.image.flags.c_contiguous
    assert images[-1].label == images[23].label
    with pytest.raises(PositionError, match="position 24"):
        images[24]


def test_without_labels_it_is_the_image_alone() -> None:
    images = Images(InMemory(labels=None), transform=CROP)
    assert images[0].shape == (3, 24, 20)
    assert images.targets == []
    assert images.class_to_idx == {}
    assert batches(images)[0].shape == (8, 3, 24, 20)


def test_it_tells_what_torchvisions_datasets_tell() -> None:
    images = Images(InMemory(7))
    assert images.classes == ["ant", "bee", "cow"]
    assert images.class_to_idx == {"ant": 0, "bee": 1, "cow": 2}
    assert images.targets == [0, 1, 2, 0, 1, 2, 0]
    assert len(images) == 7
    assert images.fingerprint == "pictures in memory"
    assert images.describe(3) == "shelf/3.jpg"
    assert images.samples[3:5] == [("shelf/3.jpg", 0), ("shelf/4.jpg", 1)]
    assert images.subset([4]).samples == [("shelf/4.jpg", 1)]
    assert repr(images) == "Images(7 images, 3 classes, transform=[])"


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [
        (np.arange(24, dtype=np.float32), torch.float32, (8,)),
        (np.ones((24, 5)), torch.float64, (8, 5)),
        (np.arange(24), torch.int64, (8,)),
    ],
    ids=["float", "several", "int"],
)
def test_labels_may_be_numbers_of_any_kind(labels: Any, dtype: Any, shape: Any) -> None:
    for transform in (CROP, [*CROP, np.asarray]):  # in place, and collated
        for num_workers in (0, 1):
            batch = batches(Images(InMemory(labels=labels), transform=transform), num_workers=num_workers)[0]
            assert tuple(batch.label.shape) == shape
            assert batch.label.dtype == dtype


@pytest.mark.parametrize("num_workers", [0, 1])
def test_layouts_are_the_same_images(num_workers: int) -> None:
    found = {
        layout: batches(Images(InMemory(), transform=CROP, layout=layout), num_workers=num_workers)
        for layout in ("nchw", "nhwc", "channels_last")
    }
    for plain, last, strided in zip(*found.values()):
        assert plain.image.shape == strided.image.shape == (8, 3, 24, 20)
        assert last.image.shape == (8, 24, 20, 3)
        assert plain.image.is_contiguous()
        assert last.image.is_contiguous()
        assert strided.image.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(plain.image, strided.image)
        assert torch.equal(plain.image, last.image.permute(0, 3, 1, 2))
        assert torch.equal(plain.label, last.label)


@pytest.mark.parametrize("layout", ["nchw", "nhwc", "channels_last"])
def test_samples_collated_are_the_batch_made_in_place(layout: Any) -> None:
    images = Images(InMemory(kinds=("JPEG", "PNG", "WEBP")), transform=[*CROP, ColorJitter(0.3)], layout=layout)
    in_place = batches(images)
    collated = batches(images, collate_fn=stoker.batch.collate)
    for ours, theirs in zip(in_place, collated):
        assert torch.equal(ours.image, theirs.image)
        assert torch.equal(ours.label, theirs.label)


def test_gray_has_one_channel() -> None:
    images = Images(InMemory(), transform=CROP, mode="L")
    assert images[0].image.shape == (1, 24, 20)
    assert batches(images)[0].image.shape == (8, 1, 24, 20)


def test_images_of_one_size_need_no_transform() -> None:
    pictures = InMemory(6)
    pictures.files = [pictures.files[0]] * 6
    assert batches(Images(pictures), batch_size=3)[0].image.shape == (3, 3, 50, 60)


@pytest.mark.parametrize("transform", [None, Resize(30), [np.asarray]], ids=["none", "shorter side", "foreign"])
def test_images_of_different_sizes_are_told_what_to_do(transform: Any) -> None:
    with pytest.raises(BatchError, match="different sizes") as caught:
        batches(Images(InMemory(), transform=transform))
    assert "RandomResizedCrop" in str(caught.value)
    assert any("positions" in note for note in caught.value.__notes__)
    loader: Any = stoker.DataLoader(Images(InMemory(), transform=transform), batch_size=None)
    assert len({sample.image.shape for sample in loader}) > 1


def test_a_transform_of_somebody_elses_makes_any_batch() -> None:
    def to_floats(image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255

    batch = batches(Images(InMemory(), transform=[*CROP, to_floats]))[0]
    assert batch.image.dtype == torch.float32
    assert torch.equal((batch.image * 255).round().byte(), batches(Images(InMemory(), transform=CROP))[0].image)


def test_arrays_and_images_of_somebody_elses_are_laid_out() -> None:
    for transform in ([*CROP, lambda image: image], [*CROP, np.asarray]):
        batch = batches(Images(InMemory(), transform=transform))[0]
        assert torch.equal(batch.image, batches(Images(InMemory(), transform=CROP))[0].image)


def channels_first(image: Any) -> Any:
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)).astype(np.float32)


def mean_colour(image: Any) -> Any:
    return np.asarray(image).mean((0, 1))


@pytest.mark.parametrize("layout", ["nchw", "nhwc", "channels_last"])
@pytest.mark.parametrize(
    ("last", "shape"), [(channels_first, (8, 3, 24, 20)), (mean_colour, (8, 3))], ids=["CHW", "colour"]
)
def test_arrays_of_another_layout_stay_as_they_are(last: Any, shape: Any, layout: Any) -> None:
    batch = batches(Images(InMemory(), transform=[*CROP, last], layout=layout))[0]
    assert tuple(batch.image.shape) == shape


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_images_are_in_the_mode_whatever_they_were_in_between(mode: Any) -> None:
    channels = 3 if mode == "RGB" else 1
    for between in ("L", "RGBA", "RGB", "P"):
        images = Images(InMemory(), transform=[lambda image: image.convert(between), CenterCrop(9)], mode=mode)  # noqa: B023
        assert images[0].image.shape == (channels, 9, 9)
        assert batches(images)[0].image.shape == (8, channels, 9, 9)


@pytest.mark.parametrize("transform", [CROP, [*CROP, np.asarray]], ids=["in place", "collated"])
def test_a_sampler_may_count_from_the_end_and_not_go_beyond(transform: Any) -> None:
    images = Images(InMemory(), transform=transform)
    loader: Any = stoker.DataLoader(images, batch_size=2, sampler=[-1, -24])
    assert next(iter(loader)).label.tolist() == [2, 0]
    with pytest.raises(PositionError, match="position 24"):
        next(iter(stoker.DataLoader(images, batch_size=1, sampler=[24])))


def test_a_sample_is_what_the_run_saw() -> None:
    images = Images(InMemory(), transform=CROP)
    loader: Any = stoker.DataLoader(images, batch_size=8, shuffle=True, seed=7)
    batch = next(iter(loader))
    for row, position in enumerate(loader.recipe.positions.tolist()):
        with stoker.sample_context(position, epoch=0, seed=7):
            sample = images[position]
        assert (sample.image == batch.image[row].numpy()).all()


def test_it_travels_to_workers() -> None:
    images = Images(InMemory(), transform=[*CROP, ColorJitter(0.2)])
    again = pickle.loads(pickle.dumps(images))
    with stoker.sample_context(2):
        ours = images[2].image
    with stoker.sample_context(2):
        assert (again[2].image == ours).all()


def test_a_subset_has_the_same_classes_and_is_written_in_place_too() -> None:
    images = Images(InMemory(), transform=CROP)
    chosen = images.subset([5, 2, 2, 20])
    assert (len(chosen), chosen.targets, chosen.classes) == (4, [2, 2, 2, 2], images.classes)
    assert chosen.describe(3) == "shelf/20.jpg"
    assert chosen.fingerprint != images.fingerprint
    assert images.subset(np.arange(24) % 2 == 0).describe(1) == "shelf/2.jpg"
    assert len(images) == 24
    assert batches(chosen, num_workers=1)[0].image.shape == (4, 3, 24, 20)
    with pytest.raises(PositionError, match="position 24"):
        images.subset([24])
    with pytest.raises(ArgumentError, match="positions must be integers in one dimension"):
        images.subset([0.5])


def test_in_a_subset_of_torchs_each_sample_has_numbers_of_its_own() -> None:
    images = Images(InMemory(labels=None), transform=CROP)
    subset: Any = torch.utils.data.Subset(images, [4] * 3)  # type: ignore[arg-type]
    (batch,) = list(stoker.DataLoader(subset, batch_size=3, seed=7))
    assert not torch.equal(batch[0], batch[1])
    with stoker.sample_context(2, seed=7):
        assert (subset[2] == batch[2].numpy()).all()


def test_in_a_subset_of_torchs_a_bad_image_is_named_and_changes_no_other() -> None:
    def read(bad: tuple[int, ...]) -> tuple[Any, Any]:
        subset: Any = torch.utils.data.Subset(Images(InMemory(bad=bad), transform=CROP), [4, 9, 2, 11])  # type: ignore[arg-type]
        loader: Any = stoker.DataLoader(subset, batch_size=4, seed=7, on_error="skip")
        return next(iter(loader)).image, loader.ledger

    expected, _ = read(())
    found, ledger = read((2,))
    assert [torch.equal(*pictures) for pictures in zip(found, expected)] == [True, True, False, True]
    assert [entry.where for entry in ledger] == ["shelf/2.jpg"]


def test_a_position_outside_a_subset_of_torchs_is_the_error_that_is_raised() -> None:
    subset: Any = torch.utils.data.Subset(Images(InMemory(), transform=CROP), [4, 9])  # type: ignore[arg-type]
    with pytest.raises(IndexError) as caught:
        next(iter(stoker.DataLoader(subset, batch_size=1, sampler=[7])))
    assert any("position 7" in note for note in caught.value.__notes__)


class ReadsMany:
    """Pictures, many in one call: nobody can tell which one it is at."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, positions: list[int]) -> list[Any]:
        return [self.images[position] for position in positions]


def test_many_read_in_one_call_have_numbers_of_their_own() -> None:
    images = Images(InMemory(labels=None), transform=CROP)
    loaders: list[Any] = [stoker.DataLoader(dataset, batch_size=8, seed=7) for dataset in (ReadsMany(images), images)]  # type: ignore[arg-type]
    for ours, theirs in zip(*loaders, strict=True):
        assert torch.equal(ours, theirs)


# -------------------------------------------------------------------- bad files


@pytest.mark.parametrize("num_workers", [0, 1])
def test_bad_images_are_named(num_workers: int) -> None:
    with pytest.raises(BadImage, match=r"shelf/5\.jpg cannot be decoded") as caught:
        batches(Images(InMemory(bad=(5,)), transform=CROP), num_workers=num_workers)
    assert any("position 5 (shelf/5.jpg)" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("transform", [CROP, [*CROP, np.asarray]], ids=["in place", "collated"])
def test_bad_images_are_replaced_with_their_labels(transform: Any) -> None:
    images = Images(InMemory(bad=(5, 9)), transform=transform)
    loader: Any = stoker.DataLoader(images, batch_size=8, shuffle=True, seed=7, on_error="skip")
    clean: Any = stoker.DataLoader(Images(InMemory(), transform=transform), batch_size=8, shuffle=True, seed=7)
    for batch, other in zip(loader, clean):
        positions = loader.recipe.positions
        replaced = {entry.position: entry.replaced_by for entry in loader.ledger}
        used = np.array([replaced.get(position, position) for position in positions.tolist()])
        assert batch.label.tolist() == (used % 3).tolist()
        same = used == positions
        assert torch.equal(batch.image[same], other.image[same])
    assert sorted(entry.position for entry in loader.ledger) == [5, 9]
    assert {entry.where for entry in loader.ledger} == {"shelf/5.jpg", "shelf/9.jpg"}
    assert all("BadImage" in entry.reason for entry in loader.ledger)


# -------------------------------------------------------------------- files for the device


def batch_of(images: Images, positions: list[int], shown: float | None = None) -> Any:
    writer = images.open_batch(len(positions), np.empty, shown)
    for row, position in enumerate(positions):
        with stoker.sample_context(position, seed=3):
            writer.write(row, position)
    return writer.batch()


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "channels_last"])
def test_files_left_for_the_device_become_the_same_images(layout: Any, share: float) -> None:
    pictures = InMemory(16, kinds=("JPEG", "JPEG", "PNG", "JPEG"))
    positions = list(range(16))
    expected = batch_of(Images(pictures, transform=CROP, layout=layout), positions)
    decode_by: Any = "device" if share == 1.0 else "auto"
    found = batch_of(Images(pictures, transform=CROP, layout=layout, decode=decode_by), positions, share)
    assert isinstance(found.image, Encoded)
    encoded = found.image
    num_wanted = round(share * 16)
    wanted = [row for row in range(16) if (row + 1) * num_wanted // 16 > row * num_wanted // 16]
    # neither PNG nor what lies on its side can be decoded there
    assert encoded.rows.tolist() == [row for row in wanted if row % 4 != 2 and row % 7 != 3]
    assert encoded.pixels.shape == (16, 3, 24, 20)
    assert encoded.positions == encoded.rows.tolist()
    for number, row in enumerate(encoded.rows.tolist()):
        region = tuple(encoded.regions[number].tolist())
        box = tuple(encoded.boxes[number].tolist())
        view = View(region, box, (24, 20), cast(Any, tuple(encoded.flips[number].tolist())))
        data = encoded.file(number).numpy()
        assert data.tobytes() == pictures.files[row]
        sizes: list[Any] = []

        def view_of(width: int, height: int, view: View = view, sizes: list[Any] = sizes) -> View:
            sizes.append([width, height])
            return view

        pixels = torch.from_numpy(decode(data, view_of).transpose(2, 0, 1).copy())
        assert sizes == [encoded.sizes[number].tolist()]
        encoded.pixels[row] = pixels
    assert torch.equal(encoded.shaped(encoded.pixels), torch.from_numpy(expected.image))
    assert found.label.tolist() == [position % 3 for position in positions]


def test_a_share_of_nothing_is_plain_pixels() -> None:
    images = Images(InMemory(), transform=CROP, decode="auto")
    for shown in (None, 0.0, 0.01):
        assert isinstance(batch_of(images, [1, 2, 3], shown).image, np.ndarray)


def test_what_is_padded_is_decoded_here() -> None:
    transform = [RandomResizedCrop(20), RandomCrop(20, padding=2)]
    images = Images(InMemory(labels=None), transform=transform, decode="device")
    expected = batch_of(Images(InMemory(labels=None), transform=transform), [0, 1, 2, 4])
    assert (batch_of(images, [0, 1, 2, 4]) == expected).all()


def test_a_row_put_again_is_of_the_other_picture() -> None:
    images = Images(InMemory(kinds=("JPEG", "PNG")), transform=CROP, decode="device")
    writer: Any = images.open_batch(2, np.empty, None)
    with stoker.sample_context(0):
        writer.write(0, 0)
        writer.write(0, 1)  # a PNG: decoded here, so there is no file any more
        writer.write(1, 2)
    assert writer.batch().image.rows.tolist() == [1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transform": [*CROP, ColorJitter(0.1)]}, "changes pixels"),
        ({"transform": None}, "different sizes, and a batch on the device has one"),
        ({"transform": Resize(9)}, "different sizes, and a batch on the device has one"),
        ({"transform": CROP, "exact": True}, "exact=True"),
    ],
    ids=["colour", "none", "shorter side", "exact"],
)
def test_what_the_device_cannot_do_is_refused_and_left_to_the_host_by_auto(options: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Images(InMemory(), decode="device", **options)
    assert not Images(InMemory(), decode="auto", **options).leaves_files


# -------------------------------------------------------------------- arguments


@pytest.mark.parametrize("name", ["decode", "layout", "mode", "max_pixels"])
def test_unknown_options_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}='odd'"):
        Images(InMemory(), **{name: "odd"})  # type: ignore[arg-type]


def test_threads_are_in_a_process_of_their_own() -> None:
    loader: Any = stoker.DataLoader(Images(InMemory(), transform=CROP), num_threads=2)
    assert (loader.num_workers, loader.num_threads) == (1, 2)
    loader = stoker.DataLoader(Images(InMemory(), transform=CROP, in_trainer=True), num_threads=2)
    assert (loader.num_workers, loader.num_threads) == (0, 2)
    loader = stoker.DataLoader(Images(InMemory(), transform=CROP))
    assert (loader.num_workers, loader.num_threads) == (0, 0)


def test_a_folder_is_a_dataset(tmp_path: Path) -> None:
    for name in ("bee", "ant"):
        (tmp_path / name).mkdir()
        for number in (10, 2):
            photograph(40, 30, seed=number).save(tmp_path / name / f"{number}.jpg")
    (tmp_path / "ant" / "3.jpg").write_bytes(b"")
    images = stoker.images(tmp_path, transform=CROP, cache=False)
    assert images.classes == ["ant", "bee"]
    assert images.targets == [0, 0, 0, 1, 1]
    assert images.describe(0).endswith("ant/2.jpg")
    with pytest.raises(BadImage, match=r"ant/3\.jpg cannot be decoded: it is empty"):
        images[1]
    assert stoker.images(tmp_path, labels=False, transform=CROP, cache=False)[0].shape == (3, 24, 20)


@pytest.mark.parametrize(
    ("name", "hint"), [("transforms", "did you mean transform=?"), ("loader", "help(stoker.images)")]
)
def test_an_argument_that_there_is_not_is_shown_by_its_name(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"stoker.images() has no argument {name!r}\nhint: {hint}")):
        cast(Any, stoker.images)(tmp_path, **{name: None})
