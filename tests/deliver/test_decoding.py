"""Pictures of a batch that are still files: decoded in a thread, in order, and nothing of it is left behind.

A decoder on the CPU stands for the device's.
"""

from __future__ import annotations

import gc
import io
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stoker.batch.encoded import Encoded
from stoker.deliver import Delivery, Widening
from stoker.deliver.cutting import Cuts, cut
from stoker.deliver.decode_thread import DecodeJob, DecodeRunner, DecodeThread
from stoker.deliver.split import DecodeSplit
from stoker.errors import BadImage
from stoker.transform.image.view import flipped
from tests.deliver.test_delivery_cpu import Script

Image = pytest.importorskip("PIL.Image")

CPU = torch.device("cpu")
HEIGHT, WIDTH = 12, 16


class Picture(NamedTuple):
    image: Any
    label: Any


def drawn(number: int, *, width: int = 40, height: int = 30) -> bytes:
    """Return a JPEG file of waves."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    waves = [127 + 100 * np.sin((x * (number % 5 + 1) + y * (channel + 1)) / 17 + number) for channel in range(3)]
    file = io.BytesIO()
    Image.fromarray(np.stack(waves, -1).astype(np.uint8)).save(file, "JPEG", quality=92)
    return file.getvalue()


def decoded(file: Any) -> Any:
    return Image.open(io.BytesIO(bytes(file))).convert("RGB")


def encoded(
    files: dict[int, bytes], num_rows: int = 4, *, layout: str = "nchw", positions: Sequence[int] = ()
) -> Encoded:
    """Return a batch with files in some rows; the others are of one value, their number."""
    pixels = np.zeros((num_rows, 3, HEIGHT, WIDTH), np.uint8)
    if layout != "nchw":
        pixels = np.zeros((num_rows, HEIGHT, WIDTH, 3), np.uint8).transpose(0, 3, 1, 2)
    pixels[:] = np.arange(num_rows, dtype=np.uint8)[:, None, None, None]
    sizes = [Image.open(io.BytesIO(file)).size if file[:2] == b"\xff\xd8" else (40, 30) for file in files.values()]
    regions = [(2, 1, width - 3, height - 2) for width, height in sizes]
    return Encoded(
        pixels,
        np.frombuffer(b"".join(files.values()), np.uint8).copy(),
        np.cumsum([0, *map(len, files.values())]),
        np.array(list(files), np.int64),
        list(positions) or [100 + row for row in files],
        np.array(sizes, np.int64).reshape(-1, 2),
        np.array(regions, np.int64).reshape(-1, 4),
        np.array(regions, np.float64).reshape(-1, 4),
        np.array([(row % 3 == 0, row % 2 == 1) for row in files]),
        is_channels_last=layout == "nhwc",
    )


def expected(batch: Encoded) -> Tensor:
    rows = batch.pixels.clone()
    for number, row in enumerate(batch.rows.tolist()):
        region = tuple(batch.regions[number].tolist())
        picture = decoded(batch.file(number).numpy()).crop(region).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
        rows[row] = torch.from_numpy(flipped(np.asarray(picture), batch.flips[number].tolist()).copy()).permute(2, 0, 1)
    return batch.shaped(rows)


class Fake:
    """Decodes with Pillow; refuses what it cannot, with all that comes with it, as nvJPEG does."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.sizes: list[int] = []
        self.names: set[str] = set()
        self.gate: threading.Event | None = None
        self.most = 1000
        self.in_hand = threading.Event()

    def decode(self, files: Sequence[Tensor], *, num_channels: int) -> list[Tensor]:
        self.sizes.append(len(files))
        self.names.add(threading.current_thread().name)
        self.in_hand.set()
        if self.gate is not None:
            self.gate.wait()
        if len(files) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        try:
            pictures = [np.asarray(decoded(file.numpy())).copy() for file in files]
        except OSError as error:
            raise RuntimeError("Failed to get image info") from error
        return [torch.from_numpy(picture).permute(2, 0, 1) for picture in pictures]


def delivery(steps: Any, fake: Fake | None = None, depth: int = 2, **options: Any) -> Delivery[Any]:
    fake = fake or Fake()
    return Delivery(Script(steps), CPU, depth=depth, decoder=lambda _: fake, **options)


def is_close(found: Tensor, wanted: Tensor) -> bool:
    return found.shape == wanted.shape and int((found.int() - wanted.int()).abs().max()) <= 1


# ---------------------------------------------------------------- values


sizes = st.integers(1, 60)


@given(data=st.data(), width=sizes, height=sizes, is_last=st.booleans(), flips=st.tuples(st.booleans(), st.booleans()))
def test_any_part_of_a_image_is_resized_as_pillow_does(
    data: Any, width: int, height: int, is_last: bool, flips: tuple[bool, bool]
) -> None:
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    region = (left, top, data.draw(st.integers(left + 1, width)), data.draw(st.integers(top + 1, height)))
    inside = st.floats(0, 1)

    def side(first: int, stop: int) -> tuple[float, float]:
        low = first + data.draw(inside) * (stop - first) * 0.9
        return low, low + max(0.05, data.draw(inside)) * (stop - low)

    (x_low, x_high), (y_low, y_high) = side(region[0], region[2]), side(region[1], region[3])
    pixels = np.random.default_rng(width * 61 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = torch.zeros(3, 3, HEIGHT, WIDTH, dtype=torch.uint8)
    if is_last:
        out = out.contiguous(memory_format=torch.channels_last)
    cuts = Cuts(np.array([1]), np.array([region]), np.array([[x_low, y_low, x_high, y_high]]), np.array([flips]))
    cut([torch.from_numpy(pixels).permute(2, 0, 1)], cuts, out)
    box = (x_low - left, y_low - top, x_high - left, y_high - top)
    wanted = Image.fromarray(pixels).crop(region).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR, box=box)
    wanted = flipped(np.asarray(wanted), flips)
    assert is_close(out[1].permute(1, 2, 0), torch.from_numpy(wanted.copy()))
    assert not out[0].any()
    assert not out[2].any()


@pytest.mark.parametrize("layout", ["nchw", "nhwc", "channels_last"])
def test_files_become_pixels_in_their_rows(layout: str) -> None:
    batch = encoded({0: drawn(0), 2: drawn(1, width=61), 3: drawn(2, height=77)}, layout=layout)
    wanted = expected(batch)
    found = next(delivery([Picture(batch, torch.arange(4))]))
    assert type(found) is Picture
    assert found.label.tolist() == [0, 1, 2, 3]
    assert is_close(found.image, wanted)
    assert found.image.shape == ((4, HEIGHT, WIDTH, 3) if layout == "nhwc" else (4, 3, HEIGHT, WIDTH))
    assert (found.image[1] == 1).all()  # as it came


@pytest.mark.parametrize(
    "put", [lambda x: x, lambda x: [x, {"a": x}], lambda x: {"a": (x, 3)}], ids=["bare", "list", "dict"]
)
def test_they_may_be_anywhere_in_a_batch(put: Any) -> None:
    batch = encoded({1: drawn(5)})
    found = next(delivery([put(batch)]))
    wanted = put(expected(batch))

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, Tensor):
            return is_close(one, other)
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
        return one == other if isinstance(one, int) else all(map(same, one, other))

    assert same(found, wanted)


def test_what_was_decoded_is_normalized_like_all_else() -> None:
    batch = encoded({1: drawn(5)})
    widen = Widening(torch.float16, ((0.5,) * 3, (0.5,) * 3))
    found = next(delivery([{"image": batch}], widen=widen))["image"]
    assert found.dtype is torch.float16
    torch.testing.assert_close(found, widen(expected(batch), "image"), atol=0.02, rtol=0)


def test_order_is_kept_and_batches_without_files_come_between() -> None:
    steps: list[Any] = [encoded({1: drawn(number)}) if number % 3 else torch.full((2,), number) for number in range(12)]
    wanted = [expected(step) if isinstance(step, Encoded) else step for step in steps]
    found = list(outcomes(delivery(steps, depth=3)))
    assert all(map(is_close, found, wanted))


def outcomes(engine: Any) -> Iterator[Any]:
    while True:
        try:
            yield next(engine)
        except StopIteration:
            return


# ---------------------------------------------------------------- ahead, in a thread


def test_it_decodes_in_a_thread_while_the_trainer_has_the_batch_before() -> None:
    fake = Fake()
    delivered = delivery([encoded({1: drawn(n)}) for n in range(5)], fake, depth=2)
    next(delivered)
    assert fake.names == {"stoker-decoding"}
    delivered._decoding.wait(delivered._ahead[-1].copy.jobs)  # type: ignore[union-attr]
    assert len(fake.sizes) == 3  # that one, and two more
    assert delivered.is_ready
    delivered.close()


def test_it_is_not_ready_while_it_decodes() -> None:
    fake = Fake()
    delivered = delivery([encoded({1: drawn(n)}) for n in range(5)], fake, depth=1)
    next(delivered)
    delivered._decoding.wait(delivered._ahead[0].copy.jobs)  # type: ignore[union-attr]
    fake.gate = threading.Event()
    next(delivered)
    assert not delivered.is_ready
    fake.gate.set()
    next(delivered)
    delivered.close()


@pytest.mark.parametrize("end", ["close", "drop", "exhaust", "error"])
def test_the_thread_ends(end: str) -> None:
    steps: list[Any] = [encoded({1: drawn(n)}) for n in range(3)]
    if end == "error":
        steps[1] = ValueError("bad")
    delivered = delivery(steps)
    next(delivered)
    assert "stoker-decoding" in {thread.name for thread in threading.enumerate()}
    if end == "close":
        delivered.close()
        delivered.close()
    elif end == "exhaust":
        assert len(list(outcomes(delivered))) == 2
    elif end == "error":
        with pytest.raises(ValueError, match="bad"):
            next(delivered)
    if end != "drop":
        assert "stoker-decoding" not in {thread.name for thread in threading.enumerate()}
    del delivered
    gc.collect()
    assert "stoker-decoding" not in {thread.name for thread in threading.enumerate()}


def test_the_memory_of_files_is_held_while_they_are_decoded_and_no_longer() -> None:
    steps: list[Any] = [encoded({1: drawn(n)}) for n in range(2)]
    gone = weakref.ref(steps[0].data)
    engine = Script(steps)
    fake = Fake()
    delivered: Delivery[Any] = Delivery(engine, CPU, depth=0, decoder=lambda _: fake)
    del steps
    found = next(delivered)
    engine.steps[0] = None
    delivered._decoding.stop()  # type: ignore[union-attr]
    assert gone() is None
    assert found.shape == (4, 3, HEIGHT, WIDTH)
    delivered.close()


class Interrupted(DecodeThread):
    """Somebody presses Ctrl-C while a batch is waited for."""

    presses = 1

    def wait(self, jobs: Sequence[DecodeJob]) -> bool:
        if self.presses:
            self.presses -= 1
            raise KeyboardInterrupt
        return super().wait(jobs)


def test_ctrl_c_ends_the_thread_and_costs_no_batch() -> None:
    batches = [encoded({1: drawn(n)}) for n in range(4)]
    wanted = list(map(expected, batches))
    delivered = delivery(batches)
    delivered._decoding = Interrupted(DecodeRunner(Fake(), CPU))
    with pytest.raises(KeyboardInterrupt):
        next(delivered)
    assert "stoker-decoding" not in {thread.name for thread in threading.enumerate()}
    assert all(map(is_close, outcomes(delivered), wanted))


def test_closing_in_another_thread_ends_the_wait() -> None:
    fake = Fake()
    fake.gate = threading.Event()
    delivered = delivery([encoded({1: drawn(n)}) for n in range(4)], fake)
    seen: list[Any] = []
    waiter = threading.Thread(target=lambda: seen.extend(outcomes(delivered)))
    waiter.start()
    fake.in_hand.wait()
    closer = threading.Thread(target=delivered.close)
    closer.start()
    waiter.join()
    fake.gate.set()
    closer.join()
    assert seen == []


# ---------------------------------------------------------------- files that are refused


class Helper:
    """Reads what was refused: a batch of one, and a note."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[Any] = []

    def read(self, result: Any, position: Any, row: int) -> tuple[Any, Any]:
        self.asked.append(position)
        if self.error is not None:
            raise self.error
        return Picture(torch.full((1, 3, HEIGHT, WIDTH), 200, dtype=torch.uint8), torch.tensor([-position])), position

    def noted(self, result: Any, notes: Sequence[Any]) -> Any:
        return (*result, list(notes))


def rescued(batch: Encoded, helper: Helper | None, **options: Any) -> Any:
    good = encoded({0: drawn(7)})
    delivered = delivery(
        [("first", Picture(batch, torch.arange(len(batch)))), ("second", Picture(good, torch.arange(4)))],
        of=lambda result: result[1],
        replaced=lambda result, batch: (result[0], batch, *result[2:]),
        rescue=helper,
        **options,
    )
    try:
        first = next(delivered)
    finally:
        second = next(delivered)  # whatever becomes of the first
        assert is_close(second[1].image, expected(good))
        delivered.close()
    return first


def test_refused_files_are_found_among_many_and_their_rows_replaced() -> None:
    helper = Helper()
    fake = Fake()
    batch = encoded({row: b"no picture" if row in (5, 13) else drawn(row) for row in range(20)}, num_rows=21)
    name, found, notes = rescued(batch, helper, fake=fake)
    assert name == "first"
    assert helper.asked == notes == [105, 113]
    assert len(fake.sizes) < 30  # halving, not one by one
    good = [row for row in range(21) if row not in (5, 13)]
    assert (found.image[[5, 13]] == 200).all()
    assert found.label.tolist() == [-100 - row if row in (5, 13) else row for row in range(21)]
    assert (found.image[20] == 20).all()
    assert len({found.image[row].sum().item() for row in good}) > 5


def test_what_cannot_be_rescued_is_an_error_in_its_turn() -> None:
    batch = encoded({0: drawn(1), 2: b"no picture"})
    with pytest.raises(BadImage, match="a file"):
        rescued(batch, Helper(BadImage("a file", reason="cut short")))
    with pytest.raises(BadImage, match="position 102 cannot be decoded: Failed to get image info"):
        rescued(encoded({0: drawn(1), 2: b"no picture"}), None)


def test_a_image_of_another_size_than_it_says_is_never_looked_at() -> None:
    batch = encoded({0: drawn(1), 2: drawn(3)})
    batch.sizes[1] += 5
    helper = Helper()
    _, found, notes = rescued(batch, helper)
    assert notes == [102]
    assert (found.image[2] == 200).all()


def test_with_little_memory_fewer_are_decoded_at_a_time() -> None:
    fake = Fake()
    fake.most = 3
    batches = [encoded({row: drawn(row) for row in range(8)}, num_rows=8) for _ in range(2)]
    wanted = list(map(expected, batches))
    found = list(outcomes(delivery(batches, fake)))
    assert all(map(is_close, found, wanted))
    assert fake.sizes == [8, 4, 2, 2, 4, 2, 2, 2, 2, 2, 2]  # the second batch knows


def test_with_no_memory_at_all_the_error_says_what_to_do() -> None:
    fake = Fake()
    fake.most = 0
    with pytest.raises(torch.OutOfMemoryError) as caught:
        next(delivery([encoded({0: drawn(0), 1: drawn(1)})], fake))
    assert any("smaller batch_size" in note for note in caught.value.__notes__)


def test_a_device_that_is_lost_is_no_fault_of_a_file() -> None:
    class Lost(Fake):
        def decode(self, files: Sequence[Tensor], *, num_channels: int) -> list[Tensor]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    helper = Helper()
    delivered = delivery([encoded({0: drawn(0), 1: drawn(1)})], Lost(), rescue=helper)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        next(delivered)
    assert not helper.asked


# ---------------------------------------------------------------- who is waited for


class Noting(DecodeSplit):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, bool, bool]] = []

    def note(self, now: float, *, for_workers: float, for_device: float, whole: float) -> None:
        self.seen.append((for_workers > 0, for_device > 0, whole > 0))


def test_it_is_told_who_was_waited_for() -> None:
    split = Noting()
    engine = Script([encoded({1: drawn(n)}) for n in range(6)], num_ready=0)
    fake = Fake()
    delivered: Delivery[Any] = Delivery(engine, CPU, depth=1, decoder=lambda _: fake, split=split)
    next(delivered)  # nothing was ready
    engine.num_ready = 3
    next(delivered)  # it only comes now, and another one with it
    next(delivered)  # which was there before
    assert [(workers, device) for workers, device, _ in split.seen] == [(True, False), (True, False), (False, True)]
    assert split.seen[-1][2]
    delivered.close()
