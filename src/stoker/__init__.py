"""Stoker keeps accelerators fed with training data.

Change one import, `from stoker import DataLoader`, and keep the rest of the code. See the README for what comes with
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ForwardRef

from stoker._version import __version__
from stoker.trainers import watch as _watch_trainers

if TYPE_CHECKING:
    from stoker import batch as batch
    from stoker import compose as compose
    from stoker import deliver as deliver
    from stoker import engine as engine
    from stoker import errors as errors
    from stoker import lab as lab
    from stoker import loader as loader
    from stoker import masks as masks
    from stoker import plan as plan
    from stoker import prepare as prepare
    from stoker import source as source
    from stoker import store as store
    from stoker import testing as testing
    from stoker import transform as transform
    from stoker import view as view
    from stoker.batch.ledger import Ledger, Policy, Skipped
    from stoker.compose.images import Images, images
    from stoker.compose.mixtures.mix import mix
    from stoker.compose.mixtures.mixture import Mixture
    from stoker.compose.packs.packed import Packed, pack
    from stoker.deliver import Normalize
    from stoker.engine.stats import Stats
    from stoker.foundation.randomness import epoch, rng, sample_context
    from stoker.foundation.stages import transforming
    from stoker.lab.diagnose.diagnosis import Diagnosis
    from stoker.lab.diagnose.doctor import doctor
    from stoker.lab.page import report
    from stoker.lab.watch.watch import watch
    from stoker.loader import DataLoader
    from stoker.loader.sharing.context_parallel import SequenceSplit
    from stoker.loader.sharing.mesh import Mesh
    from stoker.plan import Plan, Sequential, Shuffle, Window
    from stoker.source import Lines
    from stoker.source.formats import open  # noqa: A004  # stoker.open, as in zarr or xarray
    from stoker.store import Store

# Every name and where it lives. Nothing is imported before it is used: `import stoker` stays quick and without torch.
_HOMES = {
    "DataLoader": "stoker.loader",
    "Diagnosis": "stoker.lab.diagnose.diagnosis",
    "Images": "stoker.compose.images",
    "Ledger": "stoker.batch.ledger",
    "Lines": "stoker.source",
    "Mesh": "stoker.loader.sharing.mesh",
    "Mixture": "stoker.compose.mixtures.mixture",
    "Normalize": "stoker.deliver",
    "Packed": "stoker.compose.packs.packed",
    "Plan": "stoker.plan",
    "Policy": "stoker.batch.ledger",
    "SequenceSplit": "stoker.loader.sharing.context_parallel",
    "Sequential": "stoker.plan",
    "Shuffle": "stoker.plan",
    "Skipped": "stoker.batch.ledger",
    "Stats": "stoker.engine.stats",
    "Store": "stoker.store",
    "Window": "stoker.plan",
    "doctor": "stoker.lab.diagnose.doctor",
    "epoch": "stoker.foundation.randomness",
    "images": "stoker.compose.images",
    "mix": "stoker.compose.mixtures.mix",
    "open": "stoker.source.formats",
    "pack": "stoker.compose.packs.packed",
    "report": "stoker.lab.page",
    "rng": "stoker.foundation.randomness",
    "sample_context": "stoker.foundation.randomness",
    "transforming": "stoker.foundation.stages",
    "watch": "stoker.lab.watch.watch",
}
_ROOMS = (
    "batch",
    "lab",
    "compose",
    "deliver",
    "engine",
    "errors",
    "loader",
    "masks",
    "plan",
    "prepare",
    "source",
    "store",
    "testing",
    "transform",
    "view",
)

__all__ = [
    "DataLoader",
    "Diagnosis",
    "Images",
    "Ledger",
    "Lines",
    "Mesh",
    "Mixture",
    "Normalize",
    "Packed",
    "Plan",
    "Policy",
    "SequenceSplit",
    "Sequential",
    "Shuffle",
    "Skipped",
    "Stats",
    "Store",
    "Window",
    "__version__",
    "doctor",
    "epoch",
    "images",
    "mix",
    "open",
    "pack",
    "report",
    "rng",
    "sample_context",
    "transforming",
    "watch",
]


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name in _HOMES:
            value = getattr(import_module(_HOMES[name]), name)
            _move_here(value)
        elif name in _ROOMS:
            value = import_module(f"stoker.{name}")
        else:
            raise AttributeError(f"module 'stoker' has no attribute {name!r}")
        globals()[name] = value
        return value


def _move_here(value: Any) -> None:
    """Let tracebacks, pickles and help() name the module that users import a class or function from: this one."""
    home, value.__module__ = value.__module__, __name__
    annotations = value.__annotations__ if isinstance(value, type) else {}
    for name, annotation in annotations.items():
        if isinstance(annotation, str):  # `typing.get_type_hints` would look up the names in it here
            annotations[name] = ForwardRef(annotation, module=home, is_class=True)


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})


_watch_trainers()
