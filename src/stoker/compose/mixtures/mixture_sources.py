"""The sources of a mixture: what each is, and what they must have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from stoker.compose.batch_fields import Fields
from stoker.compose.wrapped_datasets import fingerprint_of
from stoker.errors import ArgumentError
from stoker.plan import Order, Sequential, derived_key
from stoker.plan.order import Indices, order_to_dict
from stoker.source.protocols import has_epochs, owns_order

WIDENED = frozenset({"cu_seqlens"})
"""Fields that may be wider in one source than in another: the mixture has the widest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSource:
    """One source: samples in an order of its own, through epochs of its own."""

    name: str
    dataset: Any
    """None for a source that is no longer in the mixture: what it gave is counted, but cannot be read."""
    length: int
    order: Order
    seed: int
    past: Mapping[str, Any] | None = None
    """For a source that is no longer in the mixture, the identity it had."""

    def places(self, drawn: Indices) -> tuple[Indices, Indices]:
        """Return the epochs and positions of the samples that this source gives as its number `drawn`, from 0."""
        self._check_present()
        epochs = drawn // self.length
        ordinals = drawn - epochs * self.length
        first, last = int(epochs.min()), int(epochs.max())
        if first == last:
            return epochs, self._positions(ordinals, first)
        positions = np.empty_like(ordinals)
        for epoch in range(first, last + 1):
            chosen = np.flatnonzero(epochs == epoch)
            if chosen.size:
                positions[chosen] = self._positions(ordinals[chosen], epoch)
        return epochs, positions

    def number(self, position: int, epoch: int) -> int:
        """Return the number, counted from 0, as which this source gives the sample at `position` of its `epoch`."""
        self._check_present()
        ordinals = self.order.ordinals(np.array([position]), epoch=epoch, num_samples=self.length, seed=self.seed)
        return epoch * self.length + int(ordinals[0])

    def in_epoch(self, epoch: int) -> Any:
        """Return the dataset as it is in an epoch of its own."""
        self._check_present()
        return self.dataset.in_epoch(epoch) if has_epochs(self.dataset) else self.dataset

    def identity(self) -> dict[str, Any]:
        """Return the values that determine its samples and their order, for a state."""
        if self.past is not None:
            return dict(self.past)
        return {
            "fingerprint": fingerprint_of(self.dataset),
            "length": self.length,
            "order": order_to_dict(self.order),
            "seed": self.seed,
        }

    def _check_present(self) -> None:
        if self.dataset is None:
            raise ArgumentError(
                f"source {self.name!r} is no longer in the mixture, so its earlier samples cannot be looked up",
                hint="mix it in again to see samples from before it was taken out",
            )

    def _positions(self, ordinals: Indices, epoch: int) -> Indices:
        return self.order.positions(ordinals, epoch=epoch, num_samples=self.length, seed=self.seed)


def make_sources(datasets: Mapping[str, Any], *, order: Order, seed: int) -> tuple[MixtureSource, ...]:
    """Return the sources by name, each with a seed of its own."""
    parts = []
    for name, dataset in datasets.items():
        try:
            length = len(dataset)
        except (TypeError, ValueError, OverflowError):
            length = -1
        if length < 0 or not hasattr(dataset, "__getitem__"):
            raise ArgumentError(
                f"source {name!r} ({type(dataset).__name__}) cannot be mixed: its samples have no positions",
                hint="sources need len(source) and source[position]; streams have neither",
            )
        if not length:
            raise ArgumentError(f"source {name!r} is empty", hint="leave it out, or check its path")
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
        own = Sequential() if owns_order(dataset) else order
        # 63 bits, so that a state in JSON can be read by anything
        parts.append(
            MixtureSource(name=name, dataset=dataset, length=length, order=own, seed=derived_key(seed, key) >> 1)
        )
    return tuple(parts)


def mean_tokens(name: str, dataset: Any) -> Fraction:
    """Return the mean number of tokens in a sample of the source, exactly."""
    for number in ("num_tokens", "num_values"):
        total = getattr(dataset, number, None)
        if isinstance(total, int) and total > 0:
            return Fraction(total, len(dataset))
    length = getattr(dataset, "length", None)
    if isinstance(length, int) and length > 0:
        return Fraction(length)
    raise ArgumentError(
        f"by='tokens', but source {name!r} ({type(dataset).__name__}) does not say how many tokens it has",
        hint="give it an attribute num_tokens (of all its samples) or length (of each), or mix by='samples'",
    )


def check_compatible(parts: Sequence[MixtureSource], *, force: bool) -> None:
    """Raise `ArgumentError` for sources whose samples should not be in one batch: other tokenizers, types or labels."""
    kinds = {
        "the tokens' type": _stored_dtype,
        "the tokenizer": _tokenizer,
        "the label that is ignored": _ignored,
    }
    for what, kind in kinds.items():
        known = [(part.name, found) for part in parts if (found := kind(part.dataset)) is not None]
        for name, found in known[1:]:
            if found != known[0][1] and not force:
                raise ArgumentError(
                    f"{what} is {known[0][1]} in source {known[0][0]!r} and {found} in source {name!r}",
                    hint="prepare both in the same way, or pass force=True to mix them anyway",
                )


def common_fields(parts: Sequence[MixtureSource]) -> Fields | None:
    """Return the fields of a row of the mixture, if every source writes rows into a batch; otherwise None."""
    if not all(getattr(part.dataset, "fields", None) and hasattr(part.dataset, "fill") for part in parts):
        return None
    first = parts[0]
    common = dict(first.dataset.fields())
    for part in parts[1:]:
        fields = part.dataset.fields()
        if set(fields) != set(common):
            raise ArgumentError(
                f"rows of source {part.name!r} have {', '.join(fields)}; those of {first.name!r} {', '.join(common)}",
                hint="pack all sources, or none, and with the same `blocks`",
            )
        for name, (shape, dtype) in fields.items():
            known, kind = common[name]
            if name in WIDENED:
                shape = known = max(shape, known)
            if shape != known:
                raise ArgumentError(
                    f"{name} of source {part.name!r} has shape {list(shape)}, that of {first.name!r} {list(known)}",
                    hint="make rows of the same length: there is one shape for all rows of a batch",
                )
            common[name] = known, np.result_type(kind, dtype)
    return common


def _stored_dtype(dataset: Any) -> Any:
    return getattr(dataset, "stored_dtype", None)


def _ignored(dataset: Any) -> Any:
    if getattr(dataset, "across", False):
        return None  # across documents, every token has a next one
    return getattr(getattr(dataset, "settings", dataset), "ignored", None)


def _tokenizer(dataset: Any) -> Any:
    meta = getattr(dataset, "meta", None)
    tokenizer = meta.get("tokenizer") if isinstance(meta, Mapping) else None
    if isinstance(tokenizer, Mapping) and "digest" in tokenizer:
        return f"{tokenizer.get('name', 'one')} ({str(tokenizer['digest'])[:16]})"
    return tokenizer
