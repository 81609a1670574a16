"""All who take part, in the order of the plots."""

from __future__ import annotations

import os
from importlib import import_module

import torch

from benchmarks.images import others, own, torch_loaders
from benchmarks.images.jobs import Contender
from benchmarks.peers import is_installed

CONTENDERS: dict[str, Contender] = {**own.CONTENDERS, **torch_loaders.CONTENDERS, **others.CONTENDERS}


def is_there(name: str) -> bool:
    """Whether a contender is installed; ours is once it has images."""
    contender = CONTENDERS[name]
    if contender.is_ours and not is_installed("stoker.compose.images"):
        return False
    return is_installed(*contender.modules)


def switched(name: str) -> None:
    """Set what a contender wants set, before it is imported."""
    for switch, value in CONTENDERS[name].switches:
        os.environ[switch] = value


def imported(name: str) -> Contender:
    """Return a contender when all that its users import is imported, and torch uses one thread."""
    switched(name)
    torch.set_num_threads(1)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    contender = CONTENDERS[name]
    for module in contender.modules:
        import_module(module)
    if contender.is_ours:
        import stoker

        _ = stoker.DataLoader, import_module("stoker.compose.images")  # imported when first asked for
    return contender
