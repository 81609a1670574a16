"""`stoker.doctor(loader)`: diagnose a loader by its counters, or by a few seconds of iterating over it."""

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

MIN_STEPS = 20
"""Batches that a loader must have delivered for a diagnosis by its counters alone."""
PROFILE_SECONDS = 2.0
"""How long workers are profiled if all that is missing is whether they run Python."""


def doctor(loader: Iterable[Any], step: Callable[[Any], Any] | None = None, *, seconds: float = 5.0) -> Diagnosis:
    """Return what slows a loader down: `print(stoker.doctor(loader))`.

    A Stoker loader that has been iterated over is diagnosed by its counters, and not disturbed. Any other loader is
    iterated over for `seconds`, calling `step(batch)` as the training step; RNG states are restored afterwards. Without
    a step, the verdict is on the loader alone.
    """
    if isinstance(loader, Watch):
        return loader.diagnosis()
    if not seconds > 0:
        raise ArgumentError(f"seconds must be above 0, got {seconds!r}", hint="pass how long to watch, such as 5.0")
    if step is not None and not callable(step):
        raise ArgumentError(
            f"step must be callable, got {step!r}",
            hint="pass a function of a batch: stoker.doctor(loader, step=train_on)",
        )
    if step is None:
        counted = _counted(loader)
        if counted is not None:
            diagnosis = diagnose(counted)
            if diagnosis.verdict != "decode-bound" or counted.loaders[0].sampled is not None:
                return diagnosis
            profiled = _iterate(copy(loader), None, min(seconds, PROFILE_SECONDS))
            return diagnose(_add_samples(counted, profiled))
    run = _iterate(_copy(loader), step, seconds)
    diagnosis = diagnose(run)
    if not any(stats.num_batches for stats in run.loaders):
        return replace(
            diagnosis,
            says="the loader delivered no batch",
            advice=["check that its dataset is not empty or shorter than one batch; a generator can be used only once"],
        )
    return diagnosis if step is not None else _without_step(run, diagnosis)


def _is_ours(loader: Any) -> bool:
    ours = sys.modules.get("stoker.loader.dataloader")
    return ours is not None and isinstance(loader, ours.DataLoader) and not loader._is_foreign


def _copy(loader: Any) -> Any:
    """Return a loader that delivers the same and leaves this one untouched: its running iteration, workers and state.

    Return the loader itself if its class only derives from a known one: it may hold what cannot be held twice.
    """
    if _is_ours(loader):
        return copy(loader)
    places = (("torch.utils.data", "DataLoader"), ("torchdata.stateful_dataloader", "StatefulDataLoader"))
    if type(loader) not in [getattr(sys.modules.get(module), name, None) for module, name in places]:
        return loader
    copied = copy(loader)
    copied._iterator = None
    if hasattr(copied, "load_state_dict"):
        copied.load_state_dict({})
    return copied


def _counted(loader: Any) -> Run | None:
    """Return the counters of a Stoker loader as a run, if it delivered enough batches."""
    if not _is_ours(loader):
        return None
    stats = loader.stats(laps=True)
    if stats.batch_seconds.num < MIN_STEPS:
        return None
    stats = replace(stats, facts={**facts_of(loader), **stats.facts})
    return Run(title="stoker.DataLoader", machine=described(), seconds=stats.seconds, loaders=[stats])


def _add_samples(counted: Run, profiled: Run) -> Run:
    if not profiled.loaders:
        return counted
    return replace(counted, loaders=[replace(counted.loaders[0], sampled=profiled.loaders[0].sampled)])


def _iterate(loader: Any, step: Callable[[Any], Any] | None, seconds: float) -> Run:
    """Iterate over a loader for so many seconds, in as many epochs as it takes; return the record of it."""
    with _rng_states_kept(loader), Watch(loader) as watched:
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
def _rng_states_kept(loader: Any) -> Iterator[None]:
    """Restore the RNG states of the process, and of the loader's generators, at the end of the block."""
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
    """Return the `torch.Generator`s of a loader and its samplers."""
    torch = sys.modules.get("torch")
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    owners = (loader, sampler, batches, getattr(batches, "sampler", None))
    found = [getattr(owner, "generator", None) for owner in owners]
    unique = {id(one): one for one in found if torch is not None and isinstance(one, torch.Generator)}
    return list(unique.values())


def _without_step(run: Run, diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis of a loader that ran without a training step, and say so."""
    if not run.loaders or diagnosis.gain is None:
        return diagnosis
    period = run.loaders[0].batch_seconds.mean
    rate = f" and delivered a batch every {format_duration(period)}" if period else ""
    why = f"no step was given: the loader ran alone{rate}; a training loop with longer steps does not wait for it"
    return replace(diagnosis, evidence=[why, *diagnosis.evidence], gain=None, gain_share=None)
