"""Trainers that take a loader apart, and how they are taught to keep ours.

Accelerate, Lightning, Fabric and Ray Train build a new loader from the attributes of the one they are given. The file
of a tool in `stoker.integrations` says what they do with a `stoker.DataLoader` instead. It is imported when both the
tool and `stoker` are, in whichever order that happens.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from contextlib import suppress
from functools import update_wrapper
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

INTEGRATIONS = {
    "accelerate.data_loader": "accelerate",
    "lightning.fabric.fabric": "fabric",
    "lightning.pytorch.loops.fit_loop": "lightning",
    "lightning_fabric.fabric": "fabric",
    "pytorch_lightning.loops.fit_loop": "lightning",
    "ray.train.torch.train_loop_utils": "ray",
    "ray.train.v2.torch.train_loop_utils": "ray",
    "transformers.trainer": "transformers",
    "torch._dynamo.trace_rules": "dynamo",
}
"""Modules that build loaders from others or drive them, and the file of `stoker.integrations` that knows them."""


def watch() -> None:
    """Install the integrations of the tools that are imported already, and of the others when they will be."""
    if not any(isinstance(finder, _ToolFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ToolFinder())
    for name in INTEGRATIONS:
        if name in sys.modules and name not in _installed:
            if _is_initializing(sys.modules[name]):
                with suppress(Exception):  # reported where that import is written
                    import_module(name)  # waits for another thread that imports it
            module = sys.modules.get(name)
            if module is not None and name not in _installed and not _is_initializing(module):
                _install(module)


def _is_initializing(module: ModuleType | None) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def redirect(function: Any, to: Callable[..., Any]) -> Callable[..., Any]:
    """Make every call of `function` a call of `to`, and return a function that does what it did before.

    The body of the function itself is replaced: scripts hold references to it (`from accelerate import
    skip_first_batches`) that no assignment to its module would reach. A function that was redirected before, which
    reloaded modules lead to, is redirected again. `inspect` follows `__wrapped__` to the signature and the source.
    """
    if not isinstance(function, FunctionType) or function.__closure__:
        raise TypeError(f"{function!r} is not a plain function")
    if "_to" in (function.__kwdefaults__ or ()):
        function.__kwdefaults__ = {"_to": to}
        before: Callable[..., Any] = function.__wrapped__  # type: ignore[attr-defined]
        return before
    original = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    update_wrapper(original, function)
    vars(original).pop("__wrapped__")
    function.__code__ = _forwarded.__code__
    function.__defaults__ = None
    function.__kwdefaults__ = {"_to": to}
    function.__wrapped__ = original  # type: ignore[attr-defined]
    return original


def named_arguments(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call of `function` by name, defaults included."""
    signature = inspect.signature(function)
    call = signature.bind(*args, **kwargs)
    call.apply_defaults()
    named = dict(call.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(parameter.name)
    return named


def _forwarded(*args: Any, _to: Callable[..., Any], **kwargs: Any) -> Any:
    return _to(*args, **kwargs)


_installed: set[str] = set()


def _install(module: ModuleType) -> None:
    _installed.add(module.__name__)
    tool = INTEGRATIONS[module.__name__]
    try:
        import_module(f"stoker.integrations.{tool}").install(module)
    except (ImportError, AttributeError) as error:  # of names that other versions of the tool do not have
        if isinstance(error, ModuleNotFoundError) and "." not in str(error.name):
            return  # of another package that this tool needs for training, such as the Trainer needs accelerate
        warnings.warn(
            f"stoker cannot adapt itself to this version of {module.__name__.partition('.')[0]} ({error}), which may "
            "replace a stoker.DataLoader by torch's\n"
            "hint: use a version that is tested (see the guide of the tool), or do not pass it the loader",
            stacklevel=2,
        )


class _ToolFinder:
    """Leaves the finding to the other finders, and installs an integration behind the import of its tool."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to import a tool; None for every other module."""
        if name not in INTEGRATIONS:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = cast("Loader", _ToolLoader(spec.loader))
                return spec
        return None


class _ToolLoader:
    """Imports a tool's module by the loader that would have done it, which then takes its place again.

    Until then it has everything that loader has, for code that looks a module up without importing it.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # while this is copied, it is not there yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the module's own loader makes."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and install the integration."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _install(module)
