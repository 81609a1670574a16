"""Geometric transforms: drawn as torchvision draws them, and told as one view where that gives the same pixels."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import stoker
from stoker.errors import ArgumentError
from stoker.transform import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip, Resize
from stoker.transform.image.geometry import Geometric, seen
from stoker.transform.image.pipeline import Pipeline
from stoker.transform.image.uniforms import uniforms
from stoker.transform.image.view import View, whole
from tests.transform.pictures import photograph

sides = st.integers(20, 90)
chains = st.sampled_from(
    [
        [Resize(24), CenterCrop(17)],
        [Resize(24), CenterCrop((11, 18)), RandomHorizontalFlip()],
        [Resize((31, 19)), RandomCrop(16), RandomHorizontalFlip(1.0)],
        [RandomResizedCrop(20), RandomHorizontalFlip()],
        [RandomHorizontalFlip(), RandomResizedCrop((13, 20)), CenterCrop(9)],
        [RandomCrop(18), RandomResizedCrop(24), RandomHorizontalFlip(), CenterCrop(10)],
        [RandomHorizontalFlip(1.0), CenterCrop(19), RandomHorizontalFlip(1.0), Resize(33), RandomCrop(12)],
        [Resize(30), RandomResizedCrop(20), RandomHorizontalFlip()],
        [RandomHorizontalFlip(), RandomCrop(19, padding=3)],
        [CenterCrop(95), RandomHorizontalFlip()],
        [RandomVerticalFlip(), RandomResizedCrop((13, 20)), RandomHorizontalFlip(), CenterCrop(9)],
        [RandomVerticalFlip(1.0), CenterCrop((19, 12)), RandomVerticalFlip(), Resize(33), RandomCrop(12)],
        [Resize(24), RandomCrop((11, 18)), RandomVerticalFlip(), RandomHorizontalFlip()],
        [RandomVerticalFlip(), RandomCrop(19, padding=3)],
        [Resize(40, max_size=60), RandomCrop(64, pad_if_needed=True), Resize(20)],
    ]
)


def one_by_one(image: Image.Image, chain: list[Geometric], seed: int) -> Image.Image:
    """Return what comes of each step done by Pillow, with the same random numbers."""
    uniform = uniforms(np.random.default_rng(seed))
    for step in chain:
        image = step.apply(image, uniform)
    return image


def drawn(image: Image.Image, chain: list[Geometric], seed: int, *, exact: bool) -> Any:
    """Return what comes of the view that they are told as, and of what is left."""
    drawing = Pipeline(chain).drawing(uniforms(np.random.default_rng(seed)), exact=exact)
    found = seen(image, drawing.view(image.width, image.height))
    for step in drawing.left:
        found = step.apply(found, drawing.uniform)
    return np.asarray(found).astype(int)


@given(width=sides, height=sides, chain=chains, seed=st.integers(0, 9))
def test_steps_shown_as_one_view_give_what_they_give_one_by_one(
    width: int, height: int, chain: list[Geometric], seed: int
) -> None:
    image = photograph(width, height, seed=seed)
    expected = np.asarray(one_by_one(image, chain, seed)).astype(int)
    assert (drawn(image, chain, seed, exact=True) == expected).all()
    # Pillow keeps boxes as fractions of 24 bits, so that what would be rounded up may be rounded down, twice
    difference = np.abs(drawn(image, chain, seed, exact=False) - expected)
    assert difference.max() <= 2
    assert difference.mean() < 0.25 + 1 / np.sqrt(difference.size)  # of few values, more may be off by one
    assert Pipeline(chain).size == expected.shape[:2]


@given(width=sides, height=sides, chain=chains, seed=st.integers(0, 9))
def test_boxes_lie_in_their_regions_and_regions_in_the_picture(
    width: int, height: int, chain: list[Geometric], seed: int
) -> None:
    view = Pipeline(chain).drawing(uniforms(np.random.default_rng(seed))).view(width, height)
    left, top, right, bottom = view.region
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    first, upper, last, lower = view.box
    assert left <= first < last <= right + 1e-9
    assert top <= upper < lower <= bottom + 1e-9


def test_resize_and_center_crop_are_a_box_in_the_whole_picture() -> None:
    view = Pipeline([Resize(256), CenterCrop(224)]).drawing(float).view(500, 375)
    assert view.region == (0, 0, 500, 375)
    assert view.size == (224, 224)
    assert view.box == pytest.approx((58 * 500 / 341, 16 * 375 / 256, 282 * 500 / 341, 240 * 375 / 256))


def test_a_crop_of_its_own_looks_at_nothing_else() -> None:
    assert Pipeline(CenterCrop(10)).drawing(float).view(30, 20) == View((10, 5, 20, 15), (10, 5, 20, 15), (10, 10))


@pytest.mark.parametrize(
    ("size", "max_size", "picture", "expected"),
    [
        (256, None, (500, 375), (256, 341)),
        (256, None, (375, 500), (341, 256)),
        (256, 300, (500, 375), (225, 300)),
        ([256], None, (300, 300), (256, 256)),
        ((10, 20), None, (300, 400), (10, 20)),
        (100, None, (100, 333), (333, 100)),
    ],
    ids=str,
)
def test_resize_rounds_as_torchvision_does(size: Any, max_size: Any, picture: Any, expected: Any) -> None:
    view = Resize(size, max_size=max_size).draw(picture[0], picture[1], np.random.default_rng(0))
    assert view is not None
    assert view.size == expected


def reference_crop(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Return a crop as torchvision documents it: area and logarithm of the ratio are uniform, ten tries, the middle."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, top = rng.integers(0, width - across + 1), rng.integers(0, height - down + 1)
            return int(left), int(top), across, down
    across, down = width, height
    if width / height < 3 / 4:
        down = round(across / (3 / 4))
    elif width / height > 4 / 3:
        across = round(down * 4 / 3)
    return (width - across) // 2, (height - down) // 2, across, down


@pytest.mark.parametrize("picture", [(500, 375), (100, 100), (300, 60), (40, 400)], ids=str)
def test_random_crops_have_torchvisions_distribution(picture: tuple[int, int]) -> None:
    crop, rng = RandomResizedCrop(24), np.random.default_rng(1)
    ours: list[Any] = []
    theirs: list[Any] = []
    for _ in range(6000):
        view = crop.draw(*picture, rng)
        assert view is not None
        assert list(view.box) == list(view.region)
        left, top, right, bottom = view.region
        ours.append((left, top, right - left, bottom - top))
        theirs.append(reference_crop(*picture, rng))
    for mine, other in zip(np.array(ours).T, np.array(theirs).T):
        # two samples of one distribution: their empirical distributions are nowhere further apart (Kolmogorov-Smirnov)
        values = np.union1d(mine, other)
        apart = np.searchsorted(np.sort(mine), values, "right") - np.searchsorted(np.sort(other), values, "right")
        assert np.abs(apart).max() / 6000 < 1.95 * math.sqrt(2 / 6000)


@pytest.mark.parametrize(("kind", "axis"), [(RandomVerticalFlip, 0), (RandomHorizontalFlip, 1)])
def test_flips_come_as_often_as_asked(kind: Any, axis: int) -> None:
    flip, rng = kind(0.3), np.random.default_rng(2)
    views = [flip.draw(5, 4, rng) for _ in range(4000)]
    assert abs(sum(view is not None and view.flips[axis] for view in views) / 4000 - 0.3) < 0.03
    assert not any(view is None or view.flips[1 - axis] for view in views)
    assert whole(5, 4) in views


def test_a_transform_takes_and_returns_any_form() -> None:
    image = photograph(40, 30)
    expected = np.asarray(image.crop((15, 10, 25, 20)))
    crop = CenterCrop(10)
    assert (np.asarray(crop(image)) == expected).all()
    array = crop(np.asarray(image))
    assert isinstance(array, np.ndarray)
    assert (array == expected).all()
    tensor = crop(torch.from_numpy(np.array(image)).permute(2, 0, 1))
    assert isinstance(tensor, torch.Tensor)
    assert (tensor.permute(1, 2, 0).numpy() == expected).all()
    gray = crop(np.asarray(image.convert("L"))[:, :, None])
    assert gray.shape == (10, 10, 1)
    with pytest.raises(ArgumentError, match="float32"):
        crop(np.zeros((20, 20, 3), np.float32))


def test_alone_it_draws_from_the_sample() -> None:
    image = photograph(60, 50)
    crop = RandomResizedCrop(8)
    with stoker.sample_context(3, seed=1):
        first = np.asarray(crop(image))
        second = np.asarray(crop(image))
    with stoker.sample_context(3, seed=1):
        again = np.asarray(crop(image))
    assert (first == again).all()
    assert (first != second).any()


def test_crops_of_small_images_are_padded_or_refused() -> None:
    image = photograph(6, 4)
    padded = np.asarray(CenterCrop(9)(image))
    assert (padded[2:6, 1:7] == np.asarray(image)).all()
    assert not padded[:2].any()
    with pytest.raises(ValueError, match="larger than the image"):
        RandomCrop(9)(image)
    assert RandomCrop(9, pad_if_needed=True, fill=(7, 7, 7))(image).size == (9, 9)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Resize(0), "must be a size"),
        (lambda: Resize((2, 3, 4)), "must be a size"),
        (lambda: Resize(10, max_size=5), "max_size"),
        (lambda: Resize(10, "bicubic"), "bicubic"),
        (lambda: RandomResizedCrop(10, antialias=False), "antialias"),
        (lambda: RandomResizedCrop(10, scale=(1, 0.5)), "must be a range"),
        (lambda: RandomCrop(10, padding=(1, 2, 3)), "padding"),
        (lambda: RandomCrop(10, padding_mode="reflect"), "reflect"),
        (lambda: RandomHorizontalFlip(1.5), "must be a probability"),
        (lambda: RandomVerticalFlip(-0.1), "must be a probability"),
        (lambda: Resize(22.0), "must be a size"),  # type: ignore[arg-type]
        (lambda: CenterCrop(True), "must be a size"),
        (lambda: Resize(10, max_size="20"), "must be a size"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(10, scale=0.5), "must be a range"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(10, scale=(0.1, 0.5, 1)), "must be a range"),
        (lambda: RandomResizedCrop(10, ratio=(0, 1)), "ratio must be above 0"),
        (lambda: RandomHorizontalFlip("0.5"), "must be a probability"),  # type: ignore[arg-type]
        (lambda: RandomCrop(10, padding=2, fill="red"), "must be a color"),  # type: ignore[arg-type]
    ],
    ids=[
        *("zero", "three", "max", "bicubic", "aliased", "scale", "padding", "reflect", "p", "negative p"),
        *("fraction", "truth", "max in words", "one scale", "three scales", "ratio", "p in words", "fill in words"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(make: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words) as caught:
        make()
    assert "hint: " in str(caught.value)


def test_torchvisions_way_to_say_bilinear_is_understood() -> None:
    from PIL.Image import Resampling

    assert Resize(10, Resampling.BILINEAR).size == 10


def test_transforms_travel_and_tell_what_they_are() -> None:
    crop = RandomResizedCrop(224, scale=(0.2, 1))
    assert repr(pickle.loads(pickle.dumps(crop))) == repr(crop)
    assert repr(crop).startswith("RandomResizedCrop(size=(224, 224), scale=(0.2, 1.0), ratio=(0.75, ")


def test_numbers_may_be_numpys() -> None:
    assert Resize(np.int64(10)).size == 10  # type: ignore[arg-type]
    assert RandomCrop(np.array([10, 12]), padding=np.int64(3)).size == (10, 12)  # type: ignore[arg-type]
    assert RandomResizedCrop(10, scale=np.array([0.0, 1.0])).scale == (0.0, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "fill"), [("RGB", 128), ("RGB", [128, 128, 128]), ("L", 128)], ids=["one", "list", "L"]
)
def test_one_number_fills_all_channels(mode: str, fill: Any) -> None:
    padded = RandomCrop(5, padding=9, fill=fill)(photograph(1, 1).convert(mode))
    assert set(np.unique(np.asarray(padded))) <= {128, *np.asarray(photograph(1, 1).convert(mode)).flatten().tolist()}


@pytest.mark.parametrize(
    "transform",
    [
        Resize(10, max_size=20),
        RandomResizedCrop(10, ratio=(10, 20)),
        RandomResizedCrop(10, ratio=(0.01, 0.02)),
        RandomResizedCrop(10, scale=(0, 1e-9)),
    ],
    ids=["max_size", "wide", "narrow", "nothing"],
)
@pytest.mark.parametrize("size", [(1, 1), (3000, 1), (1, 3000)], ids=str)
def test_something_is_left_of_the_thinnest_picture(transform: Any, size: tuple[int, int]) -> None:
    view = transform.draw(*size, np.random.default_rng(0))
    left, top, right, bottom = view.region
    assert right > left
    assert bottom > top
    assert min(view.size) > 0
