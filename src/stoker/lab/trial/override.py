"""Arguments of loaders changed from outside, so that a function that takes none can be measured with any.

`DataLoader.__init__` of torch, of torchdata and of ours is replaced for a while. A loader that is made meanwhile gets
the arguments that were asked for, and loses those that go with workers where it is to have none: torch refuses
`prefetch_factor`, `persistent_workers`, `timeout` and `multiprocessing_context` without workers.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from stoker.errors import ArgumentError
from stoker.lab.trial.drive import arguments_of
from stoker.lab.trial.target import accepted_options, call_with

SWEPT = ("num_workers", "num_threads", "batch_size", "prefetch_factor")
"""The arguments that can be changed."""

OURS, STATEFUL = "stoker.loader.dataloader", "torchdata.stateful_dataloader"

NEED_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
NEED_PROCESSES = ("persistent_workers", "multiprocessing_context")
"""Of these, what threads cannot do without processes, either."""


def make_loader(function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> Any:
    """Return the loader that `function` makes with these arguments: given to it by keyword as far as it takes them,
    and set on the loaders that it builds otherwise. Raise `ArgumentError` for those that nobody took.

    For a function that builds its loader only when it is iterated, such as a generator, iterate inside
    `override_arguments`.
    """
    with override_arguments(options or {}, function) as override:
        loader = override.call(function)
    override.check(function)
    return loader


class Override:
    """Arguments that are to be changed, and what became of them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        if unknown := set(options) - set(SWEPT):
            raise ArgumentError(
                f"{', '.join(sorted(unknown))} cannot be changed from outside", hint=f"choose among {', '.join(SWEPT)}"
            )
        self.options = dict(options)
        self.kinds: list[str] = []
        """What the loaders are that were made, in order: "stoker" or "torch"."""
        self.arguments: dict[str, Any] = {}
        """What the latest of them has become."""
        self._changed: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._given: set[str] = set()
        self._takes_any = False
        self._making: set[int] = set()

    def call(self, function: Callable[..., Any]) -> Any:
        """Return what `function` makes; what it has parameters for is given to it, and not set behind its back."""
        self._takes_any = _takes_any(function)
        self._given = given_to(function, self.options)
        loader = call_with(function, **self.options)
        check_iterable(loader, function)
        return loader

    def check(self, function: Callable[..., Any]) -> None:
        """Raise `ArgumentError` if an argument reached nobody."""
        lost = {name: value for name, value in self.options.items() if name not in self._given | self._changed}
        if self._takes_any and not self.kinds:
            return  # it was told, and made a loader of a kind that is not known here
        if not (self.options.get("num_workers") or self.options.get("num_threads")):
            lost.pop("prefetch_factor", None)  # without workers nothing is fetched ahead, and nobody is misled
        if not lost.get("num_threads"):
            lost.pop("num_threads", None)
        for name, value in lost.items():
            nobody = "no loader took it" if self.kinds else "no DataLoader was made whose arguments could be changed"
            hint = f"let the function take it: `def {_plain(function)}({name}={value}): ...`"
            if name == "num_threads" and self.kinds:
                hint = "`from stoker import DataLoader` has threads; with torch's, leave them out"
            raise ArgumentError(f"{name}={value} could not be set: {self._refusals.get(name, nobody)}", hint=hint)

    def constructor(self, kind: str, original: Any) -> Any:
        """Return what stands for the constructor of a class of loaders."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            if id(loader) in self._making:  # ours, and torchdata's, call torch's constructor in their own
                return original(loader, *args, **kwargs)  # type: ignore[no-any-return]
            self._making.add(id(loader))
            try:
                known = {name: kwargs[name] for name in kwargs if name in signature.parameters or name not in SWEPT}
                try:
                    bound = signature.bind(loader, *args, **known if self.options else kwargs)
                except TypeError:
                    return original(loader, *args, **kwargs)  # type: ignore[no-any-return]  # which tells what is wrong
                self._change(bound.arguments, set(signature.parameters), kind)
                original(*bound.args, **bound.kwargs)
                self.kinds.append(kind)
                self.arguments = arguments_of(loader)
            finally:
                self._making.discard(id(loader))

        return init

    def _change(self, arguments: dict[str, Any], known: set[str], kind: str) -> None:
        """Set what is wanted, as far as this loader has it, and drop what it would refuse."""
        for name, value in self.options.items():
            if name in self._given:
                continue
            if name not in known:
                self._refusals[name] = f"{'torch' if kind == 'torch' else 'this'}'s DataLoader has no {name}"
            elif name == "batch_size" and arguments.get("batch_sampler") is not None:
                self._refusals[name] = "the loader has a batch_sampler, which decides how large batches are"
            elif name == "batch_size" and arguments.get("batch_size", 1) is None:
                self._refusals[name] = "the loader has batch_size=None: its dataset decides how large batches are"
            else:
                arguments[name] = value
                self._changed.add(name)
        if self.options and arguments.get("num_workers", 0) == 0:
            for name in NEED_PROCESSES if arguments.get("num_threads", 0) else NEED_WORKERS:
                arguments.pop(name, None)


def given_to(function: Callable[..., Any], options: Mapping[str, Any]) -> set[str]:
    """Return the options that a function has parameters for. One that takes any is not asked what becomes of them."""
    return set() if _takes_any(function) else {name for name in options if accepted_options(function, {name: None})}


@contextmanager
def override_arguments(options: Mapping[str, Any], function: Callable[..., Any] | None = None) -> Iterator[Override]:
    """Let loaders that are made inside the block have these arguments, whatever they are given; in all threads.

    torch is imported for it, and our loader, unless nothing has to be changed behind the back of `function`. Then, and
    without options, only loaders of libraries that are imported already are noted.
    """
    override = Override(options)
    is_needed = bool(set(options) - given_to(function, options)) if function is not None else bool(options)
    with ExitStack() as stack:
        for kind, cls in _classes(is_needed=is_needed):
            original = cls.__init__
            stack.callback(setattr, cls, "__init__", original)
            cls.__init__ = override.constructor(kind, original)
        yield override


def check_iterable(loader: Any, function: Callable[..., Any]) -> None:
    """Raise `ArgumentError` for what cannot be measured as a loader."""
    name = f"{_plain(function)}()"
    values = list(loader.values()) if isinstance(loader, dict) else loader
    if isinstance(values, tuple | list) and any(map(_is_loader, values)):
        raise ArgumentError(
            f"{name} returned a {type(loader).__name__} of {len(loader)}, and not one loader",
            hint=f"measure one of them: `def make_one(): return {_plain(function)}()[{next(iter(loader))!r}]`"
            if isinstance(loader, dict)
            else f"measure one of them: `def make_one(): return {_plain(function)}()[0]`",
        )
    if _is_map_style(loader):
        raise ArgumentError(
            f"{name} returned a dataset ({type(loader).__name__}), which yields samples, not batches",
            hint="return a loader of it: `DataLoader(dataset, batch_size=32)`, or with batch_size=None if what it "
            "gives are batches; or let `stoker bench compare` make some",
        )
    if isinstance(loader, str | bytes):
        raise ArgumentError(
            f"{name} returned {type(loader).__name__}, which yields no batches", hint="return what is iterated"
        )
    if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
        raise ArgumentError(
            f"{name} returned {'None' if loader is None else type(loader).__name__}, which yields no batches",
            hint="return the loader; did you forget `return`?" if loader is None else "return what is iterated",
        )


def _classes(*, is_needed: bool) -> list[tuple[str, Any]]:
    """Return the classes whose constructors are replaced. torch's and ours are imported if they may be needed."""
    found = []
    if is_needed or "torch.utils.data" in sys.modules:
        found.append(("torch", import_module("torch.utils.data").DataLoader))
    if is_needed or OURS in sys.modules:
        found.append(("stoker", import_module(OURS).DataLoader))
    if STATEFUL in sys.modules:
        found.append(("torch", sys.modules[STATEFUL].StatefulDataLoader))
    return found


def _takes_any(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(one.kind is one.VAR_KEYWORD for one in parameters)


def _is_loader(value: Any) -> bool:
    module = sys.modules.get("torch.utils.data")
    return module is not None and isinstance(value, module.DataLoader)


def _is_map_style(value: Any) -> bool:
    """Whether something gives samples by position. A list may be one of batches, and so may what else is iterated."""
    kind = type(value)
    if not hasattr(kind, "__getitem__") or not hasattr(kind, "__len__") or _is_loader(value):
        return False
    if not hasattr(kind, "__iter__"):
        return True
    if kind.__module__ == "datasets.arrow_dataset":  # Hugging Face's
        return True
    module = sys.modules.get("torch.utils.data")
    is_torchs = module is not None and isinstance(value, module.Dataset)
    return is_torchs and not isinstance(value, module.IterableDataset)  # type: ignore[union-attr]


def _plain(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)
