"""The terms of a mixture: weights, limits and the end of an epoch; as values, and as plain values in a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stoker.errors import ArgumentError
from stoker.plan.blend import ENDLESS, Blend, WeightPhase, Weights

RULES = ("first_exhausted", "all_exhausted", "never")

Stop = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What `mix` was asked for."""

    schedule: tuple[tuple[int, Weights], ...]
    """The sample from which on each weights hold, and the weights, as parts of 1."""
    caps: Mapping[str, int]
    """How many samples a source may give in all."""
    stop: Stop
    names: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as plain values, for a state."""
        return {
            "schedule": [
                [start, [[name, str(weight)] for name, weight in weights.items()]] for start, weights in self.schedule
            ],
            "caps": dict(self.caps),
            "stop": self.stop,
            "sources": list(self.names),
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Terms:
        """Return the terms in a state."""
        return cls(
            schedule=tuple(
                (int(start), {str(name): Fraction(weight) for name, weight in weights})
                for start, weights in table["schedule"]
            ),
            caps={str(name): int(cap) for name, cap in table["caps"].items()},
            stop=table["stop"],
            names=tuple(table["sources"]),
        )

    def differences(self, other: Terms) -> dict[str, tuple[Any, Any]]:
        """Return what differs, as (the other's, ours), in readable form."""
        found: dict[str, tuple[Any, Any]] = {}
        if set(other.names) != set(self.names):
            found["sources"] = (sorted(other.names), sorted(self.names))
        if other.schedule != self.schedule:
            found["weights"] = (_readable(other.schedule), _readable(self.schedule))
        if other.caps != self.caps:
            found["limits, in samples"] = (dict(other.caps), dict(self.caps))
        if other.stop != self.stop:
            found["stop"] = (other.stop, self.stop)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Terms that hold from a sample on, and how the mixture's epochs are numbered from there on.

    A mixture has one phase, and another one for each resume with changed terms.
    """

    terms: Terms
    start: int
    """The first sample for which the terms hold. It may lie inside an epoch."""
    epoch: int
    """The epoch that `start` lies in."""
    begins: int
    """The sample with which that epoch begins."""
    length: int
    """Samples in an epoch. 0 while that is not computed yet."""

    @property
    def weight_phase(self) -> WeightPhase:
        """The same for the arithmetic of `stoker.plan.blend`."""
        return WeightPhase(start=self.start, schedule=self.terms.schedule, caps=self.terms.caps)

    def to_dict(self) -> dict[str, Any]:
        """Return the phase as plain values, for a state."""
        numbers = {name: getattr(self, name) for name in ("start", "epoch", "begins", "length")}
        return numbers | self.terms.to_dict()

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Phase:
        """Return the phase in a state."""
        numbers = {name: int(table[name]) for name in ("start", "epoch", "begins", "length")}
        if min(numbers.values()) < 0 or max(numbers.values()) >> 62 or numbers["begins"] > numbers["start"]:
            raise ValueError(f"a phase has {numbers}")
        return cls(terms=Terms.from_dict(table), **numbers)


def epoch_length(blend: Blend, terms: Terms, sizes: Mapping[str, int], since: int) -> int:
    """Return how many samples an epoch that begins at sample `since` has by the `stop` rule of `terms`."""
    sizes = {name: sizes[name] for name in terms.names}
    if terms.stop == "first_exhausted":
        length = blend.until_first(sizes, since) - since
    elif terms.stop == "all_exhausted":
        length = blend.until_all(sizes, since) - since
    else:
        total = blend.total
        left = ENDLESS if total is None else total - since
        length = left if terms.stop == "never" else int(terms.stop)
        if length > left:
            raise ArgumentError(
                f"stop={terms.stop}: the limits of all sources together leave {left} samples",
                hint="raise the limits, or stop earlier",
            )
    if length < 1:
        raise ArgumentError("every source has reached its limit", hint="raise the limits, or add a source")
    return length


def _readable(schedule: Sequence[tuple[int, Weights]]) -> Any:
    rounded = {
        start: {name: round(float(weight), 6) for name, weight in sorted(weights.items())}
        for start, weights in schedule
    }
    return rounded[0] if list(rounded) == [0] else rounded
