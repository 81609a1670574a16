"""A trial as its child sees it: a fresh process that imports the user's code, makes the loader, and drives it.

It is asked for one phase after the other. Until the user's module is imported nothing heavy is, so that the times and
the memory that are told are those of the user's program and not of the measuring.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from typing import Any

from stoker.engine.processes.failure import WorkerTraceback
from stoker.errors import ArgumentError
from stoker.foundation import trees
from stoker.foundation.machine import tree_cpu_seconds
from stoker.lab.trial.drive import Drive, Pace, kind_of
from stoker.lab.trial.override import OURS, Override, given_to, override_arguments
from stoker.lab.trial.step_target import BATCHED, check_needs_no_size, check_takes_batch
from stoker.lab.trial.target import call_with, resolve_function

PHASES = ("imports", "make", "first", "count", "end")
"""What a child is asked for, in order; one that is watched for "record" instead of "count"."""

IN_TRIAL = "STOKER_TRIAL"
"""Set in a child's environment: a script that measures when it is imported would start trials without end."""

MAX_TRACE = 4000

TORCH_MARK = "Original Traceback (most recent call last):"


def begin(order: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Return what answers the questions of one trial."""
    began = time.perf_counter()
    os.environ[IN_TRIAL] = "1"
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # the parent asks where a trial hangs
    return _Trial(order, began).answer


class _Trial:
    def __init__(self, order: dict[str, Any], began: float) -> None:
        self._order, self._began = order, began
        self._stack = ExitStack()
        self._function: Callable[..., Any]
        self._step: Callable[..., Any] | None = None
        self._override: Override
        self._drive: Drive
        self._ours_seconds = 0.0

    def answer(self, phase: str) -> dict[str, Any]:
        """Return what a phase found; its failure is an answer, too."""
        phases = {
            "imports": self._imports,
            "make": self._make,
            "first": self._first,
            "count": self._count,
            "record": self._record,
            "end": self._end,
        }
        try:
            return phases[phase]()
        except BaseException as error:
            return {"failed": _told(error)}

    def _imports(self) -> dict[str, Any]:
        order = self._order
        begin = time.perf_counter()
        for name in order["imports"]:
            resolve_function(name) if ":" in name else import_module(name)
        self._function = partial(resolve_function(order["target"]), **order["arguments"])
        if order["arguments"] == {}:
            self._function = self._function.func
        make_step = None if order["step"] is None else resolve_function(order["step"])
        is_patched = bool(set(order["options"]) - given_to(self._function, order["options"]))
        if is_patched:
            import_module("torch.utils.data")  # which would be imported by whoever makes a loader
        seconds = time.perf_counter() - begin
        if is_patched and OURS not in sys.modules:
            begin = time.perf_counter()
            import_module(OURS)
            self._ours_seconds = time.perf_counter() - begin
        self._override = self._stack.enter_context(override_arguments(order["options"], self._function))
        if make_step is not None:
            name = f"{order['step'].rpartition(':')[2]}()"
            check_needs_no_size(make_step, name)
            self._step = call_with(make_step)
            if not callable(self._step):
                raise ArgumentError(
                    f"{order['step']} returned {type(self._step).__name__}, which cannot be called with a batch",
                    hint=f"return a function: {BATCHED}",
                )
            check_takes_batch(self._step, name)
        return {"began": self._began, "seconds": seconds}

    def _make(self) -> dict[str, Any]:
        begin = time.perf_counter()
        make = partial(self._override.call, self._function)
        self._drive = Drive(partial(self._watched, make) if self._order["is_watched"] else make, self._step)
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, **self._kind()}

    def _first(self) -> dict[str, Any]:
        seconds = self._drive.first()
        self._override.check(self._function)
        digest = digest_of_batch(self._drive.latest) if self._order["wants_digest"] else None
        # one that is a generator has built its loader only now
        return {"seconds": seconds, "digest": digest, "type": type(self._drive.latest).__name__, **self._kind()}

    def _count(self) -> dict[str, Any]:
        pid = os.getpid()
        return self._drive.counted(
            Pace(**self._order["pace"]),
            cpu_seconds=lambda: tree_cpu_seconds(pid),
            arguments=self._kind()["found"],
        )

    def _watched(self, make: Callable[[], Any]) -> Any:
        """Return the loader that is made, watched by a doctor."""
        from stoker.lab.watch.watch import Watch

        return self._stack.enter_context(Watch(make(), name=self._order["target"]))

    def _record(self) -> dict[str, Any]:
        """Return what was seen of a loader that is watched."""
        pid = os.getpid()
        with suppress(ArgumentError):  # one that can be iterated only once has been seen as far as it goes
            self._drive.counted(Pace(**self._order["pace"]), cpu_seconds=lambda: tree_cpu_seconds(pid))
        return {"run": self._drive.loader.run().as_dict()}

    def _end(self) -> dict[str, Any]:
        self._drive.close()
        self._stack.close()
        return {}

    def _kind(self) -> dict[str, Any]:
        """Return whose loader it is, and its arguments; of one that is wrapped, those of what is inside."""
        override, loader = self._override, self._drive.loader
        kind, found = kind_of(loader), self._drive.arguments
        if kind == "iterable" and override.kinds:
            kind, found = override.kinds[-1], override.arguments
        return {
            "kind": kind,
            "found": found,
            "import_seconds": self._ours_seconds if "stoker" in override.kinds else 0.0,
        }


def digest_of_batch(batch: Any) -> str:
    """Return a short text that is the same for batches of the same numbers and texts, in tensors or arrays."""
    whole = hashlib.blake2b(digest_size=8)
    for leaf in _leaves(batch):
        numbers = leaf.detach().cpu() if hasattr(leaf, "detach") else leaf
        if hasattr(numbers, "view") and str(getattr(numbers, "dtype", "")) == "torch.bfloat16":
            numbers = numbers.float()
        if hasattr(numbers, "numpy"):
            numbers = numbers.numpy()
        whole.update(numbers.tobytes() if hasattr(numbers, "tobytes") else repr(numbers).encode())
    return whole.hexdigest()


def _leaves(batch: Any) -> Iterator[Any]:
    """Yield what is in a batch; dicts in the order of their keys, because loaders differ in it."""
    inside = trees.children(batch)
    if isinstance(batch, Mapping):
        inside = [batch[name] for name in sorted(batch, key=str)]
    if inside is None:
        yield batch
    for child in inside or ():
        yield from _leaves(child)


def _told(error: BaseException) -> dict[str, Any]:
    """Return an exception as texts: the parent is not to import whatever its type comes from.

    Of one that came from a worker it is the worker's own traceback that tells where.
    """
    kind, message, trace = type(error).__name__, str(error), "".join(traceback.format_exception(error))
    before, mark, original = message.partition(TORCH_MARK)
    if mark:  # torch writes what happened into the message of another exception
        lines = original.strip("\n").splitlines()
        end = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), len(lines) - 1)
        kind, _, message = "\n".join(lines[end:]).strip().partition(": ")
        message, trace = message or before.strip(), f"{before}{mark}{original}"
    elif isinstance(error.__cause__, WorkerTraceback):
        trace = str(error.__cause__)
    return {
        "type": kind,
        "message": message,
        "trace": trace[-MAX_TRACE:],
        "is_argument": isinstance(error, ArgumentError),
    }
