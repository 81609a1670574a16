"""The photographs: those in a folder that is given, or made up; as files, and in the formats of some contenders.

They are few, so that they lie in the page cache, and an epoch is long all the same: each is there under many names, all
of them links to one file. What is made is kept in `out/corpora`, which `make clean` removes.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import OUT
from benchmarks.turns import run_alone

CORPORA = OUT.parent / "corpora"
NUM_ENTRIES, NUM_ENTRIES_QUICK = 19_200, 2_560
"""In an epoch over files."""
NUM_PACKED, NUM_PACKED_QUICK = 4_800, 1_600
"""In an epoch over a format that has the bytes once more for each."""
NUM_SHARDS = 4
MAX_SIDE, QUALITY = 400, 90
"""Of the copies in formats that shrink: FFCV's smaller setting for ImageNet. Ours gets the same."""
SHORT_SIDE = 256
"""Of the copies that a model is trained on."""
NUM_PHOTOS, NUM_FACES = 150, 300
SUFFIXES = (".jpg", ".jpeg")


@dataclass(frozen=True, slots=True)
class Photographs:
    """A folder of photographs, in folders by class."""

    home: Path
    is_given: bool
    """Whether they are somebody's photographs, or made up."""
    num_entries: int
    num_packed: int

    @property
    def folder(self) -> Path:
        return self.home / "files"

    def at(self, format_name: str) -> Path:
        return self.folder if format_name == "files" else self.home / f"{format_name}-{self.num_packed}"

    def num_in(self, format_name: str) -> int:
        """Return how many samples a format has."""
        return self.num_entries if format_name == "files" else self.num_packed

    def originals(self) -> list[Path]:
        """Return every photograph once."""
        return sorted((self.home / "originals").iterdir())

    def entries(self) -> tuple[list[str], list[int]]:
        """Return all paths and their labels, as other loaders want them."""
        classes = sorted(entry.path for entry in os.scandir(self.folder))
        found = [
            (entry.path, label) for label, path in enumerate(classes) for entry in os.scandir(path) if entry.is_file()
        ]
        found.sort()
        return [path for path, _ in found], [label for _, label in found]

    def describe(self) -> str:
        """Return what these are, for people."""
        originals = self.originals()
        kilobytes = sum(path.stat().st_size for path in originals) / len(originals) / 1000
        kind = "real photographs" if self.is_given else "pictures made up to be like photographs"
        return f"{len(originals)} {kind} of {kilobytes:.0f} kB on average"


def photographs(
    name: str, given: Path | None, *, num_entries: int = NUM_ENTRIES, num_packed: int = NUM_PACKED
) -> Photographs:
    """Return the photographs in a folder, or such as are made up; `name` is "photos" or "faces"."""
    sources = [] if given is None else _found(given)
    digest = sha256("\0".join(f"{path}:{path.stat().st_size}" for path in sources).encode()).hexdigest()[:8]
    home = CORPORA / f"{name}-{'made-up' if given is None else digest}-{num_entries}"
    if not home.exists():
        unfinished = home.with_name(f"{home.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        _make(unfinished, name, sources, num_entries)
        os.rename(unfinished, home)
    return Photographs(home, given is not None, num_entries, num_packed)


def with_bad_file(whole: Photographs, num_entries: int) -> Photographs:
    """Return a few of these, made anew, and among them one that ends in the middle; its label is 1, all others' 0."""
    home = whole.home.with_name(f"{whole.home.name}.bad")
    shutil.rmtree(home, ignore_errors=True)
    for part in ("originals", "files/whole", "files/with-a-bad-one"):
        (home / part).mkdir(parents=True)
    some = [path for path in whole.originals() if path.stat().st_size > 4_000]
    for number in range(num_entries - 1):
        shutil.copy(some[number % len(some)], home / "files/whole" / f"{number:04d}.jpg")
    data = some[-1].read_bytes()
    (home / "files/with-a-bad-one" / f"{BAD_NAME}.jpg").write_bytes(data[: len(data) // 2])
    return Photographs(home, whole.is_given, num_entries, num_entries)


BAD_NAME = "cut-off"


def _found(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise SystemExit(f"no JPEG files in {folder}")
    return found


def _make(home: Path, name: str, sources: list[Path], num_entries: int) -> None:
    originals = home / "originals"
    originals.mkdir(parents=True)
    if sources:
        for number, source in enumerate(sources):
            shutil.copyfile(source, originals / f"{number:05d}.jpg")
    else:
        draw, number_of = (photo, NUM_PHOTOS) if name == "photos" else (face, NUM_FACES)
        for number in range(number_of):
            (originals / f"{number:05d}.jpg").write_bytes(draw(np.random.default_rng(number)))
    link(sorted(originals.iterdir()), home / "files", num_entries)


def link(originals: list[Path], folder: Path, num_entries: int, num_classes: int = 10) -> None:
    """Make a folder of classes with so many entries, each a link to one of the files."""
    for label in range(num_classes):
        (folder / f"class-{label}").mkdir(parents=True)
    for entry in range(num_entries):
        number = entry % len(originals)
        os.link(originals[number], folder / f"class-{number % num_classes}" / f"{entry:06d}.jpg")


# ---------------------------------------------------------------- made up


def photo(chance: np.random.Generator) -> bytes:
    """Return a JPEG like a photograph's: 500 x 375 or upright, all colours at full size, about 110 kB."""
    width, height = ((500, 375), (375, 500), (500, 333), (480, 360))[int(chance.integers(4))]
    pixels = _light(chance, height, width) + _texture(chance, height, width, 38.0)
    return _jpeg(pixels, quality=95, subsampling=0)


def face(chance: np.random.Generator) -> bytes:
    """Return a JPEG like one of a face: 250 x 250, smooth, colours at half the size, about 14 kB."""
    size = 250
    y, x = np.mgrid[0:size, 0:size] / size - 0.5
    pixels = _light(chance, size, size) + _texture(chance, size, size, 13.0)
    across, down = chance.uniform(-0.05, 0.05, 2)
    inside = ((x - across) / 0.26) ** 2 + ((y - down) / 0.36) ** 2
    skin = chance.uniform((120, 80, 60), (240, 200, 180))
    shade = 1 - 0.5 * np.clip(inside, 0, 1) + 0.3 * (x - across)
    pixels = np.where((inside < 1)[..., None], skin * shade[..., None] + 0.4 * (pixels - 128), pixels)
    for side in (-0.11, 0.11):
        eye = ((x - across - side) / 0.05) ** 2 + ((y - down + 0.08) / 0.025) ** 2
        pixels *= (1 - 0.8 * np.exp(-eye))[..., None]
    return _jpeg(pixels, quality=91, subsampling=2)


def _light(chance: np.random.Generator, height: int, width: int) -> NDArray[np.float64]:
    """Return soft colours: a few broad blobs of light."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.full((height, width, 3), 110.0) + chance.uniform(-40, 40, 3)
    for _ in range(6):
        across, down, broad = chance.uniform(0, width), chance.uniform(0, height), chance.uniform(40, 200)
        blob = np.exp(-((x - across) ** 2 + (y - down) ** 2) / (2 * broad**2))
        pixels += blob[..., None] * chance.uniform(-90, 90, 3)
    return pixels


def _texture(chance: np.random.Generator, height: int, width: int, strength: float) -> NDArray[np.float64]:
    """Return noise whose detail falls with its frequency, as in nature, mostly grey, strong here and weak there."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    slope = 1 / np.maximum(frequency, 1 / max(height, width)) ** 1.15

    def field() -> NDArray[np.float64]:
        found = np.fft.irfft2(np.fft.rfft2(chance.normal(size=(height, width))) * slope, (height, width))
        scaled: NDArray[np.float64] = found / found.std()
        return scaled

    grey, where = field(), field()
    colour = np.stack([field() for _ in range(3)], axis=-1)
    found: NDArray[np.float64] = strength * (grey[..., None] + 0.25 * colour) * (0.6 + 0.4 * np.tanh(where))[..., None]
    return found


def _jpeg(pixels: NDArray[np.float64], *, quality: int, subsampling: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(
        file, "JPEG", quality=quality, subsampling=subsampling, optimize=True
    )
    return file.getvalue()


# ---------------------------------------------------------------- formats, each written by a process of its own


def made(
    given: Photographs, formats: list[str], notify: Callable[[str], None], *, limit_seconds: float = 900
) -> dict[str, Exception]:
    """Make what is not there yet, and our own formats anew; return the errors of those that could not be made."""
    failed = {}
    for name in formats:
        final = given.at(name)
        if name.startswith("store"):
            shutil.rmtree(final, ignore_errors=True)
        if final.exists():
            continue
        notify(f"making {final.relative_to(OUT.parent.parent)}")
        try:
            run_alone(make, given, name, limit_seconds=limit_seconds)
        except Exception as error:
            failed[name] = error
    return failed


def make(given: Photographs, name: str) -> None:
    """Make one format."""
    final = given.at(name)
    unfinished = final.with_name(f"{final.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    FORMATS[name](given, unfinished)
    os.rename(unfinished, final)


def _packed(given: Photographs) -> list[tuple[str, int]]:
    """Return the entries that go into a format: from all classes alike."""
    pairs = list(zip(*given.entries()))
    step = max(1, len(pairs) // given.num_packed)
    return pairs[::step][: given.num_packed]


def _tar(given: Photographs, folder: Path) -> None:
    pairs = _packed(given)
    for shard in range(NUM_SHARDS):
        with tarfile.open(folder / f"{shard:04d}.tar", "w") as tar:
            for number in range(shard, len(pairs), NUM_SHARDS):
                path, label = pairs[number]
                for suffix, data in (("jpg", Path(path).read_bytes()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{number:06d}-{Path(path).stem}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


class _Opened:
    """Photographs with PIL, as FFCV's writer wants them."""

    def __init__(self, pairs: list[tuple[str, int]]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, position: int) -> tuple[Any, int]:
        from PIL import Image

        path, label = self.pairs[position]
        return Image.open(path).convert("RGB"), label


def _beton(given: Photographs, folder: Path, **options: Any) -> None:
    writer, fields = import_module("ffcv.writer"), import_module("ffcv.fields")
    image = fields.RGBImageField(write_mode="jpg", **options)
    writer.DatasetWriter(
        str(folder / "all.beton"), {"image": image, "label": fields.IntField()}, num_workers=2
    ).from_indexed_dataset(_Opened(_packed(given)))


def _beton_whole(given: Photographs, folder: Path) -> None:
    _beton(given, folder, jpeg_quality=95)


def _beton_small(given: Photographs, folder: Path) -> None:
    _beton(given, folder, max_resolution=MAX_SIDE, jpeg_quality=QUALITY)


def _linked(given: Photographs, folder: Path) -> Path:
    """Return a folder with the entries that go into a store."""
    if given.num_entries == given.num_packed:
        return given.folder
    from_where = folder.with_name(f"{folder.name}.entries")
    shutil.rmtree(from_where, ignore_errors=True)
    link(given.originals(), from_where, given.num_packed)
    return from_where


def _store(given: Photographs, folder: Path, **options: Any) -> None:
    from stoker import prepare

    from_where = _linked(given, folder)
    prepare.images(from_where, out=folder, quality=QUALITY, **options)
    if from_where != given.folder:
        shutil.rmtree(from_where)


def _store_small(given: Photographs, folder: Path) -> None:
    _store(given, folder, max_side=MAX_SIDE)


def _store_short(given: Photographs, folder: Path) -> None:
    _store(given, folder, short_side=SHORT_SIDE)


FORMATS: dict[str, Callable[[Photographs, Path], None]] = {
    "tar": _tar,
    "beton": _beton_whole,
    "beton-small": _beton_small,
    "store-small": _store_small,
    "store-short": _store_short,
}
