"""Documents packed into rows of a fixed length, addressed by position."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stoker.compose.batch_fields import Empty, FieldLayout, Fields
from stoker.compose.packs.pack_plan_cache import VERSION, PackPlanCache
from stoker.compose.packs.pack_planning import concat_facts, plan_best_fit
from stoker.compose.packs.pack_rows import BestFitRows, ConcatRows, DocumentSpan, PackedRows, RowSpans
from stoker.compose.packs.pack_tables import PackReport, PackTables
from stoker.compose.packs.row_filling import fill_rows_by_numpy
from stoker.compose.packs.token_documents import Documents, documents_of, lengths_of
from stoker.errors import ArgumentError, DataError
from stoker.foundation.positions import Positions, in_range, one_position
from stoker.foundation.randomness import epoch as epoch_being_read
from stoker.native import RowMemory, fill_rows
from stoker.source.protocols import earlier_fingerprints, knows_settings, own_fingerprint
from stoker.store.build import PACKS
from stoker.store.crops import IGNORED
from stoker.store.reader import ColumnValues

Strategy = Literal["best_fit", "concat"]
Long = Literal["split", "error", "truncate"]

MAX_LENGTH = (1 << 31) - 1
"""Columns are numbered with 32 bits."""

FILLED_FIELDS = ("tokens", "labels", "positions", "document_ids", "cu_seqlens")
"""The fields that are written from the tokens of spans."""

MAX_CACHED_EPOCHS = 4
MAX_CACHED_SIZES = 8
"""Batch sizes for which the layout in memory is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """The arguments of `pack`, checked."""

    length: int
    strategy: Strategy
    window: int | None
    long: Long
    seed: int
    dtype: np.dtype[Any]
    pad: int
    ignored: int
    blocks: int | None

    def planning(self) -> dict[str, Any]:
        """Return the settings that a plan depends on."""
        return {"length": self.length, "strategy": self.strategy, "window": self.window, "long": self.long}


def pack(
    source: Any,
    length: int = 4096,
    *,
    strategy: Strategy = "best_fit",
    window: int | None = None,
    long: Long = "split",
    seed: int = 0,
    column: str = "tokens",
    dtype: DTypeLike | None = "int64",
    pad: int | None = None,
    ignored: int = IGNORED,
    blocks: int | None = None,
    cache: bool | str | os.PathLike[str] = True,
) -> Packed:
    """Pack the documents of `source` into rows of `length` tokens; see `Packed` for what a row holds.

    `source` is a store of tokens (its ragged column `column`), its path, a Megatron dataset, or a list of documents in
    memory.

    With `strategy="best_fit"` a document that fits into a row is never cut. Longer ones are cut into full rows and a
    rest, which is packed like any other document (`long="split"`), or raise an error (`"error"`), or lose what does not
    fit into one row (`"truncate"`). The documents of a row come from the whole corpus, or from a `window` of so many
    consecutive documents, so that they lie near each other on disk. Which of several equally long documents share a row
    changes from epoch to epoch, by `seed`. With `"concat"` documents follow one another, and are cut where a row ends.

    The plan for a store is cached next to it (in `.packs`), for later calls that pack it the same way. `cache` may be
    another folder, or False to keep the plan in memory.

    `dtype` is the type of tokens and labels, `pad` the token that fills up rows (by default the one that ends
    documents, if there is one), `ignored` the label of tokens without a next one. With `blocks`, rows also have
    FlexAttention's block tables for blocks of that size.
    """
    _check_choices(length=length, strategy=strategy, window=window, long=long, blocks=blocks)
    documents = documents_of(source, column)
    settings = PackSettings(
        length=int(length),
        strategy=strategy,
        window=None if window is None else int(window),
        long=long,
        seed=_integer(seed, "seed"),
        dtype=_token_type(documents, dtype),
        pad=_pad(documents) if pad is None else _integer(pad, "pad"),
        ignored=_integer(ignored, "ignored"),
        blocks=None if blocks is None else int(blocks),
    )
    limits = np.iinfo(settings.dtype)
    for name, number in (("ignored", settings.ignored), ("pad", settings.pad)):
        if not limits.min <= number <= limits.max:
            raise ArgumentError(
                f"{name}={number} does not fit {settings.dtype}",
                hint=f"use a signed dtype such as int64, or a {name} from {limits.min} to {limits.max}",
            )
    if not documents.num_values:
        raise ArgumentError("there are no tokens to pack: the source is empty", hint="check its path")
    packed = Packed(documents, settings, _plan_cache(documents, settings, cache))
    if not len(packed):
        raise ArgumentError("there are no tokens to pack: all documents are empty", hint="check their offsets")
    return packed


def _check_choices(*, length: Any, strategy: Any, window: Any, long: Any, blocks: Any) -> None:
    if not 2 <= _integer(length, "length") <= MAX_LENGTH:
        raise ArgumentError(
            f"length must be 2 (a token and its label) to {MAX_LENGTH:,}, got {length}",
            hint="pass the tokens of a row, such as the context length of the model",
        )
    if strategy not in ("best_fit", "concat"):
        raise ArgumentError(f"unknown strategy={strategy!r}", hint="choose best_fit or concat")
    if long not in ("split", "error", "truncate"):
        raise ArgumentError(f"unknown long={long!r}", hint="choose split, error or truncate")
    if window is not None and _integer(window, "window") < 1:
        raise ArgumentError(f"window must be at least 1, got {window}", hint="leave it out to pack the whole corpus")
    if strategy == "concat" and (window is not None or long != "split"):
        raise ArgumentError(
            "strategy='concat' cuts documents wherever a row ends, in their order",
            hint="window= and long= are for best_fit: leave them out",
        )
    if blocks is not None:
        from stoker.compose.packs.block_tables import num_blocks

        num_blocks(length, _integer(blocks, "blocks"))


def _integer(number: Any, name: str) -> int:
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise ArgumentError(f"{name} must be an int, got {number!r}", hint=f"pass {name} as an int")
    return int(number)


def _token_type(documents: Documents, dtype: DTypeLike | None) -> np.dtype[Any]:
    stored = documents.dtype
    if stored.kind not in "iu":
        raise ArgumentError(f"tokens must be integers, got {stored}", hint="pass token ids")
    try:
        wanted = stored.newbyteorder("=") if dtype is None else np.dtype(dtype)
    except TypeError as error:
        raise ArgumentError(f"unknown dtype={dtype!r}", hint="use int64, or None for the type as stored") from error
    # From 32 bits on, a signed type can hold an unsigned one: no vocabulary needs the last bit.
    is_wide = wanted.itemsize >= max(4, stored.itemsize)
    if wanted.kind not in "iu" or not (is_wide or np.can_cast(stored, wanted)):
        raise ArgumentError(
            f"dtype={wanted} cannot hold tokens of {stored}", hint="use int64, or None for the type as stored"
        )
    return wanted


def _pad(documents: Documents) -> int:
    tokenizer = _meta(documents).get("tokenizer")
    end = tokenizer.get("end_of_document") if isinstance(tokenizer, dict) else None
    return end if type(end) is int else 0


def _meta(documents: Documents) -> dict[str, Any]:
    meta = getattr(documents, "meta", None)
    return meta if isinstance(meta, dict) else {}


def _plan_cache(documents: Documents, settings: PackSettings, cache: Any) -> PackPlanCache:
    fingerprint = own_fingerprint(documents) if cache is not False else ""
    folder: Path | None = None
    is_own = False
    if cache is True:
        if isinstance(documents, ColumnValues):
            folder, is_own = documents.path / PACKS, True
    elif cache is not False:
        if not isinstance(cache, (str, os.PathLike)):
            raise ArgumentError(f"cache={cache!r} is not a folder", hint="pass its path, or True or False")
        folder = Path(cache).absolute()
        if not isinstance(fingerprint, str):
            raise ArgumentError(
                "the source has no fingerprint, so a cached plan could not be recognized as its own",
                hint="leave out cache=, or give the source a property `fingerprint`",
            )
    return PackPlanCache(folder, fingerprint=fingerprint or "", settings=settings.planning(), is_own=is_own)


def _plan(documents: Documents, settings: PackSettings) -> PackTables:
    lengths = lengths_of(documents)
    if settings.strategy == "best_fit":
        return plan_best_fit(lengths, length=settings.length, window=settings.window, long=settings.long)
    facts = concat_facts(lengths, length=settings.length)
    if facts.num_tokens != documents.num_values:
        raise DataError(
            f"the documents have {facts.num_tokens} tokens together, but the source has {documents.num_values}\n"
            "hint: `stoker verify` checks a store; prepare it again"
        )
    return PackTables.without_tables(facts)


_VERSION = re.compile(r"\.pack(\d+)\.")
"""The version of the algorithm in a fingerprint."""


def differing_versions(theirs: Any, ours: Any) -> tuple[int, int] | None:
    """Return the packing versions in two fingerprints that differ in nothing else; otherwise None."""
    if not isinstance(theirs, str) or not isinstance(ours, str):
        return None
    one, other = _VERSION.search(theirs), _VERSION.search(ours)
    if one is None or other is None or _VERSION.sub("", theirs) != _VERSION.sub("", ours):
        return None
    return int(one[1]), int(other[1])


class Packed:
    """Rows of `length` tokens, made of whole documents or parts of them. Made by `stoker.pack`.

    A row is a dict. `tokens` has the documents' tokens, then padding; `labels` the next token of the same document,
    also where that is in another row, and `ignored` where there is none; `positions` counts from 0 in each span;
    `document_ids` numbers the spans of the row from 0 on, with -1 for padding; `cu_seqlens` has 0, the columns where
    spans end, and `length` up to its last entry, the padding being a span of its own; `max_seqlen` is the longest span
    in any row. All have fixed shapes. A batch has the same with the batch dimension in front.

    A row's content depends on the epoch: `in_epoch(3)` gives the rows of that epoch. Without it, rows are those of the
    epoch that a loader is reading (`stoker.epoch()`), also inside a dataset of your own; outside a loader, of epoch 0.
    Safe to use from threads and after a fork. Cheap to pickle where the plan is cached on disk.
    """

    is_pure = True
    """Reading draws no random numbers, and `in_epoch` chooses the epoch: a loader need not set a sample's context."""

    def __init__(
        self,
        documents: Documents,
        settings: PackSettings,
        cache: PackPlanCache,
        *,
        tables: PackTables | None = None,
    ) -> None:
        self._documents, self.settings, self._cache = documents, settings, cache
        self._epoch: int | None = None
        """The epoch that was chosen by `in_epoch`."""
        plan = partial(_plan, documents, settings)
        self._is_on_disk = False
        if tables is None:
            tables, self._is_on_disk = cache.load_or_make(plan)
        self._tables = tables
        self._rows: PackedRows
        if settings.strategy == "concat":
            self._rows = ConcatRows(documents, length=settings.length)
        else:
            self._rows = BestFitRows(
                documents,
                tables,
                length=settings.length,
                window=settings.window,
                is_cut=settings.long != "truncate",
                seed=settings.seed,
                renew=partial(cache.replace_damaged, plan),
            )
        facts = self.facts = tables.facts
        self.length = settings.length
        """Tokens in a row."""
        self.rows_are_sorted = settings.strategy == "best_fit"
        """Whether rows of similar documents are neighbors, so that training needs them shuffled."""
        self.num_tokens = facts.num_tokens
        """Tokens of documents in the rows of an epoch."""
        self.num_documents = facts.num_documents
        """Documents of the source, empty ones included."""
        self.max_documents = facts.max_documents
        """The most spans in any row, with the padding counted as one."""
        self.max_seqlen = facts.max_seqlen
        """The longest span in any row, padding included."""
        self.dtype = settings.dtype
        """The type of tokens and labels."""
        self.stored_dtype = documents.dtype
        """The type of the tokens in the source."""
        self.meta = _meta(documents)
        """What the source says about how it was made, such as its tokenizer; empty if it says nothing."""
        self._size = facts.num_rows
        self._fields = self._row_fields()
        self._layouts: dict[int, tuple[FieldLayout, RowMemory, NDArray[np.int64]]] = {}
        self._root: Packed = self
        self._views: dict[int, Packed] = {}

    # ------------------------------------------------------------ properties

    def __len__(self) -> int:
        return self._size

    @property
    def epoch(self) -> int:
        """The epoch whose rows these are."""
        chosen = self._epoch
        return epoch_being_read() if chosen is None else chosen

    @property
    def plan_path(self) -> Path | None:
        """Where the plan is cached; None if it is in memory."""
        return self._cache.path if self._is_on_disk else None

    @cached_property
    def fingerprint(self) -> str | None:
        """A hash that identifies these rows, of all epochs; None if the source has no fingerprint."""
        fingerprint = own_fingerprint(self._documents)
        return None if fingerprint is None else self._packed_fingerprint(fingerprint)

    def earlier_fingerprints(self) -> Iterator[str]:
        """Yield the fingerprints of these rows before their source grew."""
        return map(self._packed_fingerprint, earlier_fingerprints(self._documents))

    def _packed_fingerprint(self, fingerprint: str) -> str:
        chosen = self.settings
        way = f"{chosen.strategy}.{chosen.long}.{chosen.window or 'all'}" if chosen.strategy == "best_fit" else "concat"
        return f"{fingerprint}.pack{VERSION}.{chosen.length}.{way}.{chosen.seed}.{chosen.pad}.{chosen.ignored}"

    def expect(self, settings: Mapping[str, Any]) -> None:
        """Raise `StoreMismatch` unless the tokens were prepared with these settings, saying what differs."""
        documents: Any = self._documents
        if not knows_settings(documents):
            raise ArgumentError(
                "expect= cannot be checked: the source does not record how it was prepared", hint="only stores do"
            )
        documents.expect(settings)

    def __repr__(self) -> str:
        way = "by best fit" if self.settings.strategy == "best_fit" else "by concatenation"
        return f"<Packed: {self._size:,} rows of {self.length} tokens ({self.dtype}), {way}>"

    def report(self) -> PackReport:
        """Return how well the documents fill their rows."""
        return PackReport.of(self.facts, self.length)

    def in_epoch(self, epoch: int) -> Packed:
        """Return the rows of an epoch, at no cost, for good: whatever epoch a loader is reading."""
        if epoch == self._epoch:
            return self
        root = self._root
        view = root._views.get(epoch)
        if view is None:
            view = object.__new__(type(root))
            view.__dict__.update(root.__dict__)
            view._epoch, view._views = _integer(epoch, "epoch"), {}
            recent = dict(list(root._views.items())[1 - MAX_CACHED_EPOCHS :])
            root._views = {**recent, epoch: view}  # one assignment: other threads see the old dict or the new one
        return view

    # ------------------------------------------------------------ documents and rows

    def spans(self, positions: Positions) -> RowSpans:
        """Return which parts of which documents are in the rows at `positions`."""
        return self._rows.spans(self._numbers(positions), self.epoch)

    def _numbers(self, positions: Any) -> NDArray[np.int64]:
        """Return positions as an array, after checking that they exist."""
        is_plain = type(positions) is np.ndarray and positions.dtype == np.int64 and positions.ndim == 1
        if is_plain and len(positions) and int(positions.view(np.uint64).max()) < self._size:
            return positions  # type: ignore[no-any-return]
        return in_range(positions, self._size, what="the packed rows")

    def documents(self, row: int) -> list[DocumentSpan]:
        """Return the documents in one row, from its first column on."""
        rows = in_range([one_position(row)], self._size, what="the packed rows")
        return self._rows.spans(rows, self.epoch).listed(rows.tolist())

    def find(self, document: int) -> list[DocumentSpan]:
        """Return where a document is, from its beginning to its end: in no row, in one, or, if it was cut, in several.

        What `long="truncate"` leaves out is in none.
        """
        numbers = in_range([one_position(document)], self.num_documents, what="the documents")
        return self._rows.find(int(numbers[0]), self.epoch)

    def describe(self, position: int) -> str:
        """Return a short text that lists the documents of a row."""
        spans = self.documents(position)
        shown = ", ".join(
            f"{span.document}{f' from token {span.offset} on' if span.offset else ''}" for span in spans[:8]
        )
        more = f" and {len(spans) - 8} more" if len(spans) > 8 else ""
        return f"document{'s' if len(spans) > 1 else ''} {shown}{more}"

    # ------------------------------------------------------------ rows

    def _row_fields(self) -> Fields:
        length, small = self.length, np.dtype(np.int32)
        fields: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            "tokens": ((length,), self.dtype),
            "labels": ((length,), self.dtype),
            "positions": ((length,), small),
            "document_ids": ((length,), small),
            "cu_seqlens": ((self.max_documents + 1,), small),
            "max_seqlen": ((), small),
        }
        if self.settings.blocks is not None:
            from stoker.compose.packs.block_tables import block_fields

            fields.update(block_fields(length, self.settings.blocks))
        return fields

    def fields(self) -> Fields:
        """Return shape and type of each field of a row."""
        return dict(self._fields)

    def fill(self, positions: Positions, batch: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> None:
        """Write the rows at `positions` [R] into rows `rows` [R] of a batch's arrays, which have the `fields`.

        `cu_seqlens` may be wider than in `fields`.
        """
        spans, flat, elements = self._rows.placed(self._numbers(positions), self.epoch)
        given = (flat, elements, spans.sizes, spans.has_next, spans.row_starts, rows)
        out: dict[str, Any] = {name: batch[name] for name in FILLED_FIELDS}
        out |= {"pad": self.settings.pad, "ignored": self.settings.ignored}
        if not fill_rows(*given, **out):
            fill_rows_by_numpy(*given, **out)
        self._fill_rest(batch, rows)

    def _fill_rest(self, batch: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> None:
        """Write the fields that do not depend on the tokens."""
        batch["max_seqlen"][rows] = self.facts.max_seqlen
        if self.settings.blocks is not None:
            from stoker.compose.packs.block_tables import block_tables

            block_tables(batch["cu_seqlens"][rows], self.length, self.settings.blocks, batch, rows)

    def __getbatch__(self, positions: Positions, empty: Empty) -> dict[str, NDArray[Any]]:
        """Return the rows at `positions` as a batch, in memory from `empty(shape, dtype)`."""
        num_rows = len(positions)
        found = self._layouts.get(num_rows)
        if found is None:
            found = self._layout_of(num_rows)
            if len(self._layouts) >= MAX_CACHED_SIZES:
                self._layouts.clear()
            self._layouts[num_rows] = found
        layout, row_memory, all_rows = found
        numbers = self._numbers(positions)
        memory = empty((layout.num_bytes,), np.uint8)
        batch = layout.arrays(memory)
        if self._rows.write(numbers, self.epoch, row_memory, memory):
            self._fill_rest(batch, all_rows)
        else:
            self.fill(numbers, batch, all_rows)
        return batch

    def _layout_of(self, num_rows: int) -> tuple[FieldLayout, RowMemory, NDArray[np.int64]]:
        """Return how batches of so many rows lie in memory, for NumPy and for C, and the numbers of all their rows."""
        layout, chosen = FieldLayout(self._fields, num_rows), self.settings
        row_memory = RowMemory(
            layout.places,
            num_bytes=layout.num_bytes,
            shape=(num_rows, self.length),
            width=self.max_documents + 1,
            source=self._documents.dtype,
            dtype=self.dtype,
            pad=chosen.pad,
            ignored=chosen.ignored,
        )
        return layout, row_memory, np.arange(num_rows)

    def __getitem__(self, position: int) -> dict[str, Any]:
        batch = self.__getbatch__([one_position(position)], np.empty)
        return {name: rows[0] for name, rows in batch.items()}

    def __getitems__(self, positions: Positions) -> list[dict[str, Any]]:
        batch = self.__getbatch__(positions, np.empty)
        return [dict(zip(batch, rows)) for rows in zip(*batch.values())]

    def __reduce__(self) -> tuple[Any, ...]:
        tables = None if self._is_on_disk else self._tables
        return _unpickle, (self._documents, self.settings, self._cache, tables, self._epoch)


def _unpickle(
    documents: Documents, settings: PackSettings, cache: PackPlanCache, tables: PackTables | None, epoch: int | None
) -> Packed:
    packed = Packed(documents, settings, cache, tables=tables)
    return packed if epoch is None else packed.in_epoch(epoch)
