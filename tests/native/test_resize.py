"""Pictures resized: bit for bit as Pillow does it, into memory of any layout."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from stoker.errors import ArgumentError
from stoker.native import building, resize, without
from stoker.native import library as loading

Pixels = NDArray[np.uint8]

MODES = {1: "L", 3: "RGB", 4: "RGBX"}  # of RGBA Pillow multiplies the colors first

pytestmark = pytest.mark.usefixtures("native")


def by_pillow(pixels: Pixels, box: tuple[float, float, float, float], size: tuple[int, int]) -> Pixels:
    """Resize across, then down: Pillow's order, save in some cases from version 13 on."""
    height, width = size
    channels = pixels.shape[2]
    raw = np.ascontiguousarray(pixels).tobytes()
    image = Image.frombytes(MODES[channels], (pixels.shape[1], pixels.shape[0]), raw)
    left, top, right, bottom = box
    image = image.resize((width, image.height), Image.Resampling.BILINEAR, (left, 0, right, image.height))
    image = image.resize((width, height), Image.Resampling.BILINEAR, (0, top, width, bottom))
    return np.asarray(image).reshape(height, width, channels)


def plain(h: int, w: int, c: int) -> Pixels:
    return np.full((h, w, c), 77, np.uint8)


def planes(h: int, w: int, c: int) -> Pixels:
    return np.full((c, h, w), 77, np.uint8).transpose(1, 2, 0)


LAYOUTS: dict[str, Callable[[int, int, int], Pixels]] = {
    "pixels": plain,
    "pixels mirrored": lambda h, w, c: plain(h, w, c)[:, ::-1],
    "planes": planes,
    "planes mirrored": lambda h, w, c: planes(h, w, c)[:, ::-1],
    "upside down": lambda h, w, c: planes(h, w, c)[::-1],
    "turned": lambda h, w, c: plain(w, h, c).transpose(1, 0, 2),
    "turned the other way": lambda h, w, c: planes(w, h, c).transpose(1, 0, 2)[::-1, ::-1],
    "channels backwards": lambda h, w, c: plain(h, w, c)[:, :, ::-1],
    "every other": lambda h, w, c: plain(2 * h, 3 * w, c)[::2, ::3],
}

sizes = st.tuples(st.integers(1, 80), st.integers(1, 80))
fractions = st.floats(0, 1, width=32)


@given(
    size=sizes,
    target=sizes,
    channels=st.sampled_from([1, 3, 4]),
    sides=st.none() | st.tuples(fractions, fractions, fractions, fractions),
    is_whole=st.booleans(),
    layout=st.sampled_from(sorted(LAYOUTS)),
    seed=st.integers(0, 999),
)
@example((72, 1), (53, 41), 3, None, False, "pixels", 0)  # one column becomes many, each a copy
@example((80, 80), (1, 1), 1, None, False, "pixels", 0)
@example((5, 5), (7, 7), 4, (0.2, 0.2, 0.2, 0.2), False, "planes", 0)  # a box without an extent
def test_a_image_is_resized_as_pillow_does_it(
    size: tuple[int, int],
    target: tuple[int, int],
    channels: int,
    sides: tuple[float, float, float, float] | None,
    is_whole: bool,
    layout: str,
    seed: int,
) -> None:
    height, width = size
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height, width, channels), np.uint8)
    if seed % 2:  # all or nothing: sums at both ends
        pixels = (pixels > 127).astype(np.uint8) * np.uint8(255)
    box = (0.0, 0.0, float(width), float(height))
    if sides:
        (left, right), (top, bottom) = sorted(sides[:2]), sorted(sides[2:])
        box = (left * width, top * height, right * width, bottom * height)
        box = tuple(float(round(side)) for side in box) if is_whole else box  # type: ignore[assignment]
    out = LAYOUTS[layout](*target, channels)
    assert resize(pixels, box, out)
    assert np.array_equal(out, by_pillow(pixels, box, target))


@given(size=sizes, target=sizes, channels=st.sampled_from([1, 3, 4]), seed=st.integers(0, 99))
def test_rows_may_lie_apart_or_go_up(size: tuple[int, int], target: tuple[int, int], channels: int, seed: int) -> None:
    height, width = size
    whole = np.random.default_rng(seed).integers(0, 256, (2 * height, width + 3, channels), np.uint8)
    cases: list[Pixels] = [whole[::2, 2:-1], whole[::-2, :-3], whole[:height, width::-1][:, :width]]
    for pixels in cases:
        out = plain(*target, channels)
        assert resize(pixels, (0, 0, width, height), out)
        assert np.array_equal(out, by_pillow(pixels, (0, 0, width, height), target))


@pytest.mark.parametrize(
    ("size", "target"), [((270, 350), (224, 224)), ((1, 20000), (1, 3)), ((30000, 1), (2, 2)), ((4, 9000), (4, 1))]
)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_large_images_too(size: tuple[int, int], target: tuple[int, int], channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, channels), np.uint8)
    out = plain(*target, channels)
    box = (0.0, 0.0, float(size[1]), float(size[0]))
    assert resize(pixels, box, out)
    assert np.array_equal(out, by_pillow(pixels, box, target))


@pytest.fixture
def for_any_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the library as it is where there is no code for the processor in particular."""
    monkeypatch.setenv("CC", f"{os.environ.get('CC', 'cc')} -DSTOKER_PLAIN")
    try:
        path = building.build(tmp_path / "plain.so")
    except building.NotBuilt as reason:
        pytest.skip(str(reason))
    monkeypatch.setattr(loading, "_found", (loading.NativeLibrary(str(path)), "in use"))


@pytest.mark.usefixtures("for_any_processor")
def test_every_processor_gives_the_same() -> None:
    rng = np.random.default_rng(0)
    for channels in (1, 3, 4):
        for _ in range(50):
            height, width, *target = rng.integers(1, 90, 4).tolist()
            pixels = rng.integers(0, 256, (height, width, channels), np.uint8)
            box = (width / 7, height / 9, width * 0.9, float(height))
            for layout in LAYOUTS.values():
                out = layout(target[0], target[1], channels)
                assert resize(pixels, box, out)
                assert np.array_equal(out, by_pillow(pixels, box, (target[0], target[1])))


def test_nothing_next_to_the_output_is_written() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)
    for width in range(1, 40):
        around = np.full((3, 12, width + 20), 77, np.uint8)
        resize(pixels, (0, 0, 60, 50), around[:, 1:-1, 10:-10].transpose(1, 2, 0))
        around[:, 1:-1, 10:-10] = 77
        assert (around == 77).all()
        around = np.full((12, width + 20, 3), 77, np.uint8)
        resize(pixels, (0, 0, 60, 50), around[1:-1, 10:-10])
        around[1:-1, 10:-10] = 77
        assert (around == 77).all()


@pytest.mark.parametrize(
    "box", [(-1, 0, 5, 5), (0, 0, 11, 5), (0, 0, 5, 6), (5, 0, 4, 5), (0, 3, 5, 2), (float("nan"), 0, 5, 5)]
)
def test_a_box_outside_the_image_is_refused(box: tuple[float, float, float, float]) -> None:
    out = plain(3, 3, 3)
    with pytest.raises(ArgumentError, match="not inside the image"):
        resize(plain(5, 10, 3), box, out)
    assert (out == 77).all()


def test_what_is_no_image_is_refused() -> None:
    fine, box = plain(5, 5, 3), (0, 0, 5, 5)
    wrong: list[Any] = [plain(5, 5, 2), fine[0], fine.astype(np.int32), plain(0, 5, 3), plain(5, 0, 3)]
    for pixels in wrong:
        with pytest.raises(ArgumentError):
            resize(pixels, box, plain(3, 3, 3))
        with pytest.raises(ArgumentError):
            resize(fine, box, pixels)
    with pytest.raises(ArgumentError, match="channels"):
        resize(fine, box, plain(3, 3, 1))
    with pytest.raises(ArgumentError, match="shares memory"):
        resize(fine, box, fine)
    sealed = plain(3, 3, 3)
    sealed.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        resize(fine, box, sealed)
    assert resize(sealed, (0, 0, 3, 3), fine)  # to read from it is fine


def test_without_the_library_it_says_so() -> None:
    out = plain(3, 3, 3)
    with without():
        assert not resize(plain(5, 5, 3), (0, 0, 5, 5), out)
    assert (out == 77).all()
