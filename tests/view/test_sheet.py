"""Contact sheets: images are found in any kind of batch and shown with their labels and positions."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import stoker
from stoker import DataLoader
from stoker.batch.encoded import Encoded
from stoker.errors import ArgumentError, MissingExtra
from stoker.view.batch_images import NAN_COLOR, find_images, format_labels
from stoker.view.paper import ELLIPSIS, font, shorten, strip_undrawable, text_width
from stoker.view.sheet import _columns, draw_sheet


def pixels(number: int = 6, height: int = 24, width: int = 20) -> NDArray[np.uint8]:
    """Return images [B, H, W, 3], each with a color of its own and a gradient."""
    colors = np.random.default_rng(1).integers(0, 200, (number, 1, 1, 3))
    gradient = np.linspace(0, 55, width).round()[None, None, :, None]
    return np.broadcast_to(colors + gradient, (number, height, width, 3)).astype(np.uint8)


NHWC = pixels()
NCHW = torch.from_numpy(NHWC).permute(0, 3, 1, 2)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Sample(NamedTuple):
    image: Any
    label: Any


def normalized() -> torch.Tensor:
    return (NCHW / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(NCHW, id="nchw"),
        pytest.param(NCHW.contiguous(memory_format=torch.channels_last), id="channels_last"),
        pytest.param(NHWC, id="nhwc array"),
        pytest.param(NCHW.float() / 255, id="floats from 0 to 1"),
        pytest.param((NCHW.double() / 255), id="doubles"),
        pytest.param(NCHW.float(), id="floats from 0 to 255"),
        pytest.param(NCHW.long(), id="long integers"),
        pytest.param((NCHW, torch.arange(6)), id="tuple"),
        pytest.param([torch.arange(6), NCHW], id="labels first"),
        pytest.param({"label": torch.arange(6), "image": NCHW}, id="dict"),
        pytest.param({"ids": torch.arange(6), "views": {"a": NCHW}}, id="nested dict"),
        pytest.param(Sample(NCHW, torch.arange(6)), id="named tuple"),
        pytest.param([*NCHW], id="list of tensors"),
        pytest.param([Image.fromarray(one) for one in NHWC], id="list of images"),
        pytest.param([(one, number) for number, one in enumerate(NHWC)], id="list of samples"),
    ],
)
def test_images_are_found_and_keep_their_pixels(batch: Any) -> None:
    seen = find_images(batch, limit=64)
    assert np.array_equal(np.stack(seen.images), NHWC)
    assert seen.num_all == 6
    assert seen.notes == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_images_on_a_device_are_the_same_images() -> None:
    for batch in (NCHW, (NCHW / 255).half()):
        assert np.array_equal(
            np.stack(find_images(batch.cuda(), limit=9).images), np.stack(find_images(batch, limit=9).images)
        )


@pytest.mark.parametrize("normalize", [(MEAN, STD), stoker.Normalize(MEAN, STD)], ids=["pair", "Normalize"])
def test_what_was_normalized_has_its_colors_back(normalize: Any) -> None:
    assert np.array_equal(np.stack(find_images(normalized(), normalize=normalize, limit=9).images), NHWC)
    assert np.array_equal(
        np.stack(find_images(NCHW, normalize=normalize, limit=9).images), NHWC
    )  # bytes are as they are


def test_half_precision_and_slight_overshoot_are_shown_without_a_note() -> None:
    seen = find_images((NCHW / 255).to(torch.bfloat16), limit=9)
    assert np.abs(np.stack(seen.images).astype(int) - NHWC).max() <= 1
    assert seen.notes == []


def test_values_nobody_explains_are_stretched_and_that_is_said() -> None:
    seen = find_images(normalized(), limit=9)
    assert np.stack(seen.images).min() == 0
    assert np.stack(seen.images).max() == 255
    assert "pass normalize=" in seen.notes[0]
    assert "from -1 to 1" in find_images(NCHW / 127.5 - 1, limit=9).notes[0]


def test_what_is_no_number_is_magenta_and_counted() -> None:
    batch = NCHW / 255
    batch[2, 1, 5, 7] = float("nan")
    batch[2, 0, 6, 7] = float("inf")
    seen = find_images(batch, limit=9)
    assert seen.notes == ["1 with NaN values, shown in magenta"]
    assert tuple(seen.images[2][5, 7]) == tuple(seen.images[2][6, 7]) == NAN_COLOR
    assert np.array_equal(seen.images[1], NHWC[1])


def test_gray_transparent_and_single_images_are_drawn() -> None:
    [gray] = find_images(NHWC[0, :, :, 0], limit=9).images
    assert np.array_equal(gray, np.repeat(NHWC[0, :, :, :1], 3, -1))
    assert len(find_images(NCHW[:, :1], limit=9).images) == 6
    assert len(find_images(NHWC[:5, :, :, 0], limit=9).images) == 5
    assert len(find_images(NCHW[0], limit=9).images) == len(find_images(Image.fromarray(NHWC[0]), limit=9).images) == 1
    clear = np.concatenate((NHWC, np.zeros_like(NHWC[..., :1])), -1)
    assert np.stack(find_images(clear, limit=9).images).min() == 255
    sixteen = (NHWC[..., :1].astype(np.uint16) * 257)[0]
    assert np.array_equal(find_images(sixteen, limit=9).images[0][..., 0], NHWC[0, ..., 0])


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.zeros(4), r"a tensor of shape \(4,\)"),
        ({"tokens": torch.zeros(2, 8)}, r"\{tokens: \(2, 8\)\}"),
        ("an image", "a str"),
        ((torch.zeros(2, 5, 8, 8), 3), r"a tuple of a tensor of shape \(2, 5, 8, 8\), an int"),
        ([], "nothing"),
    ],
    ids=["vector", "tokens", "text", "five channels", "empty"],
)
def test_what_has_no_images_is_refused_and_described(batch: Any, expected: str) -> None:
    with pytest.raises(ArgumentError, match=expected):
        stoker.view.batch(batch)


def test_files_that_a_device_is_to_decode_are_refused() -> None:
    numbers = np.zeros(1, np.int64)
    files = Encoded(NCHW[:1], np.zeros(3, np.uint8), np.array([0, 3]), numbers, [7], *[numbers] * 4)
    with pytest.raises(ArgumentError, match="1 images of this batch are still encoded"):
        stoker.view.batch((files, torch.zeros(1)))


def test_labels_are_names_numbers_or_shares() -> None:
    names = ["cat", "dog", "owl"]
    assert format_labels(torch.tensor([2, 0, 7]), names, 3) == ["owl", "cat", "7"]
    assert format_labels(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.25, 0.75]]), names, 2) == ["cat", "owl 75%, dog 25%"]
    assert format_labels(torch.tensor([0.5, 3.14159]), None, 2) == ["0.5", "3.142"]
    assert format_labels([b"tern", "gull", None], None, 4) == ["tern", "gull", None, None]
    assert format_labels(torch.arange(12).view(2, 6), None, 2) == ["0, 1, 2, 3, ...", "6, 7, 8, 9, ..."]
    assert format_labels(torch.tensor([True, False]), names, 2) == ["True", "False"]


@pytest.mark.parametrize("label", [1, np.int64(1), torch.tensor(1), "dog"], ids=["int", "number", "tensor", "name"])
def test_a_sample_is_shown_with_its_label(label: Any) -> None:
    assert stoker.view.batch({"image": NCHW[0], "label": label}).size == stoker.view.batch(NCHW[:1], labels=[1]).size
    assert format_labels(label, ["cat", "dog"], 1) == ["dog"]


@given(number=st.integers(1, 300))
def test_the_grid_is_never_higher_than_wide_and_has_a_place_for_all(number: int) -> None:
    columns = _columns(number)
    rows = -(-number // columns)
    assert rows <= columns <= 3 * rows
    assert columns * (rows - 1) < number


def test_grids_of_usual_batches_have_no_gaps() -> None:
    assert [_columns(number) for number in (1, 2, 4, 8, 16, 32, 64)] == [1, 2, 2, 4, 4, 8, 8]


def test_the_sheet_holds_every_image_where_it_belongs() -> None:
    sheet = np.asarray(stoker.view.batch(NCHW, columns=3, side=48, max_images=5))
    found_at = [np.argwhere((sheet == np.repeat(np.repeat(one, 2, 0), 2, 1)[0, 0]).all(-1)) for one in NHWC]
    corners = [tuple(places.min(0)) if len(places) else None for places in found_at]
    assert corners[5] is None
    assert all(corner is not None for corner in corners[:5])
    assert corners[0][0] == corners[1][0] == corners[2][0] < corners[3][0] == corners[4][0]  # type: ignore[index]
    assert corners[0][1] == corners[3][1] < corners[1][1] < corners[2][1]  # type: ignore[index]
    assert (sheet[:8] == 255).all()  # paper


def test_images_of_different_sizes_share_a_sheet() -> None:
    sheet = stoker.view.batch([NHWC[0], pixels(1, 10, 40)[0], pixels(1, 300, 200)[0]], labels=["a", "b", "c"])
    assert sheet.height > 300


def test_long_names_are_cut_with_an_ellipsis() -> None:
    letters = font(14)
    cut = shorten("Charlotte of Mecklenburg-Strelitz", letters, 90)
    assert cut.endswith(ELLIPSIS)
    assert text_width(cut, letters) <= 90
    assert shorten("short", letters, 90) == "short"
    assert strip_undrawable("two\nlines\t\udcff") == "two lines \N{REPLACEMENT CHARACTER}"


@given(text=st.text(max_size=60), width=st.floats(30, 300))
def test_any_text_fits(text: str, width: float) -> None:
    assert text_width(shorten(text, font(13), width), font(13)) <= width


def test_labels_and_positions_make_the_sheet_higher() -> None:
    bare, labelled, both = (
        stoker.view.batch(NCHW),
        stoker.view.batch(NCHW, labels=["x"] * 6),
        stoker.view.batch(NCHW, labels=["x"] * 6, positions=range(6)),
    )
    assert bare.height < labelled.height < both.height


@pytest.mark.parametrize("name", ["labels", "positions"])
def test_too_few_labels_or_positions_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} has 2 entries for 6 images"):
        stoker.view.batch(NCHW, **{name: cast(Any, [1, 2])})


@pytest.mark.parametrize("name", ["columns", "side", "max_images"])
@pytest.mark.parametrize("number", [0, -1, True, 1.5])
def test_odd_numbers_are_refused(name: str, number: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{name} must be a positive integer, got {number}"):
        stoker.view.batch(NCHW, **{name: number})


def test_normalize_of_other_channels_is_refused() -> None:
    with pytest.raises(ArgumentError, match="normalize has 2 channels, the images have 3"):
        stoker.view.batch(normalized(), normalize=((0, 0), (1, 1)))


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no images to show"):
        draw_sheet([], labels=[], remarks=[])
    with pytest.raises(ArgumentError, match="the batch is empty"):
        stoker.view.batch(NCHW[:0])


def test_without_pillow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(MissingExtra, match=r"pip install 'stoker\[images\]'"):
        stoker.view.batch(NCHW)


class Dataset:
    classes = ["cat", "dog"]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, position: int) -> tuple[NDArray[np.uint8], int]:
        shade = stoker.rng().integers(0, 50)
        return np.full((3, 8, 8), position + shade, np.uint8), position % 2


def loader_of(num_workers: int) -> DataLoader[Any]:
    halves = (0.5,) * 3
    return DataLoader(
        Dataset(), batch_size=8, shuffle=True, seed=3, num_workers=num_workers, normalize=(halves, halves)
    )


workers = pytest.mark.parametrize("num_workers", [0, 2])


@workers
def test_a_loader_shows_its_next_batch_and_goes_on_as_if_nobody_had_looked(num_workers: int) -> None:
    loader = loader_of(num_workers)
    expected = [batch[0] for batch in DataLoader(Dataset(), batch_size=8, shuffle=True, seed=3)]
    plan = loader.plan
    assert plan is not None
    by_hand = stoker.view.batch(
        (expected[0], torch.as_tensor(plan.recipe(0).positions) % 2),
        classes=Dataset.classes,
        positions=plan.recipe(0).positions.tolist(),
    )
    sheet = np.asarray(stoker.view.batch(loader))
    # all but the last line, which says that these were floats
    assert np.array_equal(sheet[:-40], np.asarray(by_hand)[:-40])
    assert loader.recipe is None
    served = [((batch[0] * 0.5 + 0.5) * 255).round().byte() for batch in loader]
    assert torch.equal(torch.cat(served), torch.cat(expected))


@workers
def test_looking_in_the_middle_of_an_epoch_changes_nothing(num_workers: int) -> None:
    loader = loader_of(num_workers)
    iterator = iter(loader)
    next(iterator)
    before = loader.state_dict()
    stoker.view.batch(loader)
    assert loader.state_dict() == before
    assert len(list(iterator)) == 4
    again: DataLoader[Any] = DataLoader(Dataset(), batch_size=8, shuffle=True, seed=3, normalize=((0.5,) * 3,) * 2)
    again.load_state_dict(before)
    sheet = np.asarray(stoker.view.batch(again))
    assert again.plan is not None
    seen = [(batch[0] * 0.5 + 0.5) * 255 for batch in again]
    assert len(seen) == 4
    shown = stoker.view.batch(
        (seen[0].round().byte(), again.plan.recipe(1).positions % 2),
        classes=Dataset.classes,
        positions=again.plan.recipe(1).positions.tolist(),
    )
    assert np.array_equal(sheet[:-40], np.asarray(shown)[:-40])


def test_a_loader_without_a_seed_shows_what_it_then_serves() -> None:
    loader: DataLoader[Any] = DataLoader(Dataset(), batch_size=8, shuffle=True)
    stoker.view.batch(loader)
    assert loader.plan is not None
    expected = loader.plan.recipe(0).positions.tolist()
    next(iter(loader))
    assert loader.recipe is not None
    assert loader.recipe.positions.tolist() == expected


def test_torch_s_loader_is_taken_too() -> None:
    loader: Any = torch.utils.data.DataLoader(cast(Any, Dataset()), batch_size=8)
    assert stoker.view.batch(loader).width > 100


def test_a_loader_at_its_end_says_so() -> None:
    loader: DataLoader[Any] = DataLoader(Dataset(), batch_size=8, seed=1)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    ended: DataLoader[Any] = DataLoader(Dataset(), batch_size=8, seed=1)
    ended.load_state_dict(loader.state_dict())
    with pytest.raises(ArgumentError, match="yields no batch"):
        stoker.view.batch(ended)
