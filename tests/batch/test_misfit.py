"""Errors of collation: which sample, which field, what is there, and what to write instead."""

from __future__ import annotations

import re
from collections import namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import stoker
from stoker.batch.misfit import first_misfit
from stoker.compose.images import Images
from tests.compose.picture_sets import InMemory
from tests.loader.datasets import Counting

TORCHS = (RuntimeError, TypeError, KeyError)
"""What torch's collation raises, and so does ours."""

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Record:
    name: str
    values: Any


def picture(size: int = 4) -> Any:
    return Image.new("RGB", (size, 3))


def shaped(*shape: int) -> Any:
    return np.zeros(shape)


CASES: dict[str, tuple[list[Any], str]] = {
    "pil": ([0, picture()], "sample at position 1 is a PIL image, 4 x 3\nhint: .*np.array(image); or "),
    "list of pil": ([[picture(), 1]] * 2, "sample[0] at position 0 is a PIL image, 4 x 3\nhint: return arr"),
    "none": ([1, 2, None], "sample at position 2 is None\nhint: return a sample; .*on_error='skip'"),
    "no label": ([(1, None)] * 2, "sample[1] at position 0 is None\nhint: return what stands for nothing"),
    "ragged tensors": (
        [torch.zeros(2), torch.zeros(3)],
        "sample at position 1 has the shape (3,), unlike the one at position 0, which has (2,)\nhint: pad, crop or",
    ),
    "ragged arrays": (
        [{"a": 1, "b": [shaped(2, 4), shaped(1)]}, {"a": 2, "b": [shaped(3, 4), shaped(1)]}],
        "sample['b'][0] at position 1 has the shape (3, 4), unlike the one at position 0, which has (2, 4)\n",
    ),
    "ragged lists": (
        [{"boxes": [1, 2]}, {"boxes": [1]}],
        "sample['boxes'] at position 1 has 1 elements, unlike the one at position 0, which has 2 elements\nhint: pad",
    ),
    "missing": (
        [{"a": 1, "b": 2}, {"a": 1}],
        "sample at position 1 has no 'b', unlike the one at position 0, which has\nhint: give every sample the same",
    ),
    "other types": (
        [(1, {"a": 1}), (1, [1])],
        "sample[1] at position 1 ",
    ),
    "number and list": ([1, [1]], "is of type list, unlike the one at position 0, which is of type int"),
    "named tuple": ([Pair(1, shaped(2)), Pair(1, shaped(1))], "sample.right at position 1 has the shape"),
    "dataclass": (
        [Record("a", {1}), Record("b", {2})],
        "sample.values at position 0 is of type set\nhint: return",
    ),
    "mapping": ([MappingProxyType({"a": object()})] * 2, "sample['a'] at position 0 is of type object\nhint: "),
    "strings": ([np.array(["a", "b"])] * 2, "sample at position 0 is an array of dtype <U1\nhint: return"),
}


@pytest.mark.parametrize(("samples", "words"), CASES.values(), ids=CASES)
def test_what_does_not_fit_is_named_with_what_to_write(samples: Any, words: str) -> None:
    expected = re.escape(words).replace(r"\.\*", ".*")
    options: Any
    for options in ({}, {"num_threads": 1}):
        with pytest.raises(TORCHS) as caught:
            list(stoker.DataLoader(samples, batch_size=len(samples), **options))
        notes = "\n".join(caught.value.__notes__)
        assert re.search(expected, notes), notes
        assert "or pass a collate_fn: collate_fn=list" in notes
        assert "raised while collating positions 0, 1" in notes
        del caught
    assert list(stoker.DataLoader(samples, batch_size=len(samples), collate_fn=list)) == [samples]


def test_a_worker_says_it_too_and_positions_are_those_of_the_dataset() -> None:
    samples = [torch.zeros(size) for size in (1, 1, 2, 1)]
    loader: Any = stoker.DataLoader(samples, batch_size=2, sampler=[3, 2], num_workers=1)
    with pytest.raises(RuntimeError) as caught:
        list(loader)
    assert "sample at position 2 has the shape (2,), unlike the one at position 3, which has (1,)" in "\n".join(
        caught.value.__notes__
    )
    del caught


def test_a_stream_is_counted() -> None:
    class Holey(Counting):
        def __iter__(self) -> Any:
            return iter([1, 2, 3, 4, None, 6])

    with pytest.raises(TORCHS) as caught:
        list(stoker.DataLoader(Holey(), batch_size=3))
    assert any(note.startswith("sample at position 4 is None") for note in caught.value.__notes__)


def crops(image: Any) -> Any:
    return [image.crop((0, 0, 8, 8)), image.crop((4, 4, 12, 12))]


def test_a_transform_that_returns_pil_images_is_shown_by_the_file() -> None:
    images: Any = Images(InMemory(4), transform=crops)
    dataset: Any
    for dataset in (images, torch.utils.data.Subset(images, [2, 3])):
        with pytest.raises(TORCHS) as caught:
            next(iter(stoker.DataLoader(dataset, batch_size=2)))
        notes = "\n".join(caught.value.__notes__)
        where = r"sample\[0\] at shelf/0\.jpg" if dataset is images else r"sample\.image\[0\] at position 0"
        assert re.search(rf"{where} is a PIL image, 8 x 8\nhint: return arrays or tensors: np\.array\(image\)", notes)


def test_errors_of_a_collate_function_of_the_users_are_its_own() -> None:
    def collate(samples: Any) -> Any:
        raise ValueError(len(samples))

    with pytest.raises(ValueError, match="2") as caught:
        list(stoker.DataLoader([1, None], batch_size=2, collate_fn=collate))
    assert not any("hint" in note for note in caught.value.__notes__)


def test_what_fits_has_no_misfit() -> None:
    samples = [{"a": (1, "x", b"y"), "b": [torch.zeros(2)], "c": Pair(np.float32(1), 2.5)}] * 3
    assert first_misfit(samples) is None
    assert first_misfit([1, np.int64(2), True, 2.5]) is None
