"""`stoker pack`: plan packed rows before a run, and report how full they are."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class StrategyName(StrEnum):
    """How documents are packed into rows."""

    best_fit = "best_fit"
    concat = "concat"


class LongName(StrEnum):
    """How to handle documents longer than a row."""

    SPLIT = "split"  # uppercase: str has a method of that name
    TRUNCATE = "truncate"
    ERROR = "error"


def pack(
    path: Annotated[str, typer.Argument(help="A store of tokens, or other tokens that stoker.open reads.")],
    length: Annotated[list[int] | None, typer.Option(min=2, help="Tokens per row; repeat to compare lengths.")] = None,
    strategy: Annotated[
        StrategyName, typer.Option(help="Best-fit packing of whole documents, or concatenate and cut.")
    ] = StrategyName.best_fit,
    long: Annotated[
        LongName, typer.Option(help="How to handle documents longer than a row (best_fit).")
    ] = LongName.SPLIT,
    window: Annotated[int | None, typer.Option(min=1, help="Documents packed together (default: all).")] = None,
    column: Annotated[str, typer.Option(help="The column that holds the tokens.")] = "tokens",
    json: Annotated[bool, typer.Option("--json", help="Print the reports as one JSON list.")] = False,
) -> None:
    """Plan how documents are packed into rows, cache the plan next to the store, and report the fill.

    A run with the same settings, stoker.pack(store, length=...), then uses the cached plan and starts at once.

    Example: [bold cyan]stoker pack data/corpus --length 2048 --length 4096[/]
    """
    from dataclasses import asdict
    from json import dumps

    from rich.console import Console

    import stoker

    source = stoker.open(path)
    reports = []
    for tokens in length or [4096]:
        packed = stoker.pack(source, tokens, strategy=strategy.value, long=long.value, window=window, column=column)
        reports.append(packed.report())
    if json:
        print(dumps([asdict(report) for report in reports], indent=2))
        return
    console = Console(highlight=False)
    for report in reports:
        console.print(str(report))
