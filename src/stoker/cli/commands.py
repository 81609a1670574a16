"""Commands that are run for the user."""

from __future__ import annotations

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
    path = Path(name)
    what = "is a folder" if path.is_dir() else "is no program" if path.exists() else "is not there, nor on the PATH"
    hint = "see how it is written, and what is installed"
    if not has_dashes:
        hint = f"write a command after two dashes: stoker {verb} -- python train.py; names of records end in .json"
    tell(ArgumentError(f"{name!r} cannot be run: it {what}", hint=hint))
    raise typer.Exit(NOT_EXECUTABLE if path.exists() else NOT_FOUND)
