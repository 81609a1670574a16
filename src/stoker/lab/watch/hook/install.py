"""Putting the hook into a process, and taking it out again."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from stoker.lab.watch.hook import recording, torch_loader
from stoker.lab.watch.hook.patches import Patches

_patches = Patches()
_installed: set[str] = set()

HELLO = ".hello"
"""Left by a process in which there are loaders to be watched."""


def attach(folder: str) -> recording.Recording:
    """Watch this process from now on: what is imported of torch's and of Stoker's loaders."""
    now = recording.begin(folder)
    install()
    return now


def install() -> None:
    """Put the hook into what is imported."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and "torch" not in _installed:
        _installed.add("torch")
        torch_loader.install_fetchers(_patches, torch_data)
        torch_loader.install(_patches, torch_data)
    stateful = sys.modules.get("torchdata.stateful_dataloader.stateful_dataloader")
    if torch_data is not None and stateful is not None and "torchdata" not in _installed:
        _installed.add("torchdata")
        torch_loader.install_stateful(_patches, stateful)
    dataloader, iterator = (sys.modules.get(f"stoker.loader.{name}") for name in ("dataloader", "iterator"))
    if dataloader is not None and iterator is not None and "stoker" not in _installed:
        from stoker.lab.watch.hook import stoker_loader

        _installed.add("stoker")
        stoker_loader.install(_patches, dataloader, iterator)


def detach() -> None:
    """Watch no more, and leave everything as it was."""
    recording.end()
    _patches.undo()
    _installed.clear()


def imported(folder: str) -> None:
    """Called when a module with loaders has been imported, in a process that a doctor has started."""
    attach(folder)
    with suppress(OSError), open(os.path.join(folder, f"{os.getpid()}{HELLO}"), "w") as file:
        file.write(" ".join(map(str, _command())))


def _command() -> list[Any]:
    return list(getattr(sys, "argv", []))
