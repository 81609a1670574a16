"""Several datasets as one, at chosen weights.

Three numberings meet here. A sample's *number* counts all samples of the run, through all epochs. Its *position* counts
from 0 in an epoch of the mixture. And each source has positions and epochs of its own, which it goes through at its own
pace. `Blend` says which source gives sample `number`; a *key*, source epoch * number of sources + source, names a
source in one of its epochs.

Shapes: N samples that are looked up together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker import native
from stoker.compose.batch_fields import Empty, FieldLayout, Fields, scatter_rows
from stoker.compose.mixtures.mixture_sources import MixtureSource, common_fields
from stoker.compose.mixtures.mixture_state import LAST_SAMPLE, resume, state_of
from stoker.compose.mixtures.mixture_terms import Phase, Terms, epoch_length
from stoker.errors import ArgumentError
from stoker.foundation.positions import Positions, in_range, one_position
from stoker.foundation.randomness import epoch as epoch_being_read
from stoker.foundation.randomness import strand
from stoker.plan import derived_key
from stoker.plan.blend import Blend
from stoker.plan.order import Indices
from stoker.plan.quota import Quota, apportioned
from stoker.source.protocols import is_pure, knows_settings, makes_batches

MAX_LOOKAHEAD = 4096
"""Samples that are looked up together when batches follow one another: enough to hide a shuffle's cost per call."""

MAX_CACHED_SIZES = 8
MAX_CACHED_VIEWS = 64
MAX_CACHED_EPOCHS = 4


class Mixture:
    """Several datasets as one. Made by `stoker.mix`.

    Sample n comes from one of the sources, known for every n without looking at any other: `at(n)` returns which,
    `find` where a source's sample is. Positions are those of an epoch, of `len(mixture)` samples; `in_epoch(3)` gives
    the samples of that epoch. Without it, samples are those of the epoch that a loader is reading (`stoker.epoch()`),
    also inside a dataset of your own; outside a loader, of epoch 0. Safe to use from threads and after a fork.
    """

    owns_order = True
    """Samples must be read in order: shuffled, the shares would hold on average and not at all times."""

    def __init__(
        self,
        parts: tuple[MixtureSource, ...],
        terms: Terms,
        *,
        label: str | None = None,
        changes: bool = False,
        steps_of: int | None = None,
        phases: tuple[Phase, ...] = (),
        epoch: int | None = None,
    ) -> None:
        self.terms, self.label, self.changes = terms, label, changes
        self.steps_of = steps_of
        """How many samples the steps of the schedule have; None without one."""
        self._parts = parts
        self.names = tuple(part.name for part in parts)
        """The names of the sources; a source's number is its index here."""
        phases = phases or (Phase(terms=terms, start=0, epoch=0, begins=0, length=0),)
        self.blend = Blend(self.names, [phase.weight_phase for phase in phases], _quota)
        if not phases[-1].length:  # it is new, so its epochs are not measured yet
            sizes = {part.name: part.length for part in parts}
            length = epoch_length(self.blend, phases[-1].terms, sizes, phases[-1].begins)
            phases = (*phases[:-1], replace(phases[-1], length=length))
        self.phases = phases
        present = [part for part in parts if part.dataset is not None]
        self._fields = self._with_label_fields(common_fields(present))
        self._makes_batches = self._fields is not None or all(makes_batches(part.dataset) for part in present)
        self.is_pure = self._makes_batches and all(is_pure(part.dataset) for part in present)
        """Whether reading draws no random numbers, as all sources say."""
        self.prefers_process = any(getattr(part.dataset, "prefers_process", False) is True for part in present)
        """Whether threads should be in a process of their own, as any of the sources wants it."""
        self._reads_many = all(getattr(part.dataset, "__getitems__", None) for part in present)
        lengths = [getattr(part.dataset, "max_seqlen", None) for part in present]
        self.max_seqlen: int | None = max((length for length in lengths if length is not None), default=None)
        """The longest span in any row, where the sources are packed."""
        self._layouts: dict[int, tuple[FieldLayout, Indices]] = {}
        self._views: dict[int, Any] = {}
        self._is_chosen = epoch is not None
        """The epoch was chosen, by `in_epoch` or a state; otherwise it is the one that is being read."""
        self._epochs: dict[int, Mixture] = {}
        self._begin(epoch or 0)

    def rebuilt(
        self, parts: tuple[MixtureSource, ...], terms: Terms, *, phases: tuple[Phase, ...], epoch: int
    ) -> Mixture:
        """Return a mixture of other sources, terms and phases, with the other options of this one."""
        options = {"label": self.label, "changes": self.changes, "steps_of": self.steps_of}
        return Mixture(parts, terms, **options, phases=phases, epoch=epoch)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return {
            "parts": self._parts,
            "terms": self.terms,
            "label": self.label,
            "changes": self.changes,
            "steps_of": self.steps_of,
            "phases": self.phases,
            "epoch": self._epoch if self._is_chosen else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # ---------------------------------------------------------------- properties

    def __len__(self) -> int:
        return self._now()._size

    @property
    def epoch(self) -> int:
        """The epoch whose samples these are."""
        return self._epoch if self._is_chosen else epoch_being_read()

    @property
    def sources(self) -> dict[str, Any]:
        """The datasets by name."""
        return {part.name: part.dataset for part in self._parts if part.dataset is not None}

    @property
    def shares(self) -> dict[str, Fraction]:
        """Each source's exact share of the samples: at the beginning, or since the terms changed."""
        return self.shares_at(self.phases[-1].start)

    def shares_at(self, number: int) -> dict[str, Fraction]:
        """Return each source's exact share of the samples around sample `number`."""
        segment = self.blend.segments(number + 1)[-1]
        return dict(zip((self.names[source] for source in segment.sources.tolist()), segment.quota.shares))

    @property
    def fingerprint(self) -> str:
        """Identify this mixture by its sources, weights and schedule; a source without a fingerprint, by its length."""
        sources = {part.name: part.identity() for part in self._parts}
        described = json.dumps([sources, [phase.to_dict() for phase in self.phases]], sort_keys=True)
        return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()

    def expect(self, settings: Mapping[str, Any]) -> None:
        """Raise `StoreMismatch` unless all sources were prepared with these settings, saying what differs."""
        for name, dataset in self.sources.items():
            if not knows_settings(dataset):
                raise ArgumentError(
                    f"expect= can only check stores, and source {name!r} is not one", hint="leave out expect="
                )
            dataset.expect(settings)

    def report(self) -> dict[str, Any]:
        """Return the reports of the sources that have one, by name."""
        return {name: dataset.report() for name, dataset in self.sources.items() if hasattr(dataset, "report")}

    def __repr__(self) -> str:
        shares = ", ".join(f"{name} {100 * float(share):.4g}%" for name, share in self.shares.items())
        return f"<Mixture: {self._size:,} samples an epoch: {shares}>"

    # ---------------------------------------------------------------- what comes when

    def at(self, number: int) -> tuple[str, int, int]:
        """Return the source of sample `number`, the source's own epoch, and the position in it."""
        keys, places = self._look_up(np.array([one_position(number)], np.int64))
        epoch, source = divmod(int(keys[0]), len(self._parts))
        return self.names[source], epoch, int(places[0])

    def counts(self, number: int) -> dict[str, int]:
        """Return how many of the first `number` samples each source gives."""
        counts = self.blend.counts(np.array([one_position(number)], np.int64))[0]
        return dict(zip(self.names, counts.tolist()))

    def find(self, source: str, position: int, epoch: int = 0) -> int | None:
        """Return the number of the sample at `position` in `epoch` of a source; None if it never comes."""
        number = self._number_of(source)
        if epoch < 0:
            raise ArgumentError(f"there is no epoch {epoch}", hint="epochs count from 0")
        part = self._parts[number]
        place = int(in_range([one_position(position)], part.length, what=f"source {source!r}")[0])
        return self.blend.find(number, part.number(place, epoch))

    def in_epoch(self, epoch: int) -> Mixture:
        """Return the samples of an epoch, at no cost, for good: whatever epoch a loader is reading."""
        known = self._epochs.get(epoch)
        if known is not None:
            return known
        view = self
        if epoch != self._epoch or not self._is_chosen:
            view = object.__new__(Mixture)
            view.__dict__.update(self.__dict__)
            view._is_chosen, view._epochs = True, {}
            view._begin(epoch)
        total = self.blend.total
        if view._first + view._size > (LAST_SAMPLE if total is None else total):
            raise ArgumentError(
                f"there is no epoch {epoch}: those before it take {view._first} samples, "
                + (f"and the limits of the sources leave {total}" if total is not None else "more than can be counted"),
                hint="raise the limits, or train for fewer epochs",
            )
        if view is not self:
            # one assignment: other threads see the old dict or the new one
            self._epochs = {**dict(list(self._epochs.items())[1 - MAX_CACHED_EPOCHS :]), epoch: view}
        return view

    def _now(self) -> Mixture:
        """Return the view of the epoch that was chosen, or of the one that is being read."""
        if self._is_chosen:
            return self
        epoch = epoch_being_read()
        # `in_epoch` refuses epochs beyond the limits, which this one may be: after the last epoch of a run
        return self if epoch == self._epoch else self._epochs.get(epoch) or self.in_epoch(epoch)

    def number(self, epoch: int, position: int) -> int:
        """Return the number of the sample at `position` of `epoch`."""
        phase = self._phase_of(epoch)
        return phase.begins + (epoch - phase.epoch) * phase.length + position

    def place(self, number: int) -> tuple[int, int]:
        """Return the epoch and position of sample `number`."""
        phase = [phase for phase in self.phases if phase.begins <= number][-1]
        epochs, position = divmod(number - phase.begins, phase.length)
        return phase.epoch + epochs, position

    def check_readable(self, epoch: int, position: int) -> None:
        """Raise `ArgumentError` if part of `epoch`, from `position` on, is of a source that was taken out."""
        number, last = self.number(epoch, position), self.phases[-1].start
        if number >= last:
            return
        before, after = self.blend.counts(np.array([number, last]))
        for part, had, has in zip(self._parts, before.tolist(), after.tolist()):
            if part.dataset is None and has > had:
                raise ArgumentError(
                    f"epoch {epoch} has samples of source {part.name!r}, which is no longer in the mixture",
                    hint="mix it in again to see samples from before it was taken out",
                )

    def filling(self, positions: Indices) -> Indices:
        """Return positions to pad a batch with: `positions`, with those of sources that were taken out replaced."""
        gone = [source for source, part in enumerate(self._parts) if part.dataset is None]
        view = self._now()
        is_gone = np.isin(self.blend.at(positions + view._first)[0], gone) if gone else None
        if is_gone is None or not is_gone.any():
            return positions
        start = max(self.phases[-1].start, view._first) - view._first
        return np.where(is_gone, start + positions % (view._size - start), positions)

    def check_forms(self, positions: Sequence[int], samples: Sequence[Any]) -> None:
        """Raise `ArgumentError` if samples of several sources differ in their keys or length, so cannot be collated."""
        first = _form(samples[0])
        for position, sample in zip(positions, samples):
            if _form(sample) != first:
                names = [self.at(self._now()._first + at)[0] for at in (positions[0], position)]
                if names[0] != names[1]:
                    raise ArgumentError(
                        f"samples of source {names[0]!r} are {_describe(samples[0])}, those of source {names[1]!r} "
                        + _describe(sample),
                        hint="let all sources give samples of one form, or pass a collate_fn of your own",
                    )

    def _phase_of(self, epoch: int) -> Phase:
        if epoch < 0:
            raise ArgumentError(f"there is no epoch {epoch}", hint="epochs count from 0")
        return [phase for phase in self.phases if phase.epoch <= epoch][-1]

    def _begin(self, epoch: int) -> None:
        """Make positions those of an epoch. A run that is over is at the beginning of one that does not exist."""
        self._epoch, self._first, self._size = epoch, self.number(epoch, 0), self._phase_of(epoch).length
        self._lookahead = _NOTHING

    def _number_of(self, source: str) -> int:
        if source not in self.names:
            raise ArgumentError(
                f"there is no source {source!r}", hint=f"the sources are {', '.join(map(repr, self.names))}"
            )
        return self.names.index(source)

    # ---------------------------------------------------------------- samples

    def __getitem__(self, position: int) -> Any:
        return self.instead(position, position)

    def others(self, position: int) -> Sequence[int]:
        """Return the positions in this epoch that can replace the sample at `position`, if that is bad.

        They are of the same source, in the same epoch of the source, so that no share changes.
        """
        first, size = self._now()._first, self._now()._size
        number = first + int(in_range([one_position(position)], size, what="the mixture")[0])
        sources, drawn = self.blend.at(np.array([number]))
        source, length = int(sources[0]), self._parts[int(sources[0])].length
        low, high = self.blend.counts(np.array([first, first + size]))[:, source].tolist()
        own = int(drawn[0]) // length * length
        return _SameSourcePositions(self.blend, source, range(max(low, own), min(high, own + length)), first)

    def instead(self, position: int, other: int) -> Any:
        """Return the sample at `other`, with the label of the one at `position`, which it replaces."""
        view = self._now()
        numbers = in_range([one_position(position)], view._size, what="the mixture")
        others = numbers if other == position else in_range([one_position(other)], view._size, what="the mixture")
        keys, places = view._look_up_ahead(others)
        if self._fields is not None:  # the same fields as in a batch, with the widest cu_seqlens of all sources
            row = {name: values[0, ...] for name, values in view._filled_batch(others, np.empty).items()}
            return row if self.label is None else view._with_labels(numbers, keys, [row])[0]
        key = int(keys[0])
        with self._rng_namespace(key):
            sample = self._view(key)[int(places[0])]
        return sample if self.label is None else view._with_labels(numbers, keys, [sample])[0]

    @property
    def __getitems__(self) -> Any:
        """Read many samples in one call; None if a source cannot."""
        return self._now()._many if self._reads_many or self._fields is not None else None

    def _many(self, positions: Positions) -> list[Any]:
        numbers = in_range(positions, self._size, what="the mixture")
        if self._fields is not None:
            batch = self._filled_batch(numbers, np.empty)
            return [{name: values[row, ...] for name, values in batch.items()} for row in range(len(numbers))]
        keys, places = self._look_up_ahead(numbers)
        samples: list[Any] = [None] * len(numbers)
        for key, rows in _groups(keys):
            with self._rng_namespace(key):
                found = self._view(key).__getitems__(places[rows].tolist())
            for row, sample in zip(rows.tolist(), found):
                samples[row] = sample
        return samples if self.label is None else self._with_labels(numbers, keys, samples)

    @property
    def fields(self) -> Callable[[], Fields] | None:
        """Return shape and type of each field of a row; None if a source does not say."""
        fields = self._fields
        return None if fields is None else lambda: fields

    def fill(self, positions: Positions, batch: Mapping[str, NDArray[Any]], rows: Indices) -> None:
        """Write the rows at `positions` [N] into rows `rows` [N] of a batch's arrays, which have the `fields`."""
        view = self._now()
        numbers = in_range(positions, view._size, what="the mixture")
        keys, places = view._look_up_ahead(numbers)
        for key, chosen in _groups(keys):
            with self._rng_namespace(key):
                self._view(key).fill(places[chosen], batch, rows[chosen])
        if self.max_seqlen is not None and "max_seqlen" in batch:
            batch["max_seqlen"][rows] = self.max_seqlen
        if self.label is not None:
            for name, values in view._labels(numbers, keys).items():
                batch[name][rows] = values

    def __getbatch__(self, positions: Positions, empty: Empty) -> Any:
        """Return the samples at `positions` as a batch, in memory from `empty(shape, dtype)`.

        NotImplemented if the sources do not make batches, or not of the same form.
        """
        view = self._now()
        if self._fields is not None:
            return view._filled_batch(positions, empty)
        if not self._makes_batches:
            return NotImplemented
        numbers = in_range(positions, view._size, what="the mixture")
        keys, places = view._look_up_ahead(numbers)
        parts = []
        for key, rows in _groups(keys):
            with self._rng_namespace(key):
                parts.append((rows, self._view(key).__getbatch__(places[rows], np.empty)))
        whole = scatter_rows(parts, len(numbers), empty)
        if whole is NotImplemented or self.label is None:
            return whole
        if type(whole) is not dict:
            raise self._no_label(whole)
        for name, values in view._labels(numbers, keys).items():
            whole[name] = empty(values.shape, values.dtype)
            whole[name][...] = values
        return whole

    def _filled_batch(self, positions: Positions, empty: Empty) -> dict[str, NDArray[Any]]:
        assert self._fields is not None
        num_rows = len(positions)
        known = self._layouts.get(num_rows)
        if known is None:
            if len(self._layouts) >= MAX_CACHED_SIZES:
                self._layouts.clear()
            self._layouts[num_rows] = known = FieldLayout(self._fields, num_rows), np.arange(num_rows)
        layout, all_rows = known
        batch = layout.allocate(empty)
        self.fill(positions, batch, all_rows)
        return batch

    def describe(self, position: int) -> str:
        """Return where a sample comes from."""
        view = self._now()
        keys, places = view._look_up_ahead(in_range([one_position(position)], view._size, what="the mixture"))
        key, place = int(keys[0]), int(places[0])
        epoch, source = divmod(key, len(self._parts))
        where = f"sample {place} of source {self.names[source]!r}, in its epoch {epoch}"
        describe = getattr(self._view(key), "describe", None)
        if not callable(describe):
            return where
        with self._rng_namespace(key):
            return f"{where}: {describe(place)}"

    # ---------------------------------------------------------------- state

    def state(self, epoch: int, position: int) -> dict[str, Any]:
        """Return the state at `position` of `epoch` as plain values, with the count of each source."""
        return state_of(self, self._parts, epoch, position)

    def resumed(self, state: Any) -> Mixture:
        """Return the mixture that continues where `state` was taken: with its terms before, and these from there on.

        A state with other terms or sources is refused unless `changes` allows them; one of other data under the name of
        a source is always refused.
        """
        return resume(self, self._parts, state)

    def has_changed_since(self, state: Mapping[str, Any]) -> bool:
        """Return whether weights, limits or sources are others than when `state` was taken."""
        return bool(self.state(0, 0)["phases"] != state["phases"])

    # ---------------------------------------------------------------- inside

    def _view(self, key: int) -> Any:
        """Return the dataset of a key: a source in one of its epochs."""
        view = self._views.get(key)
        if view is None:
            epoch, source = divmod(key, len(self._parts))
            view = self._parts[source].in_epoch(epoch)
            if len(self._views) >= MAX_CACHED_VIEWS:
                self._views.clear()
            self._views[key] = view
        return view

    def _rng_namespace(self, key: int) -> AbstractContextManager[Any]:
        """Inside, `rng(position)` gives a different generator for every source and each of its epochs."""
        if self.is_pure:
            return _NO_DRAWS
        epoch, source = divmod(key, len(self._parts))
        return strand(derived_key(self._parts[source].seed, epoch), epoch)

    def _look_up(self, numbers: Indices) -> tuple[Indices, Indices]:
        """Return the keys of samples [N], and their positions in the source's epoch."""
        sources, drawn = self.blend.at(numbers)
        epochs, places = np.empty_like(drawn), np.empty_like(drawn)
        for source, rows in _groups(sources):
            epochs[rows], places[rows] = self._parts[source].places(drawn[rows])
        return epochs * len(self._parts) + sources, places

    def _look_up_ahead(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return keys and places of positions of this epoch [N]; where batches follow one another, many at once.

        A loader reads batches at a constant stride: 1, or the number of ranks. Doubling what is looked up with each
        call that continues the one before makes the cost of a shuffle, which is mostly per call, disappear.
        """
        count = len(positions)
        if not count:
            return positions, positions
        ahead = self._lookahead
        low = int(positions[0])
        stride = int(positions[1]) - low if count > 1 else ahead.stride
        # `at` is the index of `low` among the positions that were looked up
        at, remainder = divmod(low - ahead.first, ahead.stride)
        stop = at + count
        known = len(ahead.positions)
        is_known = not remainder and stride == ahead.stride and at >= 0 and stop <= known
        if is_known and (ahead.positions[at:stop] == positions).all():
            return ahead.keys[at:stop], ahead.places[at:stop]
        # a little further on counts as well: a worker may read only some of the batches
        continues = stride == ahead.stride and 0 <= at <= 2 * known + 16 * count
        size = min(MAX_LOOKAHEAD, 2 * known) if continues else 0
        wanted = positions
        # positions before the latest change of terms may be of a source that is gone, which cannot be looked up
        if stride >= 1 and size > count and self._first + low >= self.phases[-1].start:
            many = np.arange(low, min(low + size * stride, self._size), stride, dtype=np.int64)
            if len(many) >= count and (many[:count] == positions).all():
                wanted = many
        keys, places = self._look_up(wanted + self._first)
        if stride >= 1:
            self._lookahead = _Lookahead(low, stride, wanted, keys, places)
        return keys[:count], places[:count]

    def _with_label_fields(self, fields: Fields | None) -> Fields | None:
        if fields is None or self.label is None:
            return fields
        for name in (self.label, f"{self.label}_counts"):
            if name in fields:
                raise ArgumentError(f"label={self.label!r}: rows have a field {name!r} already", hint="choose another")
        counts = ((len(self._parts),), np.dtype(np.int64))
        return {**fields, self.label: ((), np.dtype(np.int32)), f"{self.label}_counts": counts}

    def _labels(self, positions: Indices, keys: Indices) -> dict[str, NDArray[Any]]:
        assert self.label is not None
        return {
            self.label: (keys % len(self._parts)).astype(np.int32),
            f"{self.label}_counts": self.blend.counts(positions + (self._first + 1)),
        }

    def _with_labels(self, positions: Indices, keys: Indices, samples: list[Any]) -> list[Any]:
        labels = self._labels(positions, keys)
        for row, sample in enumerate(samples):
            if type(sample) is not dict:
                raise self._no_label(sample)
            samples[row] = sample | {name: values[row] for name, values in labels.items()}
        return samples

    def _no_label(self, sample: Any) -> ArgumentError:
        return ArgumentError(
            f"label={self.label!r} needs samples that are dicts, and one is {type(sample).__name__}",
            hint="leave out label, or let the sources give dicts",
        )


class _Lookahead(NamedTuple):
    """Samples that were looked up together: `positions` from `first` on, `stride` apart."""

    first: int
    stride: int
    positions: Indices
    keys: Indices
    places: Indices


class _SameSourcePositions(Sequence[int]):
    """Positions of one source's samples in an epoch of the mixture, computed when asked for."""

    def __init__(self, blend: Blend, source: int, numbers: range, first: int) -> None:
        self._blend, self._source, self._numbers, self._first = blend, source, numbers, first

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:
        found = self._blend.find(self._source, self._numbers[at])
        assert found is not None
        return found - self._first


_NO_DRAWS = nullcontext()
_NONE = np.empty(0, np.int64)
_NOTHING = _Lookahead(0, 1, _NONE, _NONE, _NONE)


def _form(sample: Any) -> Any:
    if isinstance(sample, dict | Mapping):
        return sample.keys()
    return len(sample) if isinstance(sample, tuple | list) else None


def _describe(sample: Any) -> str:
    if isinstance(sample, Mapping):
        return f"dicts of {', '.join(sorted(map(repr, sample)))}"
    name = type(sample).__name__
    return f"{name}s of {len(sample)}" if isinstance(sample, tuple | list) else f"of type {name}"


def _groups(keys: Indices) -> list[tuple[int, Indices]]:
    """Return every key that occurs, with the indices [n] where it does."""
    ordered = keys.argsort(kind="stable")
    found = keys[ordered]
    bounds = [0, *(np.flatnonzero(found[1:] != found[:-1]) + 1).tolist(), len(found)]
    return [(int(found[start]), ordered[start:stop]) for start, stop in pairwise(bounds) if stop > start]


@lru_cache(maxsize=16)
def _quota(weights: tuple[int, ...]) -> Quota:
    return Quota(weights, _apportioned)


def _apportioned(weights: NDArray[np.int64]) -> NDArray[Any]:
    table = np.empty(int(weights.sum()), np.uint16)
    return table if native.apportion(weights, table) else apportioned(weights)
