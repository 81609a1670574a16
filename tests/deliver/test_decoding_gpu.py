"""On a CUDA device: nvJPEG's pixels are Pillow's, nearly, and memory on both sides lives as long as it is used."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stoker.batch.encoded import Encoded
from stoker.deliver import Delivery, NvJpeg, Widening
from stoker.deliver.cutting import Cuts, cut, cut_one_by_one
from stoker.transform.image.view import flipped
from tests.deliver.test_decoding import Helper, Picture, outcomes
from tests.deliver.test_delivery_cpu import Script

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("torchvision")

_cuda: Any = torch.cuda  # parts of it have no types
CUDA = torch.device("cuda")
SIZE = 96


@pytest.fixture(scope="module", autouse=True)
def cuda_is_started() -> None:
    """What the driver and nvJPEG open once stays open, and is not a leak of ours."""
    next(delivery([batch({0: photograph(0)}, 2)]))
    torch.cuda.synchronize()


@pytest.fixture(autouse=True)
def all_is_quiet_afterwards() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


def photograph(number: int, *, width: int = 320, height: int = 240, grey: bool = False, **saving: Any) -> bytes:
    """Return a JPEG file of something like a photograph: soft shapes, edges, a little noise."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[:height, :width] / 40.0
    planes = []
    light = sum(rng.uniform(10, 30) * np.sin(x * a + y * b + c) for a, b, c in rng.uniform(-1.5, 1.5, (6, 3)))
    for _ in range(3):
        a, b, c = rng.uniform(-0.6, 0.6, 3)
        planes.append(128 + light + 25 * np.sin(x * a + y * b + c) + rng.normal(0, 2, x.shape))
    pixels = np.stack(planes, -1)
    for _ in range(4):  # things with edges
        left, top = rng.integers(0, width - 30), rng.integers(0, height - 30)
        pixels[top : top + 30, left : left + 30] += rng.uniform(-40, 40)
    picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    if grey:
        picture = picture.convert("L")
    file = io.BytesIO()
    picture.save(file, "JPEG", **({"quality": 92} | saving))
    return file.getvalue()


def batch(
    files: dict[int, bytes],
    num_rows: int,
    *,
    channels: int = 3,
    layout: str = "nchw",
    size: int = SIZE,
    seed: int = 0,
) -> Encoded:
    rng = np.random.default_rng(seed)
    pixels = np.zeros((num_rows, channels, size, size), np.uint8)
    if layout != "nchw":
        pixels = np.zeros((num_rows, size, size, channels), np.uint8).transpose(0, 3, 1, 2)
    pixels[:] = np.arange(num_rows, dtype=np.uint8)[:, None, None, None]
    sizes, regions, boxes = [], [], []
    for number, file in enumerate(files.values()):
        width, height = Image.open(io.BytesIO(file)).size
        sizes.append((width, height))
        left, top = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
        region = (left, top, int(rng.integers(left + 8, width + 1)), int(rng.integers(top + 8, height + 1)))
        if number % 2:  # resized first, then cut
            boxes.append((left + 1.25, top + 0.5, region[2] - 2.125, region[3] - 1.75))
            region = (0, 0, width, height)
        else:
            boxes.append((float(left), float(top), float(region[2]), float(region[3])))
        regions.append(region)
    return Encoded(
        pixels,
        np.frombuffer(b"".join(files.values()), np.uint8).copy(),
        np.cumsum([0, *map(len, files.values())]),
        np.array(list(files), np.int64),
        [100 + row for row in files],
        np.array(sizes, np.int64).reshape(-1, 2),
        np.array(regions, np.int64).reshape(-1, 4),
        np.array(boxes, np.float64).reshape(-1, 4),
        rng.integers(0, 2, (len(files), 2)).astype(bool),
        is_channels_last=layout == "nhwc",
    )


def expected(encoded: Encoded) -> Tensor:
    """Return what Pillow makes of it."""
    rows = encoded.pixels.clone()
    _, channels, height, width = rows.shape
    for number, row in enumerate(encoded.rows.tolist()):
        picture = Image.open(io.BytesIO(bytes(encoded.file(number).numpy()))).convert("RGB" if channels == 3 else "L")
        left, top, right, bottom = encoded.regions[number].tolist()
        box = encoded.boxes[number].tolist()
        inside = (box[0] - left, box[1] - top, box[2] - left, box[3] - top)
        picture = picture.crop((left, top, right, bottom))
        picture = picture.resize((width, height), Image.Resampling.BILINEAR, box=inside)
        found = flipped(np.asarray(picture).reshape(height, width, channels), encoded.flips[number].tolist())
        rows[row] = torch.from_numpy(found.copy()).permute(2, 0, 1)
    return encoded.shaped(rows)


def psnr(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    error = (one.double().cpu() - other.double().cpu()).square().mean().item()
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def delivery(steps: Any, depth: int = 2, **options: Any) -> Delivery[Any]:
    return Delivery(Script(steps), CUDA, depth=depth, decoder=NvJpeg, **options)


# ---------------------------------------------------------------- pixels


KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "progressive": {"progressive": True},
    "progressive 4:4:4": {"progressive": True, "subsampling": 0},
    "grey": {"grey": True},
    "optimised": {"optimize": True},
    "odd size": {"width": 321, "height": 203},
    "restart markers": {"restart_marker_blocks": 4},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("channels", [3, 1], ids=["RGB", "L"])
def test_pixels_are_those_of_pillow_nearly(kind: dict[str, Any], channels: int) -> None:
    encoded = batch({row: photograph(row, **kind) for row in range(6)}, 6, channels=channels)
    wanted = expected(encoded)
    found = next(delivery([encoded]))
    assert found.is_cuda
    assert found.dtype is torch.uint8
    for row in range(6):
        assert psnr(found[row], wanted[row]) > 38, row


@pytest.mark.parametrize("layout", ["nchw", "nhwc", "channels_last"])
def test_rows_that_are_pixels_stay_as_they_are_in_every_layout(layout: str) -> None:
    encoded = batch({1: photograph(1), 2: photograph(2, width=200), 5: photograph(3, grey=True)}, 7, layout=layout)
    wanted = expected(encoded)
    strides = wanted.stride()
    found = next(delivery([Picture(encoded, torch.arange(7))]))
    assert found.label.tolist() == list(range(7))
    assert found.image.stride() == strides
    assert psnr(found.image[[1, 2, 5]], wanted[[1, 2, 5]]) > 38
    assert torch.equal(found.image[[0, 3, 4, 6]].cpu(), wanted[[0, 3, 4, 6]])
    if layout == "channels_last":
        assert found.image.is_contiguous(memory_format=torch.channels_last)


def test_the_kernel_is_within_a_level_of_pillow_and_of_torch() -> None:
    pytest.importorskip("triton")
    rng = np.random.default_rng(0)
    num_pictures, height, width = 40, 50, 70
    pictures, regions, boxes, wanted = [], [], [], []
    flips = rng.integers(0, 2, (num_pictures, 2)).astype(bool)
    for number in range(num_pictures):
        h, w = (int(side) for side in rng.integers(2, 500, 2))
        pixels = rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
        left, top = int(rng.integers(0, w - 1)), int(rng.integers(0, h - 1))
        region = (left, top, int(rng.integers(left + 1, w + 1)), int(rng.integers(top + 1, h + 1)))
        low = [region[side] + rng.uniform(0, 0.5) * (region[side + 2] - region[side]) for side in (0, 1)]
        high = [low[side] + rng.uniform(0.3, 1) * (region[side + 2] - low[side]) for side in (0, 1)]
        box = (*low, *high)
        inside = (box[0] - left, box[1] - top, box[2] - left, box[3] - top)
        resized = Image.fromarray(pixels).crop(region).resize((width, height), Image.Resampling.BILINEAR, box=inside)
        turned = flipped(np.asarray(resized), flips[number].tolist())
        wanted.append(torch.from_numpy(turned.copy()).permute(2, 0, 1))
        pictures.append(torch.from_numpy(pixels).permute(2, 0, 1).contiguous().cuda())
        regions.append(region)
        boxes.append(box)
    cuts = Cuts(np.arange(num_pictures)[::-1].copy(), np.array(regions), np.array(boxes), flips)
    for form in (torch.contiguous_format, torch.channels_last):
        found, plain = (
            torch.zeros(num_pictures, 3, height, width, dtype=torch.uint8, device="cuda").to(memory_format=form)
            for _ in range(2)
        )
        cut(pictures, cuts, found)
        cut_one_by_one(pictures, cuts, plain)
        assert (found.int() - plain.int()).abs().max() <= 1
        assert (found.flip(0).cpu().int() - torch.stack(wanted).int()).abs().max() <= 1


def test_they_are_normalized_on_the_device() -> None:
    encoded = batch({row: photograph(row) for row in range(4)}, 4, layout="channels_last")
    widen = Widening(torch.bfloat16, ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    wanted = widen(expected(encoded), "image")
    found = next(delivery([{"image": encoded}], widen=widen))["image"]
    assert found.dtype is torch.bfloat16
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found.float().cpu() - wanted.float()).abs().mean() < 0.05


# ---------------------------------------------------------------- memory and streams


def steps(num_batches: int, *, num_rows: int = 8) -> Iterator[Encoded]:
    """Batches of different sizes, so that memory is used again in other shapes."""
    for number in range(num_batches):
        files = {row: FILES[(number + row) % len(FILES)] for row in range(number % 2, num_rows)}
        yield batch(files, num_rows, seed=number)


FILES = [photograph(number, width=160 + 37 * number, height=120 + 23 * number) for number in range(8)]


def test_values_are_right_while_the_trainer_is_far_behind() -> None:
    """Neither decoded pictures nor batches lose their memory to later ones before they are read."""
    encodeds = list(steps(24))
    wanted = [expected(encoded) for encoded in encodeds]
    kept: list[Tensor] = []
    sums: list[Tensor] = []
    delivered = delivery(iter(encodeds), depth=3, widen=Widening(torch.float32))
    for number in range(24):
        found = next(delivered)
        _cuda._sleep(20_000_000)
        sums.append(found.clone())
        if number % 3 == 0:
            kept.append(found)
        del found
    torch.cuda.synchronize()
    for number in range(24):
        assert psnr(sums[number], wanted[number]) > 38, number
    for number, found in enumerate(kept):
        assert psnr(found, wanted[3 * number]) > 38, number
    delivered.close()


def test_memory_does_not_grow() -> None:
    held: list[int] = []
    for number, _ in enumerate(outcomes(delivery(steps(120)))):
        if number >= 40:
            held.append(torch.cuda.memory_reserved())
    torch.cuda.synchronize()
    assert max(held) == held[0]


def test_a_device_with_little_memory_decodes_fewer_at_a_time() -> None:
    files = {row: photograph(row, width=1600, height=1200) for row in range(8)}  # 46 MB decoded
    encoded = batch(files, 8)
    wanted = expected(encoded)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (30 << 20)) / total)
    try:
        found = next(delivery([encoded]))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert psnr(found, wanted) > 38


def test_two_loaders_decode_at_once() -> None:
    found: dict[int, list[Tensor]] = {0: [], 1: []}

    def run(number: int) -> None:
        delivered = delivery(steps(15))
        for picture in outcomes(delivered):
            found[number].append(picture.cpu())

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = [expected(encoded) for encoded in steps(15)]
    for one, other, right in zip(found[0], found[1], wanted, strict=True):
        assert torch.equal(one, other)
        assert psnr(one, right) > 38


def test_a_consumer_on_a_stream_of_its_own_sees_the_batch_complete() -> None:
    wanted = [expected(encoded) for encoded in steps(6)]
    delivered = delivery(steps(6), depth=3, widen=Widening(torch.float32))
    with torch.cuda.stream(_cuda.Stream()):
        found = [next(delivered).clone() for _ in range(6)]
        torch.cuda.current_stream().synchronize()
    assert all(psnr(one, right) > 38 for one, right in zip(found, wanted))
    delivered.close()


def test_a_graph_may_be_captured_while_files_are_decoded() -> None:
    encodeds = list(steps(4))
    wanted = [expected(encoded) for encoded in encodeds]
    delivered = delivery(encodeds, depth=3)
    x = torch.ones(4, device="cuda")
    found = [next(delivered)]
    graph = _cuda.CUDAGraph()
    with _cuda.graph(graph):
        y = x * 2
        assert delivered._decoding is not None
        for entry in delivered._ahead:
            assert entry.copy is not None
            delivered._decoding.wait(entry.copy.jobs)
        y += 1
    graph.replay()
    assert y.tolist() == [3.0] * 4
    found += outcomes(delivered)
    assert all(psnr(one, right) > 38 for one, right in zip(found, wanted, strict=True))


@pytest.mark.parametrize("end", ["close", "drop"])
def test_leaving_in_the_middle_leaves_a_batch_that_is_whole(end: str) -> None:
    encodeds = list(steps(6))
    wanted = expected(encodeds[0])
    delivered = delivery(encodeds, depth=3)
    found = next(delivered)
    if end == "close":
        delivered.close()
    del delivered
    for encoded in encodeds:
        encoded.data.zero_()  # as a worker would that has the slot again
        encoded.pixels.zero_()
    assert psnr(found, wanted) > 38


# ---------------------------------------------------------------- what nvJPEG refuses


def test_what_is_no_jpeg_is_read_by_the_helper_and_the_next_batch_is_right() -> None:
    files = {row: photograph(row) for row in range(8)}
    encoded = batch(files, 8)
    start, stop = encoded.offsets[3:5].tolist()
    encoded.data[start:stop] = 7
    helper = Helper()

    def read(result: Any, position: Any, row: int) -> Any:
        helper.asked.append(position)
        one = torch.full((1, 3, SIZE, SIZE), 200, dtype=torch.uint8)
        return Picture(one, torch.tensor([-position])), position

    helper.read = read  # type: ignore[method-assign]
    good = batch(files, 8)
    wanted = expected(good)
    delivered = delivery(
        [("first", Picture(encoded, torch.arange(8))), ("second", Picture(good, torch.arange(8)))],
        of=lambda result: result[1],
        replaced=lambda result, batch: (result[0], batch, *result[2:]),
        rescue=helper,
    )
    _, first, notes = next(delivered)
    _, second = next(delivered)
    assert notes == [103]
    assert first.label.tolist() == [0, 1, 2, -103, 4, 5, 6, 7]
    assert (first.image[3] == 200).all()
    rows = [0, 1, 2, 4, 5, 6, 7]
    assert psnr(first.image[rows], wanted[rows]) > 38
    assert psnr(second.image, wanted) > 38
    delivered.close()
