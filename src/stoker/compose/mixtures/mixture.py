"""Several datasets as one, at chosen weights."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from os import PathLike
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker import native
from stoker.compose.batch_fields import Empty, FieldLayout, Fields
from stoker.compose.mixtures.mixture_sources import MixtureSource, check_alike, common_fields, parts_of, tokens_in
from stoker.compose.mixtures.mixture_terms import (
    Phase,
    Stop,
    Terms,
    checked_caps,
    checked_schedule,
    checked_stop,
    epoch_length,
)
from stoker.compose.mixtures.scattered import scattered
from stoker.errors import ArgumentError, StateError, StateMismatch, StateUnreadable
from stoker.foundation.randomness import epoch as epoch_being_read
from stoker.foundation.randomness import strand
from stoker.plan import Order, derived_key, order_named
from stoker.plan.blend import Blend, Weights
from stoker.plan.order import Indices
from stoker.plan.quota import Quota, apportioned, whole
from stoker.store.positions import Positions, in_range, one_position

MOST_AHEAD = 4096
"""Samples that are looked up together where batches come in a row: enough to hide what a shuffle costs per call."""

ROUNDED = Fraction(1, 50)
"""By which part of itself a share may be rounded without a word."""

_FORMS_KEPT = 8
_VIEWS_KEPT = 64
_EPOCHS_KEPT = 4
_LAST = 1 << 62


def mix(
    sources: Mapping[str, Any],
    *,
    by: Literal["samples", "tokens"] = "samples",
    stop: Stop = "first_exhausted",
    order: str | Order = "shuffle",
    seed: int = 0,
    limits: Mapping[str, float] | None = None,
    schedule: Mapping[int, Mapping[str, float]] | None = None,
    batch_size: int | None = None,
    label: str | None = None,
    changes: bool = False,
    force: bool = False,
) -> Mixture:
    """Return several datasets as one, each with its share of the samples, at all times and not by chance.

    Args:
        sources: `{"web": (dataset, 0.7), "code": (dataset, 0.3)}`; with a schedule from step 0 on, datasets alone.
        by: what the weights count. By tokens, a source whose samples have fewer gives more of them.
        stop: when an epoch ends: before the first source would begin anew ("first_exhausted") or pass its limit; when
            all have been seen whole, or reached their limits ("all_exhausted"); "never"; or after so many samples. The
            next epoch goes on where the sources are, and is as long.
        order: the order of each source, in each epoch of its own another one.
        seed: what the orders are made from.
        limits: how many epochs of a source there may be in all. Then it drops out, and the others share its place.
        schedule: weights from a step on, `{0: {...}, 10_000: {...}}`. A source that is not named does not come.
        batch_size: how many samples the schedule's steps have, over all ranks. It stays what it was when a run is
            resumed with another batch size.
        label: the name of a field that tells the number of each sample's source (in `names`); `<label>_counts` has how
            many samples of each there have been, this one included.
        changes: whether a state of other weights, limits or sources may be loaded: these hold from there on.
        force: mix tokens of different types or tokenizers.
    """
    given: Any = sources
    if not isinstance(given, Mapping) or not given:
        what = (
            f"sources is a {type(given).__name__}, and not a table with names" if given else "there is nothing to mix"
        )
        raise ArgumentError(what, hint='pass {"web": (dataset, 0.7), "code": (dataset, 0.3)}')
    if by not in ("samples", "tokens"):
        raise ArgumentError(f"by={by!r} is not known", hint="weights count samples or tokens")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ArgumentError(f"seed={seed!r} is not an integer", hint="any integer will do")
    datasets, weights = {}, {}
    for name, source in sources.items():
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"{name!r} is no name for a source", hint="name sources by words")
        is_pair = isinstance(source, tuple) and len(source) == 2
        datasets[name] = source[0] if is_pair else source
        if is_pair:
            weights[name] = source[1]
        _check_source(name, datasets[name])
    parts = parts_of(datasets, order=order_named(order), seed=seed)
    check_alike(parts, force=force)
    tokens = {part.name: tokens_in(part.name, part.dataset) if by == "tokens" else Fraction(1) for part in parts}
    starts = checked_schedule(weights, schedule, tokens, batch_size=batch_size)
    for _, entry in starts:
        _warn_of_rounding(entry)
    terms = Terms(
        schedule=starts,
        caps=checked_caps(limits, {part.name: part.length for part in parts}),
        stop=checked_stop(stop),
        names=tuple(datasets),
    )
    return Mixture(parts, terms, label=label, changes=changes, steps_of=batch_size if schedule else None)


def _check_source(name: str, dataset: Any) -> None:
    """Refuse what has a length and positions, or a weight's looks, and is no dataset."""
    if isinstance(dataset, str | bytes | PathLike):
        path = repr(str(dataset))
        raise ArgumentError(
            f"source {name!r} is a path, and not a dataset",
            hint=f"pass stoker.pack({path}, length=...), or stoker.open({path}).tokens(length)",
        )
    if isinstance(dataset, int | float):
        raise ArgumentError(f"source {name!r} is the number {dataset}", hint="write (dataset, weight)")


def _warn_of_rounding(weights: Weights) -> None:
    numbers = whole(list(weights.values()))
    period = sum(numbers)
    for (name, weight), number in zip(weights.items(), numbers):
        share = Fraction(number, period)
        if abs(share - weight) > weight * ROUNDED:
            warnings.warn(
                f"source {name!r} should give {float(weight):.3g} of the samples, and gives {number} in {period}\n"
                "hint: shares are multiples of about a millionth; mix what is rare into another source beforehand",
                stacklevel=3,
            )


class Mixture:
    """Several datasets as one. Made by `stoker.mix`.

    Sample n is one of a source's, known for every n without looking at any other: `at(n)` tells which, `find` where a
    source's sample is. Positions are those of an epoch, of `len(mixture)` samples; `in_epoch(3)` gives the samples of
    that epoch. Without it, samples are those of the epoch that a loader is reading (`stoker.epoch()`), also inside a
    dataset of your own; outside a loader, of epoch 0. Safe to use from threads and after a fork.
    """

    owns_order = True
    """Its samples come one after the other: shuffled, the shares would hold by chance and not at all times."""

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
        """The sources. Their numbers are their places here."""
        sizes = {part.name: part.length for part in parts}
        if not phases:
            first = Phase(terms=terms, start=0, epoch=0, begins=0, length=1)
            blend = Blend(self.names, [first.regime], _quota)
            phases = (replace(first, length=epoch_length(blend, terms, sizes, 0)),)
        elif not phases[-1].length:  # one that has just begun
            blend = Blend(self.names, [phase.regime for phase in phases], _quota)
            length = epoch_length(blend, phases[-1].terms, sizes, phases[-1].begins)
            phases = (*phases[:-1], replace(phases[-1], length=length))
        else:
            blend = Blend(self.names, [phase.regime for phase in phases], _quota)
        self.phases, self.blend = phases, blend
        present = [part for part in parts if part.dataset is not None]
        self._fields = self._labelled(common_fields(present))
        gathers = self._fields is not None or all(hasattr(part.dataset, "__getbatch__") for part in present)
        self.is_pure = gathers and all(getattr(part.dataset, "is_pure", False) is True for part in present)
        """Whether reading draws no random numbers, as those of the sources tell."""
        self.prefers_process = any(getattr(part.dataset, "prefers_process", False) is True for part in present)
        """Whether threads are to be in a process of their own, as any of the sources wants it."""
        self._gathers = gathers
        self._reads_many = all(getattr(part.dataset, "__getitems__", None) for part in present)
        lengths = [getattr(part.dataset, "max_seqlen", None) for part in present]
        self.max_seqlen: int | None = max((length for length in lengths if length is not None), default=None)
        """The longest span in any row, where the sources are packed."""
        self._forms: dict[int, tuple[FieldLayout, Indices]] = {}
        self._views: dict[int, Any] = {}
        self._is_chosen = epoch is not None
        """The epoch was chosen, by `in_epoch` or a state; otherwise it is the one that is being read."""
        self._epochs: dict[int, Mixture] = {}
        self._begin(epoch or 0)

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

    # ---------------------------------------------------------------- what there is

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
        """What part of the samples each source gives, exactly: at the beginning, or since the terms changed."""
        return self.shares_at(self.phases[-1].start)

    def shares_at(self, number: int) -> dict[str, Fraction]:
        """Return what part of the samples each source gives around sample `number`."""
        segment = self.blend.segments(number + 1)[-1]
        return dict(zip((self.names[source] for source in segment.sources.tolist()), segment.quota.shares))

    @property
    def fingerprint(self) -> str:
        """Identify this mixture by its sources, weights and schedule; a source without a fingerprint, by its length."""
        sources = {part.name: part.identity() for part in self._parts}
        told = json.dumps([sources, [phase.told() for phase in self.phases]], sort_keys=True)
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    def expect(self, settings: Mapping[str, Any]) -> None:
        """Raise `StoreMismatch` unless all sources were prepared with these settings, saying what differs."""
        for name, dataset in self.sources.items():
            if not callable(getattr(dataset, "expect", None)):
                raise ArgumentError(
                    f"source {name!r} does not tell how it was made", hint="only stores can be expected of"
                )
            dataset.expect(settings)

    def report(self) -> dict[str, Any]:
        """Return the reports of the sources that have one, by name."""
        return {name: dataset.report() for name, dataset in self.sources.items() if hasattr(dataset, "report")}

    def __repr__(self) -> str:
        shares = ", ".join(f"{name} {100 * float(share):.4g} %" for name, share in self.shares.items())
        return f"<Mixture: {self._size:,} samples an epoch: {shares}>"

    # ---------------------------------------------------------------- what comes when

    def at(self, number: int) -> tuple[str, int, int]:
        """Return the source of sample `number`, the source's own epoch, and the position in it."""
        keys, places = self._placed(np.array([one_position(number)], np.int64))
        epoch, source = divmod(int(keys[0]), len(self._parts))
        return self.names[source], epoch, int(places[0])

    def counts(self, number: int) -> dict[str, int]:
        """Return how many of the first `number` samples each source gives."""
        counts = self.blend.counts(np.array([one_position(number)], np.int64))[0]
        return dict(zip(self.names, counts.tolist()))

    def find(self, source: str, position: int, epoch: int = 0) -> int | None:
        """Return which sample is the one at `position` of `source` in the source's own `epoch`; None if none is."""
        number = self._number_of(source)
        if epoch < 0:
            raise ArgumentError(f"there is no epoch {epoch}", hint="epochs count from 0")
        part = self._parts[number]
        place = int(in_range([one_position(position)], part.length, what=f"source {source!r}")[0])
        return self.blend.find(number, part.number(place, epoch))

    def in_epoch(self, epoch: int) -> Mixture:
        """Return the samples of an epoch, at no cost. They stay those of that epoch, whatever a loader reads."""
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
        if view._first + view._size > (_LAST if total is None else total):
            raise ArgumentError(
                f"there is no epoch {epoch}: those before it take {view._first} samples, "
                + (f"and the limits of the sources leave {total}" if total is not None else "more than can be counted"),
                hint="raise the limits, or train for fewer epochs",
            )
        if view is not self:
            # one assignment, so that threads see it before or after
            self._epochs = {**dict(list(self._epochs.items())[1 - _EPOCHS_KEPT :]), epoch: view}
        return view

    def _now(self) -> Mixture:
        """Return the samples of the epoch that was chosen, or of the one that is being read."""
        if self._is_chosen:
            return self
        epoch = epoch_being_read()
        # not through `in_epoch`, which refuses an epoch 0 that there is not
        return self if epoch == self._epoch else self._epochs.get(epoch) or self.in_epoch(epoch)

    def number(self, epoch: int, position: int) -> int:
        """Return which sample of all is the one at `position` in `epoch`."""
        phase = self._phase_of(epoch)
        return phase.begins + (epoch - phase.epoch) * phase.length + position

    def place(self, number: int) -> tuple[int, int]:
        """Return in which epoch, and at which position of it, sample `number` is."""
        phase = [phase for phase in self.phases if phase.begins <= number][-1]
        epochs, position = divmod(number - phase.begins, phase.length)
        return phase.epoch + epochs, position

    def check_readable(self, epoch: int, position: int) -> None:
        """Refuse to read `epoch` from `position` on, if some of it came from a source that has left."""
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
        """Return `positions`, those of sources that have left exchanged for others of this epoch: to fill up with."""
        gone = [source for source, part in enumerate(self._parts) if part.dataset is None]
        view = self._now()
        is_gone = np.isin(self.blend.at(positions + view._first)[0], gone) if gone else None
        if is_gone is None or not is_gone.any():
            return positions
        start = max(self.phases[-1].start, view._first) - view._first
        return np.where(is_gone, start + positions % (view._size - start), positions)

    def check_forms(self, positions: Sequence[int], samples: Sequence[Any]) -> None:
        """Refuse samples of several sources that cannot be put together, or only by leaving out a part of some."""
        first = _form(samples[0])
        for position, sample in zip(positions, samples):
            if _form(sample) != first:
                names = [self.at(self._now()._first + at)[0] for at in (positions[0], position)]
                if names[0] != names[1]:
                    raise ArgumentError(
                        f"samples of source {names[0]!r} are {_worded(samples[0])}, those of source {names[1]!r} "
                        + _worded(sample),
                        hint="let all sources give samples of one form, or pass a collate_fn of your own",
                    )

    def _phase_of(self, epoch: int) -> Phase:
        if epoch < 0:
            raise ArgumentError(f"there is no epoch {epoch}", hint="epochs count from 0")
        return [phase for phase in self.phases if phase.epoch <= epoch][-1]

    def _begin(self, epoch: int) -> None:
        """Let positions be those of an epoch. A run that is over stands at the beginning of one that there is not."""
        self._epoch, self._first, self._size = epoch, self.number(epoch, 0), self._phase_of(epoch).length
        self._ahead = _NOTHING

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
        """Return where the samples of this epoch are that can take the place of the one at `position`.

        They are of the same source, and of the same epoch of its own.
        """
        first, size = self._now()._first, self._now()._size
        number = first + int(in_range([one_position(position)], size, what="the mixture")[0])
        sources, drawn = self.blend.at(np.array([number]))
        source, length = int(sources[0]), self._parts[int(sources[0])].length
        low, high = self.blend.counts(np.array([first, first + size]))[:, source].tolist()
        own = int(drawn[0]) // length * length
        return _SameSourcePositions(self.blend, source, range(max(low, own), min(high, own + length)), first)

    def instead(self, position: int, other: int) -> Any:
        """Return the sample at `other`, labelled as the one at `position`, whose place it takes."""
        view = self._now()
        numbers = in_range([one_position(position)], view._size, what="the mixture")
        others = numbers if other == position else in_range([one_position(other)], view._size, what="the mixture")
        keys, places = view._looked_up(others)
        if self._fields is not None:  # as in a batch: as wide as any source needs
            row = {name: values[0, ...] for name, values in view._filled(others, np.empty).items()}
            return row if self.label is None else view._with_labels(numbers, keys, [row])[0]
        key = int(keys[0])
        with self._drawing(key):
            sample = self._view(key)[int(places[0])]
        return sample if self.label is None else view._with_labels(numbers, keys, [sample])[0]

    @property
    def __getitems__(self) -> Any:
        """Reads many samples in one call; None if a source cannot."""
        return self._now()._many if self._reads_many or self._fields is not None else None

    def _many(self, positions: Positions) -> list[Any]:
        numbers = in_range(positions, self._size, what="the mixture")
        if self._fields is not None:
            batch = self._filled(numbers, np.empty)
            return [{name: values[row, ...] for name, values in batch.items()} for row in range(len(numbers))]
        keys, places = self._looked_up(numbers)
        samples: list[Any] = [None] * len(numbers)
        for key, rows in _groups(keys):
            with self._drawing(key):
                found = self._view(key).__getitems__(places[rows].tolist())
            for row, sample in zip(rows.tolist(), found):
                samples[row] = sample
        return samples if self.label is None else self._with_labels(numbers, keys, samples)

    @property
    def fields(self) -> Callable[[], Fields] | None:
        """Returns shape and type of each field of a row; None if a source does not tell."""
        fields = self._fields
        return None if fields is None else lambda: fields

    def fill(self, positions: Positions, batch: Mapping[str, NDArray[Any]], rows: Indices) -> None:
        """Write the rows at `positions` into rows `rows` of a batch's arrays, which have the `fields`."""
        view = self._now()
        numbers = in_range(positions, view._size, what="the mixture")
        keys, places = view._looked_up(numbers)
        for key, chosen in _groups(keys):
            with self._drawing(key):
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
            return view._filled(positions, empty)
        if not self._gathers:
            return NotImplemented
        numbers = in_range(positions, view._size, what="the mixture")
        keys, places = view._looked_up(numbers)
        parts = []
        for key, rows in _groups(keys):
            with self._drawing(key):
                parts.append((rows, self._view(key).__getbatch__(places[rows], np.empty)))
        whole = scattered(parts, len(numbers), empty)
        if whole is NotImplemented or self.label is None:
            return whole
        if type(whole) is not dict:
            raise self._no_label(whole)
        for name, values in view._labels(numbers, keys).items():
            whole[name] = empty(values.shape, values.dtype)
            whole[name][...] = values
        return whole

    def _filled(self, positions: Positions, empty: Empty) -> dict[str, NDArray[Any]]:
        assert self._fields is not None
        num_rows = len(positions)
        kept = self._forms.get(num_rows)
        if kept is None:
            if len(self._forms) >= _FORMS_KEPT:
                self._forms.clear()
            self._forms[num_rows] = kept = FieldLayout(self._fields, num_rows), np.arange(num_rows)
        batch = kept[0].taken(empty)
        self.fill(positions, batch, kept[1])
        return batch

    def describe(self, position: int) -> str:
        """Return where a sample comes from."""
        view = self._now()
        keys, places = view._looked_up(in_range([one_position(position)], view._size, what="the mixture"))
        key, place = int(keys[0]), int(places[0])
        epoch, source = divmod(key, len(self._parts))
        told = f"sample {place} of source {self.names[source]!r}, in its epoch {epoch}"
        describe = getattr(self._view(key), "describe", None)
        if not callable(describe):
            return told
        with self._drawing(key):
            return f"{told}: {describe(place)}"

    # ---------------------------------------------------------------- state

    def state(self, epoch: int, position: int) -> dict[str, Any]:
        """Return where the mixture is, as plain values: at `position` of `epoch`, with what each source has given."""
        number = self.number(epoch, position)
        return {
            "epoch": epoch,
            "number": number,
            "counts": self.counts(number),
            "sources": {part.name: part.identity() for part in self._parts},
            "phases": [phase.told() for phase in self.phases],
        }

    def resumed(self, state: Any) -> Mixture:
        """Return the mixture that goes on where `state` was taken: with its terms before, and these from there on.

        A state of other terms or sources is refused unless `changes` allows them; one of other data under the same name
        is refused always.
        """
        if not isinstance(state, Mapping):
            raise StateMismatch({"mixture": (state, list(self.names))})
        with _reading_state():
            phases = tuple(map(Phase.read, state["phases"]))
            starts = [phase.start for phase in phases]
            if starts[0] or sorted(set(starts)) != starts:
                raise ValueError(f"phases start at {starts}")
            identities = {str(name): dict(identity) for name, identity in state["sources"].items()}
            epoch, number = int(state["epoch"]), int(state["number"])
            counts = {str(name): int(count) for name, count in state["counts"].items()}
            before = phases[-1].terms
            ours = {part.name: part for part in self._parts if part.dataset is not None}
            differences: dict[str, tuple[Any, Any]] = {}
            for name, part in ours.items():
                for what, mine in part.identity().items():
                    theirs = identities.get(name, {}).get(what)
                    if name in identities and theirs != mine and (what != "fingerprint" or None not in (theirs, mine)):
                        differences[f"{what} of {name!r}"] = (theirs, mine)
            if differences:
                raise StateMismatch(differences)
            changed = self.terms.differences(before)
            if changed and not self.changes:
                refusal = StateMismatch(changed)
                refusal.add_note("with mix(..., changes=True) the new ones hold from where the state was taken on")
                raise refusal
            # numbered as here, whatever they were before; those that have left come behind
            parts = [*ours.values(), *(_gone(name, identities[name]) for name in identities if name not in ours)]
            options: dict[str, Any] = {
                "label": self.label,
                "changes": self.changes,
                "steps_of": self.steps_of,
                "epoch": epoch,
            }
            old = Mixture(tuple(parts), before, phases=phases, **options)
            is_there = 0 <= number <= (_LAST if old.blend.total is None else old.blend.total)
            if not is_there or {name: count for name, count in old.counts(number).items() if name in counts} != counts:
                raise StateUnreadable("the counts of the mixture's sources are not those of its weights")
        if not changed:
            return old
        begins = old.number(epoch, 0)
        kept = tuple(phase for phase in phases if phase.start < number)
        phase = Phase(terms=self.terms, start=number, epoch=epoch, begins=begins, length=0)
        new = Mixture(tuple(parts), self.terms, phases=(*kept, phase), **options)
        if begins + len(new) < number:
            raise ArgumentError(
                f"an epoch would have {len(new)} samples, and {number - begins} of it have come already",
                hint="choose another stop, or begin the next epoch first",
            )
        return new

    # ---------------------------------------------------------------- inside

    def _view(self, key: int) -> Any:
        """Return the dataset of a key: a source in an epoch of its own."""
        view = self._views.get(key)
        if view is None:
            epoch, source = divmod(key, len(self._parts))
            view = self._parts[source].in_epoch(epoch)
            if len(self._views) >= _VIEWS_KEPT:
                self._views.clear()
            self._views[key] = view
        return view

    def _drawing(self, key: int) -> AbstractContextManager[Any]:
        """Let `rng(position)` be another generator in every source, and in each epoch of one."""
        if self.is_pure:
            return _NO_DRAWS
        epoch, source = divmod(key, len(self._parts))
        return strand(derived_key(self._parts[source].seed, epoch), epoch)

    def _placed(self, numbers: Indices) -> tuple[Indices, Indices]:
        """Return the keys of samples (epoch of the source * number of sources + source), and the positions in it."""
        sources, drawn = self.blend.at(numbers)
        epochs, places = np.empty_like(drawn), np.empty_like(drawn)
        for source, rows in _groups(sources):
            epochs[rows], places[rows] = self._parts[source].places(drawn[rows])
        return epochs * len(self._parts) + sources, places

    def _looked_up(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return what `_placed` does of an epoch's positions; where they come in a row, many at a time."""
        count = len(positions)
        if not count:
            return positions, positions
        ahead = self._ahead
        low = int(positions[0])
        stride = int(positions[1]) - low if count > 1 else ahead.stride
        at, rest = divmod(low - ahead.first, ahead.stride)
        stop = at + count
        known = len(ahead.positions)
        is_there = not rest and stride == ahead.stride and at >= 0 and stop <= known
        if is_there and (ahead.positions[at:stop] == positions).all():
            return ahead.keys[at:stop], ahead.places[at:stop]
        is_next = stride == ahead.stride and 0 <= at <= 2 * known + 16 * count
        size = min(MOST_AHEAD, 2 * known) if is_next else 0
        # what is behind the latest change of terms may be of a source that has left
        if stride < 1 or size <= count or self._first + low < self.phases[-1].start:
            looked_up = positions
        else:
            looked_up = np.arange(low, min(low + size * stride, self._size), stride, dtype=np.int64)
            if len(looked_up) < count or not (looked_up[:count] == positions).all():
                looked_up = positions
        keys, places = self._placed(looked_up + self._first)
        if stride >= 1:
            self._ahead = _Lookahead(low, stride, looked_up, keys, places)
        return keys[:count], places[:count]

    def _labelled(self, fields: Fields | None) -> Fields | None:
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
    """Samples that were looked up together."""

    first: int
    stride: int
    positions: Indices
    keys: Indices
    places: Indices


class _SameSourcePositions(Sequence[int]):
    """Positions of one source's samples, found when they are asked for."""

    def __init__(self, blend: Blend, source: int, numbers: range, first: int) -> None:
        self._blend, self._source, self._numbers, self._first = blend, source, numbers, first

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:
        found = self._blend.find(self._source, self._numbers[at])
        assert found is not None
        return found - self._first


@contextmanager
def _reading_state() -> Iterator[None]:
    """Turn whatever a state with odd entries leads to into `StateUnreadable`."""
    try:
        yield
    except StateError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RuntimeError) as error:
        raise StateUnreadable(f"its mixture does not fit together ({error!r})") from error


_NO_DRAWS = nullcontext()
_NONE = np.empty(0, np.int64)
_NOTHING = _Lookahead(0, 1, _NONE, _NONE, _NONE)


def _form(sample: Any) -> Any:
    if isinstance(sample, dict | Mapping):
        return sample.keys()
    return len(sample) if isinstance(sample, tuple | list) else None


def _worded(sample: Any) -> str:
    if isinstance(sample, Mapping):
        return f"tables of {', '.join(sorted(map(repr, sample)))}"
    name = type(sample).__name__
    return f"{name}s of {len(sample)}" if isinstance(sample, tuple | list) else f"of type {name}"


def _groups(keys: Indices) -> list[tuple[int, Indices]]:
    """Return every key that occurs, with the rows it is in."""
    ordered = keys.argsort(kind="stable")
    found = keys[ordered]
    bounds = [0, *(np.flatnonzero(found[1:] != found[:-1]) + 1).tolist(), len(found)]
    return [(int(found[start]), ordered[start:stop]) for start, stop in pairwise(bounds) if stop > start]


def _gone(name: str, identity: Mapping[str, Any]) -> MixtureSource:
    length, order = int(identity["length"]), order_named("sequential")
    return MixtureSource(name=name, dataset=None, length=length, order=order, seed=0, past=identity)


@lru_cache(maxsize=16)
def _quota(weights: tuple[int, ...]) -> Quota:
    return Quota(weights, _apportioned)


def _apportioned(weights: NDArray[np.int64]) -> NDArray[Any]:
    table = np.empty(int(weights.sum()), np.uint16)
    return table if native.apportion(weights, table) else apportioned(weights)
