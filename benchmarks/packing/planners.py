"""The contenders of planning: each gets the same lengths, and says how many rows it made of them.

All keep documents whole that fit into a row, and cut longer ones into full rows and a rest. Planners that refuse or
drop longer ones get them cut.
"""

from __future__ import annotations

import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.packing import limit
from benchmarks.peers import is_installed

MEDIAN_LOG, SPREAD = 6.0, 1.2
"""Of the log-normal lengths: half of the documents have fewer than 403 tokens, and the mean is 829."""

IN_C, OURS, OURS_LISTED = "best fit in C", "stoker", "stoker, every row listed"
LLAMA, LLAMA_SMALL = "LLaMA-Factory, blocks of 100,000", "LLaMA-Factory, blocks of 1,000"
TRL, TRL_SMALL = "TRL, all at once", "TRL, blocks of 1,000"
GRAIN_FIRST, GRAIN_BEST = "Grain first fit, 100 bins", "Grain best fit, 1,000 bins"

Lengths = NDArray[np.int64]
Plan = Callable[[], int]


def drawn(num_documents: int, *, seed: int = 0) -> Lengths:
    """Return lengths of documents."""
    return np.maximum(1, np.random.default_rng(seed).lognormal(MEDIAN_LOG, SPREAD, num_documents)).astype(np.int64)


def pieces_of(lengths: Lengths, length: int) -> Lengths:
    """Return the lengths of what documents are cut into, each document's one after the other."""
    nums = -(-lengths // length)
    pieces = np.full(int(nums.sum()), length, np.int64)
    pieces[nums.cumsum() - 1] = lengths - (nums - 1) * length
    return pieces


@dataclass(frozen=True, slots=True)
class Planner:
    """A contender."""

    make: Callable[[Lengths, int], Plan]
    """Takes lengths of documents and the length of a row, and returns what is timed; that returns the rows made."""
    share: float = 1.0
    """How many of the documents it gets: of slow ones less is asked."""
    modules: tuple[str, ...] = ()


# ---------------------------------------------------------------- ours, and the limit


def _stoker(lengths: Lengths, length: int) -> Plan:
    from stoker.compose.packs.pack_planning import plan_best_fit

    return lambda: plan_best_fit([lengths], length=length, window=None, long="split").facts.num_rows


def _stoker_listed(lengths: Lengths, length: int) -> Plan:
    """As above, and then the documents of all rows as one list, as the one in C has them."""
    from stoker.compose.packs.pack_planning import plan_best_fit

    rows = _rows_of(lengths, length)
    every: list[NDArray[np.int64]] = []

    def plan() -> int:
        layout = plan_best_fit([lengths], length=length, window=None, long="split")
        every[:] = [documents for _, documents in _listed(rows(layout), layout.facts.num_rows)]
        return layout.facts.num_rows

    return plan


def _rows_of(lengths: Lengths, length: int) -> Callable[[Any], Any]:
    from stoker.compose.packs.pack_rows import BestFitRows
    from stoker.compose.packs.token_documents import DocumentsInMemory

    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    flat = np.broadcast_to(np.zeros(1, np.uint16), (int(starts[-1]),))  # tokens that take no memory
    documents = DocumentsInMemory(flat, starts)

    def rows(layout: Any) -> Any:
        return BestFitRows(documents, layout, length=length, window=None, is_cut=True, seed=0, renew=lambda: layout)

    return rows


def _listed(rows: Any, num_rows: int, together: int = 1 << 16) -> Iterator[tuple[Any, NDArray[np.int64]]]:
    for first in range(0, num_rows, together):
        spans = rows.spans(np.arange(first, min(first + together, num_rows)), 0)
        yield spans, spans.documents


def _in_c(lengths: Lengths, length: int) -> Plan:
    functions = limit.library()
    return lambda: limit.best_fit(functions, lengths, length).num_rows


# ---------------------------------------------------------------- peers


def _llama_factory(lengths: Lengths, length: int, *, together: int) -> Plan:
    """What its packing does with lengths: knapsacks, and then which example each length in them stands for."""
    knapsack = _module("llamafactory", "data/processor/processor_utils.py").greedy_knapsack
    blocks = [
        pieces_of(lengths[first : first + together], length).tolist() for first in range(0, len(lengths), together)
    ]

    def plan() -> int:
        num_rows = 0
        for block in blocks:
            by_length: dict[int, list[int]] = defaultdict(list)
            for number, size in enumerate(block):
                by_length[size].append(number)
            rows = [[by_length[size].pop() for size in found] for found in knapsack(list(block), length)]
            num_rows += len(rows)
        return num_rows

    return plan


def _trl(lengths: Lengths, length: int, *, together: int | None) -> Plan:
    """What `pack_dataset(strategy="bfd_split")` maps over its blocks; tokens of one byte, for it moves them too."""
    _without_transformers()
    pack = _module("trl", "data_utils.py")._pack_bfd
    pa = import_module("pyarrow")
    tables = []
    for first in range(0, len(lengths), together or len(lengths)):
        borders = np.concatenate([[0], np.cumsum(lengths[first : first + (together or len(lengths))])])
        values = pa.array(np.zeros(int(borders[-1]), np.int8))
        tables.append(pa.table({"tokens": pa.LargeListArray.from_arrays(pa.array(borders), values)}))
    return lambda: sum(len(pack(table, length, "split")) for table in tables)


def _grain(lengths: Lengths, length: int, *, kind: str, num_bins: int) -> Plan:
    grain, experimental = import_module("grain"), import_module("grain.experimental")
    tokens = np.zeros(length, np.uint8)
    source = [{"tokens": tokens[:size]} for size in pieces_of(lengths, length).tolist()]
    inline = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)

    def plan() -> int:
        documents = grain.MapDataset.source(source).to_iter_dataset(inline)
        make: Any = getattr(experimental, kind)
        return sum(1 for _ in make(documents, length_struct={"tokens": length}, num_packing_bins=num_bins))

    return plan


def _module(package: str, path: str) -> Any:
    """Return one file of a package, without the package: what that imports is not needed, and much of it not there."""
    name = f"{package}_{Path(path).stem}"
    if name not in sys.modules:
        found = find_spec(package)
        assert found is not None
        assert found.submodule_search_locations is not None
        spec = spec_from_file_location(name, Path(found.submodule_search_locations[0]) / path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _without_transformers() -> None:
    """Let TRL's file be imported: it wants two names of transformers, for annotations."""
    if not is_installed("transformers") and "transformers" not in sys.modules:
        module = types.ModuleType("transformers")
        module.__spec__ = ModuleSpec("transformers", None)
        for member in ("PreTrainedTokenizerBase", "ProcessorMixin"):
            setattr(module, member, type(member, (), {}))
        sys.modules["transformers"] = module


PLANNERS = {
    IN_C: Planner(_in_c),
    OURS: Planner(_stoker),
    OURS_LISTED: Planner(_stoker_listed),
    LLAMA: Planner(lambda lengths, length: _llama_factory(lengths, length, together=100_000), 0.2, ("llamafactory",)),
    LLAMA_SMALL: Planner(
        lambda lengths, length: _llama_factory(lengths, length, together=1_000), 0.1, ("llamafactory",)
    ),
    TRL: Planner(lambda lengths, length: _trl(lengths, length, together=None), 0.025, ("trl", "datasets", "pyarrow")),
    TRL_SMALL: Planner(
        lambda lengths, length: _trl(lengths, length, together=1_000), 0.01, ("trl", "datasets", "pyarrow")
    ),
    GRAIN_FIRST: Planner(
        lambda lengths, length: _grain(lengths, length, kind="FirstFitPackIterDataset", num_bins=100), 0.01, ("grain",)
    ),
    GRAIN_BEST: Planner(
        lambda lengths, length: _grain(lengths, length, kind="BestFitPackIterDataset", num_bins=1_000), 0.01, ("grain",)
    ),
}


# ---------------------------------------------------------------- is it true?


def check(lengths: Lengths, length: int) -> int:
    """Look through our rows and those in C: every token once, no row over its length. Return how many ours are."""
    from stoker.compose.packs.pack_planning import plan_best_fit

    layout = plan_best_fit([lengths], length=length, window=None, long="split")
    seen = np.zeros(len(lengths), np.int64)
    for spans, documents in _listed(_rows_of(lengths, length)(layout), layout.facts.num_rows):
        assert np.add.reduceat(spans.sizes, spans.row_starts[:-1]).max() <= length
        seen += np.bincount(documents, spans.sizes, minlength=len(lengths)).astype(np.int64)
    assert (seen == lengths).all(), "tokens are lost"
    if limit.has_compiler():
        found = limit.best_fit(limit.library(), lengths, length)
        rest = np.where(lengths >= length, lengths % length, lengths)
        filled = np.bincount(found.row_of, rest, minlength=found.num_rows)
        num_full = int((lengths // length).sum())
        assert filled[num_full:].min() > 0
        assert filled[num_full:].max() <= length
        assert len(found.documents) == num_full + np.count_nonzero(rest)
        pairs = np.repeat(np.arange(found.num_rows), np.diff(found.starts))
        assert (pairs[num_full:] == found.row_of[found.documents[num_full:]]).all()
        assert found.num_rows == layout.facts.num_rows, "best fit makes so many rows, item by item or by counts"
    return layout.facts.num_rows
