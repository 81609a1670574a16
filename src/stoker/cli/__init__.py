"""The command line: `stoker COMMAND`. One file per command: parse, call, print."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command line with the arguments of the process."""
    from stoker.cli.app import app
    from stoker.cli.terminal import steady_interrupts

    # A path may contain bytes that are not valid text: print escapes instead of failing.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    steady_interrupts()
    app()
