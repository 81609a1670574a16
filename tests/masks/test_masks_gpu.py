"""On a CUDA device: the same masks and results, nothing that waits for the device, and nothing compiled twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import stoker
from stoker import masks
from tests.masks.rows import Rows
from tests.masks.test_masks import by_torch, flex_attention, scaled_dot_product_attention
from tests.masks.test_packed_model import differences

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # torch's compiler has many
]

_cuda: Any = torch.cuda  # parts of it have no types


@pytest.fixture(scope="module", autouse=True)
def torch_is_started() -> Iterator[None]:
    """What the driver and the compiler open once stays open, and is not a leak of ours."""
    config: Any = __import__("torch._inductor.config").__dict__["_inductor"].config
    before, config.compile_threads = config.compile_threads, 1  # no processes that outlive a test
    torch.zeros(1).pin_memory().to("cuda").sum().item()
    torch.compile(lambda x: x * 2 + 1)(torch.ones(64, device="cuda")).sum().item()
    yield
    config.compile_threads = before


@pytest.fixture(autouse=True)
def everything_is_compiled_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.cuda.synchronize()


def made(seed: int, *, blocks: int | None = 128, num_rows: int = 3, length: int = 1000) -> Rows:
    """Return rows of many documents, all drawn from a seed; the last block of a row is cut short."""
    rng = np.random.default_rng(seed)
    sizes = []
    for _ in range(num_rows):
        borders = np.sort(rng.choice(np.arange(1, length), 7, replace=False))
        sizes.append(np.diff(borders, prepend=0).tolist())
    return Rows(length, sizes, blocks)


def queries(rows: Rows, seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (len(rows.sizes), 4, rows.length, 64)
    return [torch.randn(shape, device="cuda", dtype=dtype, generator=generator).requires_grad_() for _ in range(3)]


def with_gradients(out: Tensor, parts: list[Tensor], seed: int) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    weights = torch.randn(out.shape, device="cuda", generator=generator).to(out.dtype)
    return [out, *torch.autograd.grad(out, parts, weights)]


def same(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=tolerance, atol=tolerance)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Any:
    return flex_attention(query, key, value, block_mask=mask)


def test_masks_are_those_of_the_cpu() -> None:
    rows = made(1)
    on_device, on_host = rows.batch("cuda"), rows.batch()
    assert torch.equal(masks.dense(on_device).cpu(), masks.dense(on_host))
    theirs: Any = by_torch(masks.dense(on_host)[:, 0], 128)
    for ours in (masks.flex(on_device), masks.flex(on_device["document_ids"])):
        assert torch.equal(ours.to_dense().cpu(), theirs.to_dense())
        for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
            assert torch.equal(getattr(ours, name).cpu(), getattr(theirs, name))


@pytest.mark.parametrize(("num_rows", "length"), [(1, 1), (3, 17), (2, 512), (5, 1037)])
def test_the_dense_mask_is_that_of_every_pair(num_rows: int, length: int) -> None:
    ids = torch.randint(-1, 4, (num_rows, length), device="cuda", dtype=torch.int32)
    expected = (ids[:, :, None] == ids[:, None, :]) & torch.ones(length, length, device="cuda", dtype=torch.bool).tril()
    assert torch.equal(masks.dense(ids)[:, 0], expected)
    assert torch.equal(masks.dense(ids.long()[:, ::2])[:, 0], expected[:, ::2, ::2])


def test_the_dense_mask_is_written_by_one_kernel() -> None:
    from stoker.masks.dense_mask import _kernel

    assert _kernel() is not None, "CUDA's torch brings Triton with it"


def test_nothing_waits_for_the_device() -> None:
    rows = made(2)
    batch = {**rows.batch("cuda"), "max_seqlen": torch.full((3,), 900, device="cuda", dtype=torch.int32)}
    masks.dense(batch)
    _cuda.set_sync_debug_mode("error")
    try:
        masks.dense(batch)
        masks.flex(batch)
        masks.flex(batch["document_ids"])
        masks.flash(batch)
        masks.from_eos(batch["document_ids"], 3)
        masks.positions_from_ids(batch["document_ids"])
    finally:
        _cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_flex_attention_and_its_gradient_are_those_of_dense_attention(dtype: torch.dtype) -> None:
    rows = made(3)
    batch = rows.batch("cuda")
    parts = queries(rows, 4, dtype)
    compiled: Any = torch.compile(flex_attention)
    expected = with_gradients(scaled_dot_product_attention(*parts, **masks.sdpa(batch)), parts, 5)
    ids = batch["document_ids"]
    by_torch_itself = create_block_mask(
        lambda b, h, q, k: (ids[b, q] == ids[b, k]) & (k <= q), 3, None, 1000, 1000, "cuda"
    )
    tolerance = 2e-2 if dtype == torch.float32 else 8e-2  # the kernel multiplies in TF32 where it may
    for mask in (masks.flex(batch), masks.flex(batch["document_ids"]), by_torch_itself):
        same(with_gradients(compiled(*parts, block_mask=mask), parts, 5), expected, tolerance)
    # against torch's own mask, through the same kernel: to the bit, but for the order of sums in the backward pass
    ours, theirs = (compiled(*parts, block_mask=mask) for mask in (masks.flex(batch), by_torch_itself))
    assert torch.equal(ours, theirs)


def test_other_batches_are_not_compiled_again() -> None:
    compiled: Any = torch.compile(attend)
    rows = made(6)
    parts = queries(rows, 7)
    config: Any = torch._dynamo.config
    for number in range(4):
        batch = made(10 + number).batch("cuda")
        with config.patch(error_on_recompile=number > 0):
            found = with_gradients(compiled(*parts, masks.flex(batch)), parts, 5)
        expected = with_gradients(scaled_dot_product_attention(*parts, **masks.sdpa(batch)), parts, 5)
        same(found, expected, 2e-2)


def test_varlen_attention_and_its_gradient_are_those_of_dense_attention() -> None:
    attention: Any = pytest.importorskip("torch.nn.attention.varlen").varlen_attn
    rows = made(8, blocks=None)
    batch = rows.batch("cuda")
    parts = queries(rows, 9, torch.bfloat16)
    flat = [part.transpose(1, 2).flatten(0, 1) for part in parts]
    found = attention(*flat, **masks.varlen(batch)).view(3, 1000, 4, 64).transpose(1, 2)
    expected = with_gradients(scaled_dot_product_attention(*parts, **masks.sdpa(batch)), parts, 5)
    same(with_gradients(found, parts, 5), expected, 8e-2)


def test_nested_attention_and_its_gradient_are_those_of_dense_attention() -> None:
    rows = made(8, blocks=None)
    batch = rows.batch("cuda")
    parts = queries(rows, 9, torch.bfloat16)
    query, key, value = (masks.nested(part.transpose(1, 2), batch).transpose(1, 2) for part in parts)
    out = scaled_dot_product_attention(query, key, value, is_causal=True)
    found = out.transpose(1, 2).values().view(3, 1000, 4, 64).transpose(1, 2)
    expected = with_gradients(scaled_dot_product_attention(*parts, **masks.sdpa(batch)), parts, 5)
    same(with_gradients(found, parts, 5), expected, 8e-2)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["dense", "flex"])
def test_logits_of_a_document_in_a_pack_are_those_of_the_document_alone(attention: str) -> None:
    assert max(differences(attention, device="cuda")) < 2e-2


def test_tables_come_ahead_of_time_through_the_loader() -> None:
    rng = np.random.default_rng(2)
    packed = stoker.pack([rng.integers(1, 99, size) for size in rng.integers(5, 700, 60).tolist()], 1024, blocks=128)
    compiled: Any = torch.compile(attend)
    loader = stoker.DataLoader(packed, batch_size=2, shuffle=True, drop_last=True, device="cuda")
    generator = torch.Generator("cuda").manual_seed(1)
    parts = [torch.randn(2, 4, 1024, 64, device="cuda", generator=generator) for _ in range(3)]
    num_steps = 0
    for batch in loader:
        mask = masks.flex(batch)
        assert mask.kv_indices.is_cuda and mask.kv_indices.data_ptr() == batch["kv_indices"].data_ptr()
        expected = scaled_dot_product_attention(*parts, **masks.sdpa(batch))
        same([compiled(*parts, mask)], [expected], 2e-2)
        num_steps += 1
    assert num_steps == len(loader)
