"""Who decodes pictures: what a loader refuses, what it tells the workers, what becomes of files that are refused."""

from __future__ import annotations

import io
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.batch.ledger import Policy
from stoker.deliver import DecodeSplit, check_nvjpeg
from stoker.errors import ArgumentError, BadImage, MissingExtra
from stoker.loader import build_delivery, dataloader
from stoker.loader.checks import resolved_decode
from tests.deliver.test_decoding import Fake, drawn

Image = pytest.importorskip("PIL.Image")

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


class Leaving:
    """A dataset that may leave pictures to the device."""

    def __init__(self, decode: str = "device") -> None:
        self.decode = decode

    def __len__(self) -> int:
        return 8

    def __getitem__(self, position: int) -> Any:
        raise AssertionError

    def open_batch(self, num_samples: int, empty: Any, hint: Any) -> Any:
        raise AssertionError


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A torchvision for CUDA, as far as it is looked at."""
    package, version, io = (types.ModuleType(name) for name in ("torchvision", "torchvision.version", "torchvision.io"))
    version.cuda, version.__version__ = "13.0", "0.26"  # type: ignore[attr-defined]
    for module in (package, version, io):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return version


def test_without_a_device_it_is_refused_with_what_to_do(torchvision: Any) -> None:
    for device in (None, "cpu"):
        with pytest.raises(ArgumentError, match='device="cuda".*decode="auto".*decode="cpu"'):
            stoker.DataLoader(Leaving(), batch_size=2, device=device)


def test_without_torchvision_it_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchvision", "torchvision.version", "torchvision.io"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"torchvision(.|\n)*stoker\[nvjpeg\]"):
        resolved_decode(Leaving(), CUDA, collates=True)
    assert resolved_decode(Leaving("auto"), CUDA, collates=True) == "cpu"


def test_a_torchvision_without_nvjpeg_is_refused(torchvision: Any) -> None:
    check_nvjpeg(CUDA, need="this")
    torchvision.cuda = None
    with pytest.raises(ArgumentError, match="0.26 is built without it"):
        resolved_decode(Leaving(), CUDA, collates=True)
    assert resolved_decode(Leaving("auto"), CUDA, collates=True) == "cpu"


def test_auto_is_the_cpu_where_there_is_no_device(torchvision: Any) -> None:
    assert resolved_decode(Leaving("auto"), CUDA, collates=True) == "auto"
    for device in (None, CPU):
        assert resolved_decode(Leaving("auto"), device, collates=True) == "cpu"
    loader: Any = stoker.DataLoader(Leaving("auto"), batch_size=2)
    assert loader.split is None


def test_batches_that_others_make_hold_no_files(torchvision: Any) -> None:
    with pytest.raises(ArgumentError, match="collate_fn"):
        resolved_decode(Leaving(), CUDA, collates=False)
    assert resolved_decode(Leaving("auto"), CUDA, collates=False) == "cpu"
    loader: Any = stoker.DataLoader(Leaving("auto"), batch_size=2, collate_fn=list)
    assert loader._decode == "cpu"


def test_in_a_subset_of_torchs_nothing_is_left_to_the_device(torchvision: Any) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)Subset is read sample by sample.*images\.subset"):
        stoker.DataLoader(torch.utils.data.Subset(Leaving(), [1]), batch_size=2)  # type: ignore[arg-type]
    stoker.DataLoader(torch.utils.data.Subset(Leaving("auto"), [1]), batch_size=2)  # type: ignore[arg-type]


def test_other_datasets_are_never_asked(torchvision: Any) -> None:
    class Tokens(list[int]):
        def decode(self, ids: Any) -> str:
            return ""

    assert resolved_decode(Tokens(), CUDA, collates=True) == "cpu"


# ---------------------------------------------------------------- whole, with a decoder on the CPU


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(24):
        place = tmp_path / f"class{number % 3}"
        place.mkdir(exist_ok=True)
        (place / f"{number:02}.jpg").write_bytes(drawn(number, width=60 + number, height=50))
    return tmp_path


@pytest.fixture
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a decoder on the CPU stand for the device's."""
    monkeypatch.setattr(dataloader, "resolved_decode", lambda dataset, *_, **__: dataset.decode)
    monkeypatch.setattr(build_delivery, "NvJpeg", Fake)


def pictures(folder: Path, decode: Any, **options: Any) -> Any:
    crop = stoker.transform.RandomResizedCrop(16)
    return stoker.images(folder, transform=[crop, stoker.transform.RandomHorizontalFlip()], decode=decode, **options)


def loaded(dataset: Any, **options: Any) -> tuple[list[Any], Any]:
    loader: Any = stoker.DataLoader(dataset, batch_size=6, shuffle=True, seed=3, device="cpu", **options)
    return [(batch.image.clone(), batch.label.clone()) for batch in loader], loader


ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "workers": {"num_workers": 2},
    "workers with threads": {"num_workers": 2, "num_threads": 2},
}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("decode", ["device", "auto"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "channels_last"])
@pytest.mark.usefixtures("on_the_host")
def test_the_same_images_come_whoever_decodes(folder: Path, decode: str, layout: str, engine: dict[str, Any]) -> None:
    expected, _ = loaded(pictures(folder, "cpu", layout=layout))
    found, loader = loaded(pictures(folder, decode, layout=layout), **engine)
    assert len(found) == len(expected) == 4
    for (image, label), (its_image, its_label) in zip(found, expected):
        assert torch.equal(label, its_label)
        assert image.shape == its_image.shape
        assert image.stride() == its_image.stride()
        # the CPU's decoder may take every second pixel only, where that is enough
        assert (image.float() - its_image.float()).abs().mean() < 6
    assert (loader.split is not None) == (decode == "auto")


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.usefixtures("on_the_host")
def test_workers_are_told_the_share(folder: Path, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Counting(Fake):
        def decode(self, files: Any, *, num_channels: int) -> Any:
            seen.append(len(files))
            return super().decode(files, num_channels=num_channels)

    monkeypatch.setattr(build_delivery, "NvJpeg", Counting)
    monkeypatch.setattr(DecodeSplit, "batch_hint", lambda _: 0.5)
    loaded(pictures(folder, "auto"), **engine)
    assert seen == [3, 3, 3, 3]


class Refusing(Fake):
    """Refuses pictures that are 67 pixels wide, as if only the device minded."""

    def decode(self, files: Any, *, num_channels: int) -> Any:
        found = super().decode(files, num_channels=num_channels)
        if any(picture.shape[2] == 67 for picture in found):
            raise RuntimeError("Failed to parse jpeg stream")
        return found


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.usefixtures("on_the_host")
def test_a_file_that_only_the_device_refuses_comes_all_the_same(
    folder: Path, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_delivery, "NvJpeg", Refusing)
    expected, _ = loaded(pictures(folder, "device"))
    plain, _ = loaded(pictures(folder, "cpu"))
    found, loader = loaded(pictures(folder, "device"), on_error="skip", **engine)
    for (image, label), (its_image, its_label), (cpu_image, _) in zip(found, expected, plain):
        assert torch.equal(image, its_image)
        assert torch.equal(label, its_label)
        assert (image.float() - cpu_image.float()).abs().mean() < 6
    assert not list(loader.ledger)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.usefixtures("on_the_host")
def test_a_image_that_is_drawn_again_is_cut_again_whoever_decodes(
    folder: Path, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_delivery, "NvJpeg", Refusing)

    def drawn_again(decode: str, **options: Any) -> list[Any]:
        made: Any = stoker.DataLoader(
            pictures(folder, decode), 6, sampler=[7, 7, 5] * 4, seed=3, device="cpu", **options
        )
        return [batch.image.clone() for batch in made]

    found, expected = drawn_again("device", **engine), drawn_again("cpu")
    assert len({image.numpy().tobytes() for batch in found for image in batch}) == 12
    for images, theirs in zip(found, expected, strict=True):
        assert (images.float() - theirs.float()).abs().mean() < 6


@pytest.mark.usefixtures("on_the_host")
def test_turned_files_left_as_they_are_stored_are_the_same_whoever_decodes(tmp_path: Path) -> None:
    for number in range(2, 9):
        exif = Image.Exif()
        exif[0x0112] = number
        Image.open(io.BytesIO(drawn(number, width=60, height=50))).save(tmp_path / f"{number}.jpg", exif=exif)
    numbers = [0] * 7
    expected, _ = loaded(pictures(tmp_path, "cpu", labels=numbers, apply_exif_orientation=False))
    for decode in ("device", "auto"):
        found, _ = loaded(pictures(tmp_path, decode, labels=numbers, apply_exif_orientation=False))
        for (image, _), (its_image, _) in zip(found, expected, strict=True):
            assert (image.float() - its_image.float()).abs().mean() < 6


def damaged(folder: Path) -> Path:
    """Return a file whose header and end are as they should be, and nothing in between."""
    path = sorted(folder.rglob("*.jpg"))[8]
    data = path.read_bytes()
    scan = data.index(b"\xff\xda")
    path.write_bytes(data[: scan + 14] + b"\xff\xd9")
    return path


class Strict(Fake):
    """Refuses files without anything in them."""

    def decode(self, files: Any, *, num_channels: int) -> Any:
        for file in files:
            content = bytes(file.numpy())
            if len(content) - content.index(b"\xff\xda") < 40:
                raise RuntimeError("Failed to decode jpeg stream")
        return super().decode(files, num_channels=num_channels)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.usefixtures("on_the_host")
def test_a_bad_file_is_named_with_all_that_is_known(
    folder: Path, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = damaged(folder)
    monkeypatch.setattr(build_delivery, "NvJpeg", Strict)
    with pytest.raises(BadImage, match=path.name) as caught:
        loaded(pictures(folder, "device"), **engine)
    assert caught.value.path.endswith(str(path.relative_to(folder)))
    assert any("raised while reading position 8" in note and "epoch 0" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.usefixtures("on_the_host")
def test_a_bad_file_is_replaced_as_everywhere(
    folder: Path, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = damaged(folder)
    policy = Policy("skip")
    expected, its_loader = loaded(pictures(folder, "cpu"), on_error=policy)
    monkeypatch.setattr(build_delivery, "NvJpeg", Strict)
    found, loader = loaded(pictures(folder, "device"), on_error=policy, **engine)
    (entry,), (its_entry,) = list(loader.ledger), list(its_loader.ledger)
    assert entry.position == its_entry.position == 8
    assert entry.replaced_by == its_entry.replaced_by
    assert path.name in entry.where
    for (image, label), (its_image, its_label) in zip(found, expected):
        assert torch.equal(label, its_label)  # that of the picture that came instead
        assert (image.float() - its_image.float()).abs().mean() < 6


@pytest.mark.usefixtures("on_the_host")
def test_images_without_labels_and_a_resume(folder: Path) -> None:
    dataset = pictures(folder, "device", labels=False)

    def images(loader: Any) -> list[Any]:
        return [np.asarray(batch) for batch in loader]

    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 1, "device": "cpu"}
    whole = images(stoker.DataLoader(dataset, **options))
    loader: Any = stoker.DataLoader(dataset, **options, num_workers=1)
    iterator = iter(loader)
    first = [np.asarray(next(iterator)).copy() for _ in range(2)]
    state = loader.state_dict()
    iterator.close()
    again: Any = stoker.DataLoader(dataset, **options)
    again.load_state_dict(state)
    for one, other in zip(first + images(again), whole, strict=True):
        assert np.array_equal(one, other)
