"""One mask, whoever makes it: pair by pair, from ids, from end tokens, as blocks, by torch itself."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention as flex_room
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

import stoker
from stoker import masks
from stoker.compose.packs.block_tables import (
    COUNTS,
    INDICES,
    block_fields,
    block_tables,
    block_tables_by_numpy,
    num_blocks,
)
from stoker.errors import ArgumentError
from tests.masks.rows import Rows, rows

EOS = 7

flex_attention: Any = flex_room.flex_attention  # types know no starred arguments
scaled_dot_product_attention: Any = torch.nn.functional.scaled_dot_product_attention


def tokens_of(made: Rows) -> Tensor:
    """Return tokens of which each document's last is the end token, and no other."""
    tokens = torch.arange(len(made.sizes) * made.length).reshape(len(made.sizes), -1) % 5
    for row, sizes in enumerate(made.sizes):
        tokens[row, (np.cumsum(sizes) - 1).tolist()] = EOS
    return tokens


def reset_at_ends(tokens: Tensor, eos_id: int) -> Tensor:
    """Return the mask as it is published: a triangle, with a corner cleared behind every end token."""
    num_rows, length = tokens.shape
    mask = torch.ones(num_rows, length, length, dtype=torch.bool).tril()
    for row in range(num_rows):
        for end in torch.nonzero(tokens[row] == eos_id).flatten().tolist():
            mask[row, end + 1 :, : end + 1] = False
    return mask


def by_torch(mask: Tensor, size: int) -> BlockMask:
    return create_block_mask(
        lambda b, h, q, k: mask[b, q, k], len(mask), None, mask.shape[-1], mask.shape[-1], "cpu", BLOCK_SIZE=size
    )


def expanded(mask: BlockMask) -> Tensor:
    """Return all pairs of a block mask: full blocks whole, partial ones by its function."""
    [size, _], [length, _] = mask.BLOCK_SIZE, mask.seq_lengths
    assert mask.mask_mod is not None and mask.full_kv_num_blocks is not None
    num_rows = len(mask.kv_num_blocks)
    seen = create_mask(mask.mask_mod, num_rows, 1, length, length, "cpu")
    pairs = torch.zeros(num_rows, 1, length, length, dtype=torch.bool)
    tables: Any = mask
    for row in range(num_rows):
        for query in range(tables.kv_indices.shape[-2]):
            at = slice(query * size, (query + 1) * size)
            for key in tables.kv_indices[row, 0, query, : tables.kv_num_blocks[row, 0, query]].tolist():
                there = slice(key * size, (key + 1) * size)
                pairs[row, 0, at, there] = seen[row, 0, at, there]
            for key in tables.full_kv_indices[row, 0, query, : tables.full_kv_num_blocks[row, 0, query]].tolist():
                pairs[row, 0, at, key * size : (key + 1) * size] = True
    return pairs


def same_tables(ours: Any, theirs: Any) -> None:
    """Compare counts, what lists hold, and that the rest of them is 0."""
    for count, indices in zip(COUNTS, INDICES):
        counts, expected = getattr(ours, count), getattr(theirs, count)
        assert counts.dtype == expected.dtype == torch.int32
        assert torch.equal(counts, expected), count
        lists, expected = getattr(ours, indices), getattr(theirs, indices)
        assert lists.dtype == expected.dtype == torch.int32
        is_listed = torch.arange(lists.shape[-1]) < counts[..., None]
        assert torch.equal(lists, torch.where(is_listed, expected, 0)), indices


@given(made=rows())
def test_the_dense_mask_is_the_brute_force_one(made: Rows) -> None:
    batch = made.batch()
    mask = masks.dense(batch)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, made.brute_force()[:, None])
    assert torch.equal(masks.dense(batch["document_ids"]), mask)
    assert mask.any(-1).all()  # no query without a key, also on the padding


@given(made=rows(is_filled=True))
def test_rows_without_padding_have_the_mask_of_their_end_tokens(made: Rows) -> None:
    batch, tokens = made.batch(), tokens_of(made)
    assert torch.equal(masks.document_ids_from_eos(tokens, EOS), batch["document_ids"])
    mask = masks.from_eos(tokens, EOS)[:, 0]
    assert torch.equal(mask, masks.dense(batch)[:, 0])
    assert torch.equal(mask, reset_at_ends(tokens, EOS))


@given(tokens=st.lists(st.lists(st.sampled_from([1, 2, EOS]), min_size=9, max_size=9), min_size=1, max_size=3))
def test_any_tokens_have_the_published_mask(tokens: list[list[int]]) -> None:
    assert torch.equal(masks.from_eos(torch.tensor(tokens), EOS)[:, 0], reset_at_ends(torch.tensor(tokens), EOS))


@given(made=rows())
def test_positions_restart_where_ids_change(made: Rows) -> None:
    ids = made.batch()["document_ids"]
    positions = masks.positions_from_ids(ids)
    assert positions.dtype == torch.int32
    for row, sizes in enumerate(made.sizes):
        spans = (*sizes, made.length - sum(sizes))
        assert positions[row].tolist() == [place for size in spans for place in range(size)]


@given(made=rows())
def test_block_tables_of_the_cpu_and_of_the_device_are_those_of_torch(made: Rows) -> None:
    assert made.blocks is not None
    batch = made.batch()
    theirs = by_torch(made.brute_force(), made.blocks)
    given_ = masks.flex(batch, blocks=made.blocks if made.length <= made.blocks else None)
    computed = masks.flex(batch["document_ids"], blocks=made.blocks)
    for ours in (given_, computed):
        same_tables(ours, theirs)
        assert ours.seq_lengths == (made.length, made.length)
        assert (made.blocks, made.blocks) == ours.BLOCK_SIZE or made.length <= made.blocks
        assert torch.equal(ours.to_dense(), theirs.to_dense())
    assert torch.equal(expanded(given_), made.brute_force()[:, None])


@pytest.mark.parametrize("fill", [block_tables, block_tables_by_numpy])
@given(made=rows(), data=st.data())
def test_tables_are_written_to_the_rows_asked_for_and_no_others(fill: Any, made: Rows, data: st.DataObject) -> None:
    assert made.blocks is not None
    batch = {name: values.numpy() for name, values in made.batch().items()}
    num_rows = len(made.sizes)
    at = np.array(data.draw(st.permutations(range(num_rows + 2))))[:num_rows]
    fields = block_fields(made.length, made.blocks)
    out = {name: np.full((num_rows + 2, *shape), -9, kind) for name, (shape, kind) in fields.items()}
    fill(batch["cu_seqlens"], made.length, made.blocks, out, at)
    others = np.setdiff1d(np.arange(num_rows + 2), at)
    for name, values in out.items():
        assert (values[at] == batch[name]).all()
        assert (values[others] == -9).all()


@given(made=rows())
def test_borders_of_the_flat_batch_cut_it_into_the_same_spans(made: Rows) -> None:
    batch = made.batch()
    arguments = masks.flash(batch)
    borders = arguments["cu_seqlens_q"]
    num_rows, num_spans = len(made.sizes), batch["cu_seqlens"].shape[1] - 1
    assert borders.dtype == torch.int32 and borders.shape == (num_rows * num_spans + 1,)
    spans = [size for sizes in made.sizes for size in (*sizes, made.length - sum(sizes)) if size]
    assert [size for size in borders.diff().tolist() if size] == spans
    assert (borders.diff() >= 0).all() and borders[0] == 0 and borders[-1] == num_rows * made.length
    assert arguments["max_seqlen_q"] == arguments["max_seqlen_k"] == made.length
    assert arguments["cu_seqlens_k"] is borders and arguments["causal"] is True
    alone = masks.flash(batch["cu_seqlens"], length=made.length, max_seqlen=made.length + 1)
    assert torch.equal(alone["cu_seqlens_q"], borders) and alone["max_seqlen_q"] == made.length + 1


def test_a_bound_in_the_batch_is_used_where_reading_it_costs_nothing() -> None:
    batch = {**Rows(16, [[4, 8], [2]]).batch(), "max_seqlen": torch.tensor([9, 9], dtype=torch.int32)}
    assert masks.flash(batch)["max_seqlen_q"] == 9
    batch["max_seqlen"] = torch.empty(2, dtype=torch.int32, device="meta")  # as on a device: there is nothing to read
    assert masks.flash(batch)["max_seqlen_q"] == 16


def test_arguments_for_varlen_attention_are_those_it_takes() -> None:
    attention = pytest.importorskip("torch.nn.attention.varlen")
    batch = Rows(16, [[4, 8], [2]]).batch()
    arguments = masks.varlen(batch)
    bound = inspect.signature(attention.varlen_attn).bind("query", "key", "value", **arguments)
    assert torch.equal(bound.arguments["cu_seq_q"], masks.flash(batch)["cu_seqlens_q"])
    assert bound.arguments["max_q"] == bound.arguments["max_k"] == 16


def test_a_torch_without_varlen_attention_is_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.nn.attention.varlen", None)
    with pytest.raises(ArgumentError, match="has no torch.nn.attention.varlen(.|\n)*2.10"):
        masks.varlen(Rows(16, [[4]]).batch())


QUERIES = torch.randn(3, 2, 2, 24, 8, generator=torch.Generator().manual_seed(1))
"""Queries, keys and values of two rows, two heads and 24 columns."""
PACKED = Rows(24, [[5, 1, 10], [24]], blocks=8)


def test_attention_is_that_of_each_document_alone() -> None:
    out = scaled_dot_product_attention(*QUERIES, **masks.sdpa(PACKED.batch()))
    for row, sizes in enumerate(PACKED.sizes):
        begin = 0
        for size in sizes:
            alone = QUERIES[:, row : row + 1, :, begin : begin + size]
            expected = scaled_dot_product_attention(*alone, is_causal=True)
            torch.testing.assert_close(out[row : row + 1, :, begin : begin + size], expected)
            begin += size


def test_a_nested_view_attends_within_documents() -> None:
    batch = PACKED.batch()
    query, key, value = (masks.nested(values.transpose(1, 2), batch).transpose(1, 2) for values in QUERIES)
    assert query.is_nested
    parts = zip(query.unbind(), key.unbind(), value.unbind())
    # element by element: torch has no kernel for nested attention on every CPU
    outs = [scaled_dot_product_attention(*(part[None] for part in three), is_causal=True)[0] for three in parts]
    found = torch.cat([out.transpose(0, 1) for out in outs]).reshape(2, 24, 2, 8)
    expected = scaled_dot_product_attention(*QUERIES, **masks.sdpa(batch))
    torch.testing.assert_close(found.transpose(1, 2), expected)


def test_a_nested_view_is_a_view() -> None:
    values = torch.zeros(2, 24, 3)
    viewed = masks.nested(values, PACKED.batch())
    values += 1
    assert viewed.values().sum() == values.numel()
    spans = PACKED.batch()["cu_seqlens"].diff(dim=1)
    assert [len(part) for part in viewed.unbind()] == spans[spans > 0].tolist()  # none is empty


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("with_tables", [True, False])
def test_flex_attention_is_dense_attention(with_tables: bool) -> None:
    batch = PACKED.batch()
    mask = masks.flex(batch) if with_tables else masks.flex(batch["document_ids"], blocks=8)
    found = flex_attention(*QUERIES, block_mask=mask)
    torch.testing.assert_close(found, scaled_dot_product_attention(*QUERIES, **masks.sdpa(batch)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("is_inside", [False, True], ids=["made outside", "made inside"])
def test_what_was_compiled_takes_the_masks_of_other_batches(is_inside: bool) -> None:
    torch._dynamo.reset()
    config: Any = torch._dynamo.config

    def attend(parts: Tensor, given_: Any) -> Tensor:
        found: Tensor = flex_attention(*parts, block_mask=masks.flex(given_) if is_inside else given_)
        return found

    compiled: Any = torch.compile(attend, backend="eager", fullgraph=True)
    for number, sizes in enumerate(([[5, 1, 10], [24]], [[24], [2]], [[1] * 24, [8, 8, 8]])):
        batch = Rows(24, sizes, blocks=8).batch()
        batch["cu_seqlens"] = batch["cu_seqlens"][:, :3].contiguous()  # as wide in all batches, as packs make them
        with config.patch(error_on_recompile=number > 0):
            found = compiled(QUERIES, batch if is_inside else masks.flex(batch))
        torch.testing.assert_close(found, scaled_dot_product_attention(*QUERIES, **masks.sdpa(batch)))
    torch._dynamo.reset()


def test_a_single_row_is_a_batch_of_one_and_arrays_will_do() -> None:
    row = {name: values[0].numpy() for name, values in PACKED.batch().items()}
    assert torch.equal(masks.dense(row), masks.dense(PACKED.batch())[:1])
    same_tables(masks.flex(row), by_torch(PACKED.brute_force()[:1], 8))
    assert masks.flash(row)["cu_seqlens_q"].tolist() == row["cu_seqlens"].tolist()


def test_ids_and_positions_are_made_of_batches_and_arrays_too() -> None:
    tokens: Any = np.array([[5, 0, 7, 0, 9]], np.uint16)
    ids = masks.document_ids_from_eos(tokens, 0)
    assert ids.tolist() == [[0, 0, 1, 1, 2]]
    assert torch.equal(masks.document_ids_from_eos({"tokens": tokens}, 0), ids)
    forms: list[Any] = [ids, ids.numpy(), {"document_ids": ids}]
    for given_ids in forms:
        assert masks.positions_from_ids(given_ids).tolist() == [[0, 1, 0, 1, 0]]


def test_borders_are_of_32_bits_also_where_they_were_widened() -> None:
    for num_rows in (1, 2):
        batch = {name: values[:num_rows].long() for name, values in PACKED.batch().items()}
        assert masks.flash(batch)["cu_seqlens_q"].dtype == torch.int32


def test_wrapping_given_tables_copies_nothing() -> None:
    batch = PACKED.batch()
    mask: Any = masks.flex(batch)
    for name in (*COUNTS, *INDICES):
        assert getattr(mask, name).data_ptr() == batch[name].data_ptr()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no 'document_ids': it holds 'tokens'(.|\n)*stoker.pack"):
        masks.dense({"tokens": torch.zeros(1, 4)})
    with pytest.raises(ArgumentError, match=r"\(2, 3, 4\)"):
        masks.dense(torch.zeros(2, 3, 4, dtype=torch.int32))
    with pytest.raises(ArgumentError, match="not blocks of 128(.|\n)*leave out"):
        masks.flex(PACKED.batch(), blocks=128)
    batch = PACKED.batch()
    del batch["q_indices"]
    with pytest.raises(ArgumentError, match="no 'q_indices'"):
        masks.flex(batch)
    with pytest.raises(ArgumentError, match="the length of a row"):
        masks.flash(batch["cu_seqlens"])
    with pytest.raises(ArgumentError, match="32 bits"):
        masks.flash(batch["cu_seqlens"], length=2**30)
    sizes: list[Any] = [0, 1, 100]
    for wrong in (2.0, "128"):
        with pytest.raises(ArgumentError, match="power of two"):
            masks.flex(batch["document_ids"], blocks=wrong)  # type: ignore[arg-type]
    for size in sizes:
        with pytest.raises(ArgumentError, match="power of two"):
            masks.flex(batch["document_ids"], blocks=size)
        with pytest.raises(ArgumentError, match="power of two"):
            num_blocks(24, size)


@given(length=st.integers(2, 5000), power=st.integers(1, 12))
def test_the_block_size_is_shown_by_the_tables(length: int, power: int) -> None:
    from stoker.masks.block_mask import _size

    num = num_blocks(length, 1 << power)
    assert _size(length, num, None) == 1 << power or num == 1
    assert _size(length, num, 1 << power) == 1 << power or num == 1


def test_the_front_door_leads_here() -> None:
    assert stoker.masks.dense is masks.dense
