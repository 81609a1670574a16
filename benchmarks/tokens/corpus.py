"""The corpus: tokens in documents of log-normal lengths, once in the format of each contender.

Made once and kept in `out/corpora`, each format in a folder of its own that appears when it is complete. Tokens are
drawn at random: no loader looks at what they are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import without_vision
from benchmarks.report import OUT
from benchmarks.turns import run_alone

CORPORA = OUT.parent / "corpora"
NUM_TOKENS = 720_000_000
"""More than 10,000 batches, so that step 10,000 is in the first epoch."""
NUM_TOKENS_QUICK = 20_000_000
LENGTH = 2048
"""Tokens of a row; with labels, a row is cut from one more."""
END_OF_DOCUMENT = 50_256
MEDIAN_DOCUMENT, SPREAD = 500, 1.2
"""Of the log-normal lengths: a mean of about a thousand tokens, and some of a hundred thousand."""
DRAWN_TOGETHER = 10_000_000


@dataclass(frozen=True, slots=True)
class Corpus:
    """Where a corpus of so many tokens is."""

    num_tokens: int

    @property
    def folder(self) -> Path:
        return CORPORA / f"tokens-{self.num_tokens // 10**6}m"

    def at(self, format_name: str) -> Path:
        return self.folder / format_name

    @property
    def raw(self) -> Path:
        """All tokens one after the other, as nanoGPT has them."""
        return self.at("raw") / "tokens.bin"

    @property
    def num_rows(self) -> int:
        """How many rows of `LENGTH` with their labels there are, each beginning where the one before ends."""
        return (self.num_tokens - 1) // LENGTH

    def tokens(self) -> NDArray[np.uint16]:
        return np.memmap(self.raw, np.uint16, "r")

    def borders(self) -> NDArray[np.int64]:
        """Return where each document begins, and where the last one ends."""
        found: NDArray[np.int64] = np.load(self.at("raw") / "borders.npy")
        return found

    def blocks(self) -> NDArray[np.uint16]:
        """Return all rows of `LENGTH` + 1 tokens that do not overlap, as formats of fixed rows have them."""
        size = LENGTH + 1
        return self.tokens()[: self.num_tokens // size * size].reshape(-1, size)


def made(corpus: Corpus, formats: list[str], notify: Callable[[str], None]) -> None:
    """Make what is not there yet, in processes of their own: what makes a format must not be there when it is read.

    Our own store is made anew each time, in seconds: what it was made with may have changed meanwhile.
    """
    for name in dict.fromkeys(("raw", *formats)):
        if name == "store":
            shutil.rmtree(corpus.at(name), ignore_errors=True)
        if not corpus.at(name).exists():
            notify(f"making {corpus.at(name).relative_to(OUT.parent.parent)}")
            run_alone(make, corpus, name, limit_seconds=1800)


def make(corpus: Corpus, name: str) -> None:
    """Make one format."""
    final = corpus.at(name)
    unfinished = final.with_name(f"{name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    FORMATS[name](corpus, unfinished)
    os.rename(unfinished, final)


# ---------------------------------------------------------------- formats: each is written to a folder


def _raw(corpus: Corpus, folder: Path) -> None:
    chance = np.random.default_rng(0)
    size = corpus.num_tokens // int(MEDIAN_DOCUMENT * np.exp(SPREAD**2 / 2)) * 2 + 10
    lengths = np.maximum(2, chance.lognormal(np.log(MEDIAN_DOCUMENT), SPREAD, size)).astype(np.int64)
    borders = np.concatenate([[0], np.cumsum(lengths)])
    borders = np.append(borders[borders < corpus.num_tokens], corpus.num_tokens)
    np.save(folder / "borders.npy", borders)
    with (folder / "tokens.bin").open("wb") as file:
        for first in range(0, corpus.num_tokens, DRAWN_TOGETHER):
            last = min(corpus.num_tokens, first + DRAWN_TOGETHER)
            tokens = chance.integers(0, END_OF_DOCUMENT, last - first, np.uint16)
            ends = borders[1:][(borders[1:] > first) & (borders[1:] <= last)] - 1 - first
            tokens[ends] = END_OF_DOCUMENT
            tokens.tofile(file)


def _documents(corpus: Corpus, num_together: int = 10_000) -> Iterator[tuple[NDArray[np.uint16], NDArray[np.int64]]]:
    """Yield the tokens of some thousand documents at a time, and the length of each."""
    tokens, borders = corpus.tokens(), corpus.borders()
    for first in range(0, len(borders) - 1, num_together):
        some = borders[first : first + num_together + 1]
        yield np.asarray(tokens[some[0] : some[-1]]), np.diff(some)


def _store(corpus: Corpus, folder: Path) -> None:
    from stoker.store import Build, Column

    build = Build(folder, {"tokens": Column.ragged("uint16")})
    with build.piece("all") as piece:
        for values, lengths in _documents(corpus):
            piece.extend({"tokens": (values, lengths)})
    build.finish(["all"], meta={"tokenizer": {"end_of_document": END_OF_DOCUMENT}})


def _litdata(corpus: Corpus, folder: Path) -> None:
    """Documents, as its guide for language models has them; it joins them into chunks of whole rows of 2,049."""
    litdata = import_module("litdata")
    item_loader = import_module("litdata.streaming.item_loader")
    borders = corpus.borders()
    step = 2_000
    litdata.optimize(
        fn=_LitDocuments(corpus),
        inputs=[(first, min(first + step, len(borders) - 1)) for first in range(0, len(borders) - 1, step)],
        output_dir=str(folder),
        chunk_size=(LENGTH + 1) * 8012,
        item_loader=item_loader.TokensLoader(),
        num_workers=2,
        reorder_files=False,
        verbose=False,
    )


class _LitDocuments:
    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __call__(self, which: tuple[int, int]) -> Iterator[Any]:
        import torch

        tokens, borders = self.corpus.tokens(), self.corpus.borders()
        for first, last in zip(borders[which[0] : which[1]], borders[which[0] + 1 : which[1] + 1]):
            yield torch.from_numpy(np.array(tokens[first:last]))


def _mosaic(corpus: Corpus, folder: Path) -> None:
    without_vision()
    streaming = import_module("streaming")
    with streaming.MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{LENGTH + 1}"}) as writer:
        for row in corpus.blocks():
            writer.write({"tokens": np.array(row)})


def _hugging_face(corpus: Corpus, folder: Path) -> None:
    datasets, pa = import_module("datasets"), import_module("pyarrow")
    blocks = corpus.blocks()
    step = 4_000
    columns = [
        pa.FixedSizeListArray.from_arrays(pa.array(np.array(blocks[first : first + step]).reshape(-1)), LENGTH + 1)
        for first in range(0, len(blocks), step)
    ]
    table = pa.table({"tokens": pa.chunked_array(columns)})
    datasets.disable_progress_bars()
    datasets.Dataset(datasets.table.InMemoryTable(table)).save_to_disk(str(folder))


def _megatron(corpus: Corpus, folder: Path) -> None:
    indexed = import_module("megatron.core.datasets.indexed_dataset")
    builder = indexed.IndexedDatasetBuilder(str(folder / "tokens.bin"), dtype=np.uint16)
    for values, lengths in _documents(corpus):
        for part in np.split(values, np.cumsum(lengths)[:-1]):
            builder.add_document(part, [len(part)])
    builder.finalize(str(folder / "tokens.idx"))


FORMATS: dict[str, Callable[[Corpus, Path], None]] = {
    "raw": _raw,
    "store": _store,
    "litdata": _litdata,
    "mosaic": _mosaic,
    "hugging_face": _hugging_face,
    "megatron": _megatron,
}
