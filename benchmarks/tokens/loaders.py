"""The contenders: loaders of rows of tokens and labels, each as its users would write it.

Each is made from a corpus and an `Order`; iterating over it is an epoch, and `split` makes of what comes tokens and
labels as int64. What widens does so where it costs least: peers that have the labels' tokens in the row send that row
as it is stored and widen in the trainer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers import without_vision
from benchmarks.tokens.corpus import END_OF_DOCUMENT, LENGTH, Corpus
from benchmarks.tokens.limit import Gathering, in_c, in_numpy

BATCH_SIZE = 32
PREFETCH_FACTOR = 2

OURS, OURS_SHARED = "stoker", "stoker, x and y shared"
NANO, TORCH, TORCH_MANY, STATEFUL = "nanoGPT", "torch", "torch, __getitems__", "StatefulDataLoader"
TORCH_BATCHES, NODES_BATCHES = "torch, gather by hand", "torchdata nodes, gather by hand"
NODES, LITDATA, HUGGING_FACE, GRAIN = "torchdata nodes", "litdata", "Hugging Face datasets", "Grain"
MOSAIC, MEGATRON = "MosaicML Streaming", "Megatron"
IN_C, IN_NUMPY = "gather in C", "gather in NumPy"

Pair = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """How a corpus is to be read."""

    is_shuffled: bool
    num_workers: int


@dataclass(frozen=True, slots=True)
class Contender:
    """A loader, and what it needs."""

    make: Callable[[Corpus, Order], Any]
    split: Callable[[Any], Pair]
    format_name: str
    modules: tuple[str, ...] = ()
    """What is imported before anything is timed, and has to be installed."""
    has_workers: bool = True
    has_sequence: bool = True
    """Whether it can go through the corpus in order."""
    has_state: bool = False
    """Whether it can tell where it is, and resume there."""
    is_by_hand: bool = False
    """Whether users write the gather of whole batches themselves, and the loader only calls it."""
    is_limit: bool = False
    """Not a loader: what one could reach."""


def _options(order: Order) -> dict[str, Any]:
    """Return what all loaders with torch's arguments get for their workers."""
    if not order.num_workers:
        return {}
    return {
        "num_workers": order.num_workers,
        "prefetch_factor": PREFETCH_FACTOR,
        "persistent_workers": True,
    }


# ---------------------------------------------------------------- stoker


def _stoker(corpus: Corpus, order: Order, **options: Any) -> Any:
    import stoker

    store: Any = stoker.open(corpus.at("store"))
    make: Any = stoker.DataLoader
    return make(
        store.tokens(length=LENGTH, **options),
        batch_size=BATCH_SIZE,
        shuffle=order.is_shuffled,
        drop_last=True,
        **_options(order),
    )


def _stoker_shared(corpus: Corpus, order: Order) -> Any:
    return _stoker(corpus, order, shared=True)


# ---------------------------------------------------------------- torch, and what people write around it


class NanoGPT:
    """What nanoGPT's `get_batch` does, with its map anew for each batch and its rows drawn with replacement."""

    def __init__(self, corpus: Corpus, order: Order) -> None:
        self.path, self.num_tokens, self.is_shuffled = corpus.raw, corpus.num_tokens, order.is_shuffled

    def __iter__(self) -> Iterator[Pair]:
        for batch in range((self.num_tokens - 1) // LENGTH // BATCH_SIZE):
            data = np.memmap(self.path, dtype=np.uint16, mode="r")
            if self.is_shuffled:
                places = torch.randint(len(data) - LENGTH, (BATCH_SIZE,))
            else:
                places = torch.arange(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE) * LENGTH
            x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in places])
            y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in places])
            yield x, y


class Rows:
    """Rows of a memory-mapped file, one by one."""

    def __init__(self, corpus: Corpus) -> None:
        self.tokens, self.num_rows = corpus.tokens(), corpus.num_rows
        self._corpus = corpus

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._corpus,)  # as its path, as people do it: a pickled memory map is all of its data

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, position: int) -> Pair:
        row = torch.from_numpy(self.tokens[position * LENGTH : (position + 1) * LENGTH + 1].astype(np.int64))
        return row[:-1], row[1:]


class RowsTogether(Rows):
    """Rows of a batch in one call, each a sample of its own: what `__getitems__` is for."""

    def __init__(self, corpus: Corpus) -> None:
        super().__init__(corpus)
        self.windows = np.lib.stride_tricks.sliding_window_view(self.tokens, LENGTH + 1)

    def gathered(self, positions: Sequence[int]) -> Pair:
        rows = self.windows[np.asarray(positions) * LENGTH]
        return torch.from_numpy(rows[:, :-1].astype(np.int64)), torch.from_numpy(rows[:, 1:].astype(np.int64))

    def __getitems__(self, positions: Sequence[int]) -> Any:
        return list(zip(*self.gathered(positions)))


class Batches(RowsTogether):
    """A batch written by hand: what `__getitems__` gives is the batch already, and nothing is left to collate."""

    def __getitems__(self, positions: Sequence[int]) -> Any:
        return self.gathered(positions)


def _torch(corpus: Corpus, order: Order) -> Any:
    dataset: Any = Rows(corpus)
    return torch.utils.data.DataLoader(
        dataset, BATCH_SIZE, shuffle=order.is_shuffled, drop_last=True, **_options(order)
    )


def _torch_many(corpus: Corpus, order: Order) -> Any:
    dataset: Any = RowsTogether(corpus)
    return torch.utils.data.DataLoader(
        dataset, BATCH_SIZE, shuffle=order.is_shuffled, drop_last=True, **_options(order)
    )


def _torch_batches(corpus: Corpus, order: Order) -> Any:
    dataset: Any = Batches(corpus)
    return torch.utils.data.DataLoader(
        dataset, BATCH_SIZE, shuffle=order.is_shuffled, drop_last=True, collate_fn=as_it_is, **_options(order)
    )


def _stateful(corpus: Corpus, order: Order) -> Any:
    make = import_module("torchdata.stateful_dataloader").StatefulDataLoader
    return make(RowsTogether(corpus), BATCH_SIZE, shuffle=order.is_shuffled, drop_last=True, **_options(order))


def as_it_is(batch: Any) -> Any:
    return batch


def _nodes(corpus: Corpus, order: Order) -> Any:
    return _mapped(RowsTogether(corpus), order, _Collated)


def _nodes_batches(corpus: Corpus, order: Order) -> Any:
    return _mapped(Batches(corpus), order, _Gathered)


class _Collated:
    def __init__(self, rows: RowsTogether) -> None:
        self.rows = rows

    def __call__(self, positions: Sequence[int]) -> Any:
        return torch.utils.data.default_collate(self.rows.__getitems__(positions))


class _Gathered(_Collated):
    def __call__(self, positions: Sequence[int]) -> Any:
        return self.rows.gathered(positions)


def _mapped(rows: RowsTogether, order: Order, read: Callable[[RowsTogether], Any]) -> Any:
    """Positions, put together to batches, and mapped to what is at them; in processes if there are workers."""
    nodes = import_module("torchdata.nodes")
    data = torch.utils.data
    sampler: Any = data.RandomSampler(rows) if order.is_shuffled else data.SequentialSampler(rows)
    node = nodes.Batcher(nodes.SamplerWrapper(sampler), BATCH_SIZE, drop_last=True)
    if order.num_workers:
        node = nodes.ParallelMapper(
            node, read(rows), num_workers=order.num_workers, method="process", multiprocessing_context="fork"
        )
    else:
        node = nodes.Mapper(node, read(rows))
    return nodes.Loader(node)


# ---------------------------------------------------------------- formats of their own


def _litdata(corpus: Corpus, order: Order) -> Any:
    litdata, loaders = import_module("litdata"), import_module("litdata.streaming.item_loader")
    dataset = litdata.StreamingDataset(
        str(corpus.at("litdata")),
        item_loader=loaders.TokensLoader(block_size=LENGTH + 1),
        shuffle=order.is_shuffled,
        drop_last=True,
    )
    return litdata.StreamingDataLoader(dataset, batch_size=BATCH_SIZE, drop_last=True, **_options(order))


def _hugging_face(corpus: Corpus, order: Order) -> Any:
    """A batch in one call, as its guide to torch advises: a sampler of batches, and no collation."""
    datasets = import_module("datasets")
    dataset = datasets.load_from_disk(str(corpus.at("hugging_face"))).with_format("numpy")
    data = torch.utils.data
    sampler: Any = data.RandomSampler(dataset) if order.is_shuffled else data.SequentialSampler(dataset)
    return data.DataLoader(
        dataset,
        batch_size=None,
        sampler=data.BatchSampler(sampler, BATCH_SIZE, drop_last=True),
        **_options(order),
    )


class ArrayRows(Rows):
    """Rows as arrays, one by one."""

    def __getitem__(self, position: int) -> Any:
        row = self.tokens[position * LENGTH : (position + 1) * LENGTH + 1].astype(np.int64)
        return {"x": row[:-1], "y": row[1:]}


class Grain:
    """Grain's dataset, with a state like others'. Without threads that read ahead: its advice for data in memory."""

    def __init__(self, corpus: Corpus, order: Order) -> None:
        grain = import_module("grain")
        rows = grain.MapDataset.source(ArrayRows(corpus))
        if order.is_shuffled:
            rows = rows.shuffle(seed=0)
        dataset = rows.batch(BATCH_SIZE, drop_remainder=True).to_iter_dataset(
            grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        )
        if order.num_workers:
            dataset = dataset.mp_prefetch(
                grain.MultiprocessingOptions(num_workers=order.num_workers, per_worker_buffer_size=PREFETCH_FACTOR)
            )
        self._dataset = dataset
        self._state: Any = None
        self._iterator: Any = None

    def __iter__(self) -> Any:
        iterator = iter(self._dataset)
        if self._state is not None:
            iterator.set_state(self._state)
        self._iterator, self._state = iterator, None
        return iterator

    def state_dict(self) -> Any:
        assert self._iterator is not None
        return self._iterator.get_state()

    def load_state_dict(self, state: Any) -> None:
        self._state = state


def _mosaic(corpus: Corpus, order: Order) -> Any:
    streaming = import_module("streaming")
    dataset = streaming.StreamingDataset(
        local=str(corpus.at("mosaic")), shuffle=order.is_shuffled, batch_size=BATCH_SIZE
    )
    return streaming.StreamingDataLoader(dataset, batch_size=BATCH_SIZE, drop_last=True, **_options(order))


class _MegatronTokenizer:
    """All that Megatron's dataset asks of a tokenizer."""

    eod = END_OF_DOCUMENT
    pad = -1
    vocab_size = END_OF_DOCUMENT + 1
    unique_identifiers = {"class": "Benchmark"}


def _megatron(corpus: Corpus, order: Order) -> Any:
    """Its dataset shuffles by itself, and keeps its index of samples beside the data: made once, then mapped."""
    gpt = import_module("megatron.core.datasets.gpt_dataset")
    split = import_module("megatron.core.datasets.utils").Split
    prefix = str(corpus.at("megatron") / "tokens")
    config = gpt.GPTDatasetConfig(
        random_seed=1,
        sequence_length=LENGTH,
        split="1,0,0",
        path_to_cache=str(corpus.at("megatron") / "cache"),
        tokenizer=_MegatronTokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    low_level = gpt.GPTDataset.build_low_level_dataset(prefix, config)
    documents = np.arange(len(low_level.document_indices) - 1, dtype=np.int32)
    dataset = gpt.GPTDataset(low_level, prefix, documents, None, split.train, config)
    return torch.utils.data.DataLoader(dataset, BATCH_SIZE, drop_last=True, **_options(order))


# ---------------------------------------------------------------- tokens and labels


def _widened(rows: Any) -> Pair:
    return rows[:, :-1].to(torch.int64), rows[:, 1:].to(torch.int64)


def _widened_rows(batch: Any) -> Pair:
    rows: Any = batch["tokens"]
    return _widened(torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows)


def _in_c(corpus: Corpus, order: Order) -> Any:
    return Gathering(corpus, BATCH_SIZE, is_shuffled=order.is_shuffled, gather=in_c(corpus, BATCH_SIZE))


def _in_numpy(corpus: Corpus, order: Order) -> Any:
    return Gathering(corpus, BATCH_SIZE, is_shuffled=order.is_shuffled, gather=in_numpy(corpus, BATCH_SIZE))


_ours = itemgetter("tokens", "labels")
_pair = itemgetter(0, 1)

CONTENDERS: dict[str, Contender] = {
    OURS: Contender(_stoker, _ours, "store", ("stoker",), has_state=True),
    OURS_SHARED: Contender(_stoker_shared, _ours, "store", ("stoker",)),
    NANO: Contender(NanoGPT, _pair, "raw", has_workers=False),
    TORCH: Contender(_torch, _pair, "raw"),
    TORCH_MANY: Contender(_torch_many, _pair, "raw"),
    TORCH_BATCHES: Contender(_torch_batches, _pair, "raw", is_by_hand=True),
    STATEFUL: Contender(_stateful, _pair, "raw", ("torchdata.stateful_dataloader",), has_state=True),
    NODES: Contender(_nodes, _pair, "raw", ("torchdata.nodes",)),
    NODES_BATCHES: Contender(_nodes_batches, _pair, "raw", ("torchdata.nodes",), is_by_hand=True),
    LITDATA: Contender(_litdata, _widened, "litdata", ("litdata",), has_state=True),
    HUGGING_FACE: Contender(_hugging_face, _widened_rows, "hugging_face", ("datasets",)),
    GRAIN: Contender(Grain, itemgetter("x", "y"), "raw", ("grain",), has_state=True),
    MOSAIC: Contender(_mosaic, _widened_rows, "mosaic", ("streaming",)),
    MEGATRON: Contender(_megatron, _ours, "megatron", ("megatron.core.datasets.gpt_dataset",), has_sequence=False),
    IN_NUMPY: Contender(_in_numpy, _pair, "raw", has_workers=False, is_limit=True),
    IN_C: Contender(_in_c, _pair, "raw", has_workers=False, is_limit=True),
}


def imported(name: str) -> Contender:
    """Return a contender when all that its users import is imported, and torch uses one thread."""
    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    contender = CONTENDERS[name]
    if name == MOSAIC:
        without_vision()
    for module in contender.modules:
        import_module(module)
    if contender.format_name == "store":
        import stoker
        import stoker.store

        _ = stoker.DataLoader, stoker.open  # these are imported when first asked for, and the store when first opened
    return contender


def checked(pair: Pair) -> NDArray[np.int64]:
    """Return the tokens of a batch as an array, and see that the batch is what it should be."""
    x, y = (np.asarray(part) for part in pair)
    assert x.shape == y.shape == (BATCH_SIZE, LENGTH), f"a batch of shape {x.shape} and {y.shape}"
    assert x.dtype == y.dtype == np.int64, f"a batch of {x.dtype} and {y.dtype}"
    assert (x[:, 1:] == y[:, :-1]).all(), "labels are not the next tokens"
    return x
