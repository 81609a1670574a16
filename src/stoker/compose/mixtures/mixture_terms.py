"""The terms of a mixture: weights, limits and the end of an epoch; and how a state tells of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from stoker.errors import ArgumentError
from stoker.plan.blend import ENDLESS, Blend, Regime, Weights
from stoker.plan.quota import exact

RULES = ("first_exhausted", "all_exhausted", "never")

Stop = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What was asked for."""

    schedule: tuple[tuple[int, Weights], ...]
    """From which sample on which weights hold, as parts of 1."""
    caps: Mapping[str, int]
    """How many samples a source may give in all."""
    stop: Stop
    names: tuple[str, ...]

    def told(self) -> dict[str, Any]:
        """Return the terms as plain values."""
        return {
            "schedule": [
                [start, [[name, str(weight)] for name, weight in weights.items()]] for start, weights in self.schedule
            ],
            "caps": dict(self.caps),
            "stop": self.stop,
            "sources": list(self.names),
        }

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Terms:
        """Return the terms that a state tells of."""
        return cls(
            schedule=tuple(
                (int(start), {str(name): Fraction(weight) for name, weight in weights})
                for start, weights in told["schedule"]
            ),
            caps={str(name): int(cap) for name, cap in told["caps"].items()},
            stop=told["stop"],
            names=tuple(told["sources"]),
        )

    def differences(self, other: Terms) -> dict[str, tuple[Any, Any]]:
        """Return what is not the same, as (the other's, ours), in words for people."""
        found: dict[str, tuple[Any, Any]] = {}
        if set(other.names) != set(self.names):
            found["sources"] = (sorted(other.names), sorted(self.names))
        if other.schedule != self.schedule:
            found["weights"] = (_shown(other.schedule), _shown(self.schedule))
        if other.caps != self.caps:
            found["limits, in samples"] = (dict(other.caps), dict(self.caps))
        if other.stop != self.stop:
            found["stop"] = (other.stop, self.stop)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Terms that hold from a sample on, and the epochs of the mixture from there on."""

    terms: Terms
    start: int
    epoch: int
    """The epoch in which it begins."""
    begins: int
    """The sample with which that epoch begins."""
    length: int
    """Samples in an epoch."""

    @property
    def regime(self) -> Regime:
        """What holds in it."""
        return Regime(start=self.start, schedule=self.terms.schedule, caps=self.terms.caps)

    def told(self) -> dict[str, Any]:
        """Return it as plain values."""
        numbers = {name: getattr(self, name) for name in ("start", "epoch", "begins", "length")}
        return numbers | self.terms.told()

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Phase:
        """Return the phase that a state tells of."""
        numbers = {name: int(told[name]) for name in ("start", "epoch", "begins", "length")}
        if min(numbers.values()) < 0 or max(numbers.values()) >> 62 or numbers["begins"] > numbers["start"]:
            raise ValueError(f"a phase has {numbers}")
        return cls(terms=Terms.read(told), **numbers)


def epoch_length(blend: Blend, terms: Terms, sizes: Mapping[str, int], since: int) -> int:
    """Return how many samples an epoch that begins at `since` has by the rule of `terms`."""
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


def checked_stop(stop: Any) -> Stop:
    """Return the rule, if it is one."""
    if isinstance(stop, int) and not isinstance(stop, bool):
        if 0 < stop <= ENDLESS:
            return stop
        raise ArgumentError(f"stop={stop} is no number of samples", hint=f"give 1 to {ENDLESS}, or 'never'")
    if stop not in RULES:
        raise ArgumentError(f"stop={stop!r} is not known", hint=f"choose {', '.join(RULES)} or a number of samples")
    return str(stop)


def checked_weights(weights: Any, tokens: Mapping[str, Fraction], *, where: str) -> Weights:
    """Return the weights as parts of 1, in samples: by the mean `tokens` of a sample where weights count these."""
    if not isinstance(weights, Mapping) or not weights:
        raise ArgumentError(f"{where}: {weights!r} gives no weights", hint='write {"web": 0.7, "code": 0.3}')
    unknown = [name for name in weights if name not in tokens]
    if unknown:
        raise ArgumentError(
            f"{where}: there is no source {unknown[0]!r}", hint=f"the sources are {', '.join(map(repr, tokens))}"
        )
    fractions = {
        name: exact(weight, what=f"{where}: the weight of {name!r}") / tokens[name] for name, weight in weights.items()
    }
    total = sum(fractions.values())
    return {name: fraction / total for name, fraction in fractions.items()}


def checked_schedule(
    weights: Mapping[str, Any], schedule: Any, tokens: Mapping[str, Fraction], *, batch_size: int | None
) -> tuple[tuple[int, Weights], ...]:
    """Return from which sample on which weights hold."""
    if schedule is None:
        schedule = {}
    if not isinstance(schedule, Mapping):
        raise ArgumentError(f"schedule={schedule!r} is not a table", hint="write {0: {...}, 10_000: {...}}")
    if schedule and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise ArgumentError(
            f"a schedule counts steps, and batch_size={batch_size!r} does not tell how many samples they have",
            hint="pass mix(batch_size=...): the samples of a step, over all ranks together",
        )
    steps = list(schedule)
    for step in steps:
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ArgumentError(f"schedule: {step!r} is not a step", hint="steps are whole numbers from 0 on")
    for earlier, later in pairwise(steps):
        if later <= earlier:
            raise ArgumentError(
                f"the schedule goes back in time: step {later} stands behind step {earlier}",
                hint="write the steps in ascending order",
            )
    lacking = [name for name in tokens if name not in weights]
    starts: list[tuple[int, Weights]] = []
    if weights and 0 in schedule:
        raise ArgumentError(
            "the weights at step 0 are given twice: beside the sources, and in the schedule",
            hint="leave out one of them",
        )
    if 0 not in schedule:
        if lacking:
            raise ArgumentError(
                f"source {lacking[0]!r} has no weight",
                hint='write {"web": (dataset, 0.7), ...}, or let the schedule give all weights from step 0 on',
            )
        starts.append((0, checked_weights(weights, tokens, where="mix")))
    starts += [
        (step * (batch_size or 1), checked_weights(_without_none(entry), tokens, where=f"schedule, step {step}"))
        for step, entry in schedule.items()
    ]
    idle = [name for name in tokens if not any(name in entry for _, entry in starts)]
    if idle:
        raise ArgumentError(
            f"source {idle[0]!r} never has a weight in the schedule", hint="leave it out, or give it one"
        )
    return tuple(starts)


def _without_none(entry: Any) -> Any:
    """Return an entry of a schedule without the sources that do not come from there on: those of weight 0."""
    if not isinstance(entry, Mapping):
        return entry
    return {name: weight for name, weight in entry.items() if not (type(weight) in (int, float) and weight == 0)}


def checked_caps(limits: Any, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return how many samples limited sources may give."""
    caps = {}
    for name, limit in dict(limits or {}).items():
        if name not in sizes:
            raise ArgumentError(
                f"limits: there is no source {name!r}", hint=f"the sources are {', '.join(map(repr, sizes))}"
            )
        cap = int(exact(limit, what=f"limits: the number of epochs of {name!r}") * sizes[name])
        if cap < 1:
            raise ArgumentError(
                f"limits: {limit} epochs of {name!r} are less than one sample", hint="leave the source out"
            )
        caps[name] = cap
    return caps


def _shown(schedule: Sequence[tuple[int, Weights]]) -> Any:
    shown = {
        start: {name: round(float(weight), 6) for name, weight in sorted(weights.items())}
        for start, weights in schedule
    }
    return shown[0] if list(shown) == [0] else shown
