"""Decoding: every kind of file as Pillow's users expect, only as much of it as is needed, and errors with names."""

from __future__ import annotations

import struct
import warnings
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from stoker import native
from stoker.errors import ArgumentError, BadImage
from stoker.transform.image import jpeg_decoding
from stoker.transform.image.decoding import decode
from stoker.transform.image.view import View, whole
from tests.transform.pictures import encoded, opened, photograph, psnr

DECODERS = ("native", "simplejpeg", "pillow")


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the decoders of JPEG, as it is where those before it are not there."""
    if request.param == "native" and not native.has_jpeg():
        pytest.skip("the JPEG library was not built here")
    if request.param != "native":
        monkeypatch.setattr(native, "has_jpeg", lambda: False)
    if request.param == "pillow":
        monkeypatch.setattr(jpeg_decoding, "_simplejpeg", lambda: None)
    return str(request.param)


def by_pillow(data: bytes, view: View, mode: str = "RGB") -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of palettes with transparency
        image = ImageOps.exif_transpose(opened(data)).convert(mode)
    height, width = view.size
    part = image.crop(view.region)
    left, top, *_ = view.region
    box = view.box[0] - left, view.box[1] - top, view.box[2] - left, view.box[3] - top
    found = part.resize((width, height), Image.Resampling.BILINEAR, box=box)
    found = ImageOps.flip(found) if view.flips[0] else found
    found = ImageOps.mirror(found) if view.flips[1] else found
    pixels = np.asarray(found)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


VIEWS = {
    "whole": lambda width, height: whole(width, height),
    "crop": lambda width, height: View((9, 5, 49, 41), (9, 5, 49, 41), (36, 40)),
    "smaller": lambda width, height: View(
        (3, 8, width, height - 2), (3, 8, width, height - 2), (20, 24), (False, True)
    ),
    "smaller, upside down": lambda width, height: View(
        (3, 8, width, height - 2), (3, 8, width, height - 2), (20, 24), (True, False)
    ),
    "crop, both ways": lambda width, height: View((9, 5, 49, 41), (9, 5, 49, 41), (36, 40), (True, True)),
    "much smaller": lambda width, height: View((0, 0, width, height), (0, 0, width, height), (7, 9)),
    "larger": lambda width, height: View((10, 10, 30, 25), (10, 10, 30, 25), (40, 50)),
    "cut after": lambda width, height: View((0, 0, width, height), (7.3, 4.1, width - 9.7, height - 6.2), (22, 30)),
}

FILES: dict[str, bytes] = {}


def files() -> dict[str, bytes]:
    """Return a file of every kind."""
    if not FILES:
        image = photograph(97, 83)
        gray = image.convert("L")
        rgba = image.copy()
        rgba.putalpha(Image.linear_gradient("L").resize(image.size))
        FILES.update(
            {
                "jpeg 4:2:0": encoded(image, quality=90),
                "jpeg 4:4:4": encoded(image, quality=95, subsampling=0),
                "jpeg progressive": encoded(image, progressive=True),
                "jpeg gray": encoded(gray),
                "jpeg cmyk": encoded(image.convert("CMYK"), quality=95),
                "jpeg restarts": encoded(image, restart_marker_rows=1),
                "jpeg rgb": encoded(image, keep_rgb=True),
                "png": encoded(image, "PNG"),
                "png palette": encoded(image.quantize(64), "PNG"),
                "png palette, transparent": encoded(image.quantize(64), "PNG", transparency=bytes(range(0, 256, 4))),
                "png alpha": encoded(rgba, "PNG"),
                "png gray alpha": encoded(rgba.convert("LA"), "PNG"),
                "png 1 bit": encoded(gray.convert("1"), "PNG"),
                "webp": encoded(image, "WEBP"),
                "webp animated": encoded(image, "WEBP", save_all=True, append_images=[gray.convert("RGB")]),
                "gif animated": encoded(image, "GIF", save_all=True, append_images=[ImageOps.invert(image)]),
                "tiff": encoded(image, "TIFF"),
                "bmp": encoded(image, "BMP"),
                "ppm": encoded(image, "PPM"),
            }
        )
    return FILES


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", sorted(files()))
def test_exact_pixels_are_pillows(kind: str, view: str, mode: str) -> None:
    data = files()[kind]
    found = decode(data, VIEWS[view], exact=True, mode=mode)
    assert (found == by_pillow(data, VIEWS[view](97, 83), mode)).all()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", sorted(kind for kind in files() if kind.startswith("jpeg")))
def test_quick_pixels_are_near(kind: str, view: str, decoder: str) -> None:
    data = files()[kind]
    assert psnr(decode(data, VIEWS[view]), by_pillow(data, VIEWS[view](97, 83))) > 38


@pytest.mark.parametrize("kind", sorted(kind for kind in files() if not kind.startswith("jpeg")))
def test_what_is_not_jpeg_is_as_exact_when_quick(kind: str) -> None:
    for view in VIEWS.values():
        assert (decode(files()[kind], view) == decode(files()[kind], view, exact=True)).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_put_upright(orientation: int, kind: str, decoder: str) -> None:
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    data = encoded(photograph(97, 83), kind, orientation=orientation, **options)
    seen_sizes = []

    def view_of(width: int, height: int) -> View:
        seen_sizes.append((width, height))
        return View((4, 9, 50, 60), (4, 9, 50, 60), (30, 21), (orientation % 3 == 0, orientation % 2 == 0))

    expected = by_pillow(data, view_of(0, 0))
    assert (decode(data, view_of, exact=True) == expected).all()
    assert psnr(decode(data, view_of), expected) > 45
    assert seen_sizes[1:] == [ImageOps.exif_transpose(opened(data)).size] * 2


@pytest.mark.parametrize("name", ["png", "ppm", "tiff"])
@pytest.mark.parametrize("exact", [False, True])
def test_sixteen_bits_are_scaled_not_cut(name: str, exact: bool) -> None:
    values = np.linspace(0, 65535, 40 * 30).reshape(30, 40).astype(np.uint16)
    data = encoded(Image.fromarray(values), name.upper())
    found = decode(data, exact=exact)
    assert found.shape == (30, 40, 3)
    assert (found[:, :, 0] == np.round(values / 257)).all()
    assert (decode(data, mode="L", exact=exact)[:, :, 0] == found[:, :, 1]).all()


def test_numbers_without_a_range_are_refused() -> None:
    data = encoded(Image.fromarray(np.ones((5, 5), np.float32)), "TIFF")
    with pytest.raises(BadImage, match="the range of its values .* is unknown"):
        decode(data)


@pytest.mark.parametrize("strides", ["nhwc", "nchw", "mirrored"])
@pytest.mark.parametrize("kind", ["jpeg 4:2:0", "png", "jpeg cmyk"])
def test_pixels_are_written_wherever_they_belong(kind: str, strides: str, decoder: str) -> None:
    data = files()[kind]
    memory = np.zeros((3, 20, 24) if strides == "nchw" else (20, 24, 3), np.uint8)
    out = memory.transpose(1, 2, 0) if strides == "nchw" else memory[:, ::-1] if strides == "mirrored" else memory
    assert decode(data, VIEWS["smaller"], out=out) is out
    assert (out == decode(data, VIEWS["smaller"])).all()


def test_a_target_of_another_shape_is_refused() -> None:
    with pytest.raises(ArgumentError, match="shape"):
        decode(files()["png"], out=np.zeros((3, 3, 3), np.uint8))


@pytest.mark.parametrize(
    "as_kind", [bytes, memoryview, lambda data: np.frombuffer(data, np.uint8)], ids=["bytes", "memoryview", "array"]
)
@pytest.mark.parametrize("kind", ["jpeg 4:2:0", "png"])
def test_data_may_be_bytes_a_memoryview_or_an_array(kind: str, as_kind: Any, decoder: str) -> None:
    data = files()[kind]
    assert (decode(as_kind(data)) == decode(data)).all()


# -------------------------------------------------------------------- what is bad


def png_saying(width: int, height: int) -> bytes:
    """Return a PNG file whose header promises a size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def jpeg_saying(width: int, height: int) -> bytes:
    """Return a JPEG file whose header promises a size."""
    data = bytearray(files()["jpeg 4:2:0"])
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


BAD = {
    "empty": (b"", "it is empty"),
    "web page": (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
    "text": (b"not here any more\n" * 20, "looks like text"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS"),
    "zeros": (bytes(5000), "zero bytes"),
    "noise": (bytes([7, 130, 2, 250] * 100), "not a known image format"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript"),
    "two bytes of jpeg": (b"\xff\xd8", "header cannot be read"),
    "png header": (b"\x89PNG\r\n\x1a\n", "header cannot be read"),
    "jpeg bomb": (jpeg_saying(60000, 60000), "3,600,000,000 pixels"),
    "png bomb": (png_saying(60000, 60000), "too large"),
    "png without pixels": (png_saying(50, 50), "truncated|not enough"),
}


@pytest.mark.parametrize("exact", [False, True], ids=["quick", "exact"])
@pytest.mark.parametrize("kind", sorted(BAD))
def test_bad_files_are_named_with_the_reason(kind: str, exact: bool, decoder: str) -> None:
    data, reason = BAD[kind]
    if kind == "jpeg bomb" and exact:
        reason = "too large"
    with pytest.raises(BadImage, match=reason) as caught:
        decode(data, name="a folder/its file.jpg", exact=exact)
    assert caught.value.path == "a folder/its file.jpg"
    assert "a folder/its file.jpg cannot be decoded: " in str(caught.value)
    assert caught.value.__cause__ is not None


def test_the_name_may_be_found_out_late() -> None:
    with pytest.raises(BadImage, match="late"):
        decode(b"", name=lambda: "late")


def test_the_limit_on_pixels_is_an_option() -> None:
    for kind in ("jpeg 4:2:0", "png"):
        with pytest.raises(BadImage, match=r"97 x 83 are 8,051 pixels, more than max_pixels=8,000"):
            decode(files()[kind], max_pixels=8000)
        decode(files()[kind], max_pixels=9000)


@pytest.mark.parametrize("exact", [False, True], ids=["quick", "exact"])
@pytest.mark.parametrize("kind", ["jpeg 4:2:0", "jpeg progressive", "jpeg gray", "jpeg cmyk", "png", "webp", "bmp"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_what_is_cut_short_is_an_error_even_above_the_cut(kind: str, part: float, exact: bool, decoder: str) -> None:
    data = files()[kind]
    with pytest.raises(BadImage):
        decode(data[: int(len(data) * part)], lambda *_: View((0, 0, 9, 9), (0, 0, 9, 9), (9, 9)), exact=exact)


def test_all_there_but_the_mark_at_the_end_is_fine(decoder: str) -> None:
    for data in (files()["jpeg 4:2:0"], files()["jpeg restarts"]):
        assert data.endswith(b"\xff\xd9")
        if decoder == "pillow":  # which cannot tell
            with pytest.raises(BadImage, match="truncated"):
                decode(data[:-2])
            continue
        for view in VIEWS.values():
            assert psnr(decode(data[:-2], view), decode(data, view)) > 38
            assert (decode(data[:-2], view, exact=True) == decode(data, view, exact=True)).all()


def test_a_progressive_file_without_an_end_may_lack_more(decoder: str) -> None:
    with pytest.raises(BadImage, match="truncated|ends in zero bytes|cut short"):
        decode(files()["jpeg progressive"][:-2])


def test_bytes_too_many_at_the_end_harm_nobody(decoder: str) -> None:
    data = files()["jpeg 4:2:0"]
    assert (decode(data + bytes(300)) == decode(data)).all()


def test_damage_inside_is_an_error(decoder: str) -> None:
    if decoder == "pillow":
        pytest.skip("Pillow alone does not tell")
    data = bytearray(files()["jpeg 4:2:0"])
    middle = len(data) // 2
    data[middle : middle + 40] = bytes([0xFF, 0x00, 0x5A, 0xFF] * 10)
    for exact in (False, True):
        with pytest.raises(BadImage):
            decode(bytes(data), exact=exact)


def test_a_png_named_jpg_is_a_png() -> None:
    assert (decode(files()["png"], name="a.jpg") == np.asarray(photograph(97, 83))).all()


@given(
    data=st.binary(max_size=300),
    start=st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF"]),
)
def test_no_bytes_give_another_error(data: bytes, start: bytes) -> None:
    with suppress(BadImage):
        decode(start + data)


@given(st.data())
def test_no_damage_gives_another_error(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["jpeg 4:2:0", "jpeg progressive", "png", "gif animated", "tiff"]))
    content = bytearray(files()[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadImage):
        decode(bytes(content), max_pixels=1_000_000)


# -------------------------------------------------------------------- how good


@pytest.mark.parametrize("size", [(64, 64), (96, 128)], ids=str)
def test_quick_decoding_is_near_pillows_full_one(size: tuple[int, int], decoder: str) -> None:
    found = []
    for seed in range(6):
        data = encoded(photograph(400 + 31 * seed, 300 + 17 * seed, seed=seed), quality=90)

        def view_of(width: int, height: int, seed: int = seed) -> View:
            region = seed * 9, seed * 7, width - 20, height - seed * 5
            return View(region, region, size)

        quick, exact = decode(data, view_of), decode(data, view_of, exact=True)
        found.append(psnr(quick, exact))
    assert min(found) > 34
    assert sum(found) / len(found) > 38


def test_full_size_decoding_can_be_asked_for(decoder: str) -> None:
    data = encoded(photograph(400, 300), quality=90)
    view = lambda width, height: View((0, 0, width, height), (0, 0, width, height), (30, 40))  # noqa: E731
    exact = decode(data, view, exact=True)
    assert psnr(decode(data, view, shrink=0), exact) > 50


@pytest.mark.parametrize("exact", [False, True], ids=["quick", "exact"])
def test_a_file_that_was_reserved_and_not_written_to_its_end_is_refused(exact: bool, decoder: str) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (96, 128, 3), dtype=np.uint8)
    whole = encoded(Image.fromarray(noise), quality=95)  # with so much to say, zeros are enough for all that is missing
    half = len(whole) // 2
    with pytest.raises(BadImage, match="a.jpg"):
        decode(whole[:half] + bytes(len(whole) - half), exact=exact, name="a.jpg")
