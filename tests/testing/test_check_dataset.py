"""`stoker.testing.check_dataset`: good datasets pass, and each broken promise is named with values."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset, IterableDataset, Subset

import stoker
from stoker.compose.images import Images
from stoker.source.protocols import Empty
from stoker.testing import CheckFailed, check_dataset
from stoker.transform import CenterCrop, Resize
from tests.compose.image_sets import InMemory

VALUES = np.arange(40 * 3, dtype=np.float32).reshape(40, 3)


class Rows(Dataset[Any]):
    """Offers everything, and keeps every promise."""

    is_pure = True
    fingerprint = "rows"

    def __len__(self) -> int:
        return len(VALUES)

    def __getitem__(self, position: int) -> Any:
        return {"values": VALUES[position], "position": position}

    def __getitems__(self, positions: list[int]) -> list[Any]:
        return [self[position] for position in positions]

    def __getbatch__(self, positions: Any, empty: Empty) -> Any:
        values = empty((len(positions), 3), np.float32)
        np.take(VALUES, positions, 0, values)
        return {"values": values, "position": np.asarray(positions, np.int64)}

    def open_batch(self, num_samples: int, empty: Empty, hint: Any) -> Writer:
        return Writer(self, num_samples, empty)

    def batch_hint(self) -> int:
        return 3

    def describe(self, position: int) -> str:
        return f"row {position}"


class Writer:
    def __init__(self, rows: Rows, num_samples: int, empty: Empty) -> None:
        self.rows = rows
        self.values = empty((num_samples, 3), np.float32)
        self.positions = empty((num_samples,), np.int64)

    def write(self, row: int, position: int) -> None:
        self.values[row] = VALUES[position]
        self.positions[row] = position

    def batch(self) -> Any:
        return {"values": self.values, "position": self.positions}


def test_a_dataset_that_offers_everything_passes() -> None:
    done = check_dataset(Rows())
    assert {"__getitems__", "__getbatch__", "open_batch", "is_pure", "describe", "fingerprint", "pickling"} <= {*done}


class Plain(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, position: int) -> Any:
        return position, [float(position)], "text"


class Keyed(Plain):
    def __getitem__(self, position: int) -> Any:
        return stoker.rng().random(3), position


class Global(Plain):
    def __getitem__(self, position: int) -> Any:
        return random.random(), position


@pytest.mark.parametrize(
    "dataset", [Plain(), Keyed(), Global(), Subset(Rows(), [3, 1, 7])], ids=lambda it: type(it).__name__
)
def test_plain_and_random_datasets_pass(dataset: Any) -> None:
    assert "pickling" in check_dataset(dataset, other_process=False)


class FewInEach(Rows):
    def __getitems__(self, positions: list[int]) -> list[Any]:
        return super().__getitems__(positions)[1:]


class SortedMany(Rows):
    def __getitems__(self, positions: list[int]) -> list[Any]:
        return super().__getitems__(sorted(positions))


class OnceEach(Rows):
    def __getitems__(self, positions: list[int]) -> list[Any]:
        return super().__getitems__(list(dict.fromkeys(positions)))


class OtherType(Rows):
    def __getbatch__(self, positions: Any, empty: Empty) -> Any:
        batch = super().__getbatch__(positions, empty)
        return batch | {"values": batch["values"].astype(np.float64)}


class LostField(Rows):
    def __getbatch__(self, positions: Any, empty: Empty) -> Any:
        return {"values": super().__getbatch__(positions, empty)["values"]}


class NotPure(Rows):
    def __getbatch__(self, positions: Any, empty: Empty) -> Any:
        random.random()
        return super().__getbatch__(positions, empty)


class OffByOne(Rows):
    def open_batch(self, num_samples: int, empty: Empty, hint: Any) -> Writer:
        return OffByOneWriter(self, num_samples, empty)


class OffByOneWriter(Writer):
    def write(self, row: int, position: int) -> None:
        super().write(row, position)
        self.values[row] += 1


class InTurn(Rows):
    def open_batch(self, num_samples: int, empty: Empty, hint: Any) -> Writer:
        return InTurnWriter(self, num_samples, empty)


class InTurnWriter(Writer):
    """Takes the rows as they come, and not as they are numbered."""

    num_written = 0

    def write(self, row: int, position: int) -> None:
        super().write(self.num_written, position)
        self.num_written += 1


class Moving(Plain):
    """What it returns depends on what was read before, without any random number."""

    last = -1

    def __getitem__(self, position: int) -> Any:
        self.last, last = position, self.last
        return position, last < position


class OneBuffer(Plain):
    """Returns the same memory each time, written through a shared cursor."""

    def __init__(self) -> None:
        self.at, self.turn = 0, threading.Event()

    def __getstate__(self) -> dict[str, Any]:
        return {"at": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def __getitem__(self, position: int) -> Any:
        self.at = position
        self.turn.wait(0.002)  # as if a file were read: another thread moves the place
        return self.at


class NotPicklable(Plain):
    def __init__(self) -> None:
        self.read = lambda position: position


class Forgets(Plain):
    length = 10

    def __init__(self) -> None:
        self.length = 12

    def __len__(self) -> int:
        return self.length

    def __getstate__(self) -> dict[str, Any]:
        return {"nothing": None}


class LateEpoch(Plain):
    """Has another content with each call."""

    seen = 0

    def in_epoch(self, epoch: int) -> LateEpoch:
        self.seen += 1
        view = LateEpoch()
        view.seen = self.seen
        return view

    def __getitem__(self, position: int) -> Any:
        return position + 100 * self.seen


class NoDescription(Rows):
    def describe(self, position: int) -> str:
        raise KeyError(position)


class HashFingerprint(Rows):
    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        return str(hash("the name of a file"))


class MethodFingerprint(Rows):
    def fingerprint(self) -> str:  # type: ignore[override]
        return "rows"


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (FewInEach(), r"__getitems__: returned 15 samples for 16 positions in order"),
        (SortedMany(), r"__getitems__: position 39, in reverse order: \['values'\]\[0\] is 0.0, not 117.0"),
        (OnceEach(), r"__getitems__: returned 16 samples for 18 positions with positions that come twice"),
        (OtherType(), r"__getbatch__: .*\['values'\] is torch.float64 .*not torch.float32"),
        (LostField(), r"__getbatch__: .*has \['values'\], not \['values', 'position'\]"),
        (NotPure(), r"is_pure: is_pure is True, but __getbatch__ drew"),
        (OffByOne(), r"open_batch: .*\['values'\]\[0, 0\] is 1.0, not 0.0"),
        (InTurn(), r"open_batch: rows written by 4 threads"),
        (Moving(), r"(any order|the same samples again): position"),
        (OneBuffer(), r"several threads: position \d+, read by 4 threads at once: the whole is \d, not \d"),
        (NotPicklable(), r"pickling: pickling raised"),
        (Forgets(), r"pickling: the pickled dataset has 10 samples, not 12"),
        (LateEpoch(), r"in_epoch: position 0 of epoch 0"),
        (NoDescription(), r"describe: describe\(0\) raised KeyError"),
        (HashFingerprint(), r"fingerprint: it is '-?\d+' elsewhere, and was '-?\d+'"),
        (MethodFingerprint(), r"fingerprint: it is <bound method .*not a string: make it a property"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Dataset) else "",
)
def test_each_broken_promise_is_named_with_values(dataset: Any, message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        check_dataset(dataset, other_process=isinstance(dataset, HashFingerprint))


class Stream(IterableDataset[int]):
    def __init__(self, start: int = 0, stop: int = 11, step: int = 1) -> None:
        self.start, self.stop, self.step, self.at = start, stop, step, 0

    def __iter__(self) -> Iterator[int]:
        numbers = range(self.start, self.stop, self.step)
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1]
        self.at = 0

    def split(self, index: int, count: int) -> Stream:
        return type(self)(index, self.stop, count)

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


class LosesTheRest(Stream):
    def split(self, index: int, count: int) -> Stream:
        size = self.stop // count
        return Stream(index * size, (index + 1) * size)


class OneLate(Stream):
    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"] + 1


def test_a_stream_and_its_parts_are_checked() -> None:
    assert check_dataset(Stream()) == ("iteration", "pickling", "split", "state_dict")
    with pytest.raises(CheckFailed, match="split: 2 parts together lack 1 samples and have 0 too many, of 11"):
        check_dataset(LosesTheRest())
    with pytest.raises(CheckFailed, match="state_dict: what follows a state after 5 samples has 5 samples, not 6"):
        check_dataset(OneLate())


def test_what_we_offer_ourselves_passes(tmp_path: Path) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"line {number}\n" for number in range(30)))
    np.save(tmp_path / "array.npy", np.arange(60, dtype=np.float32).reshape(20, 3))
    array = stoker.open(tmp_path / "array.npy")
    packed = stoker.pack([np.arange(length, dtype=np.int32) for length in (5, 3, 8, 2, 6, 7, 1, 4)], length=8)
    mixture = stoker.mix({"a": (array, 1), "b": (stoker.open(tmp_path / "array.npy"), 2)})
    images = Images(InMemory(), transform=[Resize(16), CenterCrop(12)])
    for dataset in (stoker.Lines(text), array, packed, mixture, images):
        assert "pickling" in check_dataset(dataset, other_process=False), dataset
    assert "split" in check_dataset(stoker.Lines(text).stream())


class PerEpoch(Plain):
    epoch = 0

    def in_epoch(self, epoch: int) -> PerEpoch:
        view = PerEpoch()
        view.epoch = epoch
        return view

    def __getitem__(self, position: int) -> Any:
        return position + 100 * self.epoch


class PassesOn(Plain):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getitem__(self, position: int) -> Any:
        return self.inner[position]

    def in_epoch(self, epoch: int) -> PassesOn:
        return PassesOn(self.inner.in_epoch(epoch))


def test_a_wrapper_that_hides_the_epochs_is_noticed() -> None:
    with pytest.warns(UserWarning, match=r"in_epoch\(\) that its wrapper does not pass on"):
        stoker.DataLoader(Subset(PerEpoch(), [1, 2, 3]), batch_size=2)
    for dataset in (PerEpoch(), PassesOn(PerEpoch())):
        loader: Any = stoker.DataLoader(dataset, batch_size=10)
        assert [batch.min().item() for epoch in range(2) for batch in loader] == [0, 100]
