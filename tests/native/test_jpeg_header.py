"""The header of a JPEG file: in C and in Python, the same for whatever comes."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from stoker.errors import ArgumentError
from stoker.native import JpegHeader, jpeg_header, without


def jpeg(mode: str = "RGB", size: tuple[int, int] = (23, 17), **options: Any) -> bytes:
    rng = np.random.default_rng(len(mode) + size[0])
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, shape, np.uint8), mode).save(file, "JPEG", **options)
    return file.getvalue()


def both(data: Any) -> JpegHeader | None:
    """Return what C finds (where there is C) and see that Python finds the same."""
    found = jpeg_header(data)
    with without():
        assert jpeg_header(data) == found
    return found


def segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body


def with_segment(data: bytes, marker: int, body: bytes) -> bytes:
    return data[:2] + segment(marker, body) + data[2:]


def exif(value: int, *, order: str = "<", kind: int = 3, count: int = 1, tag: int = 0x112) -> bytes:
    packed = struct.pack(order + ("H" if kind in (3, 8) else "L"), value).ljust(4, b"\0")
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HL", 42, 8)
    return b"Exif\0\0" + head + struct.pack(order + "HHHL", 1, tag, kind, count) + packed + bytes(4)


def xmp(text: str) -> bytes:
    return b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta>" + text.encode() + b"</x:xmpmeta>"


def test_a_header_says_what_is_in_the_file() -> None:
    assert both(jpeg()) == JpegHeader(23, 17, 3, 8, has_end=True)
    assert both(jpeg("L", (5, 70))) == JpegHeader(5, 70, 1, 8, has_end=True)
    assert both(jpeg(progressive=True)) == JpegHeader(23, 17, 3, 8, is_progressive=True, has_end=True)
    assert both(jpeg("CMYK")) == JpegHeader(23, 17, 4, 8, adobe_transform=0, has_end=True)


def test_bytes_memoryviews_and_arrays_are_read_alike() -> None:
    data = jpeg()
    expected = both(data)
    forms: list[Any] = [
        bytearray(data),
        memoryview(data),
        np.frombuffer(data, np.uint8),
        np.array(list(data), np.uint8),
    ]
    for form in forms:
        assert both(form) == expected
    for empty in (b"", memoryview(b""), np.empty(0, np.uint8)):
        assert both(empty) is None


@pytest.mark.usefixtures("native")
def test_other_arrays_are_refused() -> None:
    for array in (np.zeros(9, np.int32), np.zeros((3, 3), np.uint8), np.zeros(9, np.uint8)[::2]):
        with pytest.raises(ArgumentError):
            jpeg_header(array)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4, 8, 9])
@pytest.mark.parametrize("value", range(10))
def test_the_orientation_is_what_pillow_finds(order: str, kind: int, value: int) -> None:
    data = with_segment(jpeg(), 0xE1, exif(value, order=order, kind=kind))
    header = both(data)
    assert header and header.orientation == (value if 1 <= value <= 8 else 1)
    image = Image.open(io.BytesIO(data))
    assert (ImageOps.exif_transpose(image).size == image.size) == (header.orientation < 5)


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ([exif(6), exif(3)], 6),  # the first counts
        ([b"Exif\0\0" + exif(6)], 6),  # some write the name twice
        ([exif(6, count=2)], 1),
        ([exif(6, kind=2)], 1),
        ([exif(6, tag=0x113)], 1),
        ([exif(6)[:-5]], 1),
        ([b"Exif\0\0"], 1),
        ([b"Exif\0\0XX" + exif(6)[8:]], 1),
        ([b"Exif\0\0II*\0\xff\xff\xff\xff"], 1),
        ([xmp('<a tiff:Orientation="8"/>')], 8),
        ([xmp("<tiff:Orientation>3</tiff:Orientation>")], 3),
        ([xmp("t tiff:Orientation='3' tiff:Orientation=")], 1),
        ([xmp('tiff:Orientation="9"')], 1),
        ([xmp('tiff:Orientation="3"'), xmp('tiff:Orientation="5"')], 5),  # the last counts
        ([xmp('tiff:Orientation="3"'), exif(6)], 6),
        ([xmp('tiff:Orientation="3"'), exif(6, tag=0x113)], 3),
        ([xmp('tiff:Orientation="3"')[:-30]], 1),
    ],
)
def test_odd_notes_are_read_as_pillow_reads_them(notes: list[bytes], expected: int) -> None:
    data = jpeg()
    for note in reversed(notes):
        data = with_segment(data, 0xE1, note)
    header = both(data)
    assert header is not None and header.orientation == expected


@pytest.mark.parametrize("transform", [0, 1, 2])
def test_adobes_marker_is_reported(transform: int) -> None:
    body = b"Adobe" + bytes((0, 100, 0, 0, 0, 0, transform))
    header = both(with_segment(jpeg(), 0xEE, body))
    assert header is not None and header.adobe_transform == transform
    header = both(with_segment(jpeg(), 0xEE, body[:-1]))
    assert header is not None and header.adobe_transform is None


def test_a_file_that_was_cut_off_has_no_end() -> None:
    data = jpeg()
    inside = data.index(b"\xff\xda") + 2
    for length in range(len(data) + 1):
        header = both(data[:length])
        assert (header is not None) == (length >= inside)
        assert header is None or header.has_end == (length == len(data))
    header = both(data[:-2] + bytes(5000))
    assert header is not None and not header.has_end


@pytest.mark.parametrize("junk", [b"\0", b"\xff", b"\xd9", bytes(10_000), b"\xff\xd8\xff"])
def test_what_follows_the_end_does_not_hide_it(junk: bytes) -> None:
    header = both(jpeg() + junk)
    assert header is not None and header.has_end


def test_an_end_inside_the_notes_is_none() -> None:
    data = with_segment(jpeg(), 0xFE, b"\xff\xd9")
    header = both(data[:-2])
    assert header is not None and not header.has_end


def test_what_is_between_segments_is_passed_over() -> None:
    data = jpeg()
    expected = both(data)
    assert both(data[:2] + b"junk\0\xff\0\xff\x01\xff\xd3\xff\xff\xff" + data[2:]) == expected


@pytest.mark.parametrize("marker", [0xC3, 0xC5, 0xC8, 0xCF, 0xD8, 0xD9, 0xDE, 0xF0, 0x02, 0xBF])
def test_kinds_that_libjpeg_does_not_decode_have_no_header(marker: int) -> None:
    assert both(with_segment(jpeg(), marker, bytes(8))) is None


def test_frames_that_make_no_sense_have_no_header() -> None:
    data = jpeg()
    frame = data.index(b"\xff\xc0")
    body = data[frame + 4 : frame + 19]
    assert both(with_segment(data, 0xC0, body)) is None  # a second one
    for wrong in (body[:-1], body + b"\0", body[:5], bytes((8, 0, 0)) + body[3:], body[:3] + bytes(2) + body[5:]):
        assert both(data[:frame] + segment(0xC0, wrong) + data[frame + 19 :]) is None
    assert both(data[:frame] + data[frame + 19 :]) is None
    twelve = both(data[:frame] + segment(0xC1, b"\x0c" + body[1:]) + data[frame + 19 :])
    assert twelve is not None and twelve.precision == 12
    arithmetic = both(data[:frame] + segment(0xC9, body) + data[frame + 19 :])
    assert arithmetic is not None and arithmetic.is_arithmetic and not arithmetic.is_progressive


FILES = [
    with_segment(with_segment(jpeg(size=(9, 9)), 0xE1, xmp('tiff:Orientation="3"')), 0xE1, exif(6, order=">")),
    with_segment(jpeg("CMYK", (8, 8), progressive=True), 0xE1, exif(5, kind=4)),
]
interesting = st.sampled_from([0xFF, 0, 1, 0xD8, 0xD9, 0xDA, 0xC0, 0xC2, 0xE1, 0xEE, 0xC4]) | st.integers(0, 255)


@given(
    file=st.sampled_from(FILES),
    changes=st.lists(st.tuples(st.integers(0, 900), interesting), max_size=8),
    cut=st.none() | st.integers(0, 900),
    moved=st.none() | st.tuples(st.integers(0, 900), st.integers(0, 900)),
)
def test_python_and_c_agree_on_mutated_files(
    file: bytes, changes: list[tuple[int, int]], cut: int | None, moved: tuple[int, int] | None
) -> None:
    data = bytearray(file)
    for at, value in changes:
        data[at % len(data)] = value
    if moved:
        data[moved[0] : moved[0]] = data[moved[1] : moved[1] + 40]
    both(bytes(data[:cut]))


@given(data=st.binary(max_size=200), start=st.sampled_from([b"", b"\xff\xd8", b"\xff\xd8\xff", b"\xff\xd8\xff\xe1"]))
def test_python_and_c_agree_on_anything(data: bytes, start: bytes) -> None:
    both(start + data)
