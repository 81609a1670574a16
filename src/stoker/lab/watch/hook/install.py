"""Install the hook in a process, and remove it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from stoker.lab.watch.hook import recording, torch_loader
from stoker.lab.watch.hook.patches import Patches

_patches = Patches()
_installed: set[str] = set()

HELLO_SUFFIX = ".hello"
"""A file left by each process that imported a module with loaders."""


def attach(folder: str) -> recording.Recording:
    """Watch the loaders of this process from now on, and record into `folder`."""
    now = recording.begin(folder)
    install()
    return now


def install() -> None:
    """Hook into the modules with loaders that are imported."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and "torch" not in _installed:
        _installed.add("torch")
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
    """Stop watching, and leave everything as it was."""
    recording.end()
    _patches.undo()
    _installed.clear()


def imported(folder: str) -> None:
    """Watch this process, which a doctor has started and which has just imported a module with loaders."""
    attach(folder)
    with suppress(OSError), open(os.path.join(folder, f"{os.getpid()}{HELLO_SUFFIX}"), "w") as file:
        file.write(" ".join(map(str, getattr(sys, "argv", []))))
