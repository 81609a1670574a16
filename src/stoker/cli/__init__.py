"""The command line: `stoker VERB`. One file per verb: parse, call, print."""

from __future__ import annotations


def main() -> None:
    """Run the command line with the arguments of the process."""
    from stoker.cli.app import app

    app()
