"""The command line: `stoker VERB`. One file per verb: parse, call, print."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command line with the arguments of the process."""
    from stoker.cli.app import app
    from stoker.cli.interrupts import steady_interrupts

    # A path may be of bytes that are no text: it is told with escapes, as errors are, and not a reason to fail.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    steady_interrupts()
    app()
