"""Change the arguments of a loader from outside, so that a function without parameters can be measured with any.

`DataLoader.__init__` of torch, torchdata and Stoker is replaced for a while. Loaders that are made meanwhile get the
requested arguments. Without workers they lose those that torch then refuses: `prefetch_factor`, `persistent_workers`,
`timeout` and `multiprocessing_context`.
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
"""Those that need processes, not only threads."""


class Override:
    """Arguments to change, and where each was changed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        if unknown := set(options) - set(SWEPT):
            raise ArgumentError(
                f"{', '.join(sorted(unknown))} cannot be changed from outside", hint=f"choose among {', '.join(SWEPT)}"
            )
        self.options = dict(options)
        self.kinds: list[str] = []
        """The kinds of the loaders that were made, in order: "stoker" or "torch"."""
        self.arguments: dict[str, Any] = {}
        """The arguments of the latest loader."""
        self._changed: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._given: set[str] = set()
        self._takes_any = False
        self._making: set[int] = set()

    def call(self, function: Callable[..., Any]) -> Any:
        """Return the loader that `function` makes. Options that it has parameters for are passed to it."""
        self._takes_any = _takes_any(function)
        self._given = given_to(function, self.options)
        loader = call_with(function, **self.options)
        check_iterable(loader, function)
        return loader

    def check(self, function: Callable[..., Any]) -> None:
        """Raise `ArgumentError` if an option had no effect."""
        lost = {name: value for name, value in self.options.items() if name not in self._given | self._changed}
        if self._takes_any and not self.kinds:
            return  # it was passed them, and made an unknown kind of loader
        if not (self.options.get("num_workers") or self.options.get("num_threads")):
            lost.pop("prefetch_factor", None)  # without workers it has no effect
        if not lost.get("num_threads"):
            lost.pop("num_threads", None)
        for name, value in lost.items():
            reason = "no loader has it" if self.kinds else "the function makes no DataLoader to set it on"
            hint = f"add a parameter: `def {_plain(function)}({name}={value}): ...`"
            if name == "num_threads" and self.kinds:
                hint = "use Stoker's DataLoader, or leave out the threads: torch's has none"
            raise ArgumentError(f"{name}={value} could not be set: {self._refusals.get(name, reason)}", hint=hint)

    def constructor(self, kind: str, original: Any) -> Any:
        """Return the replacement for the constructor of a class of loaders."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            if id(loader) in self._making:  # Stoker's and torchdata's constructors call torch's
                return original(loader, *args, **kwargs)  # type: ignore[no-any-return]
            self._making.add(id(loader))
            try:
                known = {name: kwargs[name] for name in kwargs if name in signature.parameters or name not in SWEPT}
                try:
                    bound = signature.bind(loader, *args, **known if self.options else kwargs)
                except TypeError:
                    return original(loader, *args, **kwargs)  # type: ignore[no-any-return]  # which raises the right error
                self._change(bound.arguments, set(signature.parameters), kind)
                original(*bound.args, **bound.kwargs)
                self.kinds.append(kind)
                self.arguments = arguments_of(loader)
            finally:
                self._making.discard(id(loader))

        return init

    def _change(self, arguments: dict[str, Any], known: set[str], kind: str) -> None:
        """Set the options that this loader has, and drop arguments that it would refuse."""
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
    """Return the options that a function has parameters for; none for `**kwargs`, which may or may not use them."""
    return set() if _takes_any(function) else {name for name in options if accepted_options(function, {name: None})}


@contextmanager
def override_arguments(options: Mapping[str, Any], function: Callable[..., Any] | None = None) -> Iterator[Override]:
    """Give these arguments to all loaders that are made inside the block, in all threads.

    torch and Stoker's loader are imported, unless `function` takes all options itself, or there are none. Then only
    loaders of libraries that are imported already are recorded.
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
    """Raise `ArgumentError` if this cannot be measured as a loader."""
    name = f"{_plain(function)}()"
    values = list(loader.values()) if isinstance(loader, dict) else loader
    if isinstance(values, tuple | list) and any(map(_is_loader, values)):
        raise ArgumentError(
            f"{name} returned a {type(loader).__name__} of {len(loader)}, not one loader",
            hint=f"measure one of them: `def make_one(): return {_plain(function)}()[{next(iter(loader))!r}]`"
            if isinstance(loader, dict)
            else f"measure one of them: `def make_one(): return {_plain(function)}()[0]`",
        )
    if _is_map_style(loader):
        raise ArgumentError(
            f"{name} returned a dataset ({type(loader).__name__}), which yields samples, not batches",
            hint="return a loader of it: `DataLoader(dataset, batch_size=32)`, or with batch_size=None if its samples "
            "are batches; or use `stoker bench compare`, which makes loaders",
        )
    if isinstance(loader, str | bytes):
        raise ArgumentError(
            f"{name} returned {type(loader).__name__}, which yields no batches",
            hint="return an iterable",
        )
    if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
        raise ArgumentError(
            f"{name} returned {'None' if loader is None else type(loader).__name__}, which yields no batches",
            hint="return the loader; did you forget `return`?" if loader is None else "return an iterable",
        )


def _classes(*, is_needed: bool) -> list[tuple[str, Any]]:
    """Return the classes whose constructors are replaced; torch's and Stoker's are imported if needed."""
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
    """Whether an object yields samples by position. A list, like anything that can be iterated, may be of batches."""
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
