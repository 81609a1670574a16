"""The child process of a trial: it imports the user's code, makes the loader and iterates over it, phase by phase.

Nothing heavy is imported before the user's module, so that times and memory are those of the user's program.
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
from stoker.lab.trial.drive import LoaderDrive, Pace, kind_of
from stoker.lab.trial.override import OURS, Override, given_to, override_arguments
from stoker.lab.trial.step_target import BATCHED, check_needs_no_size, check_takes_batch
from stoker.lab.trial.target import call_with, resolve_function

PHASES = ("imports", "make", "first", "count", "end")
"""What a child is asked for, in order; a recorded run has "record" in the place of "count"."""

IN_TRIAL = "STOKER_TRIAL"
"""Set in the child: a script that measures when it is imported would start trials without end."""

MAX_TRACE = 4000

TORCH_MARK = "Original Traceback (most recent call last):"


def begin(request: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Return the function that runs the phases of a trial."""
    began = time.perf_counter()
    os.environ[IN_TRIAL] = "1"
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # the parent asks for the stacks of a trial that hangs
    return _TrialChild(request, began).answer


class _TrialChild:
    def __init__(self, request: dict[str, Any], began: float) -> None:
        self._request, self._began = request, began
        self._stack = ExitStack()
        self._function: Callable[..., Any]
        self._step: Callable[..., Any] | None = None
        self._override: Override
        self._drive: LoaderDrive
        self._ours_seconds = 0.0

    def answer(self, phase: str) -> dict[str, Any]:
        """Run a phase and return what it found, or its failure."""
        run: Callable[[], dict[str, Any]] = getattr(self, f"_{phase}")
        try:
            return run()
        except BaseException as error:
            return {"failed": _describe_error(error)}

    def _imports(self) -> dict[str, Any]:
        request = self._request
        begin = time.perf_counter()
        for name in request["imports"]:
            resolve_function(name) if ":" in name else import_module(name)
        self._function = partial(resolve_function(request["target"]), **request["arguments"])
        if request["arguments"] == {}:
            self._function = self._function.func
        make_step = None if request["step"] is None else resolve_function(request["step"])
        is_patched = bool(set(request["options"]) - given_to(self._function, request["options"]))
        if is_patched:
            import_module("torch.utils.data")  # which any loader would import
        seconds = time.perf_counter() - begin
        if is_patched and OURS not in sys.modules:
            begin = time.perf_counter()
            import_module(OURS)
            self._ours_seconds = time.perf_counter() - begin
        self._override = self._stack.enter_context(override_arguments(request["options"], self._function))
        if make_step is not None:
            name = f"{request['step'].rpartition(':')[2]}()"
            check_needs_no_size(make_step, name)
            self._step = call_with(make_step)
            if not callable(self._step):
                raise ArgumentError(
                    f"{request['step']} returned {type(self._step).__name__}, which cannot be called with a batch",
                    hint=f"return a function: {BATCHED}",
                )
            check_takes_batch(self._step, name)
        return {"began": self._began, "seconds": seconds}

    def _make(self) -> dict[str, Any]:
        begin = time.perf_counter()
        make = partial(self._override.call, self._function)
        self._drive = LoaderDrive(partial(self._watched, make) if self._request["is_watched"] else make, self._step)
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, **self._kind()}

    def _first(self) -> dict[str, Any]:
        seconds = self._drive.first()
        self._override.check(self._function)
        digest = digest_of_batch(self._drive.latest) if self._request["wants_digest"] else None
        # a generator has built its loader only now
        return {"seconds": seconds, "digest": digest, "type": type(self._drive.latest).__name__, **self._kind()}

    def _count(self) -> dict[str, Any]:
        pid = os.getpid()
        return self._drive.measure(
            Pace(**self._request["pace"]),
            cpu_seconds=lambda: tree_cpu_seconds(pid),
            arguments=self._kind()["found"],
        )

    def _watched(self, make: Callable[[], Any]) -> Any:
        """Return the loader that `make` makes, watched by the doctor."""
        from stoker.lab.watch.watch import Watch

        return self._stack.enter_context(Watch(make(), name=self._request["target"]))

    def _record(self) -> dict[str, Any]:
        """Return the record of a watched loader."""
        pid = os.getpid()
        with suppress(ArgumentError):  # a loader that can be iterated only once is recorded up to its end
            self._drive.measure(Pace(**self._request["pace"]), cpu_seconds=lambda: tree_cpu_seconds(pid))
        return {"run": self._drive.loader.run().as_dict()}

    def _end(self) -> dict[str, Any]:
        self._drive.close()
        self._stack.close()
        return {}

    def _kind(self) -> dict[str, Any]:
        """Return the kind of loader and its arguments; for a wrapped loader, those of the inner one."""
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
    """Return a digest that is the same for equal numbers and texts, in tensors or arrays."""
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
    """Yield the leaves of a batch; dicts in the order of their keys, in which loaders differ."""
    inside = trees.children(batch)
    if isinstance(batch, Mapping):
        inside = [batch[name] for name in sorted(batch, key=str)]
    if inside is None:
        yield batch
    for child in inside or ():
        yield from _leaves(child)


def _describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as text, because the parent does not import the module of its type.

    The traceback of an error in a worker is the worker's own.
    """
    kind, message, trace = type(error).__name__, str(error), "".join(traceback.format_exception(error))
    before, mark, original = message.partition(TORCH_MARK)
    if mark:  # torch puts the worker's traceback into the message
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
