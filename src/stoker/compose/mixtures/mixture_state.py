"""The state of a mixture: what is saved, and how a mixture continues from it, also with other terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stoker.compose.mixtures.mixture_sources import MixtureSource
from stoker.compose.mixtures.mixture_terms import Phase
from stoker.errors import ArgumentError, StateError, StateMismatch, StateUnreadable
from stoker.plan import order_named

if TYPE_CHECKING:
    from stoker.compose.mixtures.mixture import Mixture

LAST_SAMPLE = 1 << 62
"""Samples of a mixture are numbered up to here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedMixture:
    """What a state says about a mixture."""

    epoch: int
    number: int
    """How many samples of the whole run were served."""
    counts: Mapping[str, int]
    """How many of them came from each source."""
    identities: Mapping[str, Mapping[str, Any]]
    """`MixtureSource.identity` of each source."""
    phases: tuple[Phase, ...]

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> SavedMixture:
        """Return the values of a state; raise one of many errors if they are not those of a mixture."""
        phases = tuple(map(Phase.from_dict, state["phases"]))
        starts = [phase.start for phase in phases]
        if starts[0] or sorted(set(starts)) != starts:
            raise ValueError(f"phases start at {starts}")
        return cls(
            epoch=int(state["epoch"]),
            number=int(state["number"]),
            counts={str(name): int(count) for name, count in state["counts"].items()},
            identities={str(name): dict(identity) for name, identity in state["sources"].items()},
            phases=phases,
        )


def state_of(mixture: Mixture, sources: tuple[MixtureSource, ...], epoch: int, position: int) -> dict[str, Any]:
    """Return the fields of `SavedMixture` at `position` of `epoch`, as plain values."""
    number = mixture.number(epoch, position)
    return {
        "epoch": epoch,
        "number": number,
        "counts": mixture.counts(number),
        "sources": {source.name: source.identity() for source in sources},
        "phases": [phase.to_dict() for phase in mixture.phases],
    }


def resume(mixture: Mixture, sources: tuple[MixtureSource, ...], state: Any) -> Mixture:
    """Return the mixture that continues where `state` was taken.

    With the same terms, that is the saved mixture. With other terms, it is the saved one up to sample `number`, and
    `mixture`'s terms from there on: its phases are the saved ones plus one that starts at `number`. That phase counts
    its epochs from the beginning of the epoch it starts in, so that epoch has a new length but keeps its number.
    """
    if not isinstance(state, Mapping):
        raise StateMismatch({"mixture": (state, list(mixture.names))})
    with _reading_state():
        saved = SavedMixture.from_dict(state)
        before = saved.phases[-1].terms
        present = {source.name: source for source in sources if source.dataset is not None}
        _check_same_data(present, saved)
        changed = mixture.terms.differences(before)
        if changed and not mixture.changes:
            refusal = StateMismatch(changed)
            refusal.add_note("with mix(..., changes=True) the new ones hold from where the state was taken on")
            raise refusal
        # Sources are numbered as in `mixture`, whatever their numbers were. Those that are gone from it come last: they
        # cannot be read, but what they gave is part of every count.
        gone = [_gone(name, saved.identities[name]) for name in saved.identities if name not in present]
        both = (*present.values(), *gone)
        old = mixture.rebuilt(both, before, phases=saved.phases, epoch=saved.epoch)
        # the counts follow from the terms, so a state in which they differ was damaged or edited
        is_reached = 0 <= saved.number <= (LAST_SAMPLE if old.blend.total is None else old.blend.total)
        counts = old.counts(saved.number) if is_reached else {}
        if not is_reached or {name: count for name, count in counts.items() if name in saved.counts} != saved.counts:
            raise StateUnreadable("the counts of the mixture's sources are not those of its weights")
    if not changed:
        return old
    begins = old.number(saved.epoch, 0)
    kept = tuple(phase for phase in saved.phases if phase.start < saved.number)
    phase = Phase(terms=mixture.terms, start=saved.number, epoch=saved.epoch, begins=begins, length=0)
    new = mixture.rebuilt(both, mixture.terms, phases=(*kept, phase), epoch=saved.epoch)
    if begins + len(new) < saved.number:
        raise ArgumentError(
            f"an epoch would have {len(new)} samples, and {saved.number - begins} of it have been served already",
            hint="choose another stop, or begin the next epoch first",
        )
    return new


def _check_same_data(present: Mapping[str, MixtureSource], saved: SavedMixture) -> None:
    """Raise `StateMismatch` if a source has other data, or another order or seed, under the name it had before."""
    differences: dict[str, tuple[Any, Any]] = {}
    for name, source in present.items():
        if name not in saved.identities:
            continue  # a new source
        for what, ours in source.identity().items():
            theirs = saved.identities[name].get(what)
            is_unknown = what == "fingerprint" and None in (theirs, ours)
            if theirs != ours and not is_unknown:
                differences[f"{what} of {name!r}"] = (theirs, ours)
    if differences:
        raise StateMismatch(differences)


def _gone(name: str, identity: Mapping[str, Any]) -> MixtureSource:
    length, order = int(identity["length"]), order_named("sequential")
    return MixtureSource(name=name, dataset=None, length=length, order=order, seed=0, past=identity)


@contextmanager
def _reading_state() -> Iterator[None]:
    """Turn any error that odd entries of a state lead to into `StateUnreadable`."""
    try:
        yield
    except StateError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RuntimeError) as error:
        raise StateUnreadable(f"its mixture does not fit together ({error!r})") from error
