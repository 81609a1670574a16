"""JPEG files decoded in part: the pixels of a full decode, resized, and no harm from any file."""

from __future__ import annotations

import gc
import io
import random
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from stoker.errors import ArgumentError
from stoker.native import JpegFault, decode_jpeg, describe_jpeg, has_jpeg, resize, without

Pixels = NDArray[np.uint8]
Region = tuple[int, int, int, int]

pytestmark = pytest.mark.usefixtures("native_jpeg")


def picture(width: int, height: int) -> Pixels:
    """Return something with edges, slopes and noise."""
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(x / 7 + y / 11), np.cos(x / 5), np.sin(y / 3)], -1) * 100 + 128
    noise = np.random.default_rng(width * height).normal(0, 25, waves.shape)
    return np.clip(waves + noise, 0, 255).astype(np.uint8)


def jpeg(width: int, height: int, *, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(width, height)).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def by_pillow(data: bytes, channels: int = 3, *, scale: int = 1) -> Pixels:
    """Return the whole picture, at 1/scale."""
    image = Image.open(io.BytesIO(data))
    width, height = -(-image.width // scale), -(-image.height // scale)
    image.draft("L" if channels == 1 else "RGB", (image.width // scale, image.height // scale))
    assert image.size == (width, height)
    return np.asarray(image.convert("L" if channels == 1 else "RGB")).reshape(height, width, channels)


def decoded(data: Any, region: Region, channels: int = 3) -> Pixels:
    left, top, right, bottom = region
    out = np.zeros((bottom - top, right - left, channels), np.uint8)
    decode_jpeg(data, region, region, out)
    return out


regions = st.tuples(*[st.floats(0, 1)] * 4)


def region_in(width: int, height: int, shares: tuple[float, ...]) -> Region:
    """Return a region with at least one pixel."""
    (left, right), (top, bottom) = sorted(shares[:2]), sorted(shares[2:])
    first, upper = min(int(left * width), width - 1), min(int(top * height), height - 1)
    return first, upper, max(first + 1, round(right * width)), max(upper + 1, round(bottom * height))


@settings(max_examples=300)
@given(
    size=st.tuples(st.integers(1, 150), st.integers(1, 150)),
    shares=regions,
    mode=st.sampled_from(["RGB", "RGB", "L"]),
    subsampling=st.sampled_from([0, 1, 2]),
    is_progressive=st.booleans(),
    restart=st.sampled_from(
        [{}, {"restart_marker_blocks": 1}, {"restart_marker_blocks": 3}, {"restart_marker_rows": 1}]
    ),
    quality=st.sampled_from([30, 90, 100]),
    channels=st.sampled_from([1, 3]),
)
def test_a_region_has_the_pixels_of_the_whole_picture(
    size: tuple[int, int],
    shares: tuple[float, ...],
    mode: str,
    subsampling: int,
    is_progressive: bool,
    restart: dict[str, int],
    quality: int,
    channels: int,
) -> None:
    data = jpeg(*size, mode=mode, subsampling=subsampling, progressive=is_progressive, quality=quality, **restart)
    left, top, right, bottom = region = region_in(*size, shares)
    assert np.array_equal(decoded(data, region, channels), by_pillow(data, channels)[top:bottom, left:right])


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411"])
@pytest.mark.parametrize("channels", [1, 3])
def test_so_it_is_with_every_way_to_store_colors(subsampling: str, channels: int) -> None:
    simplejpeg = pytest.importorskip("simplejpeg")
    rng = random.Random(subsampling)
    for size in ((150, 130), (97, 61), (33, 40)):
        data = simplejpeg.encode_jpeg(picture(*size), 90, colorspace="RGB", colorsubsampling=subsampling)
        whole = by_pillow(data, channels)
        for _ in range(40):
            left, top, right, bottom = region = region_in(*size, tuple(rng.random() for _ in range(4)))
            assert np.array_equal(decoded(data, region, channels), whole[top:bottom, left:right]), region


@settings(max_examples=200)
@given(
    size=st.tuples(st.integers(1, 150), st.integers(1, 150)),
    shares=regions,
    inner=regions,
    target=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    is_progressive=st.booleans(),
    channels=st.sampled_from([1, 3]),
    is_mirrored=st.booleans(),
    is_planar=st.booleans(),
    cut_first=st.booleans(),
)
def test_it_is_resized_as_if_it_had_been_cut_before(
    size: tuple[int, int],
    shares: tuple[float, ...],
    inner: tuple[float, ...],
    target: tuple[int, int],
    is_progressive: bool,
    channels: int,
    is_mirrored: bool,
    is_planar: bool,
    cut_first: bool,
) -> None:
    data = jpeg(*size, progressive=is_progressive)
    left, top, right, bottom = region = region_in(*size, shares)
    (a, b), (c, d) = sorted(inner[:2]), sorted(inner[2:])
    box: tuple[float, ...] = region
    if not cut_first:
        width, height = right - left, bottom - top
        box = left + a * width, top + c * height, left + b * width, top + d * height
    plain = np.zeros((*target, channels), np.uint8)
    out = np.zeros((channels, *target), np.uint8).transpose(1, 2, 0) if is_planar else plain.copy()
    out = out[:, ::-1] if is_mirrored else out
    decode_jpeg(data, region, box, out, shrink=0)
    part = by_pillow(data, channels)[top:bottom, left:right]
    assert resize(part, (box[0] - left, box[1] - top, box[2] - left, box[3] - top), plain)
    assert np.array_equal(out, plain)


@settings(max_examples=200)
@given(
    size=st.tuples(st.integers(8, 200), st.integers(8, 200)),
    shares=regions,
    scale=st.sampled_from([2, 4, 8]),
    subsampling=st.sampled_from([0, 1, 2]),
    channels=st.sampled_from([1, 3]),
    is_progressive=st.booleans(),
)
def test_a_smaller_target_is_decoded_at_a_fraction(
    size: tuple[int, int],
    shares: tuple[float, ...],
    scale: int,
    subsampling: int,
    channels: int,
    is_progressive: bool,
) -> None:
    data = jpeg(*size, subsampling=subsampling, progressive=is_progressive)
    left, top, right, bottom = region = region_in(*size, shares)
    width, height = (right - left) // scale, (bottom - top) // scale
    if (
        not width
        or not height
        or (scale < 8 and right - left >= 2 * scale * width and bottom - top >= 2 * scale * height)
    ):
        return  # it would be decoded at another fraction
    out, expected = np.zeros((2, height, width, channels), np.uint8)
    decode_jpeg(data, region, region, out, shrink=1.0)
    whole = by_pillow(data, channels, scale=scale)
    first, upper, last, lower = left // scale, top // scale, -(-right // scale), -(-bottom // scale)
    box = (left / scale - first, top / scale - upper, right / scale - first, bottom / scale - upper)
    assert resize(whole[upper:lower, first:last], box, expected)
    assert np.array_equal(out, expected)


def test_how_small_it_is_decoded_is_for_the_caller_to_say() -> None:
    data = jpeg(400, 300)
    full = by_pillow(data)
    box = (0, 0, 400, 300)
    for shrink, target, scale in [(0, 10, 1), (None, 10, 1), (1.0, 100, 2), (1.5, 100, 2), (1.6, 100, 1), (1.0, 30, 8)]:
        out, expected = np.zeros((2, target, target, 3), np.uint8)
        decode_jpeg(data, box, box, out, shrink=shrink)
        small = full if scale == 1 else by_pillow(data, scale=scale)
        resize(small, (0, 0, 400 / scale, 300 / scale), expected)
        assert np.array_equal(out, expected)


def test_large_images_are_decoded_like_small_ones() -> None:
    rng = random.Random(0)
    for subsampling in (0, 1, 2):
        data = jpeg(1100, 800, subsampling=subsampling)
        whole = by_pillow(data)
        for _ in range(8):
            left, top, right, bottom = region = region_in(1100, 800, tuple(rng.random() for _ in range(4)))
            assert np.array_equal(decoded(data, region), whole[top:bottom, left:right])


def test_bytes_memoryviews_and_arrays_are_read_alike() -> None:
    data = jpeg(20, 20)
    expected = decoded(data, (0, 0, 20, 20))
    forms: list[Any] = [bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)]
    for form in forms:
        assert np.array_equal(decoded(form, (0, 0, 20, 20)), expected)


# ------------------------------------------------------------ faults


def fault(data: Any, region: Region = (0, 0, 64, 64)) -> str:
    with pytest.raises(JpegFault) as caught:
        decoded(data, region)
    return str(caught.value)


def test_what_is_no_jpeg_file_is_a_fault() -> None:
    assert "Empty input file" in fault(b"")
    assert "Not a JPEG file" in fault(b"\x89PNG\r\n")
    assert "components" in fault(jpeg(64, 64, mode="CMYK"))


@pytest.mark.parametrize("is_progressive", [False, True])
def test_a_file_that_was_cut_off_is_a_fault_wherever_it_was_cut(is_progressive: bool) -> None:
    data = jpeg(64, 64, progressive=is_progressive)
    for length in range(0, len(data) - 2, 7):
        assert fault(data[:length])


def test_what_lies_below_the_region_may_be_missing() -> None:
    data = jpeg(64, 64)
    expected = by_pillow(data)
    assert np.array_equal(decoded(data[: len(data) // 2], (10, 0, 50, 8)), expected[0:8, 10:50])
    assert "remature end" in fault(data[: len(data) // 2], (10, 0, 50, 60))


def test_damage_in_the_data_is_a_fault_and_other_bytes_are_none() -> None:
    data = jpeg(64, 64, restart_marker_rows=1)
    first = data.index(b"\xff\xd0")
    assert "Corrupt JPEG data" in fault(data[: first - 40] + data[first:])
    assert "Corrupt JPEG data" in fault(data[:first] + data[first + 2 :])
    expected = decoded(data, (0, 0, 64, 64))
    for harmless in (data + b"more", data[:2] + b"junk" + data[2:], data[:-2] + b"junk\xff\xd9"):
        assert np.array_equal(decoded(harmless, (0, 0, 64, 64)), expected)


def test_a_region_outside_the_image_is_refused() -> None:
    data = jpeg(20, 10)
    out = np.zeros((4, 4, 3), np.uint8)
    for region in [(0, 0, 21, 10), (0, 0, 20, 11), (-1, 0, 5, 5), (5, 5, 5, 9), (5, 5, 9, 4)]:
        with pytest.raises(ArgumentError, match="not inside the image"):
            decode_jpeg(data, region, (5, 5, 5, 5), out)
    with pytest.raises(ArgumentError, match="not inside the image"):
        decode_jpeg(data, (5, 0, 10, 10), (4, 0, 10, 10), out)
    with pytest.raises(ArgumentError, match="4 channels"):
        decode_jpeg(data, (0, 0, 5, 5), (0, 0, 5, 5), np.zeros((4, 4, 4), np.uint8))
    assert not out.any()


def test_more_scans_than_encoders_write_are_refused() -> None:
    data = jpeg(64, 64, progressive=True)
    begin = data.index(b"\xff\xda")
    end = data.index(b"\xff\xc4", begin)
    scan = data[begin:end]  # the first one, of the averages: it may come again
    assert decoded(data[:begin] + 20 * scan + data[begin:], (0, 0, 64, 64)).any()
    assert "more than 100 scans" in fault(data[:begin] + 100 * scan + data[begin:])


def test_a_image_that_would_fill_the_memory_is_refused_before_it_does() -> None:
    data = jpeg(64, 64, progressive=True, subsampling=0)
    frame = data.index(b"\xff\xc2") + 5
    huge = data[:frame] + bytes((0xFF, 0, 0xFF, 0)) + data[frame + 4 :]
    assert "MiB" in fault(huge)


@pytest.mark.parametrize("seed", range(2))
def test_no_damaged_file_does_harm_or_keeps_memory(seed: int) -> None:
    script = Path(__file__).with_name("fuzzing.py")
    done = subprocess.run([sys.executable, str(script), str(seed), "8000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, num_decoded, num_bytes = map(int, done.stdout.split())
    assert count == 8000 and num_decoded > 400
    assert num_bytes < 4 << 20
    assert not done.stderr  # libjpeg prints nothing


@given(changes=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_changed_file_is_decoded_or_a_fault(changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for at, value in changes:
        data[at % len(data)] = value
    with suppress(JpegFault, ArgumentError):  # the latter if the size was changed
        decoded(data, (3, 5, 30, 31))


GOOD = jpeg(32, 32, quality=40)


def test_many_threads_may_decode_at_once() -> None:
    files = [jpeg(100 + number, 80, progressive=number % 2 == 0) for number in range(4)]
    expected = [by_pillow(data)[10:70, 20:90] for data in files]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            if not np.array_equal(decoded(files[number], (20, 10, 90, 70)), expected[number]):
                wrong.append(number)
            try:
                decoded(files[number][:500], (20, 10, 90, 70))
                wrong.append(number)
            except JpegFault:
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_keeps_the_file_or_the_picture() -> None:
    data, out = bytearray(jpeg(20, 20)), np.zeros((20, 20, 3), np.uint8)
    decode_jpeg(data, (0, 0, 20, 20), (0, 0, 20, 20), out)
    gc.collect()
    data.clear()  # an error if anybody still looks at it
    out.resize((1, 1, 3), refcheck=False)


def test_it_can_be_turned_off_for_a_while() -> None:
    assert has_jpeg() and describe_jpeg() == "in use"
    with without():
        assert not has_jpeg() and describe_jpeg() == "off for now"
        with pytest.raises(ArgumentError, match="off for now"):
            decoded(GOOD, (0, 0, 32, 32))
    assert has_jpeg()
