"""Laws of pictures: which part of each is taken, and what is done to it, depends on (seed, epoch, position) alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

import stoker
from stoker import native
from stoker.compose.images import Images
from stoker.transform import (
    CenterCrop,
    ColorJitter,
    RandAugment,
    RandomCrop,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from stoker.transform.image import jpeg_decoding
from tests.compose.picture_sets import InMemory
from tests.transform.pictures import encoded
from tests.transform.test_image_foreign import drawing_from_everything

ENGINES: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_threads": 3},  # in one worker
    {"num_workers": 2, "num_threads": 2},
]
CHAINS = {
    "crop": [RandomResizedCrop(20), RandomHorizontalFlip()],
    "cut after": [Resize(40), RandomCrop((20, 18)), RandomHorizontalFlip()],
    "padded": [Resize((20, 20)), RandomHorizontalFlip(), RandomCrop(20, padding=3)],
    "twice": [Resize(50), RandomResizedCrop(20), CenterCrop(16)],
    "colours": [RandomResizedCrop(20), ColorJitter(0.4, 0.4, 0.4, 0.1), RandAugment(), RandomGrayscale()],
    "foreign": [RandomResizedCrop(20), drawing_from_everything],
}


def epochs(images: Images, *, num_epochs: int = 2, **options: Any) -> list[torch.Tensor]:
    loader: Any = stoker.DataLoader(images, batch_size=7, shuffle=True, seed=11, **options)
    return [batch.image.clone() for _ in range(num_epochs) for batch in loader]


@pytest.mark.parametrize("engine", ENGINES[1:], ids=str)
@pytest.mark.parametrize("chain", CHAINS)
def test_every_engine_gives_the_same_images(chain: str, engine: dict[str, Any]) -> None:
    images = Images(InMemory(20, kinds=("JPEG", "JPEG", "PNG")), transform=CHAINS[chain])
    expected, found = epochs(images), epochs(images, **engine)
    assert len(expected) == len(found) == 6
    for ours, theirs in zip(found, expected):
        assert torch.equal(ours, theirs)
    assert not torch.equal(expected[0], expected[3])


def part_of(images: Images) -> Any:
    return Subset(images, range(3, 17))  # type: ignore[arg-type]


def beside_others(images: Images) -> Any:
    return ConcatDataset([images, images])  # type: ignore[list-item]


def mixed(images: Images) -> Any:
    return stoker.mix({"some": (images, 0.5), "others": (images.subset(range(9)), 0.5)})


@pytest.mark.parametrize("engine", ENGINES[1:], ids=str)
@pytest.mark.parametrize("put_together", [part_of, beside_others, mixed], ids=["part", "beside", "mixed"])
def test_the_same_of_datasets_put_together(put_together: Any, engine: dict[str, Any]) -> None:
    dataset = put_together(Images(InMemory(20), transform=CHAINS["foreign"]))

    def pictures(**options: Any) -> list[Any]:
        loader: Any = stoker.DataLoader(dataset, batch_size=7, seed=11, **options)
        return [batch.image.clone() for batch in loader]

    for ours, theirs in zip(pictures(**engine), pictures(), strict=True):
        assert torch.equal(ours, theirs)


def test_threads_in_the_trainer_give_the_same_images_too() -> None:
    images = Images(InMemory(20), transform=CHAINS["colours"], in_trainer=True)
    for ours, theirs in zip(epochs(images, num_threads=3), epochs(images)):
        assert torch.equal(ours, theirs)


class Maps:
    """Pictures whose colors tell where each pixel was: red across, green down."""

    classes: list[str] | None = None
    labels: NDArray[Any] | None = None
    fingerprint = "maps"

    def __init__(self) -> None:
        self.files = []
        for number in range(10):
            width, height = 200 + 23 * number, 320 - 17 * number
            across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
            pixels = np.stack([across, down, np.full_like(down, 90)], axis=2).astype(np.uint8)
            self.files.append(encoded(Image.fromarray(pixels), quality=98, subsampling=0, orientation=1 + number % 8))

    def __len__(self) -> int:
        return len(self.files)

    def read(self, position: int) -> bytes:
        return self.files[position]

    def name(self, position: int) -> str:
        return f"map {position}"


@pytest.fixture
def maps() -> Maps:
    return Maps()


def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "has_jpeg", lambda: False)


def with_pillow_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    without_native(monkeypatch)
    monkeypatch.setattr(jpeg_decoding, "_simplejpeg", lambda: None)


@pytest.mark.parametrize("chain", ["crop", "cut after", "padded", "twice"])
def test_every_decoder_and_layout_takes_the_same_part(chain: str, maps: Maps, monkeypatch: pytest.MonkeyPatch) -> None:
    def corners(**options: Any) -> Any:
        layout = options.get("layout", "nchw")
        images = Images(maps, transform=CHAINS[chain], **options)
        loader: Any = stoker.DataLoader(images, batch_size=10, shuffle=True, seed=2)
        (batch,) = list(loader)
        return (batch.permute(0, 3, 1, 2) if layout == "nhwc" else batch).clone().int()

    expected = corners(exact=True)
    found = [corners(), corners(layout="nhwc"), corners(layout="channels_last")]
    without_native(monkeypatch)
    found.append(corners())
    with_pillow_alone(monkeypatch)
    found.append(corners())
    with native.without():
        found += [corners(), corners(exact=True)]
    for one in found:
        # a box or a flip of another kind would be tens of levels away
        assert (one - expected).abs().max() <= 4
    assert torch.equal(found[-1], expected)


@settings(max_examples=20)
@given(seed=st.integers(0, 1 << 40), epoch=st.integers(0, 5), position=st.integers(0, 9))
def test_a_sample_depends_on_seed_epoch_and_position_alone(seed: int, epoch: int, position: int) -> None:
    images = Images(InMemory(10), transform=CHAINS["colours"])
    found = []
    for other in (position, (position + 3) % 10, position):
        with stoker.sample_context(other, epoch=epoch, seed=seed):
            found.append(images[other].image)
    assert (found[0] == found[2]).all()
