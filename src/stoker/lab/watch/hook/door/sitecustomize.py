"""Python runs this first in a process started by `stoker doctor`, which puts this folder on its path.

It waits until a module with loaders is imported, and installs the hook then. Until then it costs nothing. Its errors
do not reach the training. It is written so that old versions of Python can run it too.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_FOLDER = os.environ.get("STOKER_DOCTOR", "")
_MODULES = ["torch.utils.data", "torchdata.stateful_dataloader.stateful_dataloader", "stoker.loader.dataloader"]


class _Finder:
    """Finds nothing by itself, but notices when one of the modules is imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in _MODULES:
            return None
        _MODULES.remove(name)
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                _hook(spec)
                return spec
        return None


def _hook(spec):
    run = getattr(spec.loader, "exec_module", None)
    if run is None:
        return

    def exec_module(module):
        try:  # noqa: SIM105  # nothing more is imported than there has to be
            del spec.loader.exec_module
        except AttributeError:
            pass
        run(module)
        try:
            _import_install().imported(_FOLDER)
        except Exception:
            _write_failure()

    try:  # noqa: SIM105
        spec.loader.exec_module = exec_module
    except AttributeError:
        pass  # a loader whose attributes cannot be set


def _import_install():
    try:
        import stoker.lab.watch.hook.install as install
    except ImportError as error:
        if error.name != "stoker":
            raise
        # another environment than the doctor's; the hook needs nothing but these files
        home = os.path.abspath(os.path.join(_HERE, *[os.pardir] * 5))
        sys.path.append(home)
        try:
            import stoker.lab.watch.hook.install as install
        finally:
            sys.path.remove(home)
    return install


def _write_failure():
    import traceback

    try:
        with open(os.path.join(_FOLDER, str(os.getpid()) + ".failure"), "a") as file:
            file.write(traceback.format_exc())
    except Exception:
        pass


def _next_sitecustomize():
    """Run the `sitecustomize` that would have run without this one."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


if _FOLDER:
    sys.meta_path.insert(0, _Finder())
sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry or os.curdir) != _HERE]
_next_sitecustomize()
