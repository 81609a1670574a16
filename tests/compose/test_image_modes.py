"""Pictures as they are stored: not turned upright, and with all of their bits."""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import PIL.features
import pytest
import torch
from PIL import Image

import stoker
from stoker import prepare
from stoker.batch.encoded import Encoded
from stoker.compose.images import Images
from stoker.errors import ArgumentError, BadImage
from stoker.transform import (
    CenterCrop,
    ColorJitter,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from stoker.transform.image import pillow_decoding
from stoker.transform.image.decoding import decode
from stoker.transform.image.view import flipped
from tests.transform.pictures import encoded, opened, photograph

DEPTH = (np.arange(40 * 30).reshape(30, 40) * 37 + 300).astype(np.uint16)
FLOATS = np.linspace(-2.5, 70_000.25, 1200, dtype=np.float32).reshape(30, 40)
WHOLE = (np.arange(1200).reshape(30, 40) * 100_000 - 7).astype(np.int32)


def of(pixels: Any, kind: str = "PNG") -> bytes:
    return encoded(Image.fromarray(pixels), kind)


class Files:
    """Files in memory."""

    fingerprint = "some files"
    labels: Any = None
    classes: Any = None

    def __init__(self, *files: bytes) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def read(self, position: int) -> bytes:
        return self.files[position]

    def name(self, position: int) -> str:
        return f"file {position}"


def batch_of(images: Images, **options: Any) -> Any:
    return next(iter(stoker.DataLoader(images, batch_size=len(images), seed=3, **options)))


# ------------------------------------------------------------ orientation


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("exact", [False, True])
def test_a_image_stays_as_it_is_stored_where_that_is_asked_for(kind: str, exact: bool) -> None:
    photo = photograph(60, 44)
    options: Any = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    plain = decode(encoded(photo, kind, **options), exact=exact)
    for orientation in range(2, 9):
        data = encoded(photo, kind, orientation=orientation, **options)
        assert (decode(data, exact=exact, apply_exif_orientation=False) == plain).all()
        upright = decode(data, exact=exact)
        assert upright.shape != plain.shape or not (upright == plain).all()
        image = Images(Files(data), exact=exact, layout="nhwc", apply_exif_orientation=False)[0]
        assert (image == plain).all()


def test_turned_files_are_the_devices_where_they_are_not_turned_back() -> None:
    data = encoded(photograph(80, 60), orientation=6)
    for applies, num_files in ((True, 0), (False, 2)):
        images = Images(Files(data, data), transform=CenterCrop(32), decode="device", apply_exif_orientation=applies)
        writer = images.open_batch(2, np.empty, None)
        for row in range(2):
            writer.write(row, row)
        batch = writer.batch()
        assert (batch.num_files if isinstance(batch, Encoded) else 0) == num_files
        if isinstance(batch, Encoded):
            assert batch.sizes.tolist() == [[80, 60]] * 2


def turned_folder(path: Path) -> Path:
    path.mkdir()
    for name, orientation in (("a.jpg", 6), ("b.png", 6), ("c.jpg", None), ("d.tif", 6)):
        (path / name).write_bytes(
            encoded(photograph(90, 60), {"jpg": "JPEG", "png": "PNG", "tif": "TIFF"}[name[2:]], orientation=orientation)
        )
    return path


@pytest.mark.parametrize("side", [None, 45])
def test_a_store_keeps_to_how_it_was_prepared(tmp_path: Path, side: int | None) -> None:
    folder = turned_folder(tmp_path / "photos")
    sizes = {}
    for applies in (None, True, False):
        out = tmp_path / f"store {applies}"
        prepare.images(folder, out=out, max_side=side, apply_exif_orientation=applies, workers=0, cache=False)
        store = stoker.open(out)
        sizes[applies] = [(int(row["width"]), int(row["height"])) for row in store]
        images = stoker.images(out)
        shapes = [images[position].shape[1:] for position in range(len(images))]
        assert shapes == [(height, width) for width, height in sizes[applies]]
    width, height = (90, 60) if side is None else (45, 30)
    assert sizes[False] == [(width, height)] * 4
    assert sizes[True] == sizes[None] == [(height, width), (height, width), (width, height), (height, width)]
    assert (tmp_path / "store None" / "manifest.json").read_bytes() == (
        tmp_path / "store True" / "manifest.json"
    ).read_bytes()
    again = tmp_path / "again"
    prepare.images(tmp_path / "store False", out=again, max_side=40, workers=0)
    assert {(int(row["width"]), int(row["height"])) for row in stoker.open(again)} == {(40, 27)}
    for applies in (True, False):
        if side is None:
            stoker.images(tmp_path / f"store {applies}", apply_exif_orientation=not applies)
            continue
        with pytest.raises(ArgumentError, match=f"apply_exif_orientation={applies}, and their orientation is lost"):
            stoker.images(tmp_path / f"store {applies}", apply_exif_orientation=not applies)


# ------------------------------------------------------------ more than 8 bits


@pytest.mark.parametrize(
    ("mode", "pixels", "kind"),
    [("I;16", DEPTH, "PNG"), ("I;16", DEPTH, "TIFF"), ("I", WHOLE, "TIFF"), ("F", FLOATS, "TIFF")],
    ids=["png", "tiff", "int32", "float32"],
)
def test_numbers_are_those_of_the_file(mode: Any, pixels: Any, kind: str) -> None:
    images = Images(Files(of(pixels, kind), of(pixels[::-1].copy(), kind)), mode=mode)
    for engine in ({}, {"num_workers": 1}):
        batch = batch_of(images, **engine)
        assert batch.shape == (2, 1, 30, 40)
        assert batch.numpy().dtype == pixels.dtype
        assert (batch[0, 0].numpy() == pixels).all() and (batch[1, 0].numpy() == pixels[::-1]).all()


def test_numbers_of_fewer_bits_are_not_scaled() -> None:
    grey = np.asarray(photograph(40, 30).convert("L"))
    for mode in ("I;16", "I", "F"):
        for kind in ("PNG", "JPEG"):
            data = of(grey, kind)
            found = Images(Files(data), mode=mode, layout="nhwc")[0]
            assert (found[:, :, 0] == np.asarray(opened(data))).all()
    assert (Images(Files(of(DEPTH)), mode="F")[0][0] == DEPTH).all()
    assert (Images(Files(of(DEPTH)), mode="I")[0][0] == DEPTH).all()


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "channels_last"])
def test_deep_images_are_cut_resized_and_mirrored_by_pillow(mode: Any, layout: Any) -> None:
    transform = [RandomResizedCrop((12, 10)), RandomHorizontalFlip(), RandomVerticalFlip()]
    images = Images(Files(*[of(DEPTH)] * 6), mode=mode, transform=transform, layout=layout)
    found = batch_of(images)
    assert found.shape == ((6, 12, 10, 1) if layout == "nhwc" else (6, 1, 12, 10))
    found = (found if layout == "nhwc" else found.permute(0, 2, 3, 1)).numpy()
    as_floats = Image.fromarray(DEPTH.astype(np.float32))
    for position in range(6):
        with stoker.sample_context(position, seed=3):
            view = images.drawing(position).view(40, 30)
        wanted = as_floats.crop(view.region).resize((10, 12), Image.Resampling.BILINEAR)
        difference = np.abs(found[position, :, :, 0] - flipped(np.asarray(wanted), view.flips))
        assert difference.max() <= (0.01 if mode == "F" else 1)
    assert (batch_of(images, num_workers=1) == batch_of(images)).all()
    assert len({one.tobytes() for one in found}) == 6


@pytest.mark.parametrize("orientation", [3, 6])
def test_deep_images_are_put_upright_too(orientation: int) -> None:
    data = encoded(Image.fromarray(DEPTH), "PNG", orientation=orientation)
    wanted = np.rot90(DEPTH, 2 if orientation == 3 else -1)
    assert (Images(Files(data), mode="I;16")[0][0] == wanted).all()
    assert (Images(Files(data), mode="I;16", apply_exif_orientation=False)[0][0] == DEPTH).all()


def test_functions_get_deep_images_as_pillow_has_them() -> None:
    seen = []

    def halved(image: Any) -> Any:
        seen.append(image.mode)
        return Image.fromarray(np.asarray(image) // 2)

    steps = [CenterCrop(20), halved, Resize((10, 10)), RandomCrop(8, padding=2)]
    for mode, wanted in (("I;16", "I;16"), ("I", "I"), ("F", "F")):
        images = Images(Files(of(DEPTH)), mode=mode, transform=steps)  # type: ignore[arg-type]
        assert images[0].shape == (1, 8, 8)
        assert seen.pop() == wanted
        assert images[0].dtype == images.pixels.dtype
        plain = Image.fromarray((DEPTH[5:25, 10:30] // 2).astype(np.float32)).resize(
            (10, 10), Image.Resampling.BILINEAR
        )
        resized = Images(Files(of(DEPTH)), mode=mode, transform=steps[:3])[0][0]  # type: ignore[arg-type]
        assert np.abs(resized - np.asarray(plain)).max() <= (0 if mode == "F" else 1)
        alone = Images(Files(of(DEPTH)), mode=mode, transform=steps[:2])[0]  # type: ignore[arg-type]
        assert (alone[0] == DEPTH[5:25, 10:30] // 2).all()


@pytest.mark.parametrize(
    ("mode", "data", "reason"),
    [
        ("I;16", encoded(photograph(20, 20), "PNG"), "it has mode RGB, but mode='I;16' needs a single-channel image"),
        ("F", encoded(photograph(20, 20), "JPEG"), "it has mode RGB"),
        ("F", encoded(photograph(20, 20).convert("P"), "PNG"), "it has mode P"),
        ("I;16", of(FLOATS, "TIFF"), "its values are floats, .*mode='F' keeps them"),
        ("I;16", of(WHOLE, "TIFF"), "range from -7 to 119899993, beyond 16 bits; mode='I' keeps them"),
        ("RGB", of(FLOATS, "TIFF"), "is unknown; use mode='F' to keep them"),
        ("L", of(WHOLE, "TIFF"), "is unknown; use mode='I' to keep them"),
    ],
)
def test_what_a_mode_cannot_hold_is_an_error_that_says_which_can(mode: Any, data: bytes, reason: str) -> None:
    with pytest.raises(BadImage, match=f"file 0 .*{reason}"):
        Images(Files(data), mode=mode)[0]


def colours_of_sixteen_bits(kind: str) -> bytes:
    """Return a file that Pillow can read and not write: 2 x 1 pixels of 16-bit RGB."""
    import struct
    import zlib

    values = struct.pack(">6H", 1, 300, 70, 65535, 40_000, 0)
    if kind == "PNG":

        def chunk(name: bytes, body: bytes) -> bytes:
            return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

        head = chunk(b"IHDR", struct.pack(">2I5B", 2, 1, 16, 2, 0, 0, 0))
        return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" + values)) + chunk(b"IEND", b"")
    tags = [(256, 3, 1, 2 << 16), (257, 3, 1, 1 << 16), (258, 3, 3, 134), (259, 3, 1, 1 << 16), (262, 3, 1, 2 << 16)]
    tags += [(273, 4, 1, 140), (277, 3, 1, 3 << 16), (278, 3, 1, 1 << 16), (279, 4, 1, 12)]
    body = b"".join(struct.pack(">HHII", *tag) for tag in tags)
    file = struct.pack(">2sHIH", b"MM", 42, 8, len(tags)) + body + struct.pack(">I", 0)
    return file.ljust(134, b"\0") + struct.pack(">3H", 16, 16, 16) + values


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (of(DEPTH), r"images with 16 bits, of which mode='\w+' keeps 8\nhint: mode='I;16' keeps all"),
        (of(DEPTH, "TIFF"), "hint: mode='I;16' keeps all"),
        (colours_of_sixteen_bits("PNG"), r"with 16 bits per channel, .*\nhint: Pillow reads only 8 bits"),
        (colours_of_sixteen_bits("TIFF"), "with 16 bits per channel"),
    ],
    ids=["png", "tiff", "colours", "colours in tiff"],
)
def test_bits_are_not_lost_without_a_word(mode: Any, data: bytes, words: str) -> None:
    images = pickle.loads(pickle.dumps(Images(Files(data, data, data), mode=mode)))
    with pytest.warns(UserWarning, match=words):
        images[0]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for position in range(3):
            images[position]
    assert len(said) == 1  # and not one for each picture


def test_a_warning_that_is_an_error_stays_one() -> None:
    images = Images(Files(of(DEPTH)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="images with 16 bits"):
            images[0]


def test_images_of_eight_bits_are_nothing_to_warn_of() -> None:
    for kind in ("PNG", "TIFF", "GIF", "WEBP", "BMP", "PPM"):
        for mode in ("RGB", "L"):
            Images(Files(encoded(photograph(20, 20).convert(mode), kind)))[0]


def test_a_preparation_says_that_bits_are_lost(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "a.png").write_bytes(of(DEPTH))
    prepare.images(tmp_path / "scans", out=tmp_path / "kept", workers=0, cache=False)
    assert (stoker.images(tmp_path / "kept", mode="I;16")[0][0] == DEPTH).all()
    with pytest.warns(UserWarning, match=r"become JPEG files, which have 8\nhint: omit max_side"):
        prepare.images(tmp_path / "scans", out=tmp_path / "small", max_side=20, workers=0, cache=False)


def test_what_deep_images_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="ColorJitter changes 8-bit colors, and mode='F' has other values"):
        Images(Files(of(DEPTH)), mode="F", transform=[CenterCrop(8), ColorJitter(0.5)])
    with pytest.raises(ArgumentError, match="decode='device' is not possible here: mode='I;16' needs uint16"):
        Images(Files(of(DEPTH)), mode="I;16", transform=CenterCrop(8), decode="device")
    assert not Images(Files(of(DEPTH)), mode="I;16", transform=CenterCrop(8), decode="auto").leaves_files
    with pytest.raises(ArgumentError, match="unknown mode='I;24'\nhint: choose one of RGB, L, I;16, I, F"):
        Images(Files(of(DEPTH)), mode="I;24")  # type: ignore[arg-type]


def test_deep_images_are_not_normalized_unless_their_range_is_given() -> None:
    files = Files(of(DEPTH), of(DEPTH))
    files.labels = np.array([0, 1])
    for mode, dtype in (("I;16", torch.uint16), ("F", torch.float32)):
        images = Images(files, mode=mode)  # type: ignore[arg-type]
        with pytest.warns(UserWarning, match=f"`normalize` is for uint8 images, and the first batch has {dtype} ones"):
            assert batch_of(images, normalize=((0.5,), (0.5,))).image.dtype == dtype
        normalize = stoker.Normalize((0.5,), (0.25,), scale=65535, fields=("image",))
        wanted = (torch.from_numpy(DEPTH.astype(np.float32)) / 65535 - 0.5) / 0.25
        assert torch.allclose(batch_of(images, normalize=normalize).image[0, 0], wanted, atol=1e-5)


def test_deep_images_become_floats_in_the_loader() -> None:
    images = Images(Files(of(DEPTH), of(DEPTH)), mode="I;16")
    batch = batch_of(images, to={torch.uint16: torch.float32})
    assert batch.dtype == torch.float32
    assert (batch[0, 0].numpy() == DEPTH).all()


# ------------------------------------------------------------ AVIF and HEIC


@pytest.mark.skipif(not PIL.features.check("avif"), reason="this Pillow has no AVIF")
def test_avif_is_read_from_a_folder(tmp_path: Path) -> None:
    photo = photograph(40, 30)
    for name in ("a/1.avif", "b/2.jpg"):
        (tmp_path / name).parent.mkdir()
        photo.save(tmp_path / name)
    images = stoker.images(tmp_path, transform=Resize((30, 40)), cache=False)
    batch = batch_of(images)
    assert images.classes == ["a", "b"]
    assert (batch.image[0].float() - batch.image[1].float()).abs().mean() < 12


@pytest.mark.parametrize(
    ("brands", "words"),
    [
        (b"heicmif1heic", "it is HEIC, which Pillow reads only with pillow-heif"),
        (b"mif1\0\0\0\0mif1heic", "it is HEIC"),
        (b"avif\0\0\0\0avifmif1", r"it is AVIF, which this Pillow cannot read; version 11\.3 can"),
    ],
)
def test_what_pillow_lacks_is_named(brands: bytes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow_decoding, "KINDS", ("JPEG", "PNG"))
    with pytest.raises(BadImage, match=words):
        Images(Files(b"\0\0\0\x18ftyp" + brands + bytes(200)))[0]


PLUGIN = """
from PIL import Image, ImageFile


class Heif(ImageFile.ImageFile):
    format = "HEIF"

    def _open(self):
        self._mode, self._size = "RGB", (4, 3)
        self.fp.seek(0)

    def load(self):
        if self._im is None:
            self.im = Image.new("RGB", (4, 3), (1, 2, 3)).im
        return Image.Image.load(self)


def register_heif_opener():
    Image.register_open("HEIF", Heif, lambda head: head[4:12] == b"ftypheic")
"""


def test_heic_is_read_with_pillow_heif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "pillow_heif.py").write_text(PLUGIN)  # stands in for the real one
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + bytes(200))
    monkeypatch.syspath_prepend(tmp_path / "plugins")
    known = dict(Image.OPEN), list(Image.ID)
    pillow_decoding._register_heif.cache_clear()
    try:
        images = stoker.images(tmp_path / "photos", cache=False)
        for engine in ({}, {"num_workers": 1, "multiprocessing_context": "spawn"}):
            assert batch_of(images, **engine)[0, :, 0, 0].tolist() == [1, 2, 3]
    finally:
        pillow_decoding._register_heif.cache_clear()
        sys.modules.pop("pillow_heif", None)
        Image.OPEN.clear()
        Image.OPEN.update(known[0])
        Image.ID[:] = known[1]
