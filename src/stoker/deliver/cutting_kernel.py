"""Crop and resize all images of a batch in one kernel, whatever their sizes: a table holds where each one is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.deliver.cutting import Cuts

TILE_HEIGHT, TILE_WIDTH = 16, 32
"""The tile of a row's channel that one program writes."""

NUM_FIELDS = 12
"""Integers in an entry of the table: address, bytes per channel and per line, region (4), row, whether rows and columns
are flipped (2), and the integer part of where the box begins (2): with it, a float32 would lose the fraction.
"""


@triton.jit  # type: ignore[untyped-decorator]
def _write(  # type: ignore[no-untyped-def]
    table,
    places,
    out,
    row_stride,
    channel_stride,
    y_stride,
    x_stride,
    height,
    width,
    num_fields: tl.constexpr,
    tile_height: tl.constexpr,
    tile_width: tl.constexpr,
):
    entry = table + tl.program_id(2) * num_fields
    channel = tl.program_id(1).to(tl.int64)
    tiles_across = tl.cdiv(width, tile_width)
    ys = (tl.program_id(0) // tiles_across) * tile_height + tl.arange(0, tile_height)
    xs = (tl.program_id(0) % tiles_across) * tile_width + tl.arange(0, tile_width)
    source = tl.load(entry).to(tl.pointer_type(tl.uint8)) + channel * tl.load(entry + 1)
    line = tl.load(entry + 2)
    left, top = tl.load(entry + 3).to(tl.int32), tl.load(entry + 4).to(tl.int32)
    right, bottom = tl.load(entry + 5).to(tl.int32), tl.load(entry + 6).to(tl.int32)
    row, flip_rows, flip_columns = tl.load(entry + 7), tl.load(entry + 8), tl.load(entry + 9)
    place = places + tl.program_id(2) * 4
    x_whole, y_whole = tl.load(entry + 10).to(tl.int32), tl.load(entry + 11).to(tl.int32)
    x_scale, y_scale = tl.load(place + 2), tl.load(place + 3)
    x_reach, y_reach = tl.maximum(x_scale, 1.0), tl.maximum(y_scale, 1.0)
    x_centers = tl.load(place) + (xs.to(tl.float32) + 0.5) * x_scale
    y_centers = tl.load(place + 1) + (ys.to(tl.float32) + 0.5) * y_scale
    x_first = tl.floor(x_centers - x_reach + 0.5)
    y_first = tl.floor(y_centers - y_reach + 0.5)
    num_across = tl.ceil(2 * x_reach).to(tl.int32) + 1
    num_down = tl.ceil(2 * y_reach).to(tl.int32) + 1

    x_total = tl.zeros([tile_width], tl.float32)
    for i in range(num_across):
        at = x_first + i
        x = at.to(tl.int32) + x_whole
        weight = tl.maximum(1.0 - tl.abs(at + 0.5 - x_centers) / x_reach, 0.0)
        x_total += tl.where((x >= left) & (x < right), weight, 0.0)

    y_total = tl.zeros([tile_height], tl.float32)
    total = tl.zeros([tile_height, tile_width], tl.float32)
    for j in range(num_down):
        at_y = y_first + j
        y = at_y.to(tl.int32) + y_whole
        is_in_y = (y >= top) & (y < bottom)
        y_weight = tl.where(is_in_y, tl.maximum(1.0 - tl.abs(at_y + 0.5 - y_centers) / y_reach, 0.0), 0.0)
        y_total += y_weight
        across = tl.zeros([tile_height, tile_width], tl.float32)
        for i in range(num_across):
            at_x = x_first + i
            x = at_x.to(tl.int32) + x_whole
            is_in_x = (x >= left) & (x < right)
            x_weight = tl.where(is_in_x, tl.maximum(1.0 - tl.abs(at_x + 0.5 - x_centers) / x_reach, 0.0), 0.0)
            values = tl.load(source + y[:, None] * line + x[None, :], mask=is_in_y[:, None] & is_in_x[None, :], other=0)
            across += values.to(tl.float32) * x_weight[None, :]
        total += across * y_weight[:, None]

    # pixels beyond the row are not written; they must not divide by 0 either
    is_row = (ys[:, None] < height) & (xs[None, :] < width)
    weights = tl.where(is_row, y_total[:, None] * x_total[None, :], 1.0)
    value = tl.minimum(tl.maximum(tl.floor(total / weights + 0.5), 0.0), 255.0).to(tl.uint8)
    to_x = tl.where(flip_columns != 0, width - 1 - xs, xs).to(tl.int64)
    to_y = tl.where(flip_rows != 0, height - 1 - ys, ys).to(tl.int64)
    where = out + row * row_stride + channel * channel_stride + to_y[:, None] * y_stride + to_x[None, :] * x_stride
    tl.store(where, value, mask=is_row)


def cut_together(images: Sequence[Tensor], cuts: Cuts, out: Tensor) -> None:
    """Write images on a GPU into rows of `out`, on the current stream. Keep the images until that has run."""
    images = [image if image.stride(2) == 1 else image.contiguous() for image in images]
    num_images = len(images)
    table = np.empty((num_images, NUM_FIELDS), np.int64)
    table[:, 0] = [image.data_ptr() for image in images]
    table[:, 1] = [image.stride(0) if len(image) > 1 else 0 for image in images]  # 0: gray for all channels
    table[:, 2] = [image.stride(1) for image in images]
    table[:, 3:7] = cuts.regions
    table[:, 7] = cuts.rows
    table[:, 8:10] = cuts.flips
    whole = np.floor(cuts.boxes[:, :2])
    table[:, 10:] = whole
    _, num_channels, height, width = out.shape
    places = np.empty((num_images, 4), np.float32)
    places[:, :2] = cuts.boxes[:, :2] - whole
    places[:, 2] = (cuts.boxes[:, 2] - cuts.boxes[:, 0]) / width
    places[:, 3] = (cuts.boxes[:, 3] - cuts.boxes[:, 1]) / height
    tiles = triton.cdiv(height, TILE_HEIGHT) * triton.cdiv(width, TILE_WIDTH)
    _write[(tiles, num_channels, num_images)](
        torch.from_numpy(table).to(out.device, non_blocking=True),
        torch.from_numpy(places).to(out.device, non_blocking=True),
        out,
        *out.stride(),
        height,
        width,
        num_fields=NUM_FIELDS,
        tile_height=TILE_HEIGHT,
        tile_width=TILE_WIDTH,
    )
