"""The command-line app: all commands, and error handling."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import cleandoc
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from stoker._version import __version__
from stoker.cli.about import about
from stoker.cli.bench import bench_app
from stoker.cli.doctor_command import doctor
from stoker.cli.inspect import inspect
from stoker.cli.lines_command import lines
from stoker.cli.pack import pack
from stoker.cli.plan_command import plan_app
from stoker.cli.prepare import prepare_app
from stoker.cli.program import CommandLine
from stoker.cli.report_command import report
from stoker.cli.terminal import trim_when_piped
from stoker.cli.top import top
from stoker.cli.tune import tune_app
from stoker.cli.verify_command import verify_app
from stoker.cli.view_command import view_app
from stoker.errors import StokerError

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the signal number."""

BROKEN_PIPE = 141
"""Exit code when the reader of the output has closed the pipe, likewise."""

HELP_OPTIONS = ["-h", "--help"]

PANELS = SPEED, DATA, ORDER, HELP = (
    "Find out what is slow",
    "Prepare, inspect and check data",
    "Look up the order",
    "Get help",
)
"""The panels of `stoker --help`, from top to bottom."""


class CommandGroup(TyperGroup):
    """The group of all commands; prints errors meant for users as messages."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        reflow_help(self)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of the commands, panel by panel."""
        commands: Mapping[str, Any] = self.commands
        return sorted(commands, key=lambda name: PANELS.index(commands[name].rich_help_panel))

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run the command line; strip trailing spaces from output that does not go to a terminal."""
        given = options.get("args") or (arguments[0] if arguments else None) or sys.argv[1:]
        options.setdefault("obj", CommandLine(has_dashes="--" in given))
        with trim_when_piped():
            return super().main(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with errors_as_messages(is_debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


@contextmanager
def errors_as_messages(*, is_debug: bool = False) -> Iterator[None]:
    """Exit quietly on Ctrl-C, and with a message instead of a traceback on a Stoker error."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discard what is still to be flushed
        raise typer.Exit(BROKEN_PIPE) from None
    except (StokerError, OSError) as error:
        if is_debug:
            raise
        if isinstance(error, StokerError) or not _print_user_traceback(error):
            print_error(error)
        raise typer.Exit(1) from None
    except Exception as error:
        if is_debug or not _print_user_traceback(error):
            raise
        raise typer.Exit(1) from None


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
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


def _print_user_traceback(error: Exception) -> bool:
    """Print the traceback of an error from the first frame of user code on; return False if there is none."""
    from stoker.engine.processes.failure import WorkerTraceback
    from stoker.lab.watch.hook.probe import is_of_library

    trace = error.__traceback__
    # "<string>" is generated code, such as of a dataclass
    while trace and (is_of_library(file := trace.tb_frame.f_code.co_filename) or file.startswith("<")):
        trace = trace.tb_next
    if trace is None and not isinstance(error.__cause__, WorkerTraceback):  # which has the full traceback
        return False
    traceback.print_exception(type(error), error, trace)
    return True


def print_error(error: StokerError | OSError) -> None:
    """Print the error in red, then its hint and notes."""
    what, *more = _message(error).splitlines()
    text = Text.assemble(("error: ", "bold red"), (what, "red"))
    for line in (*more, *getattr(error, "__notes__", ())):
        is_hint = line.startswith("hint: ")
        text.append("\n")
        text.append("hint: " if is_hint else line, style="bold cyan" if is_hint else "")
        text.append(line.removeprefix("hint: ") if is_hint else "")
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)


def _message(error: StokerError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"stoker {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=CommandGroup,
    name="stoker",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_OPTIONS},
)


@app.callback()
def stoker(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
) -> None:
    """Load training data fast, in a deterministic order that can be resumed exactly.

    Is your training waiting for data? [bold cyan]stoker doctor -- python train.py[/] says why, for torch's loader too.

    For details and examples of a command: [bold cyan]stoker COMMAND --help[/]
    """


app.command(rich_help_panel=SPEED)(doctor)
app.command(rich_help_panel=SPEED)(report)
app.command(rich_help_panel=SPEED)(top)
app.add_typer(tune_app, name="tune", rich_help_panel=SPEED)
app.add_typer(bench_app, name="bench", rich_help_panel=SPEED)
app.add_typer(prepare_app, name="prepare", rich_help_panel=DATA)
app.command(rich_help_panel=DATA)(pack)
app.command(rich_help_panel=DATA)(lines)
app.command(rich_help_panel=DATA)(inspect)
app.add_typer(view_app, name="view", rich_help_panel=DATA)
app.add_typer(verify_app, name="verify", rich_help_panel=DATA)
app.add_typer(plan_app, name="plan", rich_help_panel=ORDER)
app.command(rich_help_panel=HELP)(about)
