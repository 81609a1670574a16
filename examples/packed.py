"""Packed rows: a small GPT that reads several documents in a row, and none of them sees another.

`python packed.py` trains for some steps on the CPU with a dense mask; on a GPU, `--attention flex` or `varlen` is what
one would take. `--padded` puts one document in each row instead, to see what padding costs.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

import stoker
from stoker import DataLoader, masks
from stoker.store import Column, Writer

VOCAB, END = 64, 0
Batch = Mapping[str, Tensor]


class Attention(nn.Module):
    """Attention with rotary positions. What keeps documents apart is made once per batch, for all layers."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.inward, self.outward = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, turns: Tensor, apart: Any) -> Tensor:
        num_rows, length, width = x.shape
        parts = self.inward(x).view(num_rows, length, 3, self.num_heads, -1)
        query, key, value = parts.unbind(2)
        query, key = turned(query, turns), turned(key, turns)
        if isinstance(apart, dict) and "cu_seq_q" in apart:  # [B * T, H, D]: all rows as one, cut at the boundaries
            from torch.nn.attention.varlen import varlen_attn

            query, key, value = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
            found: Any = varlen_attn(query, key, value, **apart)
        else:  # [B, H, T, D]
            query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
            if isinstance(apart, BlockMask):
                found = flex_attention(query, key, value, block_mask=apart)
            else:
                found = functional.scaled_dot_product_attention(query, key, value, **apart)
            found = found.transpose(1, 2)
        out: Tensor = self.outward(found.reshape(num_rows, length, width))
        return out


class Layer(nn.Module):
    """Attention, then a perceptron, each on what is normalized and added to what was there."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, num_heads)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )
        self.before, self.between = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)

    def forward(self, x: Tensor, turns: Tensor, apart: Any) -> Tensor:
        x = x + self.attention(self.before(x), turns, apart)
        added: Tensor = self.perceptron(self.between(x))
        return x + added


class Model(nn.Module):
    """A small GPT.

    With `packed=True` it takes batches of packed rows: positions restart with each document, and documents do not see
    each other. With `packed=False` a row is one text, causal from its beginning to its end.
    """

    def __init__(
        self, *, vocab: int = VOCAB, width: int = 64, num_layers: int = 2, num_heads: int = 4, packed: bool = True
    ) -> None:
        super().__init__()
        self.packed, self.head_width = packed, width // num_heads
        self.embedding = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, num_heads) for _ in range(num_layers))
        self.last = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, batch: Batch, apart: Any) -> Tensor:
        """Return the logits; `apart` is what `kept_apart` says for this batch."""
        tokens = batch["tokens"]
        positions = batch["positions"] if self.packed else torch.arange(tokens.shape[1], device=tokens.device)[None]
        turns = rotations(positions, self.head_width)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, turns, apart)
        logits: Tensor = self.head(self.last(x))
        return logits


def kept_apart(batch: Batch, attention: str, *, packed: bool = True) -> Any:
    """Return what attention of this name needs to keep the documents of a batch apart."""
    if not packed:
        return {"is_causal": True}
    if attention == "flex":
        return masks.flex(batch)
    return masks.varlen(batch) if attention == "varlen" else masks.sdpa(batch)


def rotations(positions: Tensor, width: int) -> Tensor:
    """Return cosines and sines [2, B, T, 1, width / 2] of the angles that positions stand for."""
    speeds = 10_000 ** -(torch.arange(0, width, 2, device=positions.device) / width)
    angles = positions[..., None, None] * speeds
    return torch.stack((angles.cos(), angles.sin()))


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Return heads [B, T, H, D] turned by their positions."""
    cos, sin = turns.to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)


def write(folder: Path, num_documents: int) -> Path:
    """Write a store of documents, each of which counts on in steps of its own: what comes next is in the document."""
    rng = np.random.default_rng(1)
    with Writer(folder, {"tokens": Column.ragged("uint16")}) as writer:
        for size in np.exp(rng.normal(3.6, 0.7, num_documents)).astype(int).clip(4, 400).tolist():
            first, stride = rng.integers(1, VOCAB, 2)
            tokens = 1 + (first + stride * np.arange(size)) % (VOCAB - 1)
            tokens[-1] = END
            writer.append({"tokens": tokens.astype(np.uint16)})
    return folder


def main(folder: Path, *, attention: str, packed: bool, num_steps: int, length: int, device: str) -> None:
    torch.manual_seed(1)
    store = stoker.open(write(folder / "store", 2000))
    if packed:
        rows: Any = stoker.pack(store, length, blocks=128 if attention == "flex" else None)
        print(rows.report())
    else:
        rows = store.tokens(length=length, across=False, pad=END)
    loader = DataLoader(rows, batch_size=8, shuffle=True, seed=1, device=device if device != "cpu" else None)
    model = Model(packed=packed).to(device)
    forward: Any = torch.compile(model) if device != "cpu" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    num_labels, begin, step = 0, time.perf_counter(), 0
    losses: list[float] = []
    while step < num_steps:
        for batch in loader:
            with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
                logits = forward(batch, kept_apart(batch, attention, packed=packed))
            # Labels that do not count (the last token of a document, padding) are -100, which this leaves out.
            loss = functional.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            num_labels += int((batch["labels"] != -100).sum())
            losses.append(loss.item())
            step += 1
            if step == num_steps:
                break
    seconds = time.perf_counter() - begin
    fill = num_labels / (num_steps * 8 * length)
    print(f"{attention if packed else 'padded'}: loss {losses[0]:.2f} to {losses[-1]:.2f} in {num_steps} steps")
    print(f"{fill:.1%} of the columns have a label that counts; {num_labels / seconds:,.0f} of them per second")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attention", choices=("dense", "flex", "varlen"), default="dense")
    parser.add_argument("--padded", action="store_true", help="one document in each row")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    if chosen.attention != "dense" and chosen.device == "cpu":
        parser.error(f"torch cannot train with {chosen.attention} attention on a CPU: pass --device cuda")
    with tempfile.TemporaryDirectory() as name:
        main(
            Path(name),
            attention=chosen.attention,
            packed=not chosen.padded,
            num_steps=chosen.steps,
            length=chosen.length,
            device=chosen.device,
        )
