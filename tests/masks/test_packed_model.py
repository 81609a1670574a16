"""The example's model: what it says of a document does not depend on what else is in the row."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stoker

LENGTH = 64
BLOCKS = 16


def example() -> Any:
    """Return the example as a module."""
    path = Path(__file__).parents[2] / "examples" / "packed.py"
    spec = spec_from_file_location("packed_example", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


packed = example()


def documents() -> list[Any]:
    rng = np.random.default_rng(3)
    sizes = [64, 40, 23, 1, 2, 17, 33, 13, 9, 30, 5, 100]  # one fills a row, one is cut
    return [rng.integers(1, packed.VOCAB, size, dtype=np.int64) for size in sizes]


def models(device: str = "cpu") -> tuple[Any, Any]:
    """Return two models of the same weights: for packed rows, and for one document."""
    torch.manual_seed(5)
    model = packed.Model(packed=True)
    for weight in model.parameters():  # larger than at the start of a training, so that attention has a say
        torch.nn.init.normal_(weight, std=0.2)
    alone = packed.Model(packed=False)
    alone.load_state_dict(model.state_dict())
    return model.to(device), alone.to(device)


def differences(attention: str, *, apart: Any = None, device: str = "cpu") -> list[float]:
    """Return, for each span of all rows, how far its logits are from those of the same tokens alone."""
    rows = stoker.pack(documents(), LENGTH, blocks=BLOCKS)
    model, alone = models(device)
    found = []
    for batch in stoker.DataLoader(rows, batch_size=3, order="sequential", device=device if device != "cpu" else None):
        kept = packed.kept_apart(batch, attention) if apart is None else apart
        logits: Tensor = model(batch, kept)
        for row, borders in enumerate(batch["cu_seqlens"].tolist()):
            for begin, end in pairwise(borders):
                if begin < end and batch["document_ids"][row, begin] >= 0:
                    by_itself = {"tokens": batch["tokens"][row : row + 1, begin:end]}
                    expected = alone(by_itself, packed.kept_apart(by_itself, attention, packed=False))
                    found.append(float((logits[row, begin:end] - expected[0]).abs().max()))
    return found


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("attention", ["dense", "flex"])
def test_logits_of_a_document_in_a_pack_are_those_of_the_document_alone(attention: str) -> None:
    with torch.no_grad():  # torch has no backward pass of flex attention on a CPU
        found = differences(attention)
    assert len(found) >= len(documents())
    assert max(found) < 1e-4


@torch.no_grad()
def test_without_the_mask_documents_see_each_other() -> None:
    assert max(differences("dense", apart={"is_causal": True})) > 0.1


def test_a_document_has_the_same_gradient_in_a_pack_and_alone() -> None:
    model, alone = models()
    two = documents()[2:4] + documents()[5:6]
    rows = stoker.pack(two, LENGTH)
    assert len(rows) == 1
    [batch] = stoker.DataLoader(rows, batch_size=1, order="sequential")
    logits = model(batch, packed.kept_apart(batch, "dense"))
    cross_entropy: Any = torch.nn.functional.cross_entropy
    cross_entropy(logits[0], batch["labels"][0], reduction="sum").backward()
    for document in two:
        if len(document) > 1:
            tokens = torch.from_numpy(document)[None]
            logits = alone({"tokens": tokens}, {"is_causal": True})
            cross_entropy(logits[0, :-1], tokens[0, 1:], reduction="sum").backward()
    for ours, theirs in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)
