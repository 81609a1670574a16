"""`stoker.doctor(loader)`: what holds a loader back, from what it has counted, or from a few seconds of it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from time import perf_counter
from typing import Any

from stoker.errors import ArgumentError
from stoker.foundation.machine import described
from stoker.foundation.text import format_duration
from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.diagnose.verdict import diagnose
from stoker.lab.watch.hook.dataset_facts import facts_of
from stoker.lab.watch.run import Run
from stoker.lab.watch.watch import Watch

ENOUGH_STEPS = 20
"""Batches that a loader has to have given, for its own counters to be judged by."""
LOOK_SECONDS = 2.0
"""How long workers are looked at, when all that is missing is whether they are in Python."""


def doctor(loader: Iterable[Any], step: Callable[[Any], Any] | None = None, *, seconds: float = 5.0) -> Diagnosis:
    """Return what holds a loader back: `print(stoker.doctor(loader))`.

    A loader of Stoker's that has been iterated over is judged by what it has counted, and not disturbed. Any other one
    is iterated over for `seconds`, with `step(batch)` for the training's own part; random numbers are then as they were
    before. Without a step, the verdict is on the loader by itself, which nobody keeps waiting.
    """
    if isinstance(loader, Watch):
        return loader.diagnosis()
    if not seconds > 0:
        raise ArgumentError(f"seconds={seconds!r} is no time to look", hint="give a number above 0, such as 5.0")
    if step is not None and not callable(step):
        raise ArgumentError(
            f"step={step!r} cannot be called", hint="give a function of a batch: stoker.doctor(loader, step=train_on)"
        )
    if step is None:
        counted = _counted(loader)
        if counted is not None:
            diagnosis = diagnose(counted)
            if diagnosis.verdict != "decode-bound" or counted.loaders[0].sampled is not None:
                return diagnosis
            looked = _driven(copy(loader), None, min(seconds, LOOK_SECONDS))
            return diagnose(_with_looks(counted, looked))
    run = _driven(_twin(loader), step, seconds)
    diagnosis = diagnose(run)
    if not any(stats.num_batches for stats in run.loaders):
        return replace(
            diagnosis,
            says="the loader gave no batch",
            advice=["see that its dataset is not empty, or shorter than one batch; a generator gives its batches once"],
        )
    return diagnosis if step is not None else _alone(run, diagnosis)


def _is_ours(loader: Any) -> bool:
    ours = sys.modules.get("stoker.loader.dataloader")
    return ours is not None and isinstance(loader, ours.DataLoader) and not loader._is_foreign


def _twin(loader: Any) -> Any:
    """Return a loader that gives the same, and leaves this one where it is: an iteration that is on, its workers, the
    state that it is to go on from. Classes that derive from known ones may hold what cannot be held twice.
    """
    if _is_ours(loader):
        return copy(loader)
    places = (("torch.utils.data", "DataLoader"), ("torchdata.stateful_dataloader", "StatefulDataLoader"))
    if type(loader) not in [getattr(sys.modules.get(module), name, None) for module, name in places]:
        return loader
    twin = copy(loader)
    twin._iterator = None
    if hasattr(twin, "load_state_dict"):
        twin.load_state_dict({})
    return twin


def _counted(loader: Any) -> Run | None:
    """Return what a loader of ours has counted, if that is enough."""
    if not _is_ours(loader):
        return None
    stats = loader.stats(laps=True)
    if stats.batch_seconds.num < ENOUGH_STEPS:
        return None
    stats = replace(stats, facts={**facts_of(loader), **stats.facts})
    return Run(title="stoker.DataLoader", machine=described(), seconds=stats.seconds, loaders=[stats])


def _with_looks(counted: Run, looked: Run) -> Run:
    if not looked.loaders:
        return counted
    return replace(counted, loaders=[replace(counted.loaders[0], sampled=looked.loaders[0].sampled)])


def _driven(loader: Any, step: Callable[[Any], Any] | None, seconds: float) -> Run:
    """Return what was seen of a loader in so many seconds, over as many epochs as it takes."""
    with _random_numbers_kept(loader), Watch(loader) as watched:
        over = perf_counter() + seconds
        is_over = False
        while not is_over:
            num_batches = 0
            iterator = iter(watched)
            try:
                for batch in iterator:
                    num_batches += 1
                    if step is not None:
                        step(batch)
                    del batch
                    if is_over := perf_counter() >= over:
                        break
            finally:
                with suppress(AttributeError):
                    iterator.close()  # type: ignore[attr-defined]
                del iterator
            is_over = is_over or not num_batches or perf_counter() >= over
        return watched.run()


@contextmanager
def _random_numbers_kept(loader: Any) -> Iterator[None]:
    """Let nobody notice that random numbers were drawn, from the process's or from those of the loader."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    python = random.getstate()
    kept = None if numpy is None else numpy.random.get_state()
    drawn = None if torch is None else torch.get_rng_state()
    own = [(generator, generator.get_state()) for generator in _generators(loader)]
    try:
        yield
    finally:
        for generator, state in own:
            generator.set_state(state)
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(kept)
        if torch is not None:
            torch.set_rng_state(drawn)


def _generators(loader: Any) -> list[Any]:
    """Return the generators of torch's that a loader has, or its samplers."""
    torch = sys.modules.get("torch")
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    owners = (loader, sampler, batches, getattr(batches, "sampler", None))
    found = [getattr(owner, "generator", None) for owner in owners]
    unique = {id(one): one for one in found if torch is not None and isinstance(one, torch.Generator)}
    return list(unique.values())


def _alone(run: Run, diagnosis: Diagnosis) -> Diagnosis:
    """Return a diagnosis of a loader that ran without a training, and says so."""
    if not run.loaders or diagnosis.gain is None:
        return diagnosis
    period = run.loaders[0].batch_seconds.mean
    often = f", and gave a batch every {format_duration(period)}" if period else ""
    return replace(
        diagnosis,
        evidence=[
            f"no step was given: the loader ran by itself{often}; a training whose step takes longer does not wait "
            "for it",
            *diagnosis.evidence,
        ],
        gain=None,
        gain_share=None,
    )
