"""With a CUDA device: pictures of a folder decoded by the GPU, in every engine, to the interpreter's end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import stoker
from stoker.deliver import NvJpeg
from stoker.errors import BadImage
from stoker.loader import build_delivery

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("torchvision")

from tests.deliver.test_decoding_gpu import photograph  # noqa: E402

ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "workers": {"num_workers": 2},
    "workers with threads": {"num_workers": 2, "num_threads": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("photographs")
    for number in range(48):
        (place / f"class{number % 3}").mkdir(exist_ok=True)
        kind: dict[str, Any] = {"grey": number % 7 == 0, "progressive": number % 5 == 0}
        data = photograph(number, width=200 + 3 * number, height=180, **kind)
        (place / f"class{number % 3}" / f"{number:02}.jpg").write_bytes(data)
    return place


@pytest.fixture(scope="module", autouse=True)
def cuda_is_started(folder: Path) -> None:
    """What the driver and nvJPEG open once stays open, and is not a leak of ours."""
    for _ in stoker.DataLoader(pictures(folder, "device"), batch_size=8, device="cuda"):
        pass
    torch.cuda.synchronize()


def pictures(folder: Path, decode: Any, **options: Any) -> Any:
    crop = stoker.transform.RandomResizedCrop(64)
    return stoker.images(folder, transform=[crop, stoker.transform.RandomHorizontalFlip()], decode=decode, **options)


def loader(dataset: Any, **options: Any) -> Any:
    return stoker.DataLoader(dataset, batch_size=8, shuffle=True, seed=3, device="cuda", **options)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("decode", ["device", "auto"])
def test_the_same_images_come_whoever_decodes(folder: Path, decode: str, engine: dict[str, Any]) -> None:
    options: dict[str, Any] = {"layout": "channels_last"}
    ours, theirs = loader(pictures(folder, decode, **options), **engine), loader(pictures(folder, "cpu", **options))
    for _ in range(2):
        num_batches = 0
        for found, wanted in zip(ours, theirs, strict=True):
            assert found.image.is_cuda
            assert torch.equal(found.label, wanted.label)
            assert found.image.stride() == wanted.image.stride()
            assert (found.image.float() - wanted.image.float()).abs().mean() < 4
            num_batches += 1
        assert num_batches == 6
    assert (ours.split is not None) == (decode == "auto")


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_image_that_is_drawn_again_is_cut_again_whoever_decodes(folder: Path, engine: dict[str, Any]) -> None:
    ours, theirs = (
        stoker.DataLoader(pictures(folder, decode), 8, sampler=[7, 7, 5, 9] * 4, seed=3, device="cuda", **options)
        for decode, options in (("device", engine), ("cpu", {}))
    )
    crops: set[bytes] = set()
    for found, wanted in zip(ours, theirs, strict=True):
        assert (found.image.float() - wanted.image.float()).abs().mean() < 4
        crops.update(image.cpu().numpy().tobytes() for image in found.image)
    assert len(crops) == 16


def test_turned_files_left_as_they_are_stored_are_the_same_whoever_decodes(tmp_path: Path) -> None:
    for number in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = number
        (tmp_path / f"{number}.jpg").write_bytes(photograph(number, exif=exif))
    options: dict[str, Any] = {"labels": [0] * 8, "apply_exif_orientation": False}
    (found,), (wanted,) = (list(loader(pictures(tmp_path, decode, **options))) for decode in ("device", "cpu"))
    for image, its_image in zip(found.image, wanted.image):
        assert (image.float() - its_image.float()).abs().mean() < 4


def test_batches_may_be_kept(folder: Path) -> None:
    normalize = ((0.5,) * 3, (0.5,) * 3)
    ours = list(loader(pictures(folder, "device"), num_workers=2, normalize=normalize))
    theirs = list(loader(pictures(folder, "cpu"), normalize=normalize))
    for found, wanted in zip(ours, theirs, strict=True):
        assert (found.image - wanted.image).abs().mean() < 0.04


class Picky(NvJpeg):
    """Refuses one picture by its width, as if its file were damaged in a way that only a decoder sees."""

    def decode(self, files: Any, *, num_channels: int) -> Any:
        found = super().decode(files, num_channels=num_channels)
        if any(picture.shape[2] == 200 + 3 * 13 for picture in found):
            raise RuntimeError("Failed to decode jpeg stream")
        return found


@pytest.fixture
def damaged(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder in which one file has a header and an end, and no picture."""
    for path in folder.rglob("*.jpg"):
        to = tmp_path / path.relative_to(folder)
        to.parent.mkdir(exist_ok=True)
        data = path.read_bytes()
        if path.name == "13.jpg":
            data = data[: data.index(b"\xff\xda") + 14] + b"\xff\xd9"
        to.write_bytes(data)
    monkeypatch.setattr(build_delivery, "NvJpeg", Picky)
    return tmp_path


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_bad_file_is_named(damaged: Path, engine: dict[str, Any]) -> None:
    with pytest.raises(BadImage, match="13.jpg") as caught:
        for _ in loader(pictures(damaged, "device"), **engine):
            pass
    assert any("raised while reading position" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_bad_file_is_replaced_as_everywhere(damaged: Path, engine: dict[str, Any]) -> None:
    ours = loader(pictures(damaged, "device"), on_error="skip", **engine)
    theirs = loader(pictures(damaged, "cpu"), on_error="skip")
    for found, wanted in zip(ours, theirs, strict=True):
        assert torch.equal(found.label, wanted.label)
        assert (found.image.float() - wanted.image.float()).abs().mean() < 4
    (entry,), (its_entry,) = list(ours.ledger), list(theirs.ledger)
    assert "13.jpg" in entry.where
    assert (entry.position, entry.replaced_by) == (its_entry.position, its_entry.replaced_by)


def test_two_loaders_at_once(folder: Path) -> None:
    first, second = (loader(pictures(folder, "device"), num_workers=1) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.image, other.image)


def test_torchs_own_forked_workers_live_next_to_ours(folder: Path) -> None:
    """Nothing of ours on the device is left to the garbage collector, which would end a forked child."""
    plain = pictures(folder, "cpu")
    for _ in range(3):
        iterator = iter(loader(pictures(folder, "device"), num_workers=2))
        next(iterator)
        del iterator
        assert len(list(torch.utils.data.DataLoader(plain, batch_size=8, num_workers=2))) == 6


def test_a_normalized_stream_of_many_epochs_holds_no_more_memory(folder: Path) -> None:
    normalize = ((0.5,) * 3, (0.5,) * 3)
    ours = loader(pictures(folder, "auto"), num_workers=2, normalize=normalize, persistent_workers=True)
    held = []
    for _ in range(8):
        for _ in ours:
            pass
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_reserved())
    assert held[-1] == held[3]
    assert "decoded by the device" in repr(ours.split)


SCRIPT = """
import sys, torch, stoker
if __name__ == "__main__":
    transform = stoker.transform.RandomResizedCrop(64)
    dataset = stoker.images(sys.argv[1], transform=transform, decode="{decode}")
    loader = stoker.DataLoader(dataset, batch_size=4, num_workers=2, device="cuda")
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(3)]
    {end}
    print("at the end", flush=True)
"""


@pytest.mark.parametrize("decode", ["device", "auto"])
@pytest.mark.parametrize("end", ["", "1 / 0"], ids=["end", "error"])
def test_the_interpreter_may_end_at_any_point(folder: Path, decode: str, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(decode=decode, end=end), str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "CUDA" not in done.stderr, done.stderr
    assert done.returncode == (1 if end else 0), done.stderr
    assert ("ZeroDivisionError" in done.stderr) == bool(end)
