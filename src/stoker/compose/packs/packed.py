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
from stoker.compose.packs.pack_planning import laid_out, planned
from stoker.compose.packs.pack_report import PackReport
from stoker.compose.packs.pack_tables import PackFacts, PackTables
from stoker.compose.packs.packed_rows import BestFitRows, ConcatRows, PackedRows
from stoker.compose.packs.row_filling import fill_rows
from stoker.compose.packs.row_spans import DocumentSpan, RowSpans
from stoker.compose.packs.token_documents import Documents, documents_of, lengths_of
from stoker.errors import ArgumentError, DataError
from stoker.foundation.randomness import epoch as epoch_being_read
from stoker.native import RowMemory
from stoker.store.build import PACKS
from stoker.store.crops import IGNORED
from stoker.store.positions import Positions, in_range, one_position
from stoker.store.reader import Stretch

Strategy = Literal["best_fit", "concat"]
Long = Literal["split", "error", "truncate"]

MAX_LENGTH = (1 << 31) - 1
"""Columns are numbered in 32 bits."""

_EPOCHS_KEPT = 4
_FORMS_KEPT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """How documents are packed."""

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
        """Return what a plan depends on."""
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
    """Return the documents of `source` packed into rows of `length` tokens; see `Packed` for what a row holds.

    `source` is a store of tokens (its ragged column `column`), its path, a Megatron dataset, or a list of documents in
    memory.

    With `strategy="best_fit"` a document that fits into a row is never cut. Longer ones are cut into full rows and a
    rest that is packed like any other document (`long="split"`), or refused (`"error"`), or lose what does not fit into
    one row (`"truncate"`). Documents are chosen for a row over the whole corpus, or within each `window` of so many
    documents, so that those of a row lie near each other. Which of equally long documents are together changes from
    epoch to epoch, by `seed`. With `"concat"` the documents follow one another, and are cut where a row ends.

    The plan of a store's rows is kept beside it (in `.packs`), and found there by whoever packs it the same way again;
    `cache` may be another folder, or False to keep it in memory.

    `dtype` is that of tokens and labels, `pad` the token that rows are filled up with (by default the one that ends
    documents, if there is one), `ignored` the label where there is no next token. With `blocks`, rows have the block
    tables of FlexAttention for blocks of that size, too.
    """
    _check_choices(length=length, strategy=strategy, window=window, long=long, blocks=blocks)
    documents = documents_of(source, column)
    settings = PackSettings(
        length=int(length),
        strategy=strategy,
        window=None if window is None else int(window),
        long=long,
        seed=_whole(seed, "seed"),
        dtype=_token_type(documents, dtype),
        pad=_pad(documents) if pad is None else _whole(pad, "pad"),
        ignored=_whole(ignored, "ignored"),
        blocks=None if blocks is None else int(blocks),
    )
    limits = np.iinfo(settings.dtype)
    for name, number in (("ignored", settings.ignored), ("pad", settings.pad)):
        if not limits.min <= number <= limits.max:
            raise ArgumentError(
                f"{name}={number} is no number of {settings.dtype}",
                hint=f"use a signed dtype such as int64, or a {name} from {limits.min} to {limits.max}",
            )
    if not documents.num_values:
        raise ArgumentError("there are no tokens to pack: the source is empty", hint="check its path")
    packed = Packed(documents, settings, _shelf(documents, settings, cache))
    if not len(packed):
        raise ArgumentError("there are no tokens to pack: all documents are empty", hint="check their borders")
    return packed


def _check_choices(*, length: Any, strategy: Any, window: Any, long: Any, blocks: Any) -> None:
    if not 2 <= _whole(length, "length") <= MAX_LENGTH:
        raise ArgumentError(
            f"length={length} is not the length of a row",
            hint=f"a row has from two tokens (one, and its label) to {MAX_LENGTH:,}",
        )
    if strategy not in ("best_fit", "concat"):
        raise ArgumentError(f"strategy={strategy!r} is not known", hint="choose best_fit or concat")
    if long not in ("split", "error", "truncate"):
        raise ArgumentError(f"long={long!r} is not known", hint="choose split, error or truncate")
    if window is not None and _whole(window, "window") < 1:
        raise ArgumentError(f"window={window} is not positive", hint="leave it out to pack over the whole corpus")
    if strategy == "concat" and (window is not None or long != "split"):
        raise ArgumentError(
            "strategy='concat' cuts documents wherever a row ends, in their order",
            hint="window= and long= are for best_fit: leave them out",
        )
    if blocks is not None:
        from stoker.compose.packs.block_tables import num_blocks

        num_blocks(length, _whole(blocks, "blocks"))


def _whole(number: Any, name: str) -> int:
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise ArgumentError(f"{name}={number!r} is not a whole number", hint=f"pass {name} as an int")
    return int(number)


def _token_type(documents: Documents, dtype: DTypeLike | None) -> np.dtype[Any]:
    stored = documents.dtype
    if stored.kind not in "iu":
        raise ArgumentError(f"values of {stored} are not tokens", hint="tokens are whole numbers")
    try:
        wanted = stored.newbyteorder("=") if dtype is None else np.dtype(dtype)
    except TypeError as error:
        raise ArgumentError(
            f"dtype={dtype!r} is not known", hint="use int64, or None for the type as stored"
        ) from error
    # Of 32 bits and more, signed will do for unsigned: no vocabulary needs the last bit.
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


def _shelf(documents: Documents, settings: PackSettings, cache: Any) -> PackPlanCache:
    fingerprint = getattr(documents, "fingerprint", None) if cache is not False else ""
    folder: Path | None = None
    is_own = False
    if cache is True:
        if isinstance(documents, Stretch):
            folder, is_own = documents.path / PACKS, True
    elif cache is not False:
        if not isinstance(cache, (str, os.PathLike)):
            raise ArgumentError(f"cache={cache!r} is not a folder", hint="pass its path, or True or False")
        folder = Path(cache).absolute()
        if not isinstance(fingerprint, str):
            raise ArgumentError(
                "these tokens do not tell what they are, so a plan of them cannot be found again",
                hint="leave out cache=, or give the source a property `fingerprint`",
            )
    return PackPlanCache(folder, fingerprint=fingerprint or "", settings=settings.planning(), is_own=is_own)


def _planned(documents: Documents, settings: PackSettings) -> PackTables:
    """Return the plan."""
    lengths = lengths_of(documents)
    if settings.strategy == "best_fit":
        return planned(lengths, length=settings.length, window=settings.window, long=settings.long)
    facts = laid_out(lengths, length=settings.length)
    if facts.num_tokens != documents.num_values:
        raise DataError(
            f"the documents have {facts.num_tokens} tokens together, and there are {documents.num_values}\n"
            "hint: `stoker verify` checks a store; make the file anew"
        )
    return PackTables.of(facts)


_VERSION = re.compile(r"\.pack(\d+)\.")
"""Of the algorithm, in a fingerprint."""


def differing_versions(theirs: Any, ours: Any) -> tuple[int, int] | None:
    """Return the versions of the packing in two fingerprints, if they differ in nothing else."""
    if not isinstance(theirs, str) or not isinstance(ours, str):
        return None
    one, other = _VERSION.search(theirs), _VERSION.search(ours)
    if one is None or other is None or _VERSION.sub("", theirs) != _VERSION.sub("", ours):
        return None
    return int(one[1]), int(other[1])


class Packed:
    """Rows of `length` tokens made of whole documents, or of stretches of them, by position. Made by `stoker.pack`.

    A row is a table. `tokens` has the documents' tokens, then padding; `labels` the next token of the same document,
    also where that is in another row, and `ignored` where there is none; `positions` counts from 0 in each span;
    `document_ids` numbers the spans of the row from 0 on, with -1 for padding; `cu_seqlens` has 0, the columns where
    spans end, and `length` as often as it takes, the padding being a span of its own; `max_seqlen` is the longest span
    in any row. All have fixed shapes. A batch has the same with one more dimension.

    A row's content depends on the epoch: `in_epoch(3)` gives the rows of that epoch. Without it, rows are those of the
    epoch that a loader is reading (`stoker.epoch()`), also inside a dataset of your own; outside a loader, of epoch 0.
    Safe to use from threads and after a fork; pickles small where the plan is kept on disk.
    """

    is_pure = True
    """Reading draws no random numbers, and `in_epoch` chooses the epoch: a loader need not enter a sample's context."""

    def __init__(
        self,
        documents: Documents,
        settings: PackSettings,
        shelf: PackPlanCache,
        *,
        layout: PackTables | None = None,
    ) -> None:
        self._documents, self.settings, self._shelf = documents, settings, shelf
        self._epoch: int | None = None
        """The epoch that was chosen by `in_epoch`."""
        plan = partial(_planned, documents, settings)
        self._is_kept = False
        if layout is None:
            layout, self._is_kept = shelf.layout(plan)
        self._layout = layout
        self.facts: PackFacts = layout.facts
        self._rows: PackedRows
        if settings.strategy == "concat":
            self._rows = ConcatRows(documents, layout.facts, length=settings.length)
        else:
            self._rows = BestFitRows(
                documents,
                layout,
                length=settings.length,
                window=settings.window,
                is_cut=settings.long != "truncate",
                seed=settings.seed,
                renewed=partial(shelf.renewed, plan),
            )
        self._size = layout.facts.num_rows
        self._fields = self._made_fields()
        self._forms: dict[int, tuple[FieldLayout, RowMemory, NDArray[np.int64]]] = {}
        self._root: Packed = self
        self._views: dict[int, Packed] = {}

    # ------------------------------------------------------------ what there is

    def __len__(self) -> int:
        return self._size

    @property
    def length(self) -> int:
        """How many tokens a row has."""
        return self.settings.length

    @property
    def rows_are_sorted(self) -> bool:
        """Whether rows of like documents lie together, so that training needs them shuffled: so by best fit."""
        return self.settings.strategy == "best_fit"

    @property
    def num_tokens(self) -> int:
        """How many tokens of documents are in the rows of an epoch."""
        return self.facts.num_tokens

    @property
    def num_documents(self) -> int:
        """How many documents the source has, those without tokens too."""
        return self.facts.num_documents

    @property
    def max_documents(self) -> int:
        """The most spans in any row, the padding counted as one."""
        return self.facts.max_documents

    @property
    def max_seqlen(self) -> int:
        """The longest span in any row, the padding too."""
        return self.facts.max_seqlen

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of tokens and labels."""
        return self.settings.dtype

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The type of the tokens in the source."""
        return self._documents.dtype

    @property
    def meta(self) -> dict[str, Any]:
        """What the source says about how it was made, its tokenizer for one; empty if it says nothing."""
        return _meta(self._documents)

    @property
    def epoch(self) -> int:
        """The epoch whose rows these are."""
        chosen = self._epoch
        return epoch_being_read() if chosen is None else chosen

    @property
    def plan_path(self) -> Path | None:
        """Where the plan is kept; None if it is in memory."""
        return self._shelf.path if self._is_kept else None

    @cached_property
    def fingerprint(self) -> str | None:
        """What tells these rows, of all epochs, from others; None if the source does not tell what it is."""
        fingerprint = getattr(self._documents, "fingerprint", None)
        return self._packed_fingerprint(fingerprint) if isinstance(fingerprint, str) else None

    def earlier_fingerprints(self) -> Iterator[str]:
        """Yield the fingerprints that these rows had before their source grew."""
        earlier = getattr(self._documents, "earlier_fingerprints", None)
        return map(self._packed_fingerprint, earlier() if earlier is not None else ())

    def _packed_fingerprint(self, fingerprint: str) -> str:
        chosen = self.settings
        way = f"{chosen.strategy}.{chosen.long}.{chosen.window or 'all'}" if chosen.strategy == "best_fit" else "concat"
        return f"{fingerprint}.pack{VERSION}.{chosen.length}.{way}.{chosen.seed}.{chosen.pad}.{chosen.ignored}"

    def expect(self, settings: Mapping[str, Any]) -> None:
        """Raise `StoreMismatch` unless the tokens were prepared with these settings, saying what differs."""
        expect = getattr(self._documents, "expect", None)
        if expect is None:
            raise ArgumentError("these tokens do not tell how they were made", hint="only stores can be expected of")
        expect(settings)

    def __repr__(self) -> str:
        way = "by best fit" if self.settings.strategy == "best_fit" else "by concatenation"
        return f"<Packed: {self._size:,} rows of {self.length} tokens ({self.dtype}), {way}>"

    def report(self) -> PackReport:
        """Return how well the documents fill their rows."""
        facts = self.facts
        room = facts.num_rows * self.length
        return PackReport(
            num_rows=facts.num_rows,
            length=self.length,
            num_documents=facts.num_documents - facts.num_empty,
            num_empty=facts.num_empty,
            num_tokens=facts.num_tokens,
            fill=facts.num_tokens / room,
            num_padding=room - facts.num_tokens,
            num_cut=facts.num_cut,
            num_truncated=facts.num_truncated,
            min_documents=facts.min_documents,
            mean_documents=facts.num_spans / facts.num_rows,
            max_documents=facts.most_documents,
        )

    def in_epoch(self, epoch: int) -> Packed:
        """Return the rows of an epoch, at no cost. They stay those of that epoch, whatever a loader reads."""
        if epoch == self._epoch:
            return self
        root = self._root
        view = root._views.get(epoch)
        if view is None:
            view = object.__new__(type(root))
            view.__dict__.update(root.__dict__)
            view._epoch, view._views = _whole(epoch, "epoch"), {}
            kept = dict(list(root._views.items())[1 - _EPOCHS_KEPT :])
            root._views = {**kept, epoch: view}
        return view

    # ------------------------------------------------------------ what is where

    def spans(self, positions: Positions) -> RowSpans:
        """Return which stretches of which documents are in the rows at `positions`."""
        return self._rows.spans(self._numbers(positions), self.epoch)

    def _numbers(self, positions: Any) -> NDArray[np.int64]:
        """Return the numbers of rows, which are there."""
        is_plain = type(positions) is np.ndarray and positions.dtype == np.int64 and positions.ndim == 1
        if is_plain and len(positions) and int(positions.view(np.uint64).max()) < self._size:
            return positions  # type: ignore[no-any-return]
        return in_range(positions, self._size, what="the packed rows")

    def documents(self, row: int) -> list[DocumentSpan]:
        """Return what is in one row, from its first column on."""
        rows = in_range([one_position(row)], self._size, what="the packed rows")
        return self._rows.spans(rows, self.epoch).listed(rows.tolist())

    def find(self, document: int) -> list[DocumentSpan]:
        """Return where a document is, from its beginning to its end: in no row, in one, or, if it was cut, in several.

        What `long="truncate"` has left away is nowhere.
        """
        numbers = in_range([one_position(document)], self.num_documents, what="the documents")
        return self._rows.find(int(numbers[0]), self.epoch)

    def describe(self, position: int) -> str:
        """Return what is in a row, in words."""
        spans = self.documents(position)
        shown = ", ".join(
            f"{span.document}{f' from token {span.offset} on' if span.offset else ''}" for span in spans[:8]
        )
        more = f" and {len(spans) - 8} more" if len(spans) > 8 else ""
        return f"document{'s' if len(spans) > 1 else ''} {shown}{more}"

    # ------------------------------------------------------------ rows

    def _made_fields(self) -> Fields:
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
        """Write the rows at `positions` into rows `rows` of a batch's arrays, which have the `fields`.

        `cu_seqlens` may be wider than here.
        """
        spans, flat, elements = self._rows.placed(self._numbers(positions), self.epoch)
        fill_rows(
            flat,
            elements,
            spans.sizes,
            spans.has_next,
            spans.row_starts,
            rows,
            tokens=batch["tokens"],
            labels=batch["labels"],
            positions=batch["positions"],
            document_ids=batch["document_ids"],
            cu_seqlens=batch["cu_seqlens"],
            pad=self.settings.pad,
            ignored=self.settings.ignored,
        )
        self._fill_rest(batch, rows)

    def _fill_rest(self, batch: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> None:
        """Write what does not depend on the tokens."""
        batch["max_seqlen"][rows] = self.facts.max_seqlen
        if self.settings.blocks is not None:
            from stoker.compose.packs.block_tables import block_tables

            block_tables(batch["cu_seqlens"][rows], self.length, self.settings.blocks, batch, rows)

    def __getbatch__(self, positions: Positions, empty: Empty) -> dict[str, NDArray[Any]]:
        """Return the rows at `positions` as a batch, in memory from `empty(shape, dtype)`."""
        num_rows = len(positions)
        found = self._forms.get(num_rows)
        if found is None:
            found = self._formed(num_rows)
            if len(self._forms) >= _FORMS_KEPT:
                self._forms.clear()
            self._forms[num_rows] = found
        form, sheet, every = found
        numbers = self._numbers(positions)
        memory = empty((form.num_bytes,), np.uint8)
        batch = form.arrays(memory)
        if self._rows.write(numbers, self.epoch, sheet, memory):
            self._fill_rest(batch, every)
        else:
            self.fill(numbers, batch, every)
        return batch

    def _formed(self, num_rows: int) -> tuple[FieldLayout, RowMemory, NDArray[np.int64]]:
        """Return how batches of so many rows lie in memory, and the numbers of all their rows."""
        form, chosen = FieldLayout(self._fields, num_rows), self.settings
        sheet = RowMemory(
            form.places,
            num_bytes=form.num_bytes,
            shape=(num_rows, self.length),
            width=self.max_documents + 1,
            source=self._documents.dtype,
            dtype=self.dtype,
            pad=chosen.pad,
            ignored=chosen.ignored,
        )
        return form, sheet, np.arange(num_rows)

    def __getitem__(self, position: int) -> dict[str, Any]:
        batch = self.__getbatch__([one_position(position)], np.empty)
        return {name: rows[0] for name, rows in batch.items()}

    def __getitems__(self, positions: Positions) -> list[dict[str, Any]]:
        batch = self.__getbatch__(positions, np.empty)
        return [dict(zip(batch, rows)) for rows in zip(*batch.values())]

    def __reduce__(self) -> tuple[Any, ...]:
        layout = None if self._is_kept else self._layout
        return _remade, (self._documents, self.settings, self._shelf, layout, self._epoch)


def _remade(
    documents: Documents, settings: PackSettings, shelf: PackPlanCache, layout: PackTables | None, epoch: int | None
) -> Packed:
    packed = Packed(documents, settings, shelf, layout=layout)
    return packed if epoch is None else packed.in_epoch(epoch)
