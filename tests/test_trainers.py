"""Integrations are installed behind the import of their tool, however it is imported."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import subprocess
import sys
import threading
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stoker import trainers

TOOL = '''
def build(loader, *, size=3):
    """Return torch's loader."""
    return ["torch", loader, size]
'''


class Integration(ModuleType):
    """What stoker.integrations has for the tool: it redirects `build`, and notes where that was done."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.installed: list[ModuleType] = []

    def install(self, module: ModuleType) -> None:
        self.installed.append(module)
        original = trainers.redirect(module.build, lambda *args, **kwargs: ["ours", *original(*args, **kwargs)])


@pytest.fixture
def integration(monkeypatch: pytest.MonkeyPatch) -> Iterator[Integration]:
    integration = Integration("stoker.integrations.toolbox")
    monkeypatch.setitem(trainers.INTEGRATIONS, "toolbox.core", "toolbox")
    monkeypatch.setitem(sys.modules, integration.__name__, integration)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield integration
    for name in ("toolbox", "toolbox.core"):
        sys.modules.pop(name, None)
    trainers._installed.discard("toolbox.core")
    importlib.invalidate_caches()


@pytest.fixture
def tool(integration: Integration, tmp_path: Path) -> Path:
    """Make a package that can be imported, and return the file of its module."""
    (tmp_path / "toolbox").mkdir()
    (tmp_path / "toolbox" / "__init__.py").touch()
    (tmp_path / "toolbox" / "core.py").write_text(TOOL)
    sys.path.insert(0, str(tmp_path))
    return tmp_path / "toolbox" / "core.py"


def imported() -> Any:
    return importlib.import_module("toolbox.core")


def test_an_integration_is_installed_behind_the_import(tool: Path, integration: Integration) -> None:
    assert not integration.installed
    core = imported()
    assert integration.installed == [core]
    assert core.build("loader") == ["ours", "torch", "loader", 3]
    assert type(core.__loader__).__name__ == type(core.__spec__.loader).__name__ == "SourceFileLoader"


def test_a_tool_that_was_imported_first_gets_it_once(tool: Path, integration: Integration) -> None:
    finders = sys.meta_path[:]
    sys.meta_path[:] = [finder for finder in finders if not isinstance(finder, trainers._ToolFinder)]
    try:
        core = imported()
        assert core.build(1) == ["torch", 1, 3]
        trainers.watch()
        trainers.watch()
    finally:
        sys.meta_path[:] = finders
    assert core.build(1) == ["ours", "torch", 1, 3]
    assert integration.installed == [core]


def test_a_reloaded_tool_gets_it_again_and_no_call_is_redirected_twice(tool: Path, integration: Integration) -> None:
    core = imported()
    held = core.build
    importlib.reload(core)
    assert core.build is not held
    assert core.build(1) == held(1) == ["ours", "torch", 1, 3]
    importlib.import_module("stoker.integrations.toolbox").install(core)
    assert core.build(1) == ["ours", "torch", 1, 3]


def test_looking_a_tool_up_installs_nothing_and_tells_where_it_is(tool: Path, integration: Integration) -> None:
    spec = importlib.util.find_spec("toolbox.core")
    assert spec is not None
    assert spec.origin == str(tool)
    loader: Any = spec.loader
    assert loader.get_filename("toolbox.core") == str(tool)
    assert loader.get_source("toolbox.core") == TOOL
    assert not integration.installed
    module: Any = importlib.util.module_from_spec(spec)  # as some plugin systems import
    loader.exec_module(module)
    assert module.build(1) == ["ours", "torch", 1, 3]


def test_a_lazy_import_is_redirected_when_it_happens(tool: Path, integration: Integration) -> None:
    spec = importlib.util.find_spec("toolbox.core")
    assert spec is not None
    assert spec.loader is not None
    lazy = importlib.util.LazyLoader(spec.loader)
    spec.loader = lazy
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["toolbox.core"] = module
    lazy.exec_module(module)
    assert not integration.installed
    assert module.build(1) == ["ours", "torch", 1, 3]


def test_an_import_that_fails_half_way_can_be_tried_again(tool: Path, integration: Integration) -> None:
    tool.write_text(TOOL + "raise RuntimeError('no device')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no device"):
            imported()
    assert not integration.installed
    tool.write_text(TOOL + "# mended\n")
    importlib.invalidate_caches()
    assert imported().build(1) == ["ours", "torch", 1, 3]


def test_a_tool_that_is_not_there_is_an_ordinary_import_error(integration: Integration) -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'toolbox'"):
        imported()
    assert importlib.util.find_spec("toolbox") is None


def test_a_tool_in_a_zip_file(integration: Integration, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "tools.zip", "w") as packed:
        packed.writestr("toolbox/__init__.py", "")
        packed.writestr("toolbox/core.py", TOOL)
    sys.path.insert(0, str(tmp_path / "tools.zip"))
    core = imported()
    assert core.build(1) == ["ours", "torch", 1, 3]
    assert type(core.__loader__).__name__ == "zipimporter"


def test_a_finder_of_another_package_that_asks_all_finders_itself(tool: Path, integration: Integration) -> None:
    class Asking:
        asked = False

        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            if name != "toolbox.core" or self.asked:
                return None
            self.asked = True
            try:
                return importlib.util.find_spec(name)
            finally:
                self.asked = False

    finders = sys.meta_path[:]
    for place in (0, len(finders) - 1):
        sys.modules.pop("toolbox.core", None)
        sys.meta_path[:] = finders
        sys.meta_path.insert(place, Asking())
        try:
            assert imported().build(1) == ["ours", "torch", 1, 3]
        finally:
            sys.meta_path[:] = finders


def test_a_tool_that_another_thread_is_importing_is_waited_for(
    tool: Path, integration: Integration, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate: Any = ModuleType("toolbox_gate")
    gate.has_begun, gate.is_open = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, "toolbox_gate", gate)
    tool.write_text("import toolbox_gate\ntoolbox_gate.has_begun.set()\ntoolbox_gate.is_open.wait()\n" + TOOL)

    def opening(name: str) -> Any:
        gate.is_open.set()
        return importlib.import_module(name)

    finders = sys.meta_path[:]
    sys.meta_path[:] = [finder for finder in finders if not isinstance(finder, trainers._ToolFinder)]
    thread = threading.Thread(target=imported)
    thread.start()
    try:
        assert gate.has_begun.wait(60)
        monkeypatch.setattr(trainers, "import_module", opening)  # opens the gate when it is about to wait
        trainers.watch()
    finally:
        gate.is_open.set()
        thread.join()
        sys.meta_path[:] = finders
    assert imported().build(1) == ["ours", "torch", 1, 3]


def test_a_version_of_a_tool_that_the_integration_does_not_know_is_a_warning(
    tool: Path, integration: Integration, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(module: ModuleType) -> None:
        raise ImportError("cannot import name 'GradientState' from 'toolbox.state'")

    monkeypatch.setattr(integration, "install", install)
    with pytest.warns(UserWarning, match="(?s)this version of toolbox.*GradientState.*hint: use a version") as caught:
        core = imported()
    assert len(caught) == 1
    assert core.build(1) == ["torch", 1, 3]


def test_another_package_that_a_tool_can_do_without_is_no_warning(
    tool: Path, integration: Integration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integration, "install", lambda module: importlib.import_module("no_such_package_at_all"))
    assert imported().build(1) == ["torch", 1, 3]


# ---------------------------------------------------------------- redirected functions


def build(loader: Any, *sizes: int, depth: int = 2) -> Any:
    """Build."""
    return ["torch", loader, sizes, depth]


def test_a_redirected_function_looks_as_before() -> None:
    before = inspect.signature(build), inspect.getsource(build), pickle.dumps(build)
    held = build
    original = trainers.redirect(build, lambda *args, **kwargs: ["ours", args, kwargs])
    try:
        assert (inspect.signature(build), inspect.getsource(build), pickle.dumps(build)) == before
        assert pickle.loads(pickle.dumps(build)) is build
        assert build.__doc__ == original.__doc__ == "Build."
        assert (build.__name__, build.__qualname__, build.__module__) == ("build", "build", __name__)
        assert held(1, 2, depth=3) == ["ours", (1, 2), {"depth": 3}]  # also where a reference was held
        assert original(1, 2) == ["torch", 1, (2,), 2]
        assert build.__code__.co_filename == trainers.__file__  # a traceback says who is in between

        assert trainers.redirect(build, lambda *args, **kwargs: "other") is original
        assert build(1) == "other"
        assert original(1) == ["torch", 1, (), 2]
    finally:
        build.__code__ = original.__code__
        build.__kwdefaults__ = {"depth": 2}
        del build.__wrapped__  # type: ignore[attr-defined]


def test_what_is_not_a_plain_function_is_not_redirected() -> None:
    held = 1

    def closed() -> int:
        return held

    for function in (closed, len, print):
        with pytest.raises(TypeError, match="is not a plain function"):
            trainers.redirect(function, build)


# ---------------------------------------------------------------- the real tools


def test_a_version_of_accelerate_without_a_function_is_a_warning() -> None:
    import accelerate.data_loader

    from stoker.integrations import accelerate as integration

    known = dict(integration._original)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        integration.install(ModuleType(accelerate.data_loader.__name__))
    assert integration._original == known
    shown = [str(warning.message) for warning in caught]
    assert len(shown) == 2
    for name, message in zip(("prepare_data_loader", "skip_first_batches"), shown, strict=True):
        assert message.startswith(f"this version of accelerate has no accelerate.data_loader.{name}, so accelerator.pr")
        assert "hint: use a version of accelerate that is tested, such as 1.15" in message


WITHOUT = """
import sys
for tool in ("accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "ray", "transformers"):
    sys.modules[tool] = None
from stoker import DataLoader
assert [batch.tolist() for batch in DataLoader(list(range(4)), batch_size=2)] == [[0, 1], [2, 3]]
print(sorted(name for name in sys.modules if name.startswith("stoker.integrations")))
"""


def test_without_any_trainer_no_integration_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


ORDERS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
import accelerate
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from stoker import DataLoader
loader = prepare_data_loader(DataLoader(list(range(9)), batch_size=2, on_error="skip"))
assert isinstance(loader, DataLoader), type(loader)
assert skip_first_batches(loader, 3) is loader
assert [batch.tolist() for batch in loader] == [[6, 7], [8]]
importlib.reload(accelerate.data_loader)
assert accelerate.data_loader.prepare_data_loader(loader) is loader
torchs = accelerate.data_loader.prepare_data_loader(__import__("torch").utils.data.DataLoader(list(range(4))))
assert len(list(torchs)) == 4
"""


@pytest.mark.parametrize("first", [["accelerate", "stoker"], ["stoker", "accelerate"]], ids=" ".join)
def test_accelerate_keeps_our_loader_whichever_is_imported_first(first: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", ORDERS, *first], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
