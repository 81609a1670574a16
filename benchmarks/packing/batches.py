"""Batches of packed rows, beside rows cut from the corpus without regard to documents, and beside filling them in C.

Nothing of ours is imported before a contender is made: whether it is to use the functions in C is decided then.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.packing import limit
from benchmarks.turns import BatchTaker, Turn, taking

if TYPE_CHECKING:  # it brings torch, which is nothing that planning needs
    from benchmarks.tokens.corpus import Corpus

IN_C, OURS, OURS_NUMPY = "filled in C", "stoker", "stoker, NumPy only"
OURS_BLOCKS, CROPS = "stoker, with block tables", "stoker, plain crops"
CONTENDERS = (IN_C, OURS, OURS_NUMPY, OURS_BLOCKS, CROPS)
FIELDS = ("tokens", "labels", "positions", "document_ids", "cu_seqlens")
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Form:
    """Of batches, and who makes them."""

    batch_size: int
    length: int
    num_workers: int

    def __str__(self) -> str:
        return f"{self.batch_size} x {self.length:,}, {'2 workers' if self.num_workers else 'inline'}"


@dataclass(frozen=True, slots=True)
class Opening:
    """What it takes to pack a store, first and again."""

    first_seconds: float
    """Planned, mapped and written beside the store."""
    again_seconds: float
    """Found there."""
    plan_bytes: int
    fill: float
    documents_per_row: float


def made(name: str, corpus: Corpus, form: Form) -> Any:
    """Return a contender: iterating over it is an epoch."""
    os.environ["STOKER_NATIVE"] = "0" if name == OURS_NUMPY else "1"
    import stoker
    from stoker.native.library import library

    assert name != OURS_NUMPY or library() is None, "the functions in C are to be off"
    if name == IN_C:
        return FilledInC(corpus, form)
    store: Any = stoker.open(corpus.at("store"))
    if name == CROPS:
        dataset: Any = store.tokens(form.length)
    else:
        dataset = stoker.pack(store, form.length, blocks=128 if name == OURS_BLOCKS else None)
    make: Any = stoker.DataLoader
    options = {"num_workers": form.num_workers, "persistent_workers": True} if form.num_workers else {}
    return make(dataset, batch_size=form.batch_size, shuffle=True, drop_last=True, **options)


class FilledInC:
    """Epochs of batches that are only filled, always into the same arrays; what is in them is known beforehand."""

    def __init__(self, corpus: Corpus, form: Form, *, is_shuffled: bool = True) -> None:
        import torch

        import stoker
        from benchmarks.tokens.corpus import END_OF_DOCUMENT

        packed = stoker.pack(corpus.at("store"), form.length)
        rows = np.arange(len(packed))
        if is_shuffled:
            np.random.default_rng(0).shuffle(rows)
        num_batches = len(rows) // form.batch_size
        self._spans = [
            packed.spans(some) for some in np.array_split(rows[: num_batches * form.batch_size], num_batches)
        ]
        self._tokens = corpus.tokens()
        self._fill = limit.library().fill
        shape, width = (form.batch_size, form.length), packed.max_documents + 1
        arrays: list[NDArray[Any]] = [np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int32)]
        arrays += [np.zeros(shape, np.int32), np.zeros((form.batch_size, width), np.int32)]
        self._batch = {name: torch.from_numpy(array) for name, array in zip(FIELDS, arrays)}
        self._sizes = (*shape, width, END_OF_DOCUMENT, IGNORED)
        self._to = [array.ctypes.data for array in arrays]

    def __iter__(self) -> Iterator[Any]:
        fill, where, sizes, to, batch = self._fill, self._tokens.ctypes.data, self._sizes, self._to, self._batch
        known = [
            [part.ctypes.data for part in (spans.begins, spans.sizes, spans.has_next, spans.row_starts)]
            for spans in self._spans
        ]
        for some in known:
            fill(where, *some, *sizes, *to)
            yield batch


def serving(name: str, corpus: Corpus, form: Form) -> AbstractContextManager[Callable[[float], Turn]]:
    """Serve turns. Turns of 0 seconds read a whole epoch: blocks are checked when they are first read."""
    loader = made(name, corpus, form)
    taker = BatchTaker(loader, _touch, num_untimed=max(8, 8 * form.num_workers))

    def answer(seconds: float) -> Turn:
        if seconds:
            return taker.take(seconds)
        for batch in loader:
            _touch(batch)
        return Turn(0, 0.0, 0.0)

    return taking(taker, answer)


def _touch(batch: Any) -> None:
    """Read one number each of tokens and labels."""
    tokens, labels = (batch["tokens"], batch["labels"]) if "tokens" in batch else (batch["x"], batch["y"])
    if tokens[0, 1].item() != labels[0, 0].item():
        raise ValueError("labels are not the next tokens")


def opened(corpus: Corpus, length: int) -> Opening:
    """Pack the store as if for the first time, and again."""
    import stoker

    store: Any = stoker.open(corpus.at("store"))
    stoker.pack([[1, 2, 3]], 2)  # what is imported at first use
    folder = corpus.at("store") / ".packs"
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.perf_counter()
    packed = stoker.pack(store, length)
    first = time.perf_counter() - begin
    store = stoker.open(corpus.at("store"))
    begin = time.perf_counter()
    stoker.pack(store, length)
    again = time.perf_counter() - begin
    plan_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    facts = packed.facts
    fill = facts.num_tokens / (facts.num_rows * length)
    return Opening(first, again, plan_bytes, fill, facts.num_spans / facts.num_rows)


def digests(name: str, corpus: Corpus, form: Form, num_batches: int) -> list[bytes]:
    """Return what is in the first batches in order, to see that contenders make the same ones."""
    import hashlib

    if name == IN_C:
        loader: Any = FilledInC(corpus, form, is_shuffled=False)
    else:
        os.environ["STOKER_NATIVE"] = "0" if name == OURS_NUMPY else "1"
        import stoker

        make: Any = stoker.DataLoader
        loader = make(stoker.pack(corpus.at("store"), form.length), batch_size=form.batch_size, drop_last=True)
    found = []
    for _, batch in zip(range(num_batches), loader):
        digest = hashlib.blake2b()
        for field in FIELDS:
            digest.update(np.ascontiguousarray(batch[field].numpy()).tobytes())
        found.append(digest.digest())
    return found
