"""Find and call a user's function that is named `package.module:function` or `path/to/file.py:function`.

Nothing heavy is imported here, so that the time to import the user's module can be measured.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.errors import ArgumentError

HOW = "name a function as `package.module:function` or `path/to/file.py:function`"

ALIASES = {"num_workers": ("workers",), "num_threads": ("threads",), "prefetch_factor": ("prefetch",)}
"""Other parameter names that functions use for these arguments."""


def check_spec(spec: str, *, what: str = "a function") -> tuple[str, str]:
    """Return the module or file, and the function, that `spec` names; raise `ArgumentError` if it is malformed.

    Nothing is imported: a misspelled or missing file is reported before anything starts.
    """
    place, _, name = spec.rpartition(":")
    if not place or not all(part.isidentifier() for part in name.split(".")):
        error = f"{spec!r} does not name {what}"
        module, _, attribute = spec.rpartition(".")
        if attribute == "py":
            raise ArgumentError(error, hint=f"add the name of the function: `{spec}:make_loader`")
        meant = f"; did you mean `{module}:{attribute}`?" if module and attribute.isidentifier() else ""
        raise ArgumentError(error, hint=HOW + meant)
    if _is_file(place):
        if not Path(place).is_file():
            raise ArgumentError(f"there is no file {place}", hint=_meant(Path(place).name, _neighbours(Path(place))))
    elif not all(part.isidentifier() for part in place.split(".")):
        raise ArgumentError(f"{place!r} is not a module name", hint=HOW)
    return place, name


def resolve_function(spec: str, *, what: str = "a function") -> Callable[..., Any]:
    """Return the function that `spec` names, and import its module.

    The current folder is importable, and so is the folder of a file, as for a script. An error of the module itself is
    the cause of the `ArgumentError` that is raised.
    """
    place, name = check_spec(spec, what=what)
    module = _file_module(Path(place)) if _is_file(place) else _named_module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            inside = f"{place}" if found is module else f"{place}:{name.rpartition('.')[0]}"
            raise ArgumentError(f"{inside} has no {part!r}", hint=_meant(part, _callables(found)))
        found = getattr(found, part)
    if not callable(found):
        raise ArgumentError(
            f"{spec} must be {what}, got {_article(type(found).__name__)}",
            hint=f"wrap it: `def {'make_' + name if name.isidentifier() else 'make'}(): return {name}`",
        )
    return found  # type: ignore[no-any-return]


def name_of_function(target: str | Callable[..., Any], *, what: str) -> str:
    """Return the name of a function, or check a name."""
    spec = target if isinstance(target, str) else spec_of_function(target)
    check_spec(spec, what=what)
    return spec


def spec_of_function(function: Callable[..., Any]) -> str:
    """Return the name by which another process finds a function."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    there: Any = sys.modules.get(module or "")
    file = getattr(there, "__file__", None)
    if there is None or not isinstance(name, str) or "<" in name or (module == "__main__" and file is None):
        raise ArgumentError(
            f"{_name(function)} cannot be found by another process: it has no name in a module or file",
            hint="define it at the top of a file, and pass it, or `path/to/file.py:function`",
        )
    return f"{file}:{name}" if module == "__main__" else f"{module}:{name}"


def accepted_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `options` that `function` takes by keyword, under its own parameter names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # native code without a signature
        return {}
    names = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    found = {}
    for name, value in options.items():
        if name in names or takes_all:
            found[name] = value
        elif (alias := next((one for one in ALIASES.get(name, ()) if one in names), None)) is not None:
            found[alias] = value
    return found


def call_with(function: Callable[..., Any], **options: Any) -> Any:
    """Call `function` with those of `options` that it takes; raise `ArgumentError` if it needs others."""
    given = accepted_options(function, options)
    try:
        bound = inspect.signature(function).bind(**given)
    except ValueError:
        return function(**given)
    except TypeError as error:
        can_have = f", or take them by the names {', '.join(options)}" if options else ""
        raise ArgumentError(
            f"{_name(function)} cannot be called: {error}", hint=f"give its arguments defaults{can_have}"
        ) from None
    return function(*bound.args, **bound.kwargs)


def _is_file(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def _named_module(name: str) -> ModuleType:
    _importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            found = [path.stem for path in Path.cwd().glob("*.py")]
            raise ArgumentError(
                f"there is no module {error.name}", hint=_meant(name, found, f"it was searched for in {Path.cwd()}")
            ) from None
        raise _failed(name, error) from error
    except Exception as error:
        raise _failed(name, error) from error
    except SystemExit as error:
        raise _ended(name) from error


def _file_module(path: Path) -> ModuleType:
    """Return the module in a file, under the name by which later processes find it."""
    path = path.resolve()
    _importable(Path.cwd())
    if (module := _module_of_package(path)) is not None:
        return module
    _importable(path.parent)
    name = path.stem
    there = sys.modules.get(name)
    if there is not None and getattr(there, "__file__", None) == str(path):
        return there
    if there is not None or name in sys.stdlib_module_names or "." in name:
        name = f"stoker_target_{name.replace('.', '_')}"  # not to replace a standard module
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{path} is not a Python file", hint=HOW)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, SystemExit):
            raise _ended(str(path)) from error
        if isinstance(error, Exception):
            raise _failed(str(path), error) from error
        raise
    return module


def _module_of_package(path: Path) -> ModuleType | None:
    """Return the module in a file with relative imports, which works only inside its package."""
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names, folder = [folder.name, *names], folder.parent
    name = ".".join(names)
    if len(names) < 2 or not name.replace(".", "").isidentifier() or not _imports_relatively(path):
        return None
    _importable(folder)
    module = _named_module(name)
    if Path(getattr(module, "__file__", None) or "").resolve() != path:  # another package has this name
        raise ArgumentError(
            f"{path} cannot be imported: {name} is {getattr(module, '__file__', 'another module')}",
            hint="rename the package, or use absolute imports in it",
        )
    return module


def _imports_relatively(path: Path) -> bool:
    try:
        nodes = ast.walk(ast.parse(path.read_bytes()))
    except (OSError, SyntaxError, ValueError):  # reported when it is imported
        return False
    return any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in nodes)


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _failed(name: str, error: Exception) -> ArgumentError:
    message = str(error).strip().partition("\n")[0]
    where = None if isinstance(error, SyntaxError) else _last_place(error)  # its message has the line
    return ArgumentError(
        f"{name} cannot be imported: {type(error).__name__}{f': {message}' if message else ''}"
        + (f" ({where[0]}, line {where[1]})" if where else ""),
        hint="check that `python -c 'import ...'` works in this folder",
    )


def _last_place(error: Exception) -> tuple[str, int] | None:
    """Return the file and line that raised, unless it is in importlib."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return (frames[-1].filename, frames[-1].lineno or 0) if len(frames) > 1 else None


def _ended(name: str) -> ArgumentError:
    return ArgumentError(
        f"importing {name} ended the program (SystemExit)",
        hint='put what a script runs under `if __name__ == "__main__":`, so that its functions can be imported',
    )


def _neighbours(path: Path) -> list[str]:
    try:
        return [one.name for one in path.parent.glob("*.py")]
    except OSError:
        return []


def _callables(inside: Any) -> list[str]:
    return [name for name in dir(inside) if not name.startswith("_") and callable(getattr(inside, name, None))]


def _meant(name: str, there: Iterable[str], otherwise: str = HOW) -> str:
    close = get_close_matches(name, list(there), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(f'`{one}`' for one in close)}?" if close else otherwise


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__qualname__', None) or type(function).__name__}()"
