"""The environments that peers are installed in, beside the one we develop in.

`make peers` and `make image-peers` make them. Benchmarks that compare with many peers run in theirs if it is there, and
otherwise with those peers that happen to be installed where they run.
"""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ENVIRONMENT = HERE / ".venv-peers"
IMAGE_ENVIRONMENT = HERE / ".venv-image-peers"


def is_elsewhere(environment: Path = ENVIRONMENT) -> bool:
    """Whether there is an environment for peers, and this process does not run in it."""
    return (environment / ".ready").exists() and Path(sys.prefix).resolve() != environment.resolve()


def run_there(arguments: Sequence[str], environment: Path = ENVIRONMENT) -> int:
    """Run `python -m benchmarks` there, and return its exit status."""
    command = [str(environment / "bin" / "python"), "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=HERE, check=False).returncode


def is_installed(*modules: str) -> bool:
    """Whether modules can be imported, as far as that shows without importing them."""
    try:
        return all(find_spec(module) is not None for module in modules)
    except ModuleNotFoundError:  # the package around it is not there
        return False


def without_vision() -> None:
    """Let `streaming` be imported without torchvision and transformers, of which it wants a few names, and uses none.

    torchvision has no build for machines without a GPU, and transformers would replace the tokenizers of others.
    """
    wanted: dict[str, tuple[str, ...]] = {
        "transformers": (),
        "transformers.feature_extraction_utils": ("BatchFeature",),
        "transformers.models": (),
        "transformers.models.auto": (),
        "transformers.models.auto.tokenization_auto": ("AutoTokenizer",),
        "transformers.tokenization_utils_base": ("BatchEncoding",),
        "torchvision": (),
        "torchvision.datasets": ("VisionDataset",),
        "torchvision.transforms": (),
        "torchvision.transforms.functional": ("to_tensor",),
    }
    for name, members in wanted.items():
        if is_installed(name.partition(".")[0]) and name.partition(".")[0] not in _stood_in:
            continue
        _stood_in.add(name.partition(".")[0])
        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__path__ = []
        for member in members:
            setattr(module, member, type(member, (), {}))
        sys.modules[name] = module


_stood_in: set[str] = set()
