"""The program to run, given after `--` on the command line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import typer

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Shell exit codes for a missing program, and for one that is not executable."""


class CommandLine(NamedTuple):
    """What the raw command line shows and Typer drops: the `obj` of a command's context."""

    has_dashes: bool
    """Whether `--` was given: everything after it is a program to run."""


def has_dashes(ctx: Any) -> bool:
    """Return whether `--` was given, according to the context."""
    return isinstance(ctx.obj, CommandLine) and ctx.obj.has_dashes


def check_program(arguments: list[str], *, command: str, has_dashes: bool) -> None:
    """Exit with a message, and a shell's exit code, if the program cannot be run.

    `command` is the command of `stoker` that would run it.
    """
    from stoker.cli.app import print_error
    from stoker.errors import ArgumentError

    name = arguments[0]
    if shutil.which(name) is not None:
        return
    exists, is_path = bool(name) and Path(name).exists(), os.sep in name
    hint = "check the spelling, and that it is installed"
    if not has_dashes:
        hint = f"write the command after two dashes: stoker {command} -- python train.py; record files end in .json"
    elif exists and not is_path:
        hint = f"run a program in this folder as ./{name}, a Python script as python {name}"
    what, code = "does not exist, nor is it on the PATH", NOT_FOUND
    if exists and Path(name).is_dir():
        what, code = "is a folder", NOT_EXECUTABLE
    elif exists:
        what, code = ("is not executable", NOT_EXECUTABLE) if is_path else ("is not on the PATH", NOT_FOUND)
    print_error(ArgumentError(f"cannot run {name!r}: it {what}", hint=hint))
    raise typer.Exit(code)
