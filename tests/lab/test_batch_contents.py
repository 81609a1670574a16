"""How many samples and bytes there are in a batch, whatever it looks like."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from stoker.lab.trial.batch_contents import num_bytes_in, num_samples_in

Pair = namedtuple("Pair", ["image", "label"])


@dataclass
class Fields:
    image: Any
    names: Any


class Graphs:
    """A batch of graphs, as PyTorch Geometric has it: nodes of all of them in one tensor."""

    num_graphs = 8

    def __init__(self) -> None:
        self.x = torch.zeros(31, 2)


IMAGES, LABELS = torch.zeros(8, 3, 4, 4), torch.zeros(8, dtype=torch.int64)

KINDS = {
    "a tensor": IMAGES,
    "an array": np.zeros((8, 3)),
    "a list of fields": [IMAGES, LABELS],
    "a tuple of a tensor and texts": (IMAGES, ["name"] * 8),
    "a dict": {"image": IMAGES, "label": LABELS, "epoch": 3},
    "a dict in a tuple": (IMAGES, {"boxes": torch.zeros(8, 5, 4)}),
    "nested dicts": {"inputs": {"ids": LABELS, "mask": LABELS}, "targets": {"y": LABELS}},
    "a named tuple": Pair(IMAGES, LABELS),
    "a dataclass": Fields(IMAGES, ["name"] * 8),
    "texts": ["name"] * 8,
    "numbers": list(range(8)),
    "samples with boxes of their own": [{"boxes": torch.zeros(n + 1, 4), "kind": torch.zeros(n + 1)} for n in range(8)],
    "packed rows": {"tokens": torch.zeros(8, 64), "document_ids": torch.zeros(8, 64), "cu_seqlens": torch.zeros(29)},
    "graphs": Graphs(),
    "packed sequences": torch.nn.utils.rnn.pack_sequence([torch.zeros(9 - n, 2) for n in range(8)]),
    "a number beside": (IMAGES, 5),
}


@pytest.mark.parametrize("batch", KINDS.values(), ids=KINDS.keys())
def test_eight_samples_are_found_in(batch: Any) -> None:
    assert num_samples_in(batch) == 8
    assert num_samples_in(batch, expected=8) == 8
    assert num_samples_in(batch, expected=32) == 8, "the last batch of an epoch may be smaller than what is expected"


def test_what_can_be_read_in_two_ways_is_read_as_expected() -> None:
    pictures = [torch.zeros(3, 5, 5) for _ in range(8)]
    assert num_samples_in(pictures, expected=8) == 8
    detection = (pictures, [{"boxes": torch.zeros(n, 4)} for n in range(8)])
    assert num_samples_in(detection, expected=8) == 8


@pytest.mark.parametrize(
    "batch", [None, torch.zeros(()), "text", 3, {}, [], object()], ids=lambda batch: type(batch).__name__
)
def test_what_has_no_length_is_one_sample(batch: Any) -> None:
    assert num_samples_in(batch) == 1


def test_bytes_are_those_of_tensors_arrays_and_texts() -> None:
    assert num_bytes_in(IMAGES) == 8 * 3 * 16 * 4
    assert num_bytes_in({"image": IMAGES, "label": [LABELS, np.zeros(4, np.uint8)], "name": ["ab", b"cde"]}) == (
        8 * 48 * 4 + 8 * 8 + 4 + 5
    )
    assert num_bytes_in(Fields(IMAGES, None)) == num_bytes_in(Pair(IMAGES, None)) == 8 * 48 * 4


def test_a_ring_is_not_followed_forever() -> None:
    ring: list[Any] = [LABELS]
    ring.append(ring)
    assert num_samples_in(ring) >= 1
    assert num_bytes_in(ring) >= 64
