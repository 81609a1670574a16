"""Checks of the command given after `--`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import typer

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Shell exit codes for a missing command, and for one that is not executable."""


def check_command(command: list[str], *, verb: str, has_dashes: bool) -> None:
    """Exit with a message, and a shell's exit code, if the command cannot be run."""
    from stoker.cli.app import print_error
    from stoker.errors import ArgumentError

    name = command[0]
    if shutil.which(name) is not None:
        return
    is_there = bool(name) and Path(name).exists()
    hint = "check the spelling, and that it is installed"
    if not has_dashes:
        hint = f"write the command after two dashes: stoker {verb} -- python train.py; record files end in .json"
    elif is_there and os.sep not in name:
        hint = f"run a program in this folder as ./{name}, a Python script as python {name}"
    what = "does not exist, nor is it on the PATH"
    if is_there:
        what = (
            "is a folder"
            if Path(name).is_dir()
            else "is not on the PATH"
            if os.sep not in name
            else "is not executable"
        )
    print_error(ArgumentError(f"cannot run {name!r}: it {what}", hint=hint))
    raise typer.Exit(NOT_FOUND if not is_there or "PATH" in what else NOT_EXECUTABLE)
