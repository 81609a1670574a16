"""Pictures of packed rows and of attention masks: every token has its place, and every pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import ImageColor
from torch.utils.data import default_collate

import stoker
from stoker import DataLoader, masks
from stoker.errors import ArgumentError
from stoker.view.attention import SEEN, draw_document_mask, draw_mask, to_dense_masks
from stoker.view.packed_rows import document_color, document_ids, document_spans, draw_rows, format_fill, is_packed
from stoker.view.paper import DOCUMENTS

SIZES = [50, 30, 44, 9, 3, 64, 17, 40]


def packed() -> stoker.Packed:
    return stoker.pack([np.arange(size, dtype=np.uint16) for size in SIZES], 64)


def batch() -> Any:
    rows = packed()
    return default_collate([rows[position] for position in range(len(rows))])


def num_of(image: NDArray[np.uint8], color: str) -> int:
    return int((image == ImageColor.getrgb(color)).all(-1).sum())


def test_a_batch_of_packed_rows_is_drawn_as_rows() -> None:
    made = batch()
    assert is_packed(made)
    image = stoker.view.batch(made, title="rows")
    assert image.size > draw_rows(document_ids(made)).size
    few = stoker.view.batch(made, max_images=2)
    assert few.height < image.height


def test_ids_come_from_borders_where_there_are_no_others() -> None:
    made = batch()
    ids = made["document_ids"].numpy().astype(np.int64)
    has_padding = (ids < 0).any(-1)
    alone = document_ids({"tokens": made["tokens"], "cu_seqlens": made["cu_seqlens"]})
    assert np.array_equal(alone[~has_padding], ids[~has_padding])
    assert all(
        [span[:2] for span in document_spans(ours)] == [span[:2] for span in document_spans(theirs)]
        for ours, theirs in zip(alone, ids)
    )
    assert np.array_equal(document_ids(made["document_ids"][0]), ids[:1])


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=8), padding=st.integers(0, 9))
def test_spans_are_the_documents_and_the_padding(sizes: list[int], padding: int) -> None:
    ids = np.repeat([*range(len(sizes)), -1], [*sizes, padding])
    spans = document_spans(ids)
    assert [end - begin for begin, end, document in spans if document >= 0] == sizes
    assert sum(end - begin for begin, end, document in spans if document < 0) == padding


def test_neighbors_have_different_colors_and_documents_their_share_of_the_row() -> None:
    ids = np.repeat([0, 1, 2, -1], [300, 300, 300, 124])[None]
    image = np.asarray(draw_rows(ids))[75:90]
    legend = np.asarray(draw_rows(ids))[:50]
    areas = [num_of(image, document_color(document, 0)) for document in range(3)]
    assert min(areas) > 0.8 * max(areas)
    assert all(num_of(legend, color) for color in DOCUMENTS)
    assert all(document_color(at, row) != document_color(at + 1, row) for at in range(12) for row in range(3))


def test_only_what_is_full_is_said_to_be_full() -> None:
    ids = np.zeros((1, 4096), np.int64)
    assert format_fill(ids) == "100.0%"
    ids[0, -1] = -1
    assert format_fill(ids) == "99.9%"


def test_ids_of_a_wrong_shape_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"document ids of shape .*got \(2, 3, 4\)"):
        stoker.view.batch({"document_ids": np.zeros((2, 3, 4))})


def test_a_loader_of_packed_rows_shows_their_positions() -> None:
    loader: DataLoader[Any] = DataLoader(packed(), batch_size=3, shuffle=True, seed=1)
    plan = loader.plan
    assert plan is not None
    rows = packed()
    by_hand = stoker.view.batch(
        default_collate([rows[position] for position in plan.recipe(0).positions]),
        positions=plan.recipe(0).positions.tolist(),
    )
    assert np.array_equal(np.asarray(stoker.view.batch(loader)), np.asarray(by_hand))
    assert stoker.view.mask(loader).width > 1000


def test_the_mask_of_documents_is_the_mask_that_attention_gets() -> None:
    made = batch()
    dense = masks.dense(made)[:, 0].numpy()
    for row, ids in enumerate(document_ids(made)):
        panel = draw_document_mask(ids, row=row, name="")
        times = panel.image.width // len(ids)
        centers = np.asarray(panel.image)[times // 2 :: times, times // 2 :: times]
        is_drawn = (centers != np.asarray(ImageColor.getrgb("#f3f4f5"))).any(-1)
        assert np.array_equal(is_drawn, dense[row])
        assert panel.share == dense[row].mean()


def test_a_long_row_is_drawn_without_all_its_pairs() -> None:
    ids = np.repeat(np.arange(5), 200_000)
    panel = draw_document_mask(ids, row=0, name="")
    assert panel.image.size == (480, 480)
    assert panel.share == pytest.approx(0.1, abs=1e-4)
    shares = [num_of(np.asarray(panel.image), document_color(document, 0)) for document in range(5)]
    assert min(shares) > 0.9 * max(shares) > 3000


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(6, 6).tril().bool(),
        torch.ones(1, 6, 6).tril().bool(),
        torch.ones(2, 3, 6, 6).tril().bool(),
        torch.ones(2, 1, 6, 6).tril().to(torch.uint8),
        torch.zeros(1, 1, 6, 6).masked_fill(~torch.ones(6, 6).tril().bool(), float("-inf")),
        torch.zeros(6, 6).masked_fill(~torch.ones(6, 6).tril().bool(), torch.finfo(torch.bfloat16).min).bfloat16(),
        np.tri(6, dtype=bool),
    ],
    ids=["one", "batch", "heads", "bytes", "added", "added bfloat16", "array"],
)
def test_masks_of_every_kind_are_taken(mask: Any) -> None:
    [*dense] = to_dense_masks(mask, limit=4)
    assert all(np.array_equal(one, np.tri(6, dtype=bool)) for one in dense)
    panel = draw_mask(dense[0], name="")
    assert panel.share == 21 / 36
    assert num_of(np.asarray(panel.image), SEEN) > 0
    assert stoker.view.mask(mask, title="causal").width > 400


def test_masks_of_queries_that_are_fewer_than_keys_are_drawn() -> None:
    image = draw_mask(np.ones((3, 24), bool), name="").image
    assert image.width == 8 * image.height


def test_what_is_no_mask_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"got shape \(2, 2, 2, 2, 2\)"):
        stoker.view.mask(torch.ones(2, 2, 2, 2, 2))
    with pytest.raises(ArgumentError, match="no mask found in a batch with 'image'"):
        stoker.view.mask({"image": torch.zeros(1, 3, 4, 4)})
    with pytest.raises(ArgumentError, match="max_masks must be a positive integer, got 0"):
        stoker.view.mask(batch(), max_masks=0)
