"""The help of all verbs, made fit for terminals of any width."""

from __future__ import annotations

import inspect
from typing import Any

import typer

HELP_OPTIONS = ["-h", "--help"]


def let_flow(command: Any) -> None:
    """Let the paragraphs of a command's help, and of all commands in it, be as wide as the terminal.

    Lines of a docstring end where our source code has no more room, and Typer would keep these ends. It would also say
    of flags that they are `<bool>`, as if one were to be typed.
    """
    if command.help:
        command.help = flowing(command.help)
    context = typer.Context(command, help_option_names=HELP_OPTIONS)
    for parameter in (*command.params, command.get_help_option(context)):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        let_flow(inner)


def flowing(text: str) -> str:
    """Return a text whose paragraphs have no line ends of their own."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))
