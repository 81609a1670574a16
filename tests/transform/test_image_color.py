"""Changes of color: what Pillow's own enhancers give, the same every time, as strong as asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance

import stoker
from stoker.errors import ArgumentError
from stoker.transform import ColorJitter, RandAugment, RandomGrayscale
from stoker.transform.image.color import brightened, contrasted, hued, saturated
from stoker.transform.image.randaugment import CHANGES, changed
from stoker.transform.image.uniforms import uniforms
from tests.transform.pictures import photograph


@pytest.mark.parametrize("amount", [0.0, 0.4, 1.0, 1.7])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_amounts_are_those_of_pillows_enhancers(mode: str, amount: float) -> None:
    image = photograph(40, 30).convert(mode)
    pairs: list[tuple[Any, Any]] = [
        (brightened, ImageEnhance.Brightness),
        (contrasted, ImageEnhance.Contrast),
        (saturated, ImageEnhance.Color),
    ]
    for ours, theirs in pairs:
        assert ours(image, amount).tobytes() == theirs(image).enhance(amount).tobytes()


def test_hues_go_round() -> None:
    image = photograph(40, 30)
    there = np.asarray(hued(image, 0.5).convert("HSV")).astype(int)
    here = np.asarray(image.convert("HSV")).astype(int)
    strong = here[:, :, 1] > 100
    apart = (there[:, :, 0] - here[:, :, 0])[strong] % 256
    assert np.abs(apart - 127).max() <= 6
    assert hued(image.convert("L"), 0.5).mode == "L"


def test_jitter_changes_all_that_is_asked_in_any_order() -> None:
    image = photograph(20, 20)
    jitter = ColorJitter(brightness=0.4, contrast=(0.5, 2), saturation=0.4, hue=0.1)
    found = {jitter.apply(image, uniforms(np.random.default_rng(seed))).tobytes() for seed in range(40)}
    assert len(found) == 40
    assert ColorJitter().apply(image, uniforms(np.random.default_rng(0))) is image
    assert jitter.apply(image, uniforms(np.random.default_rng(3))) == jitter.apply(
        image, uniforms(np.random.default_rng(3))
    )


def test_gray_comes_as_often_as_asked_and_keeps_the_channels() -> None:
    image = photograph(8, 8)
    gray, rng = RandomGrayscale(0.25), np.random.default_rng(0)
    found = [gray.apply(image, uniforms(rng)) for _ in range(2000)]
    num_gray = sum(one is not image for one in found)
    assert abs(num_gray / 2000 - 0.25) < 0.04
    assert {one.mode for one in found} == {"RGB"}


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", [name for name, _ in CHANGES])
def test_every_change_of_randaugment_keeps_the_size_and_does_something(name: str, mode: str) -> None:
    image = photograph(40, 30).convert(mode)
    found = changed(image, name, 0.9, fill=17)
    assert (found.size, found.mode) == (image.size, mode)
    is_left = name == "Identity" or (mode == "L" and name == "Color")
    assert (found.tobytes() == image.tobytes()) is is_left


def test_randaugment_picks_all_changes_and_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    picked: list[tuple[str, float]] = []

    def noted(image: Image.Image, name: str, strength: float, fill: Any = None) -> Image.Image:
        picked.append((name, strength))
        return image

    monkeypatch.setattr("stoker.transform.image.randaugment.changed", noted)
    augment = RandAugment(num_ops=3, magnitude=15)
    for seed in range(300):
        augment.apply(photograph(4, 4), uniforms(np.random.default_rng(seed)))
    assert len(picked) == 900
    assert {name for name, _ in picked} == {name for name, _ in CHANGES}
    assert {strength for name, strength in picked if name == "Rotate"} == {0.5, -0.5}
    assert {strength for name, strength in picked if name == "Solarize"} == {0.5}


def test_they_are_seeded_by_the_sample() -> None:
    image = photograph(30, 30)
    for transform in (ColorJitter(0.5, 0.5, 0.5, 0.2), RandAugment(), RandomGrayscale(0.5)):
        found = []
        for position in (1, 1, 2, 3, 4, 5, 6):
            with stoker.sample_context(position, seed=4):
                found.append(np.asarray(transform(image)).tobytes())
        assert found[0] == found[1]
        assert len(set(found)) > 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: ColorJitter(brightness=-1),
        lambda: ColorJitter(hue=0.6),
        lambda: ColorJitter(contrast=(2, 1)),
        lambda: RandAugment(magnitude=31),
        lambda: RandAugment(interpolation="bilinear"),
        lambda: RandomGrayscale(2),
        lambda: ColorJitter((1, 2, 3)),
        lambda: ColorJitter("much"),  # type: ignore[arg-type]
        lambda: ColorJitter(None),  # type: ignore[arg-type]
        lambda: RandAugment("two"),  # type: ignore[arg-type]
        lambda: RandAugment(fill="red"),  # type: ignore[arg-type]
    ],
    ids=[
        *("negative", "hue", "backwards", "magnitude", "bilinear", "p"),
        *("three", "words", "none", "ops in words", "fill in words"),
    ],
)
def test_what_cannot_be_is_refused(make: Any) -> None:
    with pytest.raises(ArgumentError, match="hint: "):
        make()


def test_amounts_may_be_numpys() -> None:
    assert ColorJitter(np.float32(0.5)).brightness == (0.5, 1.5)  # type: ignore[arg-type]
