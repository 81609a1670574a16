"""Commands that are run for the user."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import typer

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell exits with where there is no such command, and where it is no program."""


def check_command(command: list[str], *, verb: str, has_dashes: bool) -> None:
    """Say that there is no such command, and exit as a shell does."""
    from stoker.cli.app import tell
    from stoker.errors import ArgumentError

    name = command[0]
    if shutil.which(name) is not None:
        return
    is_there = bool(name) and Path(name).exists()
    hint = "see how it is written, and what is installed"
    if not has_dashes:
        hint = f"write a command after two dashes: stoker {verb} -- python train.py; names of records end in .json"
    elif is_there and os.sep not in name:
        hint = f"a program of this folder is written as ./{name}, a script of Python's as python {name}"
    what = "is not there, nor on the PATH"
    if is_there:
        what = "is a folder" if Path(name).is_dir() else "is not on the PATH" if os.sep not in name else "is no program"
    tell(ArgumentError(f"{name!r} cannot be run: it {what}", hint=hint))
    raise typer.Exit(NOT_FOUND if not is_there or "PATH" in what else NOT_EXECUTABLE)
