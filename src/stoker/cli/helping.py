"""Reflow help texts to the width of the terminal."""

from __future__ import annotations

import inspect
from typing import Any

import typer

HELP_OPTIONS = ["-h", "--help"]


def reflow_help(command: Any) -> None:
    """Reflow the help of a command and its subcommands to the width of the terminal.

    Typer would keep the line breaks of docstrings. It would also show `<bool>` for flags, as if they took a value.
    """
    if command.help:
        command.help = join_lines(command.help)
    context = typer.Context(command, help_option_names=HELP_OPTIONS)
    for parameter in (*command.params, command.get_help_option(context)):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        reflow_help(inner)


def join_lines(text: str) -> str:
    """Join the lines of each paragraph of a text."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))
