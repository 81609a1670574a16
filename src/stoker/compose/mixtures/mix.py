"""`stoker.mix`: its arguments, checked and turned into the terms of a mixture."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from os import PathLike
from typing import Any, Literal

from stoker.compose.mixtures.mixture import Mixture
from stoker.compose.mixtures.mixture_sources import check_compatible, make_sources, mean_tokens
from stoker.compose.mixtures.mixture_terms import RULES, Stop, Terms
from stoker.errors import ArgumentError
from stoker.plan import Order, order_named
from stoker.plan.blend import ENDLESS, Weights
from stoker.plan.quota import exact, whole

SILENT_ROUNDING = Fraction(1, 50)
"""A share may be rounded by up to this part of itself without a warning."""


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
    """Mix several datasets by weight: each has its exact share of the samples at all times, not just on average.

    Args:
        sources: `{"web": (dataset, 0.7), "code": (dataset, 0.3)}`; with a schedule from step 0 on, datasets alone.
        by: what the weights count. By tokens, a source with shorter samples gives more of them.
        stop: when an epoch ends: before the first source would repeat a sample ("first_exhausted") or pass its limit;
            when all have been read completely, or reached their limits ("all_exhausted"); "never"; or after so many
            samples. The next epoch continues where the sources are, and is as long.
        order: the order of each source, a different one in each of its own epochs.
        seed: the seed of these orders.
        limits: how many epochs of a source there may be in all. After that, its weight goes to the other sources.
        schedule: weights from a step on, `{0: {...}, 10_000: {...}}`. A source that is not named gives nothing.
        batch_size: how many samples the schedule's steps have, over all ranks. It stays the same when a run is
            resumed with another batch size.
        label: the name of a field for the number of each sample's source (its index in `names`); `<label>_counts` has
            the number of samples from each source so far, this one included.
        changes: whether a state with other weights, limits or sources may be loaded: these hold from there on.
        force: mix tokens of different types or tokenizers.
    """
    given: Any = sources
    if not isinstance(given, Mapping) or not given:
        what = f"sources is a {type(given).__name__}, expected a dict by name" if given else "there is nothing to mix"
        raise ArgumentError(what, hint='pass {"web": (dataset, 0.7), "code": (dataset, 0.3)}')
    if by not in ("samples", "tokens"):
        raise ArgumentError(f"unknown by={by!r}", hint="weights count samples or tokens")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ArgumentError(f"seed={seed!r} is not an integer", hint="any integer will do")
    datasets, weights = {}, {}
    for name, source in sources.items():
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"the name of a source must be a string, got {name!r}", hint='such as "web"')
        is_pair = isinstance(source, tuple) and len(source) == 2
        datasets[name] = source[0] if is_pair else source
        if is_pair:
            weights[name] = source[1]
        _check_dataset(name, datasets[name])
    parts = make_sources(datasets, order=order_named(order), seed=seed)
    check_compatible(parts, force=force)
    tokens = {part.name: mean_tokens(part.name, part.dataset) if by == "tokens" else Fraction(1) for part in parts}
    starts = _parse_schedule(weights, schedule, tokens, batch_size=batch_size)
    for _, entry in starts:
        _warn_of_rounding(entry)
    terms = Terms(
        schedule=starts,
        caps=_parse_limits(limits, {part.name: part.length for part in parts}),
        stop=_parse_stop(stop),
        names=tuple(datasets),
    )
    return Mixture(parts, terms, label=label, changes=changes, steps_of=batch_size if schedule else None)


def _check_dataset(name: str, dataset: Any) -> None:
    """Refuse paths and numbers, which would fail less clearly later."""
    if isinstance(dataset, str | bytes | PathLike):
        path = repr(str(dataset))
        raise ArgumentError(
            f"source {name!r} is a path, expected a dataset",
            hint=f"pass stoker.pack({path}, length=...), or stoker.open({path}).tokens(length)",
        )
    if isinstance(dataset, int | float):
        raise ArgumentError(f"source {name!r} is the number {dataset}", hint="write (dataset, weight)")


def _warn_of_rounding(weights: Weights) -> None:
    numbers = whole(list(weights.values()))
    period = sum(numbers)
    for (name, weight), number in zip(weights.items(), numbers):
        share = Fraction(number, period)
        if abs(share - weight) > weight * SILENT_ROUNDING:
            warnings.warn(
                f"source {name!r} should give {float(weight):.3g} of the samples, and gives {number} in {period}\n"
                "hint: shares are multiples of about a millionth; mix what is rare into another source beforehand",
                stacklevel=3,
            )


def _parse_stop(stop: Any) -> Stop:
    if isinstance(stop, int) and not isinstance(stop, bool):
        if 0 < stop <= ENDLESS:
            return stop
        raise ArgumentError(f"stop={stop} is not a number of samples", hint=f"give 1 to {ENDLESS}, or 'never'")
    if stop not in RULES:
        raise ArgumentError(f"unknown stop={stop!r}", hint=f"choose {', '.join(RULES)} or a number of samples")
    return str(stop)


def _parse_limits(limits: Any, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return how many samples limited sources may give."""
    caps = {}
    for name, limit in dict(limits or {}).items():
        if name not in sizes:
            raise _unknown_source(name, sizes, where="limits")
        cap = int(exact(limit, what=f"limits: the number of epochs of {name!r}") * sizes[name])
        if cap < 1:
            raise ArgumentError(
                f"limits: {limit} epochs of {name!r} are less than one sample", hint="leave the source out"
            )
        caps[name] = cap
    return caps


def _parse_schedule(
    weights: Mapping[str, Any], schedule: Any, tokens: Mapping[str, Fraction], *, batch_size: int | None
) -> tuple[tuple[int, Weights], ...]:
    """Return the weights that hold from each sample on, as (sample, weights)."""
    if schedule is None:
        schedule = {}
    if not isinstance(schedule, Mapping):
        raise ArgumentError(f"schedule={schedule!r} is not a dict", hint="write {0: {...}, 10_000: {...}}")
    if schedule and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise ArgumentError(
            f"a schedule counts steps, so it needs the samples of a step, got batch_size={batch_size!r}",
            hint="pass mix(batch_size=...): the samples of a step, over all ranks together",
        )
    for step in schedule:
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ArgumentError(f"schedule: {step!r} is not a step", hint="steps are integers from 0 on")
    for earlier, later in pairwise(schedule):
        if later <= earlier:
            raise ArgumentError(
                f"schedule: step {later} comes after step {earlier}", hint="write the steps in ascending order"
            )
    if weights and 0 in schedule:
        raise ArgumentError(
            "the weights at step 0 are given twice: with the sources, and in the schedule",
            hint="leave out one of them",
        )
    starts: list[tuple[int, Weights]] = []
    if 0 not in schedule:
        if missing := [name for name in tokens if name not in weights]:
            raise ArgumentError(
                f"source {missing[0]!r} has no weight",
                hint='write {"web": (dataset, 0.7), ...}, or let the schedule give all weights from step 0 on',
            )
        starts.append((0, _parse_weights(weights, tokens, where="mix")))
    for step, entry in schedule.items():
        if isinstance(entry, Mapping):  # weight 0 stands for a source that gives nothing from there on
            entry = {name: weight for name, weight in entry.items() if type(weight) not in (int, float) or weight}
        starts.append((step * (batch_size or 1), _parse_weights(entry, tokens, where=f"schedule, step {step}")))
    if idle := [name for name in tokens if not any(name in entry for _, entry in starts)]:
        raise ArgumentError(
            f"source {idle[0]!r} never has a weight in the schedule", hint="leave it out, or give it one"
        )
    return tuple(starts)


def _parse_weights(weights: Any, tokens: Mapping[str, Fraction], *, where: str) -> Weights:
    """Return the weights as parts of 1, in samples: divided by the mean tokens of a sample where they count tokens."""
    if not isinstance(weights, Mapping) or not weights:
        raise ArgumentError(f"{where}: {weights!r} gives no weights", hint='write {"web": 0.7, "code": 0.3}')
    for name in weights:
        if name not in tokens:
            raise _unknown_source(name, tokens, where=where)
    fractions = {
        name: exact(weight, what=f"{where}: the weight of {name!r}") / tokens[name] for name, weight in weights.items()
    }
    total = sum(fractions.values())
    return {name: fraction / total for name, fraction in fractions.items()}


def _unknown_source(name: Any, known: Mapping[str, Any], *, where: str) -> ArgumentError:
    return ArgumentError(f"{where}: there is no source {name!r}", hint=f"the sources are {', '.join(map(repr, known))}")
