"""Context parallelism: each rank of a context-parallel group gets its own part of every sequence.

The ranks of such a group train on the same batch, each on some of its columns. Splitting is a pure function of (batch,
rank, number of ranks), so that no rank has to ask another. Two orders are known:

    head_tail     2n chunks for n ranks; rank i gets chunk i, then chunk 2n - 1 - i. With causal attention every rank
                  has the same amount of work. torch's `context_parallel` calls it head-and-tail load balancing; it is
                  also the order of Megatron and Transformer Engine, and is known as zigzag.
    contiguous    n chunks for n ranks; rank i gets chunk i. What Ulysses needs, and attention that is not causal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stoker.errors import ArgumentError, BatchError
from stoker.foundation import trees
from stoker.store.crops import IGNORED

SequenceOrder = Literal["head_tail", "contiguous"]

Field = str | int
"""A key of a dict, a field of a named tuple, or the index of an item of a tuple or list."""

PADDING: Mapping[str, int] = {"tokens": 0, "labels": IGNORED, "positions": 0, "document_ids": -1}
"""The fields of our own token datasets that run along the sequence, and what a row is padded with."""

WHOLE = frozenset({"cu_seqlens", "max_seqlen"})
"""Fields that describe a whole row, and stay whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSplit:
    """How the sequences of a batch are split over the ranks of a context-parallel group."""

    order: SequenceOrder = "head_tail"
    """"head_tail" for ring attention with a causal mask, "contiguous" for Ulysses and attention without a mask."""
    fields: Mapping[Field, float | None] | Sequence[Field] | Field | None = None
    """The fields to split, with the value that pads them: `{"input_ids": 0, "labels": -100}`.

    A field with the value None is refused where it would need padding. Names without values are padded as usual if they
    are known (tokens, labels, positions, document_ids). By default, those of these four that a batch has. For batches
    that are tuples or lists, give indices.
    """
    dim: int = 1
    """The dimension of the sequence: 1 behind the batch, 0 for samples without one."""

    def __post_init__(self) -> None:
        if self.order not in get_args(SequenceOrder):
            raise ArgumentError(
                f"order must be one of {', '.join(get_args(SequenceOrder))}, got {self.order!r}",
                hint='use "head_tail" for ring attention with a causal mask, "contiguous" for Ulysses',
            )
        if isinstance(self.dim, bool) or not isinstance(self.dim, int):
            raise ArgumentError(f"dim must be an integer, got {self.dim!r}", hint="1 where the batch is dimension 0")
        object.__setattr__(self, "fields", _checked_fields(self.fields))

    def num_chunks(self, num_ranks: int) -> int:
        """Return the number of equal chunks that a sequence is cut into: its length must be a multiple of it."""
        return 2 * num_ranks if self.order == "head_tail" else num_ranks

    def padded_length(self, length: int, num_ranks: int) -> int:
        """Return the length of a sequence after padding: the next multiple of the number of chunks."""
        num_chunks = self.num_chunks(num_ranks)
        return -(-length // num_chunks) * num_chunks

    def columns(self, length: int, *, rank: int, num_ranks: int) -> NDArray[np.int64]:
        """Return which columns of a sequence a rank has, in its order.

        Use it to pick position embeddings, or anything else that is made for the whole sequence. Columns from `length`
        on are padding.
        """
        parts = [np.arange(start, stop) for start, stop in self._ranges(length, rank, num_ranks)]
        return np.concatenate(parts, dtype=np.int64)

    def split(self, batch: Any, *, rank: int, num_ranks: int) -> Any:
        """Return a rank's part of `batch`: of every field that runs along the sequence its columns, the rest as it is.

        A batch is a dict, a named tuple, a tuple, a list, a tensor or an array, of torch tensors or NumPy arrays. What
        is split has memory of its own; `batch` stays as it is.
        """
        if not 0 <= rank < num_ranks:
            raise ArgumentError(
                f"rank must be from 0 to {num_ranks - 1} in a context-parallel group of {num_ranks}, got {rank}",
                hint="pass the rank within the context-parallel group, not the global one",
            )
        if num_ranks == 1:
            return batch
        if isinstance(batch, Tensor | np.ndarray):
            return self._split_alone(batch, rank, num_ranks)
        items = _items(batch)
        fields = self._fields_of(items, batch)
        length = self._length(items, fields)
        if self.padded_length(length, num_ranks) != length:
            self._check_padding(items, fields, length, num_ranks)
        ranges = self._ranges(length, rank, num_ranks)
        parts = {name: _part(items[name], ranges, length, self.dim, padding) for name, padding in fields.items()}
        return _rebuilt(batch, parts)

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return the sequence that the parts of all ranks, in order of rank, were split from, with its padding.

        The parts are torch tensors or NumPy arrays.
        """
        num_ranks = len(parts)
        if self.order == "contiguous":
            return _concatenated(parts, self.dim)
        halves: list[Any] = [None] * (2 * num_ranks)
        for rank, part in enumerate(parts):
            half = part.shape[self.dim] // 2
            halves[rank] = _sliced(part, 0, half, self.dim)
            halves[-1 - rank] = _sliced(part, half, 2 * half, self.dim)
        return _concatenated(halves, self.dim)

    def _ranges(self, length: int, rank: int, num_ranks: int) -> list[tuple[int, int]]:
        num_chunks = self.num_chunks(num_ranks)
        size = self.padded_length(length, num_ranks) // num_chunks
        chunks = (rank, num_chunks - 1 - rank) if self.order == "head_tail" else (rank,)
        return [(chunk * size, (chunk + 1) * size) for chunk in chunks]

    def _split_alone(self, sequence: Any, rank: int, num_ranks: int) -> Any:
        """Return a rank's part of a batch that is a single tensor."""
        if self.fields is not None:
            raise BatchError(
                f"split_sequence names the fields {_listed(self._padding)}, but the batch is a single "
                f"{type(sequence).__name__}\nhint: leave out fields=, or return a dict from the dataset"
            )
        length = _length_of(sequence, self.dim, "the batch")
        if self.padded_length(length, num_ranks) != length:
            raise BatchError(
                f"{self._needs(length, num_ranks)}, and a batch that is a single tensor does not say what to pad with\n"
                f"hint: use sequences of {self.padded_length(length, num_ranks)}, or return a dict from the dataset "
                'and name its fields: SequenceSplit(fields={"tokens": 0})'
            )
        return _part(sequence, self._ranges(length, rank, num_ranks), length, self.dim, None)

    @property
    def _padding(self) -> dict[Field, float | None]:
        fields = self.fields
        assert fields is None or isinstance(fields, dict)
        return fields or dict[Field, float | None](PADDING.items())

    def _fields_of(self, items: Mapping[Field, Any], batch: Any) -> dict[Field, float | None]:
        """Return the fields of this batch to split, each with its padding."""
        fields = self._padding
        if self.fields is not None:
            missing = [name for name in fields if name not in items]
            if missing:
                raise BatchError(
                    f"split_sequence names the fields {_listed(missing)}, which the batch does not have; it has "
                    f"{_listed(items) or 'none'}\nhint: correct fields= of the SequenceSplit"
                )
            return fields
        if "tokens" not in items:
            example = "{0: 0, 1: -100}" if isinstance(batch, tuple | list) else '{"input_ids": 0, "labels": -100}'
            raise BatchError(
                f"which fields run along the sequence is not known: expected a field 'tokens', got {_listed(items)}\n"
                f"hint: name them with what pads them, split_sequence=SequenceSplit(fields={example}); labels must be "
                "shifted by one already, because a rank does not see the tokens behind its part"
            )
        found = {name: padding for name, padding in fields.items() if name in items}
        length = self._length(items, found)
        for name, value in items.items():
            if name in found or name in WHOLE or not isinstance(value, Tensor | np.ndarray):
                continue
            if -value.ndim <= self.dim < value.ndim and value.shape[self.dim] == length:
                shown = ", ".join(f"{field!r}: {padding}" for field, padding in found.items())
                raise BatchError(
                    f"field {name!r} is as long as the sequence ({length}), and it is not known whether to split it\n"
                    f"hint: name all fields to split: SequenceSplit(fields={{{shown}, {name!r}: 0}}), or leave "
                    f"{name!r} out of them to keep it whole"
                )
        return found

    def _length(self, items: Mapping[Field, Any], fields: Mapping[Field, Any]) -> int:
        lengths = {name: _length_of(items[name], self.dim, f"field {name!r}") for name in fields}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise BatchError(
                f"the fields to split must have one length in dimension {self.dim}, got: {shown}\n"
                "hint: leave shorter fields out of SequenceSplit(fields=...), or make them as long"
            )
        return next(iter(lengths.values()))

    def _check_padding(
        self, items: Mapping[Field, Any], fields: Mapping[Field, float | None], length: int, num_ranks: int
    ) -> None:
        """Refuse to pad where it is not clear how."""
        need, better = self._needs(length, num_ranks), self.padded_length(length, num_ranks)
        if "cu_seqlens" in items:
            raise BatchError(
                f"{need}, and packed rows cannot be padded afterwards: cu_seqlens ends at {length}\n"
                f"hint: pack rows of {better}: stoker.pack(..., length={better})"
            )
        for name, padding in fields.items():
            if padding is None:
                raise BatchError(
                    f"{need}, and what to pad field {name!r} with is not known\n"
                    f"hint: use sequences of {better}, or say it: SequenceSplit(fields={{..., {name!r}: 0}})"
                )
            if not _can_hold(items[name], padding):
                raise BatchError(
                    f"{need}, and field {name!r} of {items[name].dtype} cannot hold its padding {padding}\n"
                    f"hint: use sequences of {better}, a signed dtype such as int64, or another padding in "
                    "SequenceSplit(fields=...)"
                )

    def _needs(self, length: int, num_ranks: int) -> str:
        return (
            f"a sequence must be a multiple of {self.num_chunks(num_ranks)} to be split over {num_ranks} ranks "
            f"({self.order}), got {length}"
        )


@dataclass(frozen=True, slots=True)
class SequencePart:
    """Takes one rank's part of every batch: a function that can be sent to a worker process."""

    split: SequenceSplit
    rank: int
    num_ranks: int

    def __call__(self, batch: Any) -> Any:
        """Return this rank's part of `batch`."""
        return self.split.split(batch, rank=self.rank, num_ranks=self.num_ranks)


def sequence_split(value: Any) -> SequenceSplit:
    """Return the `SequenceSplit` that an argument means: itself, or the name of an order."""
    if isinstance(value, SequenceSplit):
        return replace(value)
    if isinstance(value, str):
        return SequenceSplit(order=value)  # type: ignore[arg-type]  # refused if it is unknown
    raise ArgumentError(
        f"split_sequence must be 'head_tail', 'contiguous' or a stoker.SequenceSplit, got {value!r}",
        hint='use "head_tail" for ring attention with a causal mask, "contiguous" for Ulysses',
    )


def _checked_fields(fields: Any) -> dict[Field, float | None] | None:
    if fields is None:
        return None
    if isinstance(fields, str | int):
        fields = (fields,)
    given = dict(fields) if isinstance(fields, Mapping) else {name: PADDING.get(name) for name in fields}
    are_names = all(isinstance(name, str | int) and not isinstance(name, bool) for name in given)
    if not given or not are_names or not all(isinstance(value, int | float | None) for value in given.values()):
        raise ArgumentError(
            f"fields must map names of fields to the values that pad them, got {fields!r}",
            hint='for example fields={"input_ids": 0, "labels": -100}',
        )
    return given


def _items(batch: Any) -> dict[Field, Any]:
    """Return what a batch holds, by name or index."""
    entries = trees.items(batch)
    if entries is None:
        raise BatchError(
            f"split_sequence expects a batch that is a dict, tuple, list, tensor or array, got {type(batch).__name__}\n"
            "hint: return a dict from the dataset or the collate function"
        )
    return dict(entries)


def _rebuilt(batch: Any, parts: Mapping[Field, Any]) -> Any:
    """Return a batch of the same type with some items replaced."""
    return trees.rebuild(batch, (_items(batch) | dict(parts)).values())


def _length_of(value: Any, dim: int, what: str) -> int:
    if not isinstance(value, Tensor | np.ndarray):
        raise BatchError(
            f"{what} must be a tensor or an array to be split, got {type(value).__name__}\n"
            "hint: convert it in the dataset or the collate function, or leave it out of SequenceSplit(fields=...)"
        )
    if not -value.ndim <= dim < value.ndim:
        raise BatchError(
            f"{what} has no dimension {dim} to split: its shape is {tuple(value.shape)}\n"
            "hint: SequenceSplit(dim=...) is the dimension of the sequence, 1 where dimension 0 is the batch"
        )
    return int(value.shape[dim])


def _part(value: Any, ranges: Sequence[tuple[int, int]], length: int, dim: int, padding: float | None) -> Any:
    """Return some ranges of columns one after the other, padded behind the end, in memory of their own."""
    pieces = []
    for start, stop in ranges:
        if start < length:
            pieces.append(_sliced(value, start, min(stop, length), dim))
        if stop > length:
            assert padding is not None
            pieces.append(_filled(value, stop - max(start, length), dim, padding))
    return _concatenated(pieces, dim)


def _sliced(value: Any, start: int, stop: int, dim: int) -> Any:
    if isinstance(value, Tensor):
        return value.narrow(dim, start, stop - start)
    index = [slice(None)] * value.ndim
    index[dim] = slice(start, stop)
    return value[tuple(index)]


def _filled(value: Any, size: int, dim: int, padding: float) -> Any:
    shape = list(value.shape)
    shape[dim] = size
    if isinstance(value, Tensor):
        return torch.full(shape, padding, dtype=value.dtype, device=value.device)
    return np.full(shape, padding, value.dtype)


def _concatenated(pieces: Sequence[Any], dim: int) -> Any:
    if isinstance(pieces[0], Tensor):
        return torch.cat(list(pieces), dim)
    return np.concatenate(pieces, dim)


def _can_hold(value: Any, padding: float) -> bool:
    """Return whether elements of a tensor or array can be `padding`."""
    if isinstance(value, Tensor):
        if value.dtype.is_floating_point or value.dtype.is_complex:
            return True
        if value.dtype == torch.bool:
            return padding in (0, 1)
        torch_limits = torch.iinfo(value.dtype)
        return padding == int(padding) and torch_limits.min <= padding <= torch_limits.max
    if value.dtype.kind == "b":
        return padding in (0, 1)
    if value.dtype.kind not in "iu":
        return value.dtype.kind in "fc"
    limits = np.iinfo(value.dtype)
    return padding == int(padding) and bool(limits.min <= padding <= limits.max)


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))
